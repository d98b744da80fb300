"""A whole measurement: everything asked for on each number of threads, in a file after every operator.

A measurement that was interrupted goes on: what its file holds is kept as long as nothing has changed that
the figures depend on: the machine, the plan, the libraries' versions, our code, and what our records hold.
"""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.harness.documents import NoDocument, write
from benchmarks.harness.place import HOST
from benchmarks.harness.text import thread_count
from benchmarks.kernels.goals import findings
from benchmarks.kernels.processes import Contender, LibraryProcess
from benchmarks.kernels.results import Case, Report, read
from benchmarks.kernels.rounds import Measured, Plan, facts, measure
from benchmarks.kernels.tables import headline
from boards.probe import read_host_facts

Say = Callable[[str], None]
BOARD, LOAD, TARGET = (
    "board",
    "load",
    "target",
)  # the latter two: facts that change by themselves, or with the number of threads


@dataclass(frozen=True, slots=True)
class Turnout:
    """Who is measured, how, as which machine, and where the report goes; None: nowhere."""

    contenders: Sequence[Contender]
    plan: Plan
    file: Path | None
    say: Say
    board: str = HOST


def measure_all(
    workloads: Callable[[int], Iterable[Measured]], threads: Sequence[int], by: Turnout
) -> Report:
    """Measure `workloads(threads)` for each number of threads."""
    report = None
    for count in threads:
        with _running(by.contenders, count) as processes:
            known = facts(processes, by.say)
            report = _begun(by, known) if report is None else report
            report = msgspec.structs.replace(report, libraries=report.libraries | known)
            for workload in workloads(count):
                if any((item.workload, item.threads) == (workload.name, count) for item in report.cases):
                    by.say(f"{count} threads, {workload.name}: measured already")
                    continue
                report = _with(report, measure(workload, count, processes, by.plan), by)
    assert report is not None, "no number of threads"
    report = msgspec.structs.replace(report, complete=True, goals=tuple(findings(report.cases)))
    if by.file:
        write(report, by.file)
    return report


def resumable(earlier: Report, now: Report) -> bool:
    """Whether an interrupted report's cases may stand beside those that `now` will get."""
    return not earlier.complete and _conditions(earlier) == _conditions(now)


def _conditions(report: Report) -> tuple[object, ...]:
    machine = {name: value for name, value in report.machine.items() if name != LOAD}
    libraries = {
        library: {name: value for name, value in known.items() if name != TARGET}
        for library, known in report.libraries.items()
    }
    return machine, report.plan, libraries


def _begun(by: Turnout, known: dict[str, dict[str, str]]) -> Report:
    """A new report, or the interrupted one in the file."""
    report = Report(
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        machine=_machine() | {BOARD: by.board},
        plan={"rounds": by.plan.rounds, "batches": by.plan.batches, "batch_s": by.plan.batch_s},
        libraries=known,
        cases=(),
    )
    if by.file is None or not by.file.exists():
        return report
    try:
        earlier = read(by.file)
    except NoDocument as error:
        by.say(f"{error}: measuring anew")
        return report
    if not resumable(earlier, report):
        return report
    by.say(f"going on with {by.file}, which holds {len(earlier.cases)} measurements")
    return earlier


def _with(report: Report, case: Case, by: Turnout) -> Report:
    """The report with one more case, in the file too."""
    by.say(f"{thread_count(case.threads)}, {headline(case)}")
    cases = (*report.cases, case)
    report = msgspec.structs.replace(report, cases=cases, goals=tuple(findings(cases)))
    if by.file:
        write(report, by.file)
    return report


@contextmanager
def _running(contenders: Sequence[Contender], threads: int) -> Iterator[list[LibraryProcess]]:
    processes = [LibraryProcess(contender, threads) for contender in contenders]
    try:
        yield processes
    finally:
        for process in processes:
            process.close()


def _machine() -> dict[str, str]:
    host = read_host_facts()
    return {
        "model": host.model,
        "machine": host.machine,
        "cores": str(len(host.cores)),
        "system": platform.platform(),
        LOAD: f"{os.getloadavg()[0]:.1f}",
    }
