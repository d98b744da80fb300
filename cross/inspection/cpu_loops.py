"""What the machine code of a kernel looks like: its inner loops, spills and predicted cycles.

    report = inspect("conv_0", nest, target)
    report.hot.fma_share, report.hot.spills, report.hot.predictions

The text that is read is LLVM's print of the instructions that compile.py puts into the artifact: the same
IR, the same target machine. Cycles are predictions of models: they know no caches.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from boards.target import Target
from cross.codegen.llvm.module import llvm_module
from cross.codegen.llvm.objects import assemble, assembly, cpu_and_features
from cross.inspection import cortex_a53, mca
from cross.inspection.instructions import Instruction, Kind, classify
from cross.inspection.listing import Architecture, Function, architecture_of, functions
from cross.inspection.loops import Loop, loops
from cross.inspection.sizes import block_sizes
from cross.loopnest.nodes import LoopNest

BORDER = re.compile(r"\.border\d+$")  # the functions of tiles at the border of an image, see llvm/region.py
ASSUMED_TRIPS = (
    8  # of a loop whose count the code does not say: makes an inner loop hotter than what is around it
)


class Prediction(msgspec.Struct, frozen=True):
    """Cycles of one iteration by a model; `peak_share` of the target's flops per cycle."""

    model: str
    cycles: float
    peak_share: float


class LoopReport(msgspec.Struct, frozen=True):
    """One loop, without the loops inside it. Counts, bytes and flops are of one iteration."""

    function: str
    label: str
    depth: int
    innermost: bool
    counts: dict[Kind, int]
    flops: int
    load_bytes: int
    store_bytes: int
    element_loads: int  # one element for all lanes, on its own or folded into arithmetic
    vector_spills: int  # stores of vector registers that did not fit, and reloads of them
    scalar_spills: int
    code_bytes: int | None
    predictions: tuple[Prediction, ...] = ()
    lines: tuple[str, ...] = ()  # of assembly
    line_cycles: tuple[float, ...] = ()  # by the first model that tells them

    @property
    def instructions(self) -> int:
        return sum(self.counts.values())

    @property
    def fma(self) -> int:
        return self.counts.get(Kind.FMA, 0)

    @property
    def fma_share(self) -> float:
        return self.fma / self.instructions

    @property
    def moves(self) -> int:
        """Copies and shuffles of vector registers: what a tile one register too large costs first."""
        return self.counts.get(Kind.MOVE, 0)

    @property
    def spills(self) -> int:
        return self.vector_spills + self.scalar_spills


class CodeReport(msgspec.Struct, frozen=True):
    """All loops of a kernel, the hottest first."""

    target: Target
    loops: tuple[LoopReport, ...]

    @property
    def hot(self) -> LoopReport | None:
        """Where the kernel spends its time: the loop with the most multiply-adds, weighted by its depth."""
        return self.loops[0] if self.loops else None


def inspect(symbol: str, nest: LoopNest, target: Target, *, predict: bool = True) -> CodeReport:
    """The loops of a kernel's machine code.

    Args:
        symbol: the exported C symbol.
        nest: a bound loop nest.
        target: a CPU target.
        predict: whether to run the models on the hottest loop.

    Raises:
        CompileError: the nest is not bound, or LLVM refuses its code.
        ValueError: the target is neither x86-64 nor aarch64.
    """
    text = llvm_module(symbol, nest, target)
    return inspect_listing(assembly(text, target, comments=True), target, predict=predict)


def inspect_listing(listing: str, target: Target, *, predict: bool = True) -> CodeReport:
    """What LLVM's assembly text, with its comments on loops and spills, says of its kernels."""
    architecture = architecture_of(target.triple)
    found = functions(listing, architecture)
    sizes = block_sizes(found, architecture, functools.partial(assemble, target=target))
    reports = []
    for function in found:
        for loop in loops(function):
            instructions = loop_instructions(function, loop, architecture)
            code_bytes = None if sizes is None else sum(sizes[function.name, block] for block in loop.own)
            reports.append((_report(function, loop, instructions, code_bytes), instructions))
    reports.sort(key=lambda pair: _heat(pair[0]), reverse=True)
    if predict and reports:
        reports[0] = (_predicted(*reports[0], target), reports[0][1])
    return CodeReport(target, tuple(report for report, _ in reports))


def loop_instructions(function: Function, loop: Loop, architecture: Architecture) -> list[Instruction]:
    """What one iteration runs outside of inner loops, both sides of every branch."""
    return [
        classify(line, architecture)
        for position in sorted(loop.own)
        for line in function.blocks[position].lines
    ]


def _report(
    function: Function, loop: Loop, instructions: Sequence[Instruction], code_bytes: int | None
) -> LoopReport:
    labels = function.blocks[loop.header].labels
    return LoopReport(
        function=function.name,
        label=labels[0] if labels else "",
        depth=loop.depth,
        innermost=loop.own == loop.blocks,
        counts=dict(Counter(item.kind for item in instructions)),
        flops=sum(item.flops for item in instructions),
        load_bytes=sum(item.load_bytes for item in instructions),
        store_bytes=sum(item.store_bytes for item in instructions),
        element_loads=sum(item.element for item in instructions),
        vector_spills=sum(item.stack != "" and item.vector for item in instructions),
        scalar_spills=sum(item.stack != "" and not item.vector for item in instructions),
        code_bytes=code_bytes,
        lines=tuple(item.line.text for item in instructions),
    )


def _heat(report: LoopReport) -> tuple[int, int, int]:
    if BORDER.search(report.function):
        return (0, 0, 0)  # few tiles are at the border of an image
    weight = int(ASSUMED_TRIPS**report.depth)
    return (report.fma * weight, report.flops * weight, report.load_bytes * weight)


def _predicted(report: LoopReport, instructions: Sequence[Instruction], target: Target) -> LoopReport:
    cpu = cpu_and_features(target)[0]
    predictions, line_cycles = [], tuple[float, ...]()

    def add(model: str, cycles: float) -> None:
        predictions.append(Prediction(model, cycles, report.flops / (cycles * target.flops_per_cycle)))

    if cpu in cortex_a53.CPU_NAMES:
        line_cycles = cortex_a53.line_cycles(instructions)
        add(cortex_a53.NAME, sum(line_cycles))
        add(f"{cortex_a53.NAME}, no adder hazard", cortex_a53.loop_cycles(instructions, hazard=False))
    wide = target.vector_bytes > 32
    stand_ins = mca.STAND_INS[wide] if architecture_of(target.triple) == "x86_64" else ()
    simulation = mca.simulate([item.line for item in instructions], target.triple, (cpu, *stand_ins))
    if simulation is not None:
        add(f"llvm-mca {simulation.cpu}", simulation.cycles)
        add(f"llvm-mca {simulation.cpu}, busiest resource", simulation.resource_cycles)
        line_cycles = line_cycles or simulation.line_cycles
    return replace(report, predictions=tuple(predictions), line_cycles=line_cycles)
