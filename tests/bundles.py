"""A small model as bundles: two kernels in C, an arena, parameters; versions differ in their weights.

x [4, 8] -- scale (x * w) --> arena -- dense (times W, in parallel over rows) --> y [4, 3]
"""

from __future__ import annotations

import collections
import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from boards.board import load
from boards.target import Target
from cross import link
from toolkit.bundle.build import BuiltModel, build
from toolkit.bundle.manifest import KernelProvenance, TensorSpec
from toolkit.bundle.model_plan import BufferRef, ModelPlan, PlannedKernel, Step
from toolkit.bundle.pack import BundleContents, GoldenData, pack
from toolkit.bundle.sign import SigningKey

ROWS, DEPTH, COLUMNS = 4, 8, 3

KERNELS = {
    "scale": r"""
#include "tfb.h"
TFB_EXPORT int32_t k_scale(void *const *b, void *workspace, struct tfb_pool *pool)
{
    const float *x = b[0], *w = b[1];
    float *y = b[2];
    (void)workspace, (void)pool;
    for (int i = 0; i < 32; ++i) y[i] = x[i] * w[i % 8];
    return 0;
}
""",
    "dense": r"""
#include "tfb.h"
static void rows(void *closure, int64_t begin, int64_t end)
{
    void *const *b = closure;
    const float *x = b[0], *w = b[1];
    float *y = b[2];
    for (int64_t i = begin; i < end; ++i)
        for (int j = 0; j < 3; ++j) {
            y[i * 3 + j] = 0;
            for (int k = 0; k < 8; ++k) y[i * 3 + j] += x[i * 8 + k] * w[k * 3 + j];
        }
}
TFB_EXPORT int32_t k_dense(void *const *b, void *workspace, struct tfb_pool *pool)
{
    float *scratch = workspace; /* so that a missing workspace is noticed */
    for (int i = 0; i < 25; ++i) scratch[i] = 1.0f;
    return tfb_parallel_for(pool, rows, (void *)b, 4);
}
""",
    "crash": r"""
#include "tfb.h"
TFB_EXPORT int32_t k_scale(void *const *b, void *workspace, struct tfb_pool *pool)
{
    (void)b, (void)workspace, (void)pool;
    __builtin_trap();
}
""",
    "hang": r"""
#include "tfb.h"
TFB_EXPORT int32_t k_scale(void *const *b, void *workspace, struct tfb_pool *pool)
{
    (void)b, (void)workspace, (void)pool;
    for (volatile int i = 0;; ++i) {}
}
""",
    "tiring": r"""
#include "tfb.h"
TFB_EXPORT int32_t k_scale(void *const *b, void *workspace, struct tfb_pool *pool)
{
    static int calls;
    const float *x = b[0], *w = b[1];
    float *y = b[2];
    (void)workspace, (void)pool;
    for (volatile int i = 0; ++calls > 3; ++i) {}
    for (int i = 0; i < 32; ++i) y[i] = x[i] * w[i % 8];
    return 0;
}
""",
    "failing": r"""
#include "tfb.h"
TFB_EXPORT int32_t k_scale(void *const *b, void *workspace, struct tfb_pool *pool)
{
    (void)b, (void)workspace, (void)pool;
    return 7;
}
""",
}


@dataclass(frozen=True)
class SmallModel:
    """One version of the model: its plan, and what it computes from a fixed input."""

    plan: ModelPlan
    x: NDArray[np.float32]
    y: NDArray[np.float32]


def host_target() -> Target:
    """This machine's CPU; one core, so that the tests run anywhere."""
    return load("host").target(None)


@functools.cache
def kernel_object(name: str, target: Target) -> bytes:
    """One of KERNELS as an ELF object."""
    return link.compile_c(KERNELS[name], target)


def provenance(symbol: str) -> KernelProvenance:
    """What a tuned kernel would say of itself."""
    return KernelProvenance(
        symbol=symbol,
        operator_key=f"{symbol}-key",
        operator=symbol.removeprefix("k_"),
        layers=(symbol,),
        configuration={"tile_i": 4, "order": ["i", "j"]},
        tuned=True,
        seconds=1.25e-6,
        default_seconds=2.5e-6,
        trials=32,
        flops=64.0,
        tool_version="0.1.0",
    )


def small_model(version: int = 1, scale: str = "scale", target: Target | None = None) -> SmallModel:
    """The model with the weights of `version`; `scale` picks the kernel for its first step."""
    target = target or host_target()
    rng = np.random.default_rng(version)
    w = rng.standard_normal(DEPTH).astype(np.float32)
    weights = rng.standard_normal((DEPTH, COLUMNS)).astype(np.float32)
    x = np.random.default_rng(0).standard_normal((ROWS, DEPTH)).astype(np.float32)
    plan = ModelPlan(
        name="small",
        inputs=(TensorSpec("x", (ROWS, DEPTH), layout="NC"),),
        outputs=(TensorSpec("y", (ROWS, COLUMNS), layout="NC"),),
        kernels=(
            PlannedKernel(kernel_object(scale, target), 0, provenance("k_scale")),
            PlannedKernel(kernel_object("dense", target), 100, provenance("k_dense")),
        ),
        parameters=w.tobytes().ljust(64, b"\0") + weights.tobytes(),
        arena_bytes=128,
        steps=(
            Step("k_scale", (BufferRef("input", 0), BufferRef("parameter", 0), BufferRef("arena", 0)), "mul"),
            Step(
                "k_dense", (BufferRef("arena", 0), BufferRef("parameter", 64), BufferRef("output", 0)), "mm"
            ),
        ),
        threads=2,
    )
    return SmallModel(plan, x, (x * w) @ weights)


_BUILT: collections.deque[BuiltModel] = collections.deque(maxlen=32)


def built(plan: ModelPlan, target: Target) -> BuiltModel:
    """The plan compiled and linked once in a process: most tests take the same few models."""
    found = next((item for item in _BUILT if (item.plan, item.target) == (plan, target)), None)
    if found is None:
        found = build(plan, target)
        _BUILT.append(found)
    return found


def contents(
    model: SmallModel,
    target: Target | None = None,
    boards: tuple[str, ...] = ("host",),
    counter: int = 1,
) -> BundleContents:
    """The model as the contents of a bundle."""
    return BundleContents(
        name="small",
        tool_version="0.1.0",
        boards=boards,
        models=(built(model.plan, target or host_target()),),
        golden=GoldenData((model.x,), (model.y,)),
        counter=counter,
        notes={"seed": 7},
    )


def write_bundle(
    folder: Path, key: SigningKey, model: SmallModel, name: str = "small.tfb", counter: int = 1
) -> Path:
    """The model packed into a file."""
    path = folder / name
    path.write_bytes(pack(contents(model, counter=counter), key))
    return path
