"""The measurement itself: rounds in which every library has its turn on the same operator.

A shared machine changes its speed for seconds at a time. So speeds are compared within a round only, and the
order of turns moves on by one from round to round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.kernels.processes import LibraryFailed, LibraryProcess
from benchmarks.kernels.results import Case, Sample, Series, sample

OPEN_S = 300.0
TURN_S = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """So many rounds; in a turn so many undisturbed batches of about `batch_s` seconds."""

    rounds: int = 10
    batches: int = 7
    batch_s: float = 0.005  # about what the scheduler leaves somebody alone for


class Measured(Protocol):
    """What is measured: a workload or a network."""

    @property
    def name(self) -> str: ...

    @property
    def suite(self) -> str: ...

    @property
    def text(self) -> str: ...

    @property
    def flops(self) -> int: ...

    @property
    def bytes_once(self) -> int: ...

    def described(self) -> dict[str, Any]:
        """The request's part that says what it is."""
        ...


@dataclass(slots=True)
class _Entry:
    """One variant of one process, and its turns so far."""

    process: LibraryProcess
    variant: str
    error: float | None
    work: float
    facts: dict[str, str | float]
    turns: list[Sample | None]


def measure(workload: Measured, threads: int, processes: Sequence[LibraryProcess], plan: Plan) -> Case:
    """Measure a workload in every process, in turn. A library that fails is named in `not_measured`."""
    failed: dict[str, str] = {}
    entries: list[_Entry] = []
    for process in processes:
        request = {"do": "open", "workload": workload.described()}
        answer = _asked(process, request, OPEN_S, failed)
        entries += _entries(process, workload, answer["variants"] if answer else [])
        process.wait_until_quiet()
    for number in range(plan.rounds):
        start = number % max(1, len(entries))
        for entry in [*entries[start:], *entries[:start]]:
            entry.turns.append(_turn(entry, plan, failed))
    for process in processes:
        if process.contender.name not in failed:
            _asked(process, {"do": "close"}, TURN_S, failed)
    return Case(
        workload=workload.name,
        suite=workload.suite,
        shape=workload.text,
        threads=threads,
        flops=workload.flops,
        bytes_once=workload.bytes_once,
        series=tuple(_series(entry) for entry in entries if any(entry.turns)),
        not_measured=failed,
    )


def facts(processes: Sequence[LibraryProcess], say: Callable[[str], None]) -> dict[str, dict[str, str]]:
    """Versions and settings of the libraries that answer; who does not is named through `say`."""
    found: dict[str, dict[str, str]] = {}
    failed: dict[str, str] = {}
    for process in processes:
        answer = _asked(process, {"do": "hello"}, TURN_S, failed)
        if answer:
            found[process.contender.name] = answer["facts"]
    for name, why in failed.items():
        say(f"{name} is not measured: {why}")
    return found


def _entries(process: LibraryProcess, workload: Measured, variants: Sequence[dict[str, Any]]) -> list[_Entry]:
    return [
        _Entry(process, item["name"], item["error"], item["work"] or float(workload.flops), item["facts"], [])
        for item in variants
    ]


def _series(entry: _Entry) -> Series:
    return Series(
        library=entry.process.contender.name,
        variant=entry.variant,
        error=entry.error,
        work=entry.work,
        facts=entry.facts,
        rounds=tuple(entry.turns),
    )


def _turn(entry: _Entry, plan: Plan, failed: dict[str, str]) -> Sample | None:
    if entry.process.contender.name in failed:
        return None
    request = {
        "do": "time", "variant": entry.variant, "batches": plan.batches, "batch_s": plan.batch_s
    }  # fmt: skip
    answer = _asked(entry.process, request, TURN_S, failed)
    entry.process.wait_until_quiet()
    return sample(answer["kept"], answer["disturbed"]) if answer else None


def _asked(
    process: LibraryProcess, request: dict[str, Any], timeout_s: float, failed: dict[str, str]
) -> dict[str, Any] | None:
    """The answer, or None with the reason in `failed`."""
    try:
        return process.ask(request, timeout_s=timeout_s)
    except LibraryFailed as error:
        failed[process.contender.name] = str(error)
        return None
