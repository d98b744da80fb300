"""What lowering, binding and code generation write, as text to review. `make golden` rewrites the files."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from boards.target import TILE_FEATURES, Target
from cross.codegen.llvm.module import llvm_module
from cross.expression import Operator, compute, maximum, placeholder, reduce_axis
from cross.expression import sum as summed
from cross.expression.families.conv import conv2d
from cross.expression.families.dense import dense
from cross.expression.families.elementwise import apply, bias_add, relu
from cross.expression.families.norm import softmax
from cross.expression.families.window import Window
from cross.expression.language.terms import call
from cross.loopnest import ParametricNest, Programs, bind, lower, to_text, verify
from cross.schedule import cpu_space
from cross.schedule.primitives import (
    ComputeAt,
    Pack,
    Parallel,
    Reorder,
    Schedule,
    Split,
    Unroll,
    Vectorize,
)
from cross.schedule.winograd.cpu import winograd_spaces
from tests.targets import AVX2_TWO_CORES

Golden = Callable[[str, str], None]

TARGETS = {
    "x86_64": AVX2_TWO_CORES,
    "aarch64": Target(
        name="cpu",
        kind="cpu",
        triple="aarch64-unknown-linux-gnu",
        cpu="cortex-a53",
        features=("+neon",),
        cores=(0, 1),
        vector_bytes=16,
        vector_registers=32,
        l2_bytes=1 << 19,
        clock_hz=1.2e9,
        flops_per_cycle=8,
    ),
}

# C = relu(A B) in register tiles of ti x tj; 13 rows, so that some tiles are shifted
MATMUL_SCHEDULE: Schedule = (
    Split("relu", "i0", ("ti",)),
    Split("relu", "i1", ("tj",)),
    Reorder("relu", ("i0.0", "i1.0", "i0.1", "i1.1")),
    Parallel("relu", "i0.0"),
    Unroll("relu", "i0.1"),
    Vectorize("relu", "i1.1"),
    ComputeAt("matmul", "relu", "i1.0", "register"),
    Split("matmul", "k", ("tk",)),
    Reorder("matmul", ("k.0", "k.1", "i", "j")),
    Unroll("matmul", "k.1", "unroll"),
    Unroll("matmul", "i"),
    Vectorize("matmul", "j"),
    Pack("B", "matmul"),
)


def matmul(m: int, n: int, k: int) -> Operator:
    a, b = placeholder((m, k), "A"), placeholder((k, n), "B")
    return Operator("matmul", (a, b), apply(relu, dense(a, b, "matmul"), "relu"), frozenset({1}))


def convolution() -> Operator:
    data, weight, bias = (
        placeholder((1, 14, 14, 24), "X"),
        placeholder((3, 3, 24, 32), "W"),
        placeholder((32,), "b"),
    )
    biased = bias_add(conv2d(data, weight, Window(pads=(1, 1, 1, 1))), bias)
    output = apply(lambda x: maximum(x, 0.0), biased, "relu")
    return Operator("conv", (data, weight, bias), output, frozenset({1, 2}))


def both_forms(parametric: ParametricNest, knobs: dict[str, int]) -> tuple[str, str]:
    """The nest before and after binding, both verified."""
    verify(parametric.nest, parametric=True)
    nest = bind(parametric, knobs)
    verify(nest)
    return to_text(parametric.nest), to_text(nest)


def test_matmul_by_a_schedule_of_its_own(golden: Golden) -> None:
    parametric = lower(matmul(13, 32, 24), MATMUL_SCHEDULE)
    texts = both_forms(parametric, {"ti": 4, "tj": 16, "tk": 4, "unroll": 16})
    golden("nests/matmul_parametric.txt", texts[0])
    golden("nests/matmul_bound.txt", texts[1])


def test_matmul_without_a_schedule(golden: Golden) -> None:
    golden("nests/matmul_plain.txt", to_text(bind(lower(matmul(13, 32, 24), ()), {})))


@pytest.mark.parametrize(
    ("name", "structure"),
    [
        ("registers", {"padding": [0], "tiling": [0]}),
        ("local", {"padding": [1], "tiling": [1]}),
    ],
)
def test_convolution_by_the_cpu_sketch(golden: Golden, name: str, structure: dict[str, list[int]]) -> None:
    space = cpu_space(convolution(), TARGETS["x86_64"], winograd=False)
    described = space.describe(space.default()) | structure
    configuration = space.parse(described)
    programs = Programs(space)
    parametric = programs.parametric(programs.structure(configuration))
    texts = both_forms(parametric, space.fields(configuration))
    golden(f"nests/conv_{name}_parametric.txt", texts[0])
    golden(f"nests/conv_{name}_bound.txt", texts[1])


def test_winograd_convolution_in_blocks(golden: Golden) -> None:
    """F(2x2,3x3) on 5 x 6 outputs: the last row of tiles is guarded."""
    data, weight = placeholder((1, 5, 6, 8), "X"), placeholder((3, 3, 8, 8), "W")
    output = apply(lambda x: maximum(x, 0.0), conv2d(data, weight, Window(pads=(1, 1, 1, 1))), "relu")
    operator = Operator("conv", (data, weight), output, frozenset({1}))
    space = winograd_spaces(operator, TARGETS["x86_64"])["F(2x2,3x3)"]
    configuration = space.parse(space.describe(space.default()) | {"staging": [0]})
    programs = Programs(space)
    parametric = programs.parametric(programs.structure(configuration))
    texts = both_forms(parametric, space.fields(configuration))
    golden("nests/winograd_parametric.txt", texts[0])
    golden("nests/winograd_bound.txt", texts[1])


def test_stages_that_are_not_fused_follow_one_another(golden: Golden) -> None:
    data = placeholder((5, 19), "X")
    space = cpu_space(Operator("softmax", (data,), softmax(data, 1)), TARGETS["aarch64"])
    nest = Programs(space).nest(space.default())
    verify(nest)
    golden("nests/softmax_bound.txt", to_text(nest))


def test_sums_in_tile_registers(golden: Golden) -> None:
    """20 rows of 8 words, 32 columns: two registers of ten rows, two of columns."""
    a, b = placeholder((20, 8), "A", "int32"), placeholder((8, 32), "B", "int32")
    k = reduce_axis(8, "k")
    output = compute((20, 32), lambda i, j: summed(call("dot4", a[i, k], b[k, j]), axis=k), name="C")
    target = msgspec.structs.replace(TARGETS["x86_64"], features=TILE_FEATURES)
    space = cpu_space(Operator("product", (a, b), output, frozenset({1})), target)
    nest = Programs(space).nest(space.default())
    verify(nest)
    golden("nests/product_in_tiles_bound.txt", to_text(nest))
    golden("llvm/product_in_tiles.ll", llvm_module("product_0", nest, target))


@pytest.mark.parametrize("architecture", sorted(TARGETS))
def test_llvm_text(golden: Golden, architecture: str) -> None:
    nest = bind(lower(matmul(4, 8, 3), MATMUL_SCHEDULE), {"ti": 2, "tj": 8, "tk": 1, "unroll": 0})
    verify(nest)
    golden(f"llvm/matmul_{architecture}.ll", llvm_module("matmul_0", nest, TARGETS[architecture]))
