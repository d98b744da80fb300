"""The machine code of our winning kernels, for this machine or for any board: a row an operator.

The winner is the fastest record of an operator on a board, otherwise the schedule that needs no measurement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.kernels.expressions import operator
from benchmarks.kernels.machine_loops import Loop, multiplying_loops
from benchmarks.kernels.workloads import Workload
from boards.description import Board
from boards.target import Target
from cross.codegen.llvm_ir import llvm_module
from cross.codegen.objects import assembly
from toolkit.jobs import open_job
from toolkit.records import Records


def winning_loops(workload: Workload, board: Board, target: Target, records: Path) -> tuple[bool, list[Loop]]:
    """Whether the kernel is tuned, and its innermost loops that multiply and add."""
    job, programs = open_job(workload.name, operator(workload), board, target)
    best = None
    if records.exists():
        with Records(records, read_only=True) as store:
            best = store.best(job.key)
    space = programs.space
    configuration = space.default() if best is None else space.parse(best.configuration)
    listing = assembly(
        llvm_module("kernel", programs.nest(configuration), target), target, passes="none"
    )  # as compile_object does
    return best is not None, multiplying_loops(listing)


def table(workloads: Sequence[Workload], board: Board, target: Target, records: Path) -> Iterator[str]:
    """Lines of text: the loop with the most multiply-adds, and the stack accesses in all such loops."""
    yield f"{board.name} ({target.name}), loops with multiply-adds:"
    yield f"  {'':10s}{'loops':>6s}{'multiply-adds':>15s}{'instructions':>14s}{'share':>7s}{'spills':>8s}"
    spilling = []
    for workload in workloads:
        tuned, loops = winning_loops(workload, board, target, records)
        name = workload.name + "*" * (not tuned)
        if not loops:
            yield f"  {name:10s}{0:6d}"
            continue
        spills = sum(loop.stack for loop in loops)
        spilling += [workload.name] * (spills > 0)
        most = loops[0]
        counts = f"{most.multiply_adds:15d}{most.instructions:14d}{most.share:7.2f}{spills:8d}"
        yield f"  {name:10s}{len(loops):6d}{counts}"
    yield f"  with spills: {', '.join(spilling) or 'none'}.  *: not tuned, the default schedule"
