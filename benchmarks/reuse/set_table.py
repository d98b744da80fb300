"""`python -m benchmarks.reuse sets`: operator sets tuned by every method, their winners timed in turn."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from benchmarks.harness import documents
from benchmarks.harness.text import aligned
from benchmarks.reuse.pairs import Setting
from benchmarks.reuse.set_runs import SEARCH, Run, run
from benchmarks.reuse.sets import SetOperator, operator_set
from cross.loopnest.program import Programs
from cross.schedule.choose import space_of

OUTCOMES: Final = "-outcomes.json"
HEAD: Final = (
    "set", "operators", "method", "trials", "seconds", "of the search", "latency ms", "speed of the search"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """A set tuned by a method: `latency_s` is the sum over operators of count times seconds of the winner,
    timed again in turn with those of the other methods; `seconds` and `trials` are those of the tuning."""

    name: str
    operators: int
    method: str
    trials: int
    seconds: float
    latency_s: float


class Outcomes(msgspec.Struct, frozen=True, kw_only=True):
    """The file of a set: its outcomes, each with its time and speed as parts of those of the search."""

    version: Literal[1] = 1
    trials: int | None = None
    outcomes: list[dict[str, Any]]


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """The file of an operator of a set: what was timed in turn, and the seconds of each."""

    version: Literal[1] = 1
    winners: list[Any]
    seconds: list[float]


def measure_set(setting: Setting, name: str, methods: Sequence[str], limit: int | None) -> list[Outcome]:
    """Tune a set by each method, the search first, and time the winners. With `limit` only the operators
    with the most work."""
    operators = operator_set(name)
    if limit is not None:
        operators = tuple(sorted(operators, key=lambda item: -item.count * item.operator.flops)[:limit])
        name = f"{name}-{limit}"
    runs: dict[str, Run] = {}
    for method in dict.fromkeys((SEARCH, *methods)):
        started_s = time.monotonic()
        runs[method] = run(setting, name, operators, method)
        _say(f"{name}: {method}, {runs[method].trials} trials in {runs[method].seconds:.0f} s "
             f"({time.monotonic() - started_s:.0f} s now)")  # fmt: skip
    started_s = time.monotonic()
    latencies_s = _latencies_s(setting, name, operators, runs)
    _say(f"{name}: winners timed again in {time.monotonic() - started_s:.0f} s")
    return [
        Outcome(name, len(operators), method, found.trials, found.seconds, latencies_s[method])
        for method, found in runs.items()
    ]


def keep_outcomes(folder: Path, trials: int, outcomes: Sequence[Outcome]) -> None:
    """Write a set's outcomes, searches with so many trials, where `set_outcomes` finds them."""
    path = folder / f"{outcomes[0].name}-{trials}{OUTCOMES}"
    documents.write(Outcomes(trials=trials, outcomes=_relative(outcomes)), path)


def set_outcomes(folder: Path, trials: int) -> list[dict[str, Any]]:
    """The outcomes of every set that is kept in a folder, as plain data, in order of names."""
    found = [documents.kept(path, Outcomes) for path in sorted(folder.glob(f"*-{trials}{OUTCOMES}"))]
    return [item for file in found if file is not None and file.trials == trials for item in file.outcomes]


def print_outcomes(outcomes: Sequence[Outcome], *, as_json: bool) -> None:
    """The table, relative to the search of each set."""
    lines = _relative(outcomes)
    if as_json:
        print(json.dumps({"version": 1, "outcomes": lines}, indent=1))
        return
    rows = [
        [
            item["name"], str(item["operators"]), item["method"], str(item["trials"]),
            f"{item['seconds']:.0f}", f"{item['time']:.3f}", f"{1e3 * item['latency_s']:.3f}",
            f"{item['speed']:.3f}",
        ]
        for item in lines
    ]  # fmt: skip
    print("\n".join(aligned([HEAD, *rows])))


def _relative(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """With tuning time and speed of the winners as parts of those of the search of the same set."""
    searches = {item.name: item for item in outcomes if item.method == SEARCH}
    return [
        {
            **asdict(item),
            "time": item.seconds / searches[item.name].seconds,
            "speed": searches[item.name].latency_s / item.latency_s,
        }
        for item in outcomes
    ]


def _latencies_s(
    setting: Setting, name: str, operators: Sequence[SetOperator], runs: Mapping[str, Run]
) -> dict[str, float]:
    """Seconds of one run of the set by each method's winners; what is timed is kept."""
    total = dict.fromkeys(runs, 0.0)
    for position, item in enumerate(operators):
        programs = Programs(space_of(item.operator, setting.place.target))
        winners = [found.winners[position] for found in runs.values()]
        described = json.loads(json.dumps([programs.space.describe(winner) for winner in winners]))
        path = setting.work / f"{name}-{item.operator.key}-timed.json"
        timed = documents.kept(path, Timed)
        if timed is None or timed.winners != described:
            timed = Timed(winners=described, seconds=setting.place.in_turn(programs, winners))
            documents.write(timed, path)
        for method, spent_s in zip(runs, timed.seconds, strict=True):
            total[method] += item.count * spent_s
    return total


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
