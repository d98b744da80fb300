"""The untuned program: its estimate of cycles, vectors of which a part is used, and filled lanes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from boards.board import load
from boards.target import Target
from cross.codegen.buffers import bound_extent
from cross.codegen.llvm.module import llvm_module
from cross.codegen.llvm.region import chunks
from cross.expression import Operator, compute, exp, placeholder, reduce_axis, sum
from cross.expression.families.conv import conv2d, depthwise_conv
from cross.expression.families.dense import batch_matmul, dense
from cross.expression.families.pool import pool2d
from cross.expression.families.window import Window
from cross.expression.language.terms import Binary, Int
from cross.expression.reference import evaluate
from cross.inspection.cpu_loops import inspect
from cross.loopnest import Programs, verify
from cross.loopnest.affine import affine, rejoined
from cross.loopnest.nodes import For, LoopKind, Var, add, mul, statements
from cross.schedule import cpu_space
from cross.schedule.core import core_of, fits_registers
from cross.schedule.cycles import (
    L3_BYTES_PER_CYCLE,
    L3_HIDDEN,
    OTHER_CORES_BYTES_PER_CYCLE,
    Machine,
    Nest,
    Operand,
    fullest_set,
    nest_cycles,
)
from cross.schedule.lane_packing import packed_steps, with_packed_lanes
from cross.schedule.plan import make_plan
from cross.schedule.reads import nest_of
from cross.schedule.tiles import vector_count, vector_tiles
from cross.schedule.untuned import ONE_CORE_PREFERRED_FLOPS, fastest_tile
from cross.schedule.winograd.cycles import preferred_block
from cross.schedule.winograd.stages import algorithms
from tests.fuzz.kernels import Job, compile_jobs, run_here
from tests.interpreter.interpreter import interpret
from tests.targets import AVX2, EACH_HOST

AVX512 = Target(
    name="cpu",
    kind="cpu",
    triple="x86_64-unknown-linux-gnu",
    cpu="skylake-avx512",
    vector_bytes=64,
    l1d_bytes=48 << 10,
    l2_bytes=1 << 20,
    clock_hz=2e9,
    flops_per_cycle=64,
)
SSE = replace(AVX2, cpu="x86-64-v2", vector_bytes=16, flops_per_cycle=16)
A53 = Target(
    name="cpu",
    kind="cpu",
    triple="aarch64-unknown-linux-gnu",
    cpu="cortex-a53",
    vector_bytes=16,
    l2_bytes=1 << 19,
    clock_hz=1e9,
    flops_per_cycle=8,
)
HOST = load("host").target(None)
MACHINE = Machine.of(AVX512, 16)


def product(batch: int, m: int, k: int, n: int) -> Operator:
    left, right = placeholder((batch, m, k), "left"), placeholder((batch, k, n), "right")
    return Operator("product", (left, right), batch_matmul(left, right, "product"))


def layer(m: int, k: int, n: int) -> Operator:
    data, weight = placeholder((m, k), "data"), placeholder((k, n), "weight")
    return Operator("layer", (data, weight), dense(data, weight, "layer"), frozenset({1}))


def window(size: int, inputs: int, outputs: int, kernel: int, stride: int) -> Operator:
    data, weight = (
        placeholder((1, size, size, inputs), "data"),
        placeholder((kernel, kernel, inputs, outputs), "W"),
    )
    shape = Window(strides=(stride, stride), pads=(kernel // 2,) * 4)
    return Operator("window", (data, weight), conv2d(data, weight, shape, "window"), frozenset({1}))


def randoms(operator: Operator) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal(tensor.shape).astype(tensor.dtype) for tensor in operator.inputs]


def default(operator: Operator, target: Target = AVX512) -> dict[str, int]:
    space = cpu_space(operator, target)
    return space.fields(space.default())


# ------------------------------------------------------------------------------------- parts of vectors


@pytest.mark.parametrize("extent", range(1, 131))
def test_a_mask_makes_one_vector_of_any_rest(extent: int) -> None:
    with_masks, without = chunks(extent, 16, True), chunks(extent, 16)
    for found in (with_masks, without):
        firsts = [first for first, _, _ in found]
        assert firsts == [int(total) for total in np.cumsum([0, *(used for _, _, used in found)])[:-1]]
        assert all(used <= lanes <= 16 and lanes.bit_count() == 1 for _, lanes, used in found)
    assert all(used == lanes for _, lanes, used in without)
    assert len(with_masks) == -(-extent // 16) == vector_count(extent, 16, True)
    assert len(without) == vector_count(extent, 16)


def test_only_masks_make_long_rests_worth_a_place_in_a_space() -> None:
    assert vector_tiles(110, 16) == [1, 2, 4, 8, 16, 32, 48, 64]
    assert vector_tiles(110, 16, masked=True) == [1, 2, 4, 8, 16, 32, 48, 64, 110]
    assert vector_tiles(112, 16, masked=True) == [1, 2, 4, 8, 16, 32, 48, 64]


def test_masks_appear_only_where_they_are_cheap() -> None:
    operator = layer(8, 12, 37)
    for target, masked in ((AVX512, True), (AVX2, False), (A53, False)):
        space = cpu_space(operator, target)
        text = llvm_module("layer", Programs(space).nest(space.default()), target)
        assert ("masked.store" in text) == masked


@pytest.mark.parametrize("columns", [2, 3, 5, 8, 13, 15, 20, 37, 71, 98])
@pytest.mark.parametrize("inner", [9, 24, 35])
def test_products_of_any_width_are_right_and_stay_in_bounds(columns: int, inner: int, tmp_path: Path) -> None:
    operators = [product(2, 7, inner, columns), layer(7, inner, columns)]
    jobs, expected = [], []
    for operator in operators:
        space = cpu_space(operator, HOST)
        nest = Programs(space).nest(space.default())
        verify(nest)
        inputs = randoms(operator)
        expected.append(evaluate(operator, inputs))
        np.testing.assert_allclose(interpret(nest, inputs), expected[-1], rtol=1e-4, atol=1e-4)
        jobs.append(Job(nest, inputs))
    for got, want in zip(run_here(compile_jobs(jobs, HOST), jobs, tmp_path), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


# ----------------------------------------------------------------------------------------- filled lanes


@pytest.mark.parametrize(
    ("operator", "steps"),
    [
        (product(10, 34, 236, 4), 4),  # 4 steps of 4 columns: 16 lanes
        (product(4, 58, 225, 5), 3),  # 15 lanes
        (layer(694, 401, 2), 8),  # 401 = 8 * 50 + 1
        (product(4, 58, 225, 1), None),  # partial results along the reduction are vectors already
        (product(4, 58, 225, 16), None),
        (product(4, 58, 8, 4), None),  # too short to pay for adding up
    ],
)
def test_narrow_outputs_run_several_steps_in_a_vector(operator: Operator, steps: int | None) -> None:
    found = packed_steps(operator.output, AVX512)
    assert (found.steps if found else None) == steps
    assert packed_steps(operator.output, AVX2) is None
    assert packed_steps(operator.output, A53) is None


@pytest.mark.parametrize("inner", [60, 63, 67])
def test_packed_lanes_keep_the_meaning(inner: int) -> None:
    data, weight = placeholder((1, 9, 9, 24), "data"), placeholder((3, 3, 24, 3), "weight")
    window = Window(strides=(2, 2), pads=(1, 1, 1, 1))
    conv = Operator("conv", (data, weight), conv2d(data, weight, window), frozenset({1}))
    for operator in (product(2, 5, inner, 3), layer(6, inner, 2), conv):
        changed = with_packed_lanes(operator, AVX512)
        assert len(changed.stages) == len(operator.stages) + 1
        inputs = randoms(operator)
        np.testing.assert_allclose(
            evaluate(changed, inputs), evaluate(operator, inputs), rtol=1e-4, atol=1e-5
        )


def test_operands_that_do_not_lie_in_steps_are_left_alone() -> None:
    a, b, k = placeholder((30, 64), "A"), placeholder((4, 64), "B"), reduce_axis(64, "k")
    across = compute((30, 4), lambda i, j: sum(a[i, k] * b[j, k], axis=k), name="across")
    assert packed_steps(across, AVX512) is None


def test_quotient_and_remainder_are_put_together_again() -> None:
    v, k = Var("v"), Var("k")
    quotient, rest = Binary("//", v, Int(5)), Binary("%", v, Int(5))
    together = add(add(mul(quotient, Int(5)), rest), mul(k, Int(15)))
    assert rejoined(affine(together)) == ({v: Int(1), k: Int(15)}, Int(0))
    apart = affine(add(mul(quotient, Int(20)), rest))
    assert rejoined(apart) == apart


# ------------------------------------------------------------------------------------ estimated cycles


def matmul_nest(m: int, k: int, n: int, *, straddles: bool = True, row_bytes: int = 0) -> Nest:
    left = Operand((0,), 4.0 * k, False, (row_bytes or 4 * k,))
    return Nest((m, n), k, (left, Operand((1,), 4.0 * k, straddles, (4,))), straddles)


def cycles(nest: Nest, rows: int, columns: int, order: tuple[int, ...] = (0, 1), threads: int = 1) -> float:
    machine = replace(MACHINE, threads=threads)
    return nest_cycles(nest, machine, (rows, columns), vector_count(columns, 16, True), order)


def test_no_estimate_is_below_the_work() -> None:
    for rows in (1, 4, 9, 14):
        for columns in (16, 32, 48):
            nest = matmul_nest(126, 64, 96)
            assert cycles(nest, rows, columns) >= 126 * 96 * 64 / 16 / 2


HALVED = replace(AVX512, flops_per_cycle=32)  # a Zen 4: vectors in two halves


def test_a_core_multiplies_and_loads_at_the_rate_of_its_board() -> None:
    assert (MACHINE.rate, Machine.of(HALVED, 16).rate) == (2.0, 1.0)
    assert Machine.of(AVX2, 8).rate == 2.0  # two vectors of eight floats
    assert Machine.of(load("rpi4").target(), 4).rate == 1.0  # one of four on a Cortex-A72
    nest = matmul_nest(126, 64, 96, straddles=False)
    found = nest_cycles(nest, Machine.of(HALVED, 16), (9, 32), 2, (0, 1))
    assert found >= 126 * 96 * 64 / 16
    assert 1.5 * cycles(nest, 9, 32) < found < 2 * cycles(nest, 9, 32)


def test_vectors_that_are_loaded_in_halves_cost_more_than_elements() -> None:
    tall, wide = (((14, 16), 1), ((4, 64), 4))
    nest = matmul_nest(112, 256, 192, straddles=False)
    slow, fast = ([nest_cycles(nest, machine, *tile, (0, 1)) for tile in (tall, wide)] for machine in (
        Machine.of(HALVED, 16), MACHINE))  # fmt: skip
    assert slow[0] / slow[1] < fast[0] / fast[1]


def test_where_multiplying_takes_longer_algorithms_that_multiply_less_are_taken_more() -> None:
    """Measured on a Zen 4: 992 us directly, 692 by F(4x4,3x3)/2x2. On an Emerald Rapids Xeon: 713, 720, and
    615 by F(2x2,3x3)/2x2."""
    data, weight = placeholder((1, 56, 56, 64), "data"), placeholder((3, 3, 64, 128), "weight")
    window = Window(strides=(2, 2), pads=(1, 1, 1, 1))
    operator = Operator("conv", (data, weight), conv2d(data, weight, window, "conv"), frozenset({1}))
    chosen = []
    for core in (AVX512, HALVED):
        space = cpu_space(operator, replace(core, l3_bytes=480 << 20))
        chosen.append(space.parts[space.default().indices[0]].label)
    assert chosen == ["F(2x2,3x3)/2x2", "F(4x4,3x3)/2x2"]


def test_a_loop_whose_steps_take_long_is_not_cut() -> None:
    """A Zen 4 multiplies a vector in a cycle: 14 or 16 for a step. In half of that, the loop itself would
    weigh; with AVX2, where lines hold two vectors, a window's taps lose them before their other half."""
    window = Window(strides=(2, 2), pads=(1, 1, 1, 1))
    found = {}
    for name, target in (("long", HALVED), ("avx512", AVX512), ("avx2", AVX2)):
        data, weight = placeholder((1, 14, 14, 512), "data"), placeholder((3, 3, 512, 512), "weight")
        conv = Operator("conv", (data, weight), conv2d(data, weight, window, "conv"), frozenset({1}))
        direct = cpu_space(conv, target, winograd=False)
        data, weight = placeholder((1, 28, 28, 128), "data"), placeholder((3, 3, 128, 128), "weight")
        same = Window(pads=(1, 1, 1, 1))
        conv = Operator("conv", (data, weight), conv2d(data, weight, same, "conv"), frozenset({1}))
        winograd = next(part.space for part in cpu_space(conv, target).parts if part.label == "F(4x4,3x3)")
        steps = [space.describe(space.default()) for space in (direct, winograd)]
        found[name] = steps[0]["conv.acc.kc"], steps[1]["products.kc"]
    assert found == {"long": ([512], [1]), "avx512": ([8], [4]), "avx2": ([512], [4])}
    data, weight = placeholder((1, 14, 14, 512), "data"), placeholder((1, 1, 512, 512), "weight")
    conv = Operator("conv", (data, weight), conv2d(data, weight, Window(), "conv"), frozenset({1}))
    pointwise = cpu_space(conv, AVX2)
    assert pointwise.describe(pointwise.default())["conv.acc.kc"] == [8]


def by_winograd(image: tuple[int, ...], outputs: int, stride: int, target: Target) -> dict[str, list[int]]:
    """The untuned program by F(4x4,3x3)."""
    data, weight = placeholder(image, "data"), placeholder((3, 3, image[-1], outputs), "weight")
    window = Window(strides=(stride, stride), pads=(1, 1, 1, 1))
    conv = Operator("conv", (data, weight), conv2d(data, weight, window, "conv"), frozenset({1}))
    spaces = (part.space for part in cpu_space(conv, target).parts if part.label.startswith("F(4x4,3x3)"))
    space = next(spaces)
    return space.describe(space.default())


def test_what_steps_hand_over_stays_in_a_cache_where_it_can() -> None:
    """Measured on one core of a Zen 4, by blocks and whole: 16 images 22.6 and 34.0 ms, 8 images 9.8 and
    13.2, one of 56x56 0.64 and 0.81, one of 14x14, whose weights are most of what is read, 0.81 and 0.74."""
    target = replace(HALVED, l1d_bytes=32 << 10, l2_bytes=1 << 20, l3_bytes=32 << 20)
    whole = {
        images: by_winograd((images, size, size, channels), outputs, stride, target)["staging"]
        for images, size, channels, outputs, stride in (
            (16, 56, 64, 230, 2), (8, 28, 128, 230, 1), (2, 56, 64, 128, 2), (1, 14, 256, 256, 1),
        )
    }  # fmt: skip
    assert whole == {16: [0], 8: [0], 2: [0], 1: [1]}


@pytest.mark.parametrize(
    ("outputs", "channels", "narrow"),
    [(128, 32, 16), (144, 48, 24), (230, 48, 24), (48, 48, 24), (24, 24, 24)],
)
def test_products_of_winograd_waste_few_lanes(outputs: int, channels: int, narrow: int) -> None:
    """Three vectors where they fit the channels better; with 16 registers four tiles of two would be just
    the multiply-adds that a core has under way, and of three are more: unless lanes are wasted."""
    image = (1, 28, 28, 64)
    assert by_winograd(image, outputs, 1, HALVED)["products.c"] == [channels]
    assert by_winograd(image, outputs, 1, AVX2)["products.c"] == [narrow]


@pytest.mark.parametrize("cores", [(0,), (0, 1)])
@pytest.mark.parametrize("target", [AVX2, AVX512, A53], ids=["avx2", "avx512", "a53"])
def test_untuned_blocks_of_winograd_are_among_those_of_the_space(
    target: Target, cores: tuple[int, ...]
) -> None:
    """What is estimated is what runs: three rows of tiles, of which the space cuts no two, are no two."""
    target = replace(target, cores=cores)
    for height, width, channels in (
        *((size, size, 64) for size in (7, 13, 14, 20, 33)),
        (12, 180, 16),  # rows of more tiles than a block has
        (56, 673, 512),  # of which no block leaves V and M in a cache
    ):
        data = placeholder((1, height, width, channels), "data")
        weight = placeholder((3, 3, channels, 96), "weight")
        output = conv2d(data, weight, Window(pads=(1, 1, 1, 1)), "conv")
        conv = Operator("conv", (data, weight), output, frozenset({1}))
        spaces = {part.label: part.space for part in cpu_space(conv, target).parts}
        for label, _, stages in algorithms(conv, target, flat=False):
            block = preferred_block(stages, target, 1 << 20)
            chosen = spaces[label].describe(spaces[label].default())
            rows, columns = zip(block.tiles, block.registers, strict=True)
            assert (chosen["block.h"], chosen["block.w"]) == ([*rows], [*columns]), (label, height)
            assert chosen["staging"] == [int(block.whole)]


def test_weights_of_memory_are_read_once_for_each_block_in_turn() -> None:
    """Two frames of 7x7, 512 to 1152 channels, on one core of a Zen 3: in blocks of a frame F(4x4,3x3) reads
    its 85 MB of weights twice and takes 1.33 times as long as F(2x2,3x3); read once for both at most 1.06."""
    target = replace(AVX2, cores=(0,), l1d_bytes=32 << 10, l2_bytes=512 << 10, l3_bytes=32 << 20)
    data, weight = placeholder((2, 7, 7, 512), "data"), placeholder((3, 3, 512, 1152), "weight")
    conv = conv2d(data, weight, Window(pads=(1, 1, 1, 1)), "conv")
    operator = Operator("conv", (data, weight), conv, frozenset({1}))
    space = cpu_space(operator, target)
    chosen = space.parts[space.default().indices[0]]
    assert (chosen.label, space.describe(space.default())["staging"]) == ("F(4x4,3x3)", [1])


def test_weights_that_no_cache_keeps_come_no_faster_to_two_cores() -> None:
    """Measured on two cores of a Zen 4 with 32 MiB of third cache: 725 us by F(2x2,3x3), 1094 by F(4x4,3x3),
    whose weights take 38 MB; on one core 1339 and 1334. On one of a Zen 3 with AVX2 1.55 and 2.1 ms."""
    data, weight = placeholder((1, 7, 7, 512), "data"), placeholder((3, 3, 512, 512), "weight")
    window = Window(pads=(1, 1, 1, 1))
    operator = Operator("conv", (data, weight), conv2d(data, weight, window, "conv"), frozenset({1}))
    chosen = {}
    for cores in ((0,), (0, 1)):
        for l3_bytes in (32 << 20, 480 << 20):
            target = replace(HALVED, cores=cores, l3_bytes=l3_bytes, l1d_bytes=32 << 10)
            space = cpu_space(operator, target)
            chosen[len(cores), l3_bytes >> 20] = space.parts[space.default().indices[0]].label
    assert chosen == {
        (1, 32): "F(2x2,3x3)", (1, 480): "F(4x4,3x3)", (2, 32): "F(2x2,3x3)", (2, 480): "F(4x4,3x3)",
    }  # fmt: skip


def test_vectors_that_straddle_lines_and_lone_accumulators_cost_more() -> None:
    assert cycles(matmul_nest(96, 64, 96), 3, 48) > cycles(matmul_nest(96, 64, 96, straddles=False), 3, 48)
    assert cycles(matmul_nest(96, 64, 96), 1, 16) > 4 * cycles(matmul_nest(96, 64, 96), 12, 32) / 2


def test_rows_that_fall_into_one_set_of_the_first_cache_cost_more() -> None:
    spread, collide = matmul_nest(1022, 1040, 96), matmul_nest(1022, 1040, 96, row_bytes=4096)
    assert cycles(collide, 14, 32) > 1.5 * cycles(spread, 14, 32)
    assert cycles(collide, 8, 32) == cycles(spread, 8, 32)


def test_the_order_of_loops_keeps_the_larger_panel_near() -> None:
    nest = matmul_nest(122, 137, 274)
    assert cycles(nest, 9, 48, (1, 0)) < cycles(nest, 9, 48, (0, 1))
    small = matmul_nest(24, 16, 96)
    assert cycles(small, 8, 48, (1, 0)) == pytest.approx(cycles(small, 8, 48, (0, 1)), rel=0.03)


def test_what_a_cache_keeps_comes_from_afar_once() -> None:
    nest = matmul_nest(64, 1024, 4096)  # weights of 16 MiB
    once, each_block = cycles(nest, 8, 32, (1, 0)), cycles(nest, 8, 32, (0, 1))
    more = (64 / 8 - 1) * 4 * 1024 * 4096 / L3_BYTES_PER_CYCLE
    assert more * (1 - L3_HIDDEN) <= each_block - once <= more * (2 - L3_HIDDEN)


def test_the_thread_with_the_most_tiles_counts() -> None:
    nest = matmul_nest(48, 64, 48)
    assert cycles(nest, 8, 48, threads=2) == pytest.approx(cycles(nest, 8, 48) / 2)
    assert cycles(nest, 16, 48, threads=2) == pytest.approx(cycles(nest, 16, 48) * 2 / 3)


def test_threads_that_share_columns_wait_for_what_others_wrote() -> None:
    nest = matmul_nest(48, 64, 96)
    waits = cycles(nest, 8, 48, (1, 0), threads=2) - cycles(nest, 8, 48, (0, 1), threads=2)
    assert waits == pytest.approx(48 * 64 * 4 / 2 / OTHER_CORES_BYTES_PER_CYCLE, rel=0.1)
    assert cycles(nest, 8, 48, (1, 0)) == pytest.approx(cycles(nest, 8, 48, (0, 1)), rel=0.1)


@pytest.mark.parametrize(("l3_bytes", "columns"), [(32 << 20, 1), (480 << 20, 0)])
def test_threads_share_columns_of_small_images_where_the_last_cache_is_near(
    l3_bytes: int, columns: int
) -> None:
    """A pointwise layer of EfficientNet-B0: 7 rows do not divide, and half of its data is another core's."""
    data, weight = placeholder((1, 7, 7, 1152), "data"), placeholder((1, 1, 1152, 320), "weight")
    output = conv2d(data, weight, Window())
    operator = Operator("pointwise", (data, weight), output, frozenset({1}))
    target = replace(HALVED, cores=(0, 1), l1d_bytes=32 << 10, l3_bytes=l3_bytes)
    assert default(operator, target)["space_order"] == columns


# ------------------------------------------------------------------------------------------ the choices


@pytest.mark.parametrize(("cores", "block"), [(1, 1), (2, 14), (4, 7)])
def test_threads_share_rows_and_each_takes_panel_by_panel_for_its_own(cores: int, block: int) -> None:
    """A 3x3 convolution of 28x28 images whose weights of 1.2 MB are larger than the second cache."""
    images, weights = placeholder((1, 30, 30, 128), "X"), placeholder((3, 3, 128, 256), "W")
    operator = Operator("conv", (images, weights), conv2d(images, weights, Window()), frozenset({1}))
    target = replace(AVX512, cores=tuple(range(cores)))
    space = cpu_space(operator, target, winograd=False)
    chosen = space.describe(space.default())
    assert chosen["conv.y"] == [block, 1, 1]
    assert chosen["space_order"] == [int(cores == 1)]  # one thread takes panels outermost


def test_a_batch_is_not_tiled_where_rows_can_be() -> None:
    fields = default(product(5, 34, 70, 246))
    assert fields["product.i0.3"] == 1
    assert fields["product.i1.3"] > 1


@pytest.mark.parametrize(("columns", "tile"), [(15, 15), (43, 43), (98, 98), (110, 110)])
def test_lanes_are_filled_to_three_quarters(columns: int, tile: int) -> None:
    fields = default(product(3, 250, 22, columns))
    assert fields["product.i2.3"] == tile
    assert columns / (16 * -(-columns // 16)) > 0.75


@pytest.mark.parametrize(("shape", "first"), [((3, 122, 400, 1024), 1), ((11, 122, 137, 274), 0)])
def test_panels_stay_in_the_first_cache_where_that_saves_much(
    shape: tuple[int, int, int, int], first: int
) -> None:
    """The second is 1.06 times as fast in the order of memory on a Sapphire Rapids Xeon."""
    assert default(product(*shape))["space_order"] == first


@pytest.mark.parametrize("shape", [(128, 768, 3072), (128, 3072, 768), (35, 650, 2600), (128, 768, 30522)])
def test_weights_larger_than_the_second_cache_are_read_once(shape: tuple[int, int, int]) -> None:
    assert default(layer(*shape))["space_order"] == 1


@pytest.mark.parametrize(
    ("shape", "first"), [((196, 512, 256), 1), ((196, 64, 64), 0), ((9000, 256, 256), 0)]
)
def test_weights_larger_than_the_first_cache_are_fetched_ahead(
    shape: tuple[int, int, int], first: int
) -> None:
    """Panel by panel during the passes over the one before; not where so many passes hide one that waits."""
    assert default(layer(*shape))["space_order"] == first


def test_rows_of_four_kibibytes_stay_within_the_ways_of_a_set() -> None:
    assert default(layer(1024, 1024, 1024))["layer.i.3"] <= 0.8 * (48 << 10) / 4096


@pytest.mark.parametrize("m", [24, 52, 100])
def test_two_threads_get_equal_shares(m: int) -> None:
    target = replace(AVX512, cores=(0, 1))
    plan = make_plan(layer(m, 512, 512))
    group = plan.groups[-1]
    extents = group.owner.shape
    nest = nest_of(plan, group, 16)
    tile = fastest_tile(extents, core_of(target, "float32"), (16, 32, 48), nest, Machine.of(target, 16))
    tiles = np.prod([-(-extent // size) for extent, size in zip(extents, tile.sizes, strict=True)])
    assert tiles % 2 == 0 or tiles > 20


@pytest.mark.parametrize(
    "operator",
    [
        product(14, 291, 9, 71),
        product(16, 179, 2, 37),
        product(8, 40, 2, 249),
        product(2, 175, 4, 241),
        product(3, 250, 22, 110),
        product(4, 58, 225, 5),
        product(10, 34, 236, 4),
        product(3, 163, 114, 20),
        layer(694, 401, 2),
        layer(135, 254, 237),
        layer(1024, 1024, 1024),
        window(14, 256, 512, 3, 2),
        window(14, 512, 512, 1, 1),
        window(28, 256, 256, 1, 1),
    ],
    ids=lambda operator: "x".join(str(size) for item in operator.inputs for size in item.shape),
)
@pytest.mark.parametrize("target", [AVX512, AVX2], ids=lambda target: target.cpu)
def test_untuned_inner_loops_have_no_spills(operator: Operator, target: Target) -> None:
    space = cpu_space(operator, target)
    report = inspect("kernel", Programs(space).nest(space.default()), target, predict=False)
    inner = [loop for loop in report.loops if loop.innermost and loop.fma]
    assert inner and all(loop.vector_spills == 0 for loop in inner)


def test_short_steps_are_written_out_where_sums_are_not_guarded() -> None:
    """With few registers: a step has 8 to 14 multiply-adds, and a loop four instructions of its own."""
    pointwise, bordered = window(56, 128, 128, 1, 1), window(14, 256, 512, 3, 2)
    found = {
        target.cpu: [default(operator, target)["unroll"] for operator in (pointwise, bordered)]
        for target in (AVX512, AVX2, SSE)
    }
    assert found == {"skylake-avx512": [16, 16], "x86-64-v3": [64, 16], "x86-64-v2": [16, 16]}
    space = cpu_space(pointwise, AVX2)
    report = inspect("kernel", Programs(space).nest(space.default()), AVX2, predict=False)
    assert report.hot is not None and report.hot.fma == 8 * 12


def test_sums_that_only_just_hide_their_latency_cost_more() -> None:
    """Two multiply-adds a cycle that take four: 8 sums are not enough where a load is late, 12 are."""
    nest = matmul_nest(96, 256, 96, straddles=False)
    machine = Machine.of(AVX2, 8)
    eight, twelve = (nest_cycles(nest, machine, (rows, 16), 2, (0, 1)) for rows in (4, 6))
    assert 1.1 * twelve < eight < 1.3 * twelve
    assert machine.load_cycles > Machine.of(AVX512, 16).load_cycles


def test_what_is_done_before_another_core_wakes_runs_on_one() -> None:
    target = replace(AVX512, cores=(0, 1))
    cores = [default(layer(24, 31, columns), target)["cores"] for columns in (191, 191 * 8)]
    assert cores == [1, 0]  # one core; all of them


def test_what_reads_much_runs_on_all_cores() -> None:
    """Of two products that are small enough for one core, one has 332 KB of weights."""
    target = replace(AVX512, cores=(0, 1))
    products = [layer(1, inner, 144) for inner in (64, 576)]
    assert all(item.flops < ONE_CORE_PREFERRED_FLOPS for item in products)
    assert [default(item, target)["cores"] for item in products] == [1, 0]


@pytest.mark.parametrize(("m", "k", "n", "turned"), [(196, 512, 512, 1), (196, 64, 64, 0)])
def test_a_core_in_order_reads_weights_that_its_cache_cannot_hold_once(
    m: int, k: int, n: int, turned: int
) -> None:
    """1 MiB of weights behind 512 KiB of cache, against 16 KiB: every tile of rows would read all of them."""
    assert default(layer(m, k, n), A53)["space_order"] == turned


@pytest.mark.parametrize(
    ("size", "inner", "outer", "kernel", "stride", "part"),
    [
        (13, 64, 96, 1, 1, 0.65),  # rows of which none divides the image, and all of it is one too many
        (14, 64, 96, 1, 1, 0.71),  # a tile that leaves no register for what 16 steps load ahead
        (28, 32, 48, 3, 2, 0.73),  # neighbours that share little of a window
        (7, 32, 60, 3, 1, 0.81),  # and those that share most of it
    ],
)
def test_a_core_in_order_is_fed_as_fast_as_registers_last(
    size: int, inner: int, outer: int, kernel: int, stride: int, part: float
) -> None:
    """The part of the peak by the issue model, without what overlapping tiles compute twice."""
    data, weight = placeholder((1, size, size, inner), "X"), placeholder((kernel, kernel, inner, outer), "W")
    pads = (kernel // 2,) * 4
    convolution = conv2d(data, weight, Window((stride, stride), pads), name="conv")
    space = cpu_space(Operator("conv", (data, weight), convolution, frozenset({1})), A53, winograd=False)
    fields = space.fields(space.default())
    sizes = [fields[f"conv.{axis}.3"] for axis in ("y", "x", "c")]
    computed = [
        -(-axis.extent // tile) * tile for axis, tile in zip(convolution.axes[1:], sizes, strict=True)
    ]
    hot = inspect("conv", Programs(space).nest(space.default()), A53).hot
    assert hot is not None
    useful = math.prod(convolution.shape[1:]) / math.prod(computed)
    assert hot.predictions[0].model == "cortex-a53 issue model"
    assert hot.predictions[0].peak_share * useful > part


@pytest.mark.parametrize("target", [AVX2, AVX512], ids=["avx2", "avx512"])
@pytest.mark.parametrize(("size", "channels"), [(112, 64), (55, 128), (14, 512)])
def test_a_pooling_reads_whole_lines(size: int, channels: int, target: Target) -> None:
    def row(operator: Operator) -> int:
        """Elements of a row of the register tile."""
        space = cpu_space(operator, target)
        nest = Programs(space).nest(space.default())
        loops = [item for item in statements(nest.body) if isinstance(item, For)]
        return max(bound_extent(loop.extent, "") for loop in loops if loop.kind is LoopKind.VECTORIZED)

    window = Window(strides=(2, 2), pads=(1, 1, 1, 1))
    assert row(pooled(size, channels, window)) >= 2 * target.cache_line_bytes // 4
    assert row(pooled(size, 8, window)) == 8  # few channels are a row of their own


def depthwise(size: int, channels: int, stride: int) -> Operator:
    data, weight = placeholder((1, size, size, channels), "data"), placeholder((3, 3, channels), "weight")
    window = Window(strides=(stride, stride), pads=(1, 1, 1, 1))
    return Operator("dw", (data, weight), depthwise_conv(data, weight, window, "dw"), frozenset({1}))


@pytest.mark.parametrize(
    ("size", "channels", "stride", "channels_a_tile"),
    [
        (28, 256, 1, 16),  # 3 of 9 columns in each of 4 sets, times 3 rows: 9 lines, of 8 that stay
        (28, 256, 2, 16),
        (14, 512, 1, 16),
        (14, 512, 2, 16),
        (7, 1024, 1, 16),
        (56, 128, 1, 8),  # 6 lines in the fullest set
        (14, 384, 1, 8),
        (7, 960, 1, 8),
    ],
)
def test_a_window_whose_lines_collide_is_read_by_whole_lines(
    size: int, channels: int, stride: int, channels_a_tile: int
) -> None:
    """Measured on a Zen 3; with enough ways nothing is lost."""
    operator = depthwise(size, channels, stride)
    assert default(operator, AVX2)["dw.x.3"] == 7
    assert default(operator, AVX2)["dw.c.3"] == channels_a_tile
    many_ways = replace(AVX2, l1d_bytes=4 * AVX2.l1d_bytes)
    assert default(operator, many_ways)["dw.c.3"] == 8


def test_what_each_sum_has_for_itself_may_come_from_memory_in_whole_lines() -> None:
    rule = next(item for item in cpu_space(depthwise(14, 512, 1), AVX2).constraints if "reg" in item.name)
    own, weights = (0, 1, 2), (2,)
    avx2, avx512, a53 = (core_of(target, "float32") for target in (AVX2, AVX512, A53))
    assert (avx2.line_vectors, avx512.line_vectors, a53.line_vectors) == (2, 0, 0)
    assert core_of(AVX2, "int32").line_vectors == 0
    assert fits_registers((1, 7, 2), (own, weights), avx2)  # 14 sums and two vectors of weights
    assert not fits_registers((1, 8, 2), (own, weights), avx2)
    assert not fits_registers((1, 14, 1), (own, weights), avx2)  # parts of lines
    assert not fits_registers((1, 7, 2), ((0, 1), (2,), (0, 2)), avx2)  # neighbours share what they multiply
    sizes = {"dw.y.3": np.array([1, 1]), "dw.x.3": np.array([7, 7]), "dw.c.3": np.array([16, 32])}
    assert rule.holds(sizes).tolist() == [True, False]


def test_lines_of_a_block_in_one_set() -> None:
    assert fullest_set((4, 4), (4096, 64), 64) == 4
    assert fullest_set((3, 9), (14 * 2048, 2048), 64) == 15
    assert fullest_set((3, 9), (14 * 2048, 2048 + 64), 64) == 3
    assert fullest_set((5, 2), (0, 32), 64) == 1  # all in one line


@pytest.mark.parametrize(("size", "stride"), [(7, 1), (14, 1), (14, 2), (28, 1)])
@pytest.mark.parametrize("target", EACH_HOST)
def test_windows_read_by_whole_lines_are_right(
    size: int, stride: int, target: Target, tmp_path: Path
) -> None:
    operator = depthwise(size, 7168 // size, stride)
    nest = Programs(space := cpu_space(operator, target)).nest(space.default())
    inputs = randoms(operator)
    (got,) = run_here(compile_jobs([Job(nest, inputs)], target), [Job(nest, inputs)], tmp_path)
    np.testing.assert_allclose(got, evaluate(operator, inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("target", "columns", "long", "short"),
    [
        (AVX2, 197, 32, 16),  # of 8
        (AVX2, 24, 24, 16),
        (AVX2, 12, 12, 12),
        (AVX512, 197, 32, 32),  # of 16
        (A53, 197, 16, 16),  # of 4
        (A53, 19, 12, 12),
    ],
)
def test_loops_of_long_functions_have_several_vectors(
    target: Target, columns: int, long: int, short: int
) -> None:
    """Where registers are few for their constants, or a core waits for each instruction."""
    x = placeholder((5, columns), "x")
    functions = [
        (compute(x.shape, lambda i, j: exp(x[i, j]), name="made"), long),
        (compute(x.shape, lambda i, j: x[i, j] * 2.0, name="made"), short),
    ]
    for made, wanted in functions:
        assert default(Operator("o", (x,), made), target)["made.j.1"] == wanted


def pooled(size: int, channels: int, window: Window) -> Operator:
    data = placeholder((1, size, size, channels), "data")
    return Operator("pool", (data,), pool2d(data, (3, 3), window, "max"))
