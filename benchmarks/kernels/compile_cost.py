"""What it costs to make a candidate: from a configuration to linked machine code, on one core.

Configurations are drawn from an operator's schedule space. Each is bound, written as LLVM IR and compiled by
itself, which is measured in processor time; a batch is linked with one call of another program, measured by
the clock, whose cost its kernels share.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.harness.place import board_with
from benchmarks.harness.text import spread
from benchmarks.kernels.expressions import operator
from benchmarks.kernels.goals import COMPILE_GOAL_MS, finding
from benchmarks.kernels.results import Finding
from benchmarks.kernels.workloads import Workload
from cross.compile import compile_object, kernel_of, link
from cross.loopnest.program import Programs
from cross.schedule.cpu_sketch import cpu_space


@dataclass(frozen=True, slots=True)
class CompileCost:
    """Milliseconds of each kernel: its program, its object, and its share of the link."""

    program_ms: tuple[float, ...]
    object_ms: tuple[float, ...]
    link_ms: float

    @property
    def total_ms(self) -> list[float]:
        """All three, a figure a kernel."""
        parts = zip(self.program_ms, self.object_ms, strict=True)
        return [program + compiled + self.link_ms for program, compiled in parts]


def compile_cost(workload: Workload, count: int, seed: int) -> CompileCost:
    """Compile so many random configurations for one core of this machine, and link them together."""
    _, target = board_with(1)
    space = cpu_space(operator(workload), target)
    programs = Programs(space)
    batch = space.sample(np.random.default_rng(seed), count)
    program_ms, object_ms, objects, kernels = [], [], [], []
    for number, row in enumerate(batch):
        start = time.process_time()
        nest = programs.nest(space.configuration(row))
        bound = time.process_time()
        objects.append(compile_object(f"k{number}", nest, target))
        program_ms.append(1e3 * (bound - start))
        object_ms.append(1e3 * (time.process_time() - bound))
        kernels.append(kernel_of(f"k{number}", nest))
    start = time.perf_counter()
    link(objects, kernels, target)
    return CompileCost(tuple(program_ms), tuple(object_ms), 1e3 * (time.perf_counter() - start) / len(batch))


def lines(workload: Workload, cost: CompileCost) -> Iterator[str]:
    """The figures as text."""
    yield f"{workload.name}, {len(cost.program_ms)} random configurations"
    yield spread("from configuration to program", cost.program_ms, "ms a kernel")
    yield spread("from program to object file", cost.object_ms, "ms a kernel")
    yield spread("share of linking", [cost.link_ms], "ms a kernel")
    yield spread("all together", cost.total_ms, "ms a kernel")


def compile_findings(workload: Workload, cost: CompileCost) -> Iterator[Finding]:
    """The goal for a kernel in the middle."""
    middle_ms = statistics.median(cost.total_ms)
    yield finding(
        f"{workload.name}: median time to compile a kernel, ms", COMPILE_GOAL_MS, middle_ms, at_most=True
    )
