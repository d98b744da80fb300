"""How long the vectors are that a device's OpenCL compiler can compile: found by compiling and running them.

A compiler may not only refuse long vectors but abort over them, as PoCL's LLVM 14 does on CPUs whose 512-bit
vectors it does not know, after most of a minute; so each attempt runs in a child process, which may take a
few times the processor time that the shortest vectors took. What was found is kept among the driver's
binaries, under a key of the driver's version and the device.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from typing import Any, Dict, Set

from device_runtime.drivers.binaries import key_of
from device_runtime.drivers.gpu_open import DRIVERS_WRITE, GPU_FILE_BYTES, Folders
from device_runtime.drivers.opencl_driver import binaries_in, open_opencl
from device_runtime.protocol import GpuKernel, Launch
from device_runtime.sandbox.isolation import Limits, Outcome, run_isolated

WIDTHS = (16, 8, 4, 2)  # of OpenCL C's vector types; one of 3 lies in memory as one of 4
# Of a tiny kernel, which compiles in a second or two.
COMPILING = Limits(30.0, 512 << 20, limit_address_space=False, file_bytes=GPU_FILE_BYTES)
# Times the processor time that the shortest vectors take: LLVM 14 takes the same for every length that it can
# compile, and fifty times as long, growing to gigabytes, before it aborts over others.
PATIENCE = 8
PASSING = ("timeout", "link")  # failures of this moment, which are not kept
_LARGER = "float{n} larger{n}(float{n} a, float{n} b) {{ return ((a < b) | (b != b)) ? b : exp(a) * a; }}"
_LINES = """    vstore{n}(larger{n}(vload{n}(0, x), vload{n}(1, x)), 0, x);
    vstore_half{n}_rte(larger{n}(vload_half{n}(0, h), vload_half{n}(1, h)), 0, h);"""
BUFFER_BYTES = 2 * 4 * WIDTHS[0]


def vector_lanes(device: Dict[str, Any], folders: Folders) -> int:
    """Lanes of the longest vectors that work, of floats and of half floats in memory; 0: unknown.

    `device` has the entries platform, name, driver and version of opencl_driver.opencl_devices.
    """
    kept = binaries_in(folders[0])
    known = [device[entry] for entry in ("platform", "name", "driver", "version")]
    key = key_of(["vector lanes", *known, _source(WIDTHS[0])])
    found = kept.get(key)
    if found is not None:
        return int(found)
    wanted = f"{device['platform']}: {device['name']}"
    shortest = _tried(wanted, folders, WIDTHS[-1], COMPILING)
    if shortest.answer is None or shortest.failure is not None:
        return 0
    limits = dataclasses.replace(COMPILING, cpu_s=1 + int(PATIENCE * shortest.answer["cpu_s"]))
    failures: Set[str] = set()
    for width in WIDTHS[:-1]:
        failure = _tried(wanted, folders, width, limits).failure
        if failure is None:
            break
        failures.add(failure.kind)
    else:
        width = WIDTHS[-1]
    if failures.isdisjoint(PASSING):
        kept.put(key, str(width).encode())
    return width


def _tried(wanted: str, folders: Folders, width: int, limits: Limits) -> Outcome:
    bounds = dataclasses.replace(limits, writable=(*folders, *DRIVERS_WRITE))
    return run_isolated(functools.partial(_run, wanted, folders, _source(width)), bounds)


def _run(wanted: str, folders: Folders, source: str) -> Dict[str, Any]:
    """Compile and launch the kernel, in the child: PoCL compiles it completely at the launch only.

    `cpu_s`: the processor time of all of it.
    """
    device = open_opencl(wanted, *folders, threads=1)
    buffer = device.allocate(BUFFER_BYTES)
    device.fill(buffer, BUFFER_BYTES, 0)
    one = (1, 1, 1)
    device.prepare(GpuKernel(source, 0, (Launch("lanes", one, one, (0,)),)), [[buffer]]).run()
    return {"cpu_s": time.process_time()}


def _source(lanes: int) -> str:
    """A kernel that uses vectors of all widths up to `lanes`, as generated code does."""
    widths = [n for n in WIDTHS if n <= lanes]
    helpers = [_LARGER.format(n=n) for n in widths]
    head = "__kernel void lanes(__global float *x)\n{\n    __global half *h = (__global half *)x;"
    return "\n".join([*helpers, head, *(_LINES.format(n=n) for n in widths), "}", ""])
