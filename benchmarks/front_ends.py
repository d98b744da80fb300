"""OpenCL compilers that can be asked on this machine whether they accept a source: PoCL's and clang's.

    for front_end in (pocl(scratch), clang()): front_end.refusal(source)
    accepted([("C6", nest)], target, scratch)    # in words

Neither is a board's own compiler; both check what the standard says. clang comes with the ziglang wheel,
which lacks its OpenCL header; PoCL's wheel has it. Debian's clang has its own.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boards.target import Target
from cross.codegen.c.gpu_code import gpu_program
from cross.loopnest import LoopNest
from device_runtime.drivers.gpu_open import DRIVERS_WRITE, GPU_FILE_BYTES, GPU_HEADROOM_BYTES
from device_runtime.drivers.opencl_driver import OPTIONS, open_opencl, opencl_devices
from device_runtime.drivers.pocl import PLATFORM
from device_runtime.protocol import GpuKernel
from device_runtime.sandbox.isolation import Limits, run_isolated

CLANG_OPTIONS = (
    "-x", "cl", *OPTIONS, "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
    "-Wno-unknown-pragmas", "-Wno-unused-variable", "-Wno-unused-const-variable",
)  # fmt: skip
HEADERS = ".libs/share/pocl/include"  # in PoCL's wheel
TIMEOUT_S = 60.0
SYMBOL = "kernel"
Kernels = Sequence[tuple[str, LoopNest]]
LIMITS = Limits(TIMEOUT_S, GPU_HEADROOM_BYTES, limit_address_space=False, file_bytes=GPU_FILE_BYTES)


class FrontEndMissing(Exception):
    """A front end is not on this machine; the message says how to get it."""


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """A compiler by name and version; `refusal` gives its text for a source, empty where it accepts it."""

    name: str
    refusal: Callable[[str], str]


def pocl(scratch: str) -> FrontEnd:
    """PoCL, in a child process for each source, since it may abort; its files go to the folder `scratch`.

    Raises:
        FrontEndMissing: no PoCL, or no pyopencl.
    """
    limits = dataclasses.replace(LIMITS, writable=(scratch, *DRIVERS_WRITE))
    found = run_isolated(lambda: {"devices": opencl_devices(scratch)}, limits).answer or {"devices": []}
    drivers = [device["driver"] for device in found["devices"] if PLATFORM in device["platform"]]
    if not drivers:
        raise FrontEndMissing("PoCL: no such device; pip install 'tune-for-board[pocl]'")

    def refusal(source: str) -> str:
        failure = run_isolated(functools.partial(_built, source, scratch), limits).failure
        return failure.text if failure else ""

    return FrontEnd(f"PoCL {drivers[0]}", refusal)


def _built(source: str, scratch: str) -> dict[str, Any]:
    """In the child. Raises Fault with the compiler's text."""
    open_opencl(PLATFORM, scratch, scratch, threads=1).prepare(GpuKernel(source, 0, ()), [])
    return {}


def clang() -> FrontEnd:
    """clang 14 or newer: the one in PATH, otherwise ziglang's with the header of PoCL's wheel.

    Raises:
        FrontEndMissing: none of them is there.
    """
    command = _clang_command()

    def refusal(source: str) -> str:
        ran = _run([*command, *CLANG_OPTIONS, "-"], source)
        return ran.stderr if ran.returncode else ""

    return FrontEnd(_run([*command, "--version"]).stdout.partition("\n")[0], refusal)


def _run(command: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def _clang_command() -> Sequence[str]:
    found = shutil.which("clang")
    if found is not None:
        return [found]
    headers = _package("pocl_binary_distribution")
    if headers is None or _package("ziglang") is None:
        raise FrontEndMissing(
            "clang: not in PATH, and ziglang's needs the header of PoCL's wheel; "
            "apt-get install clang, or pip install 'tune-for-board[pocl]'"
        )
    return [sys.executable, "-m", "ziglang", "clang", "-I", str(headers / HEADERS)]


def _package(name: str) -> Path | None:
    """The folder of an installed package."""
    spec = importlib.util.find_spec(name)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


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
