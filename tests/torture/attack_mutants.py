"""Wrong kernels: mutants of the text of real ones, measured by a real runtime, judged by an oracle.

A mutant that the runtime times is "stored as right"; when the oracle says that it is wrong, the attack has
succeeded. Every kernel is also measured as it is: a refusal of it is a false alarm, and fails, too.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

import numpy as np
from msgspec.structs import replace

from boards.board import load
from boards.target import Target
from cross.codegen.llvm.module import llvm_module
from cross.codegen.llvm.objects import compile_ir
from cross.compile import Kernel, kernel_of, link
from cross.errors import CompileError, CrossError
from cross.expression.language.operator import Operator
from cross.inspection.fingerprint import code_hash
from cross.loopnest.program import Programs
from cross.schedule.choose import space_of
from device_runtime.protocol import Timing
from tests.fuzz.operators import FAMILIES, random_operator
from tests.torture.attack import Attack, Run
from tests.torture.mutation import Mutant, computes_so_often, mutant
from tests.torture.oracle import Trial, trials, verdict
from toolkit.measure.builder import Builder, BuiltKernel
from toolkit.measure.live import LiveRunner, RunnerOptions
from toolkit.measure.session import open_session

SYMBOL: Final = "tfb_mutated"
OF_A_KERNEL: Final = 12  # mutants; they are linked together
TRIES: Final = 40  # for so many
LONGEST_TEXT: Final = 60_000  # characters: what takes LLVM longer is left out
PATIENCE_S: Final = 60.0  # with a kernel as it is, which what else runs on this machine may keep waiting
OPTIONS: Final = RunnerOptions(
    Timing(number=2, max_number=4, repeat=2, min_repeat_ms=0.01, warmup=0), timeout_s=2.0, beaten=0.0
)


def mutants(run: Run) -> None:
    """Kernels of every family in turn, as many as it takes."""
    board = load("host")
    link_to = replace(board.link, device_dir=str(run.folder / "device"))
    board = replace(board, link=link_to)
    target = board.target()
    families = sorted(FAMILIES)
    run.rng.shuffle(families)
    with (
        open_session(board, cache_dir=run.folder / "cache") as session,
        Builder(target, workers=0) as builder,
    ):
        for number in run:
            subject = _subject(families[number % len(families)], target, run.rng)
            if subject is None:
                continue
            runner = LiveRunner(subject.programs, builder, session, OPTIONS, seed=run.rng.getrandbits(16))
            _attacked(run, subject, runner, target)


@dataclass(frozen=True, slots=True)
class _Subject:
    """A program of an operator that is mutated: its text, how it is called, and what it must compute."""

    operator: Operator
    programs: Programs
    text: str
    kernel: Kernel
    data: list[Trial]


def _subject(family: str, target: Target, rng: random.Random) -> _Subject | None:
    """A random program of a random operator; None for one that cannot be lowered or takes long to compile."""
    chance = np.random.default_rng(rng.getrandbits(32))
    operator = random_operator(chance, family)
    programs = Programs(space_of(operator, target))
    (row,) = programs.space.sample(chance, 1)
    try:
        nest = programs.nest(programs.space.configuration(row))
        text = llvm_module(SYMBOL, nest, target)
    except CrossError:
        return None
    if len(text) > LONGEST_TEXT:
        return None
    return _Subject(operator, programs, text, kernel_of(SYMBOL, nest), trials(operator, chance))


def _attacked(run: Run, subject: _Subject, runner: LiveRunner, target: Target) -> None:
    patient = runner.afresh(replace(OPTIONS, timeout_s=PATIENCE_S))
    made = _mutants(subject.text, target, run.rng, min(OF_A_KERNEL, run.cases - run.count))
    kernels = [replace(subject.kernel, symbol=f"{SYMBOL}{number}") for number in range(len(made))]
    artifact = link([code for _, code in made], kernels, target)
    library = run.folder / f"{artifact.sha256[:16]}.so"
    library.write_bytes(artifact.code)
    for kernel, (change, _) in zip(kernels, made, strict=True):
        built = BuiltKernel(artifact, kernel, kernel.symbol)
        error = runner._timed(built).error
        if not change:
            if error is not None and error.kind == "timeout":
                error = patient._timed(built).error
            wrong = verdict(library, kernel, subject.data)
            if error is not None or wrong:
                run.fails(f"{subject.operator.name} as it is: {error}; the oracle: {wrong or 'right'}")
                break
            continue
        wrong = verdict(library, kernel, subject.data) if error is None else ""
        run.check(not wrong, f"{subject.operator.name}, timed, but {wrong}: {change}")
    library.unlink()


def _mutants(text: str, target: Target, rng: random.Random, count: int) -> list[tuple[str, bytes]]:
    """What was changed (the first: nothing, "") and the object of each kernel SYMBOL0, SYMBOL1, ..."""
    made: list[tuple[str, bytes]] = []
    codes: set[str] = set()
    drawn = [Mutant(text, ""), computes_so_often(text, SYMBOL, rng.choice((1, 1, 2, 3, 5)))]
    for attempt in range(count + TRIES):
        changed = drawn[attempt] if attempt < len(drawn) else mutant(text, rng)
        symbol = f"{SYMBOL}{len(made)}"
        try:
            code = compile_ir(changed.text.replace(SYMBOL, symbol), target)
        except CompileError:
            continue
        hashed = code_hash(code, symbol)
        if hashed not in codes:
            codes.add(hashed)
            made.append((changed.change, code))
        if len(made) > count:
            break
    return made


ATTACKS = (
    Attack(
        "mutants",
        "a mutant of a real kernel was measured, and refused unless an oracle finds it right",
        cases=2000,
        sample=24,
        run=mutants,
    ),
)
