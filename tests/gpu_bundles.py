"""The small model of tests/bundles.py for OpenCL, with the CPU's variant beside it."""

from __future__ import annotations

from msgspec.structs import replace

from boards.board import load
from boards.target import Target
from device_runtime.protocol import GPU_ALIGNMENT, WORKSPACE, GpuKernel, GpuModule, Launch
from tests.bundles import COLUMNS, DEPTH, ROWS, SmallModel, built, host_target, provenance, small_model
from toolkit.bundle.model_plan import BufferRef, ModelPlan, PlannedKernel, Step
from toolkit.bundle.pack import BundleContents, GoldenData
from toolkit.model.memory import ALIGNMENT_BYTES

SCALE = {
    "right": "y[i] = x[i] * w[i % 8];",
    "wrong": "y[i] = x[i] * w[i % 8] + 1;",
    "refused": "y[i] = x[i] *;",
}
DENSE = """
__kernel void gather(__global const float *restrict x, __global float *restrict s) {
  s[get_global_id(0)] = x[get_global_id(0)];
}
__kernel void dense(__global const float *restrict s, __global const float *restrict w,
                    __global float *restrict y) {
  int i = get_group_id(0), j = get_local_id(0);
  float sum = 0;
  for (int k = 0; k < 8; ++k) sum += s[i * 8 + k] * w[k * 3 + j];
  y[i * 3 + j] = sum;
}
"""
PIXELS = ROWS * DEPTH


def opencl_target() -> Target:
    """PoCL."""
    return load("pocl").target("opencl")


def opencl_plan(version: int = 1, scale: str = "right", threads: int = DEPTH) -> ModelPlan:
    """The small model's plan; `scale` picks the body of its first kernel, `threads` a block of it."""
    cpu = small_model(version).plan
    weights = cpu.parameters
    code = (
        "__kernel void scale(__global const float *restrict x, __global const float *restrict w,\n"
        f"__global float *restrict y) {{ int i = get_global_id(0); {SCALE[scale]} }}\n"
    )
    first = GpuKernel(code, 0, (_launch("scale", max(1, PIXELS // threads), threads, (0, 1, 2)),))
    second = GpuKernel(
        DENSE,
        4 * PIXELS,
        (_launch("gather", ROWS, DEPTH, (0, WORKSPACE)), _launch("dense", ROWS, COLUMNS, (WORKSPACE, 1, 2))),
    )
    return replace(
        cpu,
        kernels=(
            _planned("k_scale", first, (4 * PIXELS, 4 * DEPTH, 4 * PIXELS)),
            _planned("k_dense", second, (4 * PIXELS, 4 * DEPTH * COLUMNS, 4 * ROWS * COLUMNS)),
        ),
        parameters=weights[: 4 * DEPTH].ljust(GPU_ALIGNMENT, b"\0") + weights[ALIGNMENT_BYTES:],
        steps=(
            Step("k_scale", (BufferRef("input", 0), BufferRef("parameter", 0), BufferRef("arena", 0))),
            Step(
                "k_dense",
                (BufferRef("arena", 0), BufferRef("parameter", GPU_ALIGNMENT), BufferRef("output", 0)),
            ),
        ),
        alignment=GPU_ALIGNMENT,
    )


def gpu_contents(
    version: int = 1, scale: str = "right", *, threads: int = DEPTH, with_cpu: bool = True
) -> BundleContents:
    """A bundle for the board pocl, whose OpenCL variant comes first."""
    model: SmallModel = small_model(version)
    models = [built(opencl_plan(version, scale, threads), opencl_target())]
    if with_cpu:
        models.append(built(model.plan, host_target()))
    return BundleContents(
        name="small",
        tool_version="0.1.0",
        boards=("pocl",),
        counter=1,
        models=tuple(models),
        golden=GoldenData((model.x,), (model.y,)),
    )


def _launch(name: str, blocks: int, threads: int, buffers: tuple[int, ...]) -> Launch:
    return Launch(name, (blocks, 1, 1), (threads, 1, 1), buffers)


def _planned(symbol: str, kernel: GpuKernel, argument_bytes: tuple[int, ...]) -> PlannedKernel:
    module = GpuModule("opencl", {symbol: kernel})
    return PlannedKernel(module.to_bytes(), kernel.workspace_bytes, provenance(symbol), argument_bytes)
