"""What static_report says of GPU kernels: launches against a board's limits, and who accepts their source."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence

from benchmarks.front_ends import FrontEnd, FrontEndMissing, clang, pocl
from boards.target import Target
from cross.codegen.c.gpu_code import gpu_program
from cross.inspection.gpu_launches import inspect_gpu
from cross.loopnest import LoopNest
from toolkit.inspection.gpu_report import static_gpu_content, static_gpu_table

SYMBOL = "kernel"
Kernels = Sequence[tuple[str, LoopNest]]


def launches_of(kernels: Kernels, target: Target, compiled: bool) -> tuple[dict[str, object], str]:
    """The report as data and as text; `compiled` asks OpenCL's front ends, too."""
    found = [(name, inspect_gpu(SYMBOL, nest, target)) for name, nest in kernels]
    content, text = static_gpu_content(found, target), static_gpu_table(found, target)
    if not compiled or target.kind != "opencl":
        return content, text
    with tempfile.TemporaryDirectory(prefix="tfb-front-ends-") as scratch:
        verdicts = accepted(kernels, target, scratch)
    return content | {"front_ends": verdicts}, "\n".join([text, *verdicts])


def accepted(kernels: Kernels, target: Target, scratch: str) -> list[str]:
    """One line for each front end of this machine, how many sources it accepts; one for each it refuses.

    PoCL's files go to the folder `scratch`.
    """
    sources = [(name, gpu_program(SYMBOL, nest, target).source) for name, nest in kernels]
    starts: tuple[Callable[[], FrontEnd], ...] = (functools.partial(pocl, scratch), clang)
    return [line for start in starts for line in _verdict(start, sources)]


def _verdict(start: Callable[[], FrontEnd], sources: Sequence[tuple[str, str]]) -> list[str]:
    try:
        front_end = start()
    except FrontEndMissing as missing:
        return [f"not asked: {missing}"]
    refusals = [(name, front_end.refusal(source)) for name, source in sources]
    refused = [f"{front_end.name} refuses {name}: {text}" for name, text in refusals if text]
    return [f"{front_end.name} accepts {len(sources) - len(refused)} of {len(sources)}", *refused]
