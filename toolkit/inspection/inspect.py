"""One kernel from its schedule to its machine code, and how near it comes to what the board can do.

inspection = inspected(kernel); print(inspection_text(inspection, ("schedule", "code")))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from boards.target import Target
from cross.codegen.c.gpu_code import gpu_program
from cross.codegen.llvm.module import llvm_module
from cross.expression import Operator
from cross.inspection.cpu_loops import CodeReport
from cross.inspection.cpu_loops import inspect as inspect_cpu
from cross.inspection.gpu_launches import LaunchReport, inspect_gpu
from cross.loopnest.printer import to_text
from toolkit.inspection.alternatives import Alternative, alternatives_text, nearest
from toolkit.inspection.cpu_report import static_content, static_text
from toolkit.inspection.gpu_report import static_gpu_content, static_gpu_table
from toolkit.inspection.kernels import FoundKernel
from toolkit.inspection.names import SECTIONS
from toolkit.inspection.words import schedule_words
from toolkit.report.columns import fold, named, table
from toolkit.report.tables import time_text

SYMBOL: Final = "kernel"


class Roof(msgspec.Struct, frozen=True):
    """Part of what the board allows at most that a measured call reaches; `bound` says what allows it.

    The lower of two roofs holds: the float32 peak, and main memory moving each operand once, where that
    was measured or the board's file says how fast it is. `measured`: the peak was, by `toolkit boards probe`.
    """

    share: float
    bound: str
    gflops: float
    peak_gflops: float
    measured: bool


class Inspection(msgspec.Struct, frozen=True):
    """A kernel with its nest and its generated text, and what is read off its code: of a CPU or of a GPU."""

    kernel: FoundKernel
    schedule: tuple[str, ...]
    nest: str
    source: str
    language: str
    roof: Roof | None
    code: CodeReport | None
    launches: tuple[LaunchReport, ...]
    alternatives: tuple[Alternative, ...]


def inspected(kernel: FoundKernel) -> Inspection:
    """Everything that can be said of a kernel without running it, beside its recorded time.

    Raises InputError where its configuration is of another version; CompileError, NvrtcMissing.
    """
    programs, configuration = kernel.programs()
    nest, target = programs.nest(configuration), kernel.target
    on_cpu = target.kind == "cpu"
    source = llvm_module(SYMBOL, nest, target) if on_cpu else gpu_program(SYMBOL, nest, target).source
    return Inspection(
        kernel=kernel,
        schedule=tuple(schedule_words(nest)),
        nest=to_text(nest),
        source=source,
        language="llvm" if on_cpu else target.kind,
        roof=roof_of(kernel.operator, target, kernel.seconds) if kernel.seconds else None,
        code=inspect_cpu(SYMBOL, nest, target) if on_cpu else None,
        launches=() if on_cpu else inspect_gpu(SYMBOL, nest, target),
        alternatives=nearest(kernel.configuration, kernel.trials()),
    )


def roof_of(operator: Operator, target: Target, seconds: float) -> Roof:
    """How near a call of so many seconds comes to the target's roof."""
    peak = target.estimated_peak_gflops
    tensors = (*operator.inputs, operator.output)
    moved = sum(math.prod(item.shape) * np.dtype(item.dtype).itemsize for item in tensors)
    least_s = {"the arithmetic": operator.flops / (1e9 * peak)}
    if target.memory_gbs:
        least_s["main memory"] = moved / (1e9 * target.memory_gbs)
    bound = max(least_s, key=lambda name: least_s[name])
    gflops = operator.flops / seconds / 1e9
    return Roof(least_s[bound] / seconds, bound, gflops, peak, target.peak_gflops is not None)


def kernel_table(found: Sequence[FoundKernel], width: int = 0) -> str:
    """A numbered line for each kernel, the numbers those of `chosen_kernel`."""
    rows = [
        [str(number), item.name, item.operator_key[:12], "tuned" if item.tuned else "default",
         time_text(item.seconds), ", ".join(item.layers)]
        for number, item in enumerate(found, 1)
    ]  # fmt: skip
    return table(
        ["", "operator", "key", "schedule", "time", "layers"], rows, left=4, width=width, optional=(2, 5)
    )


def inspection_text(found: Inspection, sections: Sequence[str] = SECTIONS, width: int = 0) -> str:
    """The kernel in words, the asked sections one below the other; loops and source are never folded."""
    kernel, target = found.kernel, found.kernel.target
    facts = [
        ("board", f"{kernel.board.name}, target {target.name} ({target.key})"),
        ("schedule", "the fastest that was measured" if kernel.tuned else "the untuned one"),
        ("a call", time_text(kernel.seconds)),
    ]
    if roof := found.roof:
        peak = f"{roof.peak_gflops:.1f} GFLOP/s ({'measured' if roof.measured else 'estimated'})"
        facts.append(("throughput", f"{roof.gflops:.1f} GFLOP/s of a peak of {peak}"))
        facts.append(("share of the roof", f"{roof.share:.0%}, which is set by {roof.bound}"))
    knobs = [(name, " ".join(map(str, value))) for name, value in kernel.configuration.items()]
    bodies = {
        "schedule": "\n".join([*named(knobs), "", *found.schedule]) if knobs else "\n".join(found.schedule),
        "nest": found.nest.rstrip(),
        "source": found.source.rstrip(),
        "code": _code_text(found),
        "alternatives": alternatives_text(found.alternatives, kernel.seconds),
    }
    titles = {
        "schedule": "schedule",
        "nest": "loop nest",
        "source": f"source ({found.language})",
        "code": "what it does",
        "alternatives": "the nearest alternatives that were tried",
    }
    for name in ("schedule", "code", "alternatives"):
        bodies[name] = fold(bodies[name], width)
    parts = [f"-- {titles[name]} --\n{bodies[name]}" for name in SECTIONS if name in sections]
    return "\n\n".join([fold("\n".join([kernel.name, *named(facts)]), width), *parts])


def inspection_content(found: Inspection) -> dict[str, object]:
    """All sections of an inspection as data, for `documents.document`."""
    kernel = found.kernel
    name = kernel.name
    if found.code is not None:
        code = static_content([(name, found.code)])
    else:
        code = static_gpu_content([(name, found.launches)], kernel.target)
    hot = found.code.hot if found.code else None
    return {
        "operator": name,
        "operator_key": kernel.operator_key,
        "board": kernel.board.name,
        "target": kernel.target.key,
        "layers": kernel.layers,
        "tuned": kernel.tuned,
        "seconds": kernel.seconds,
        "configuration": kernel.configuration,
        "roof": found.roof,
        "schedule": found.schedule,
        "nest": found.nest,
        "language": found.language,
        "source": found.source,
        "code": code,
        "hot_loop": hot.lines if hot else (),
        "hot_loop_cycles": hot.line_cycles if hot else (),
        "alternatives": found.alternatives,
    }


def _code_text(found: Inspection) -> str:
    """The machine code of the hottest loop with what models say of it; of a GPU, its launches."""
    if found.code is None:
        return static_gpu_table([(found.kernel.name, found.launches)], found.kernel.target)
    hot = found.code.hot
    said = static_text(found.kernel.name, found.code)
    if hot is None:
        return said
    title, lines = "one iteration of that loop:", [f"    {line}" for line in hot.lines]
    if hot.line_cycles:
        title = f"one iteration of that loop, with the cycles of each line by {hot.predictions[0].model}:"
        lines = [f"{cycles:6.2f}  {line}" for cycles, line in zip(hot.line_cycles, hot.lines, strict=True)]
    return "\n".join([said, "", title, *lines])
