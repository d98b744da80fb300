"""What a torture test is: an attack that is carried out for real, case by case, and counted.

A file `attack_*.py` of this folder has a tuple ATTACKS. `python -m tests.torture` carries all of them out in
full (`make torture`); test_samples.py carries out a sample of each with the other tests.
"""

from __future__ import annotations

import importlib
import random
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

MOST_TEXTS = 20  # of the failures of one attack are kept; all are counted


@dataclass
class Run:
    """One carrying-out of an attack: how many cases it has to try, and what came of those that it tried.

    `rng` is the only source of chance, `folder` an empty folder of its own, `listener` hears of every case.
    """

    cases: int
    rng: random.Random
    folder: Path
    listener: Callable[[Run], None] = lambda run: None
    count: int = 0
    failed: int = 0
    texts: list[str] = field(default_factory=list)

    def passed(self, cases: int = 1) -> None:
        """The attack was withstood in so many more cases."""
        self.count += cases
        self.listener(self)

    def fails(self, text: str) -> None:
        """The attack succeeded in one more case; `text` says how to repeat it and what happened."""
        self.count += 1
        self.failed += 1
        if len(self.texts) < MOST_TEXTS:
            self.texts.append(text)
        self.listener(self)

    def check(self, withstood: bool, text: str) -> None:
        """One more case, which `text` describes if the attack succeeded."""
        if withstood:
            self.passed()
        else:
            self.fails(text)

    def __iter__(self) -> Iterator[int]:
        """Numbers of cases, until as many were counted as there have to be."""
        number = 0
        while self.count < self.cases:
            yield number
            number += 1


@dataclass(frozen=True, slots=True)
class Attack:
    """`run` tries at least `Run.cases` cases: `cases` in full, `sample` among the other tests.

    `what` completes the sentence "N times ..." in a few words. `needs` names what must be there for it
    ("emulation", "pocl", "mount": the right to; "": nothing): without it a full run fails, a sample skips.
    """

    name: str
    what: str
    cases: int
    sample: int
    run: Callable[[Run], None]
    needs: str = ""


def attacks() -> dict[str, Attack]:
    """All attacks by name, in the order of their files."""
    folder = Path(__file__).parent
    modules = [
        importlib.import_module(f"tests.torture.{path.stem}") for path in sorted(folder.glob("attack_*.py"))
    ]
    found = [attack for module in modules for attack in module.ATTACKS]
    assert len({attack.name for attack in found}) == len(found), "two attacks have the same name"
    return {attack.name: attack for attack in found}


def carry_out(attack: Attack, cases: int, seed: int, folder: Path, listener: Callable[[Run], None]) -> Run:
    """Carry an attack out. An exception of the attack itself is a failure, too."""
    run = Run(cases, random.Random(f"{attack.name} {seed}"), folder, listener)
    try:
        attack.run(run)
    except Exception:  # noqa: BLE001 - whatever an attack raises is a failure of its
        run.fails(f"the attack itself failed: {traceback.format_exc()}")
    return run
