"""Chains: reductions one behind the other, computed block by block of the last one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from boards.board import load
from cross.codegen.buffers import bound_extent
from cross.expression import Operator, compute, placeholder
from cross.expression.families.conv import conv2d, depthwise_conv
from cross.expression.families.data_movement import strided_slice
from cross.expression.families.dense import batch_matmul
from cross.expression.families.elementwise import UNARY, apply, bias_add
from cross.expression.families.norm import layer_norm, normalize, softmax
from cross.expression.families.pool import pool2d
from cross.expression.families.window import Window
from cross.expression.reference import evaluate
from cross.expression.rewrites.composition import composed
from cross.loopnest import LoopNest, Programs, to_text, verify
from cross.loopnest.nodes import For
from cross.schedule import ScheduleSpace, cpu_space
from cross.schedule.chain import chain_of
from cross.schedule.chain_cost import saved_seconds
from cross.schedule.cpu_schedule import BLOCKS, NESTS, SLIDING
from cross.schedule.plan import make_plan
from tests.fuzz.operators import FAMILIES, random_operator
from tests.interpreter.interpreter import interpret
from tests.quick import others_slow
from tests.targets import AVX2_TWO_CORES as TARGET

A53 = load("rpi3b").target(None)
IMAGE = placeholder((1, 14, 14, 32), "X")
SAME = Window(pads=(1, 1, 1, 1))


def pointwise(size: int, inside: int, outside: int) -> Operator:
    data, weight = placeholder((1, size, size, inside), "X"), placeholder((1, 1, inside, outside), "W")
    bias = placeholder((outside,), "b")
    output = apply(UNARY["Relu"], bias_add(conv2d(data, weight, Window()), bias), "relu")
    return Operator("pointwise", (data, weight, bias), output, frozenset({1, 2}))


def depthwise(size: int, channels: int, window: Window = SAME) -> Operator:
    data, weight = placeholder((1, size, size, channels), "X"), placeholder((3, 3, channels), "W")
    output = apply(UNARY["Relu"], depthwise_conv(data, weight, window), "relu")
    return Operator("depthwise", (data, weight), output, frozenset({1}))


def largest(size: int, channels: int) -> Operator:
    data = placeholder((1, size, size, channels), "X")
    pooled = pool2d(data, (3, 3), Window((2, 2), (1, 1, 1, 1)), "max")
    return Operator("largest", (data,), pooled)


def attention(heads: int, tokens: int, keys: int, each: int) -> tuple[Operator, ...]:
    """Scores with a mask, their softmax, and the values that they weigh."""
    query, key = placeholder((heads, tokens, each), "Q"), placeholder((heads, each, keys), "K")
    mask = placeholder((keys,), "M")
    scores = Operator("scores", (query, key, mask), bias_add(batch_matmul(query, key), mask))
    data = placeholder((heads, tokens, keys), "S")
    weights = placeholder((heads, tokens, keys), "W")
    value = placeholder((heads, keys, each), "V")
    product = Operator("product", (weights, value), batch_matmul(weights, value))
    return scores, Operator("softmax", (data,), softmax(data, 2)), product


def masked_scores(heads: int, tokens: int, keys: int, each: int) -> Operator:
    """Scores with a constant for each, which both the maxima and the exponentials of a softmax add."""
    query, key = placeholder((heads, tokens, each), "Q"), placeholder((heads, each, keys), "K")
    mask, product = placeholder((tokens, keys), "M"), batch_matmul(query, key)
    scores = compute((heads, tokens, keys), lambda h, i, j: product[h, i, j] + mask[i, j], "masked")
    return Operator("scores", (query, key, mask), scores, frozenset({2}))


def normalized(rows: int, channels: int) -> Operator:
    data = placeholder((1, rows, channels), "X")
    scale, shift = placeholder((channels,), "s"), placeholder((channels,), "b")
    return Operator("layer norm", (data, scale, shift), layer_norm(data, scale, shift), frozenset({1, 2}))


def softmax_of(*shape: int, axis: int = -1) -> Operator:
    data = placeholder(shape, "X")
    return Operator("softmax", (data,), softmax(data, axis % len(shape)))


def joined(*links: Operator) -> Operator:
    result = links[0]
    for link in links[1:]:
        result = composed(result, link, 0)
    return result


CHAINS = {
    "depthwise, pointwise": (depthwise(9, 8), pointwise(9, 8, 5)),
    "strided depthwise, pointwise": (depthwise(9, 8, Window((2, 2), (1, 1, 1, 1))), pointwise(5, 8, 16)),
    "bottleneck": (pointwise(9, 5, 8), depthwise(9, 8), pointwise(9, 8, 4)),
    "pointwise, pooling": (pointwise(9, 5, 8), largest(9, 8)),
    "attention": attention(2, 7, 16, 8),
    "attention to keys that fill no vectors": attention(1, 9, 11, 5),
    "scores, softmax": attention(2, 7, 16, 8)[:2],
    "scores with a constant mask, softmax": (masked_scores(3, 4, 6, 8), softmax_of(3, 4, 6)),
    "layer norm": (normalized(13, 21),),
    "softmax": (softmax_of(3, 5, 19),),
}


WINDOWS = {
    "pointwise, depthwise": (pointwise(9, 5, 8), depthwise(9, 8)),
    "bottleneck": CHAINS["bottleneck"],
    "strided, over one end": (pointwise(10, 5, 8), depthwise(10, 8, Window((2, 2), (0, 0, 1, 1)))),
    "without padding": (pointwise(9, 5, 8), depthwise(9, 8, Window((1, 1), (0, 0, 0, 0)))),
    "over the ends as far as it keeps": (pointwise(9, 5, 8), depthwise(9, 8, Window((1, 1), (2, 2, 2, 2)))),
    "fed by a depthwise": (depthwise(9, 5), pointwise(9, 5, 8), depthwise(9, 8)),
    "pointwise, pooling": CHAINS["pointwise, pooling"],
}


def in_blocks(space: ScheduleSpace, row: np.ndarray, how: int = BLOCKS) -> LoopNest | None:
    """The program of a configuration with its chain in blocks; None where that is none of the space."""
    row = row.copy()
    names = [knob.name for knob in space.knobs]
    asked = {"chain": how, **({"padding": 1, "tiling": 0} if how == SLIDING else {})}
    for name in asked.keys() & {*names}:
        row[names.index(name)] = asked[name]
    return Programs(space).nest(space.configuration(row)) if space.valid(row[None])[0] else None


@pytest.mark.parametrize("name", others_slow(CHAINS, "depthwise, pointwise", "pointwise, pooling"))
def test_a_chain_in_blocks_computes_what_its_links_do(name: str) -> None:
    check_programs(CHAINS[name], BLOCKS, 12)


@pytest.mark.parametrize("name", others_slow(WINDOWS, "pointwise, depthwise", "fed by a depthwise"))
def test_a_window_that_slides_over_a_link_sees_what_the_link_computes(name: str) -> None:
    check_programs(WINDOWS[name], SLIDING, 100)


def check_programs(links: Sequence[Operator], how: int, samples: int) -> None:
    rng = np.random.default_rng(3)
    inputs = [[rng.standard_normal(item.shape).astype(np.float32) for item in link.inputs] for link in links]
    wanted = evaluate(links[0], inputs[0])
    for link, own in zip(links[1:], inputs[1:], strict=True):
        wanted = evaluate(link, [wanted, *own[1:]])
    space = cpu_space(joined(*links), TARGET)
    found = (in_blocks(space, row, how) for row in space.sample(rng, samples))
    nests = list(itertools.islice((nest for nest in found if nest is not None), 12))
    assert len(nests) >= 4
    for nest in nests:
        verify(nest)
        got = interpret(nest, [*inputs[0], *(array for own in inputs[1:] for array in own[1:])])
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_a_block_holds_the_part_of_the_image_that_it_reads() -> None:
    """Blocks of two rows of a padded window read four rows, of which those outside of the image are none."""
    space = cpu_space(joined(pointwise(9, 5, 8), depthwise(9, 8)), TARGET)
    names = [knob.name for knob in space.knobs]
    row = space.batch([space.default()])[0]
    chosen = {"relu_.i1": (2, 1, 1), "relu_.i2": (9, 1, 1), "relu_.i3": (1, 1, 8), "padding": (1,)}
    chosen |= {"relu.i1": (1, 1, 1), "relu.i2": (1, 1, 1), "relu.i3": (1, 1, 8)}
    for name, values in chosen.items():
        row[names.index(name)] = space.knobs[names.index(name)].nearest(values)
    nest = in_blocks(space, row)
    assert nest is not None
    text = to_text(nest)
    assert "allocate relu: float32[1, 4, 11, 8] in local" in text  # and a column of zeros on either side
    assert "max(min(" in text


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"attention", "joined", "normalization"}))
def test_no_other_operator_is_a_chain(family: str) -> None:
    rng = np.random.default_rng(4)
    for _ in range(5):
        space = cpu_space(random_operator(rng, family), TARGET)
        assert all(knob.name.split()[-1] != "chain" for knob in space.knobs)


def test_no_scores_are_wholly_in_memory() -> None:
    """Rows of a block are all that is held of what softmax reads and makes."""
    links = attention(3, 197, 197, 64)
    assert saved_seconds(links, joined(*links), TARGET) > 1e-5
    space = cpu_space(joined(*links), TARGET)
    nest = Programs(space).nest(space.default())
    assert nest.workspace == ()
    verify(nest)


def test_rows_that_are_normalized_over_other_rows_are_no_links() -> None:
    """Softmax over the tokens needs all of them for each."""
    scores, _, product = attention(2, 7, 16, 8)
    data = placeholder((2, 7, 16), "S")
    chain = chain_of(make_plan(joined(scores, Operator("softmax", (data,), softmax(data, 1)), product)))
    assert chain is None or len(chain.links) < 4


@pytest.mark.parametrize("operator", [normalized(197, 192), softmax_of(197, 192)])
def test_whole_rows_are_normalized_block_by_block(operator: Operator) -> None:
    """One nest, whose blocks fit the first cache with what they read again, hand over and write."""
    space = cpu_space(operator, TARGET)
    nest = Programs(space).nest(space.default())
    (loop,) = nest.body.statements
    assert nest.workspace == ()
    assert isinstance(loop, For)
    assert TARGET.threads < bound_extent(loop.extent, loop.var) <= 197
    assert "cores" not in {knob.name for knob in space.knobs} or space.fields(space.default())["cores"] == 0


@pytest.mark.parametrize(
    "operator",
    [
        softmax_of(1, 192),  # one row
        softmax_of(197, 192, axis=0),  # columns
        Operator("norm", (IMAGE,), normalize(IMAGE, (1, 2))),  # channels lie side by side, rows are channels
    ],
)
def test_other_normalizations_have_no_blocks(operator: Operator) -> None:
    assert chain_of(make_plan(operator)) is None


def test_rows_of_a_board_in_order_are_in_blocks_where_its_memory_is_slow() -> None:
    for rows, chain in ((64, NESTS), (512, BLOCKS)):  # 192 KiB and 1.5 MiB, of 512 KiB of second cache
        space = cpu_space(normalized(rows, 768), A53)
        assert space.fields(space.default())["chain"] == chain


def test_a_window_computes_no_row_twice_but_where_it_begins() -> None:
    """A ring of the four rows that two rows of a 3x3 window read; each step computes two more of them."""
    space = cpu_space(joined(pointwise(12, 5, 8), depthwise(12, 8)), TARGET)
    names = [knob.name for knob in space.knobs]
    row = space.batch([space.default()])[0]
    chosen = {"relu_.i1": (3, 2, 1), "relu_.i2": (12, 1, 1), "relu_.i3": (1, 1, 8)}
    chosen |= {"relu.i1": (1, 1, 1), "relu.i2": (1, 1, 1), "relu.i3": (1, 1, 8)}
    for name, values in chosen.items():
        row[names.index(name)] = space.knobs[names.index(name)].nearest(values)
    nest = in_blocks(space, row, SLIDING)
    assert nest is not None
    text = to_text(nest)
    assert "allocate relu: float32[1, 4, 14, 8] in local" in text
    assert text.count("for relu.i1.0 in 2:") == text.count("for relu.i1.0.first in 2:") == 1
    assert "for relu_.i1.1 in 3:" in text and ") % 4" in text


def test_a_window_needs_links_that_share_rows_and_nothing_padded_behind_them() -> None:
    far = Window((1, 1), (3, 3, 3, 3))  # over the ends by more than steps share
    for links, slides in (
        ((depthwise(9, 8), pointwise(9, 8, 5)), False),
        ((pointwise(9, 5, 8), depthwise(9, 8, far)), False),
        ((pointwise(9, 5, 8), depthwise(9, 8), pointwise(9, 8, 4)), True),
    ):
        chain = chain_of(make_plan(joined(*links)))
        assert chain is not None
        assert (chain.sliding is not None) == slides


def test_a_board_whose_memory_is_slow_slides_windows_over_a_bottleneck() -> None:
    links = (pointwise(56, 24, 144), depthwise(56, 144), pointwise(56, 144, 24))
    space = cpu_space(joined(*links), A53)
    assert space.fields(space.default())["chain"] == SLIDING


def test_windows_in_a_chain_are_written_out_and_longer_sums_are_not() -> None:
    space = cpu_space(joined(pointwise(56, 24, 144), depthwise(56, 144)), TARGET)
    fields = space.fields(space.default())
    assert fields["window_unroll"] > fields["unroll"]


def test_a_board_with_a_small_cache_computes_a_large_image_in_blocks() -> None:
    links = (depthwise(112, 32), pointwise(112, 32, 64))
    assert saved_seconds(links, joined(*links), A53) > 1e-4
    space = cpu_space(joined(*links), A53)
    assert space.fields(space.default())["chain"] == BLOCKS


def test_overlapping_rows_of_a_bottleneck_cost_less_than_memory() -> None:
    links = (pointwise(56, 24, 144), depthwise(56, 144, Window((2, 2), (1, 1, 1, 1))), pointwise(28, 144, 32))
    assert saved_seconds(links, joined(*links), A53) > 1e-4


@pytest.mark.parametrize(("channels", "blocks"), [(72, True), (100, False)])
@pytest.mark.parametrize("l3_bytes", [0, 8 << 20])
def test_blocks_hold_all_channels_or_even_parts_or_there_are_none(
    channels: int, blocks: bool, l3_bytes: int
) -> None:
    """Others, as whole vectors of 8 would make them of 100, would compute what overlaps once more; parts
    are for cores that have one second cache."""
    target = replace(TARGET, l3_bytes=l3_bytes)
    space = cpu_space(joined(pointwise(56, 16, channels), depthwise(56, channels)), target)
    fields = space.fields(space.default())
    held = math.prod(fields[f"relu_.i3.{level}"] for level in (1, 2, 3))
    fits = held == channels if l3_bytes else channels % held == 0
    assert (fields["chain"] != NESTS, fits) == (blocks, blocks)


def test_weights_that_every_block_would_read_again_leave_operators_alone() -> None:
    links = (depthwise(7, 1024), pointwise(7, 1024, 1024))
    assert saved_seconds(links, joined(*links), A53) == 0.0
    space = cpu_space(joined(*links), A53)
    assert space.fields(space.default())["chain"] == 0


def test_winograds_convolutions_stay_alone() -> None:
    data, weight = placeholder((1, 112, 112, 64), "X"), placeholder((3, 3, 64, 64), "W")
    convolution = Operator("conv", (data, weight), conv2d(data, weight, SAME), frozenset({1}))
    links = (convolution, pointwise(112, 64, 64))
    assert saved_seconds(links, joined(*links), TARGET) == 0.0


def test_what_is_read_backwards_is_no_link() -> None:
    data, weight = placeholder((1, 9, 9, 8), "X"), placeholder((1, 1, 8, 5), "W")
    for start, step, links in ((0, 1, 1), (8, -1, 0)):
        rows = strided_slice(data, (0, start, 0, 0), (1, step, 1, 1), data.shape)
        reader = Operator("pointwise", (data, weight), conv2d(rows, weight, Window()), frozenset({1}))
        chain = chain_of(make_plan(joined(depthwise(9, 8), reader)))
        assert len(chain.links if chain else ()) == links


def test_where_no_window_fits_channels_are_cut_if_all_cores_have_one_second_cache() -> None:
    """All channels of five rows fill more than half of a core's part of it, and blocks of rows overlap."""
    links = (pointwise(14, 80, 480), depthwise(14, 480))
    for target, cut in ((A53, True), (replace(A53, l3_bytes=8 << 20), False)):
        space = cpu_space(joined(*links), target)
        fields = space.fields(space.default())
        sizes = {
            axis: math.prod(fields[f"relu_.{axis}.{level}"] for level in (1, 2, 3)) for axis in ("i1", "i3")
        }
        assert (fields["chain"] == BLOCKS, sizes["i1"] == 14 and 480 % sizes["i3"] == 0) == (cut, cut)
        assert not cut or sizes["i3"] < 480
        assert (saved_seconds(links, joined(*links), target) > 1e-4) == cut
