"""The measurement itself: rounds in which every library has its turn on the same operator.

A shared machine changes its speed for seconds at a time. So speeds are compared within a round only, and the
order of turns moves on by one from round to round. Its cores have speeds of their own as well, as others use
the same ones, and a process stays on its core for minutes: on one thread all turns of a round are on one
core, and the next round is on the next one.
"""

from __future__ import annotations

import os
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


def measure(workload: Measured, threads: int, processes: Sequence[LibraryProcess], plan: Plan) -> Case:
    """Measure a workload in every process, in turn. A library that fails is named in `not_measured`."""
    failed: dict[str, str] = {}
    entries: list[tuple[LibraryProcess, dict[str, Any], list[Sample | None]]] = []
    for process in processes:
        answer = _asked(process, {"do": "open", "workload": workload.described()}, OPEN_S, failed)
        entries += [(process, variant, []) for variant in (answer["variants"] if answer else [])]
        process.wait_until_quiet()
    cores = sorted(os.sched_getaffinity(0))
    for number in range(plan.rounds):
        for process in processes if threads == 1 else ():
            process.run_on(cores[number % len(cores)])
        start = number % max(1, len(entries))
        for process, variant, turns in [*entries[start:], *entries[:start]]:
            turns.append(_turn(process, variant["name"], plan, failed))
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
        series=tuple(
            Series(
                library=process.contender.name,
                variant=variant["name"],
                error=variant["error"],
                work=variant["work"] or float(workload.flops),
                facts=variant["facts"],
                rounds=tuple(turns),
            )
            for process, variant, turns in entries
            if any(turns)
        ),
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


def _turn(process: LibraryProcess, variant: str, plan: Plan, failed: dict[str, str]) -> Sample | None:
    if process.contender.name in failed:
        return None
    request = {"do": "time", "variant": variant, "batches": plan.batches, "batch_s": plan.batch_s}
    answer = _asked(process, request, TURN_S, failed)
    process.wait_until_quiet()
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
