"""OpenCL modules that are right, and ones that misbehave, for the tests of the board's driver."""

from __future__ import annotations

import numpy as np

from device_runtime.protocol import (
    WORKSPACE,
    BufferRequest,
    GpuKernel,
    GpuModule,
    Launch,
    MeasureRequest,
    Timing,
)
from toolkit.measure.session import Session

ELEMENTS = 1024
GROUP = 64
QUICK = Timing(number=1, repeat=2, min_repeat_ms=0.1, warmup=1)

HEAD = "__kernel void twice(__global const float *restrict a, __global float *restrict b) {\n"
BODIES = {
    "right": "int i = get_global_id(0); b[i] = 2 * a[i];",
    "wrong": "int i = get_global_id(0); b[i] = 2 * a[i] + (i == 7 ? 100 : 0);",
    "unwritten": "int i = get_global_id(0); if (i != 5) b[i] = 2 * a[i];",
    "hangs": "int i = get_global_id(0); while (a[i] < 1e9f) b[i] = a[i]; b[i] = 2 * a[i];",
    "crashes": "*(__global volatile int *)64 = 1; b[get_global_id(0)] = 0;",
    "wrong_later": "int i = get_global_id(0); b[i] = b[i] == b[i] ? 0 : 2 * a[i];",
    "clips": "int i = get_global_id(0); b[i] = fmin(2 * a[i], 1046.0f);",
    "strays": "int i = get_global_id(0); b[i] = 2 * a[i]; if (i == 0) b[1024] = 1;",
    "strays_back": "int i = get_global_id(0); b[i] = 2 * a[i]; if (i == 0) b[-1] = 1;",
    "reads_beyond": "int i = get_global_id(0); b[i] = 2 * a[i] + (i == 3 ? 0 * a[1024] : 0);",
    "writes_input": "int i = get_global_id(0); b[i] = 2 * a[i]; if (i == 9) ((__global float *)a)[i] = 1;",
    "refused": "int i = get_global_id(0) b[i] = 2 * a[i];",
}


def twice(name: str, threads: int = GROUP, arguments: tuple[int, ...] = (0, 1)) -> GpuModule:
    """A kernel `twice` of one launch."""
    launch = Launch("twice", (ELEMENTS // GROUP, 1, 1), (threads, 1, 1), arguments)
    return GpuModule("opencl", {"twice": GpuKernel(f"{HEAD}{BODIES[name]}\n}}", 0, (launch,))})


def by_way_of_workspace() -> GpuModule:
    """The same in two launches: the second reads what the first left in the workspace."""
    code = (
        "__kernel void first(__global const float *restrict a, __global float *restrict w) {\n"
        "  w[get_global_id(0)] = a[get_global_id(0)] + 1;\n}\n"
        "__kernel void second(__global float *restrict w, __global float *restrict b) {\n"
        "  __local float tile[64];\n"
        "  int i = get_global_id(0), j = get_local_id(0);\n"
        "  tile[j] = w[i] - 1;\n  barrier(CLK_LOCAL_MEM_FENCE);\n"
        "  b[get_group_id(0) * 64 + 63 - j] = 2 * tile[63 - j];\n}\n"
    )
    blocks, threads = (ELEMENTS // GROUP, 1, 1), (GROUP, 1, 1)
    launches = (
        Launch("first", blocks, threads, (0, WORKSPACE)),
        Launch("second", blocks, threads, (WORKSPACE, 1)),
    )
    return GpuModule("opencl", {"twice": GpuKernel(code, 4 * ELEMENTS, launches)})


def measure_request(
    session: Session, module: GpuModule, timing: Timing | None = QUICK, timeout_s: float = 20.0
) -> MeasureRequest:
    """Check the kernel `twice` of a module on three sets of data and time it on the first, on PoCL."""
    values = np.arange(ELEMENTS, dtype=np.float32) - 500
    large, sparse = 64 * values[::-1], np.where(np.arange(ELEMENTS) % 4, np.float32(0), values)
    return MeasureRequest(
        module=session.put(module.to_bytes()),
        symbol="twice",
        buffers=(
            BufferRequest("input", "float32", ELEMENTS, session.put(values.tobytes())),
            BufferRequest("output", "float32", ELEMENTS, session.put((2 * values).tobytes())),
        ),
        timing=timing,
        timeout_s=timeout_s,
        driver="opencl",
        device="Portable Computing Language",
        more_data=tuple(
            (session.put(other.tobytes()), session.put((2 * other).tobytes())) for other in (large, sparse)
        ),
    )
