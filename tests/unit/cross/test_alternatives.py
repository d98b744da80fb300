"""Several algorithms in one space, and what Winograd's needs: whole tiles, guards, literals, maps."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from msgspec.structs import replace

from boards.board import load as load_board
from boards.target import Target
from cross.errors import ExpressionError, ScheduleError, VerifyError
from cross.expression import Operator, compute, placeholder, reduce_axis, sum
from cross.expression.families.conv import conv2d
from cross.expression.families.window import Window
from cross.expression.language.terms import Binary, Int, Lookup, lookup
from cross.expression.reference import evaluate
from cross.expression.rewrites.winograd import matrices
from cross.loopnest import Programs, lower, to_text, verify
from cross.loopnest.affine import divide, sum_of_terms
from cross.loopnest.bind import bind
from cross.loopnest.nodes import Expr, Knob, Var, add, mul
from cross.schedule import Packing, cpu_space
from cross.schedule.alternatives import AlternativeSpaces
from cross.schedule.packing import PackedLoop
from cross.schedule.primitives import ComputeAt, Pack, Reorder, Split, Unroll
from tests.feature_rows import check
from tests.interpreter.interpreter import interpret
from tests.nests import argument, load, loop, store
from tests.nests import nest as nest_of
from tests.targets import AVX2
from tests.targets import AVX2_TWO_CORES as TARGET
from toolkit.features.context import ContextFeatures

FOUR_A53 = load_board("rpi3b").target()
CORTEX_A53 = replace(FOUR_A53, cores=(0,))


def convolution() -> Operator:
    data, weight = placeholder((1, 11, 9, 16), "X"), placeholder((3, 3, 16, 24), "W")
    output = conv2d(data, weight, Window(pads=(1, 1, 1, 1)))
    return Operator("conv", (data, weight), output, frozenset({1}))


@pytest.fixture(name="space")
def space_fixture() -> AlternativeSpaces:
    space = cpu_space(convolution(), TARGET)
    assert isinstance(space, AlternativeSpaces)
    return space


# ----------------------------------------------------------------------------------- several algorithms


def test_a_convolution_has_several_algorithms(space: AlternativeSpaces) -> None:
    assert space.knobs[0].labels == ("direct", "F(2x2,3x3)", "F(4x4,3x3)", "F(5x5,3x3)")
    assert len(space) == np.sum([len(part.space) for part in space.parts])
    assert [item.indices[0] for item in space.defaults()] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("cycles", "chosen"),
    [
        ((10.0, 5.0, 8.0, 6.0), 1),
        ((10.0, 9.6, 9.5, 9.6), 2),
        ((10.0, 9.6, 9.5, 9.4), 3),
        ((10.0, 9.8, 9.9, 9.8), 0),  # hardly fewer than directly
        ((0.0, 5.0, 4.0, 3.0), 0),  # not estimated
    ],
)
def test_the_untuned_program_is_the_algorithms_with_the_fewest_estimated_cycles(
    space: AlternativeSpaces, cycles: tuple[float, ...], chosen: int
) -> None:
    for part, estimate in zip(space.parts, cycles, strict=True):
        part.space.cycles = estimate
    assert space.default() == space.defaults()[chosen]
    assert space.restricted({}).default() == space.default()


@pytest.mark.parametrize(
    ("target", "shape", "label", "staging"),
    [
        (TARGET, (56, 64), "F(4x4,3x3)", "blocks"),
        (AVX2, (16, 256), "F(4x4,3x3)", "whole"),  # weights for every block would be most of the traffic
        (TARGET, (16, 256), "F(4x4,3x3)", "blocks"),  # a core would wait for what the other has transformed
        (AVX2, (14, 256), "F(5x5,3x3)", "blocks"),  # one block of 3 x 3 tiles, 49 positions; 4 x 4 have 36
        (TARGET, (5, 64), "direct", ""),
        (CORTEX_A53, (56, 64), "F(4x4,3x3)", "blocks"),
        (FOUR_A53, (56, 64), "F(2x2,3x3)", "blocks"),  # with F(4x4,3x3) four cores would need 1 MB of cache
        (FOUR_A53, (7, 512), "direct", ""),  # weights would come from memory for most of the time
    ],
)
def test_untuned_convolutions_of_usual_networks(
    target: Target, shape: tuple[int, int], label: str, staging: str
) -> None:
    size, channels = shape
    data, weight = placeholder((1, size, size, channels), "X"), placeholder((3, 3, channels, channels), "W")
    output = conv2d(data, weight, Window(pads=(1, 1, 1, 1)))
    space = cpu_space(Operator("conv", (data, weight), output, frozenset({1})), target)
    configuration = space.default()
    part = space.part_of(space.batch([configuration])[0])
    assert part.label == label
    chosen = space.describe(configuration).get("staging", [-1])[0]
    assert ("blocks", "whole", "")[chosen] == staging


@pytest.mark.parametrize("channels", [7, 11, 15])
def test_convolutions_of_channels_that_fill_no_vectors_have_untuned_programs_on_cores_in_order(
    channels: int,
) -> None:
    data, weight = placeholder((1, 30, 30, 16), "X"), placeholder((3, 3, 16, channels), "W")
    output = conv2d(data, weight, Window(pads=(1, 1, 1, 1)))
    space = cpu_space(Operator("conv", (data, weight), output, frozenset({1})), CORTEX_A53)
    assert space.valid(space.batch(space.defaults())).all()


def test_without_winograd_there_is_the_direct_one_only(space: AlternativeSpaces) -> None:
    direct = cpu_space(convolution(), TARGET, winograd=False)
    assert not isinstance(direct, AlternativeSpaces)
    assert direct.key == space.parts[0].space.key != space.key


def test_programs_with_other_literals_are_another_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured is not taken for an algorithm with other points, which rounds otherwise."""
    before = cpu_space(convolution(), TARGET)
    points = [None, *map(Fraction, (1, -1, 2, -2, 0))]
    monkeypatch.setitem(matrices._FILTERINGS, (4, 3, 1), matrices._interpolated(4, 3, points))
    after = cpu_space(convolution(), TARGET)
    assert before.knobs == after.knobs and before.key != after.key
    other = [one.space.key != two.space.key for one, two in zip(before.parts, after.parts, strict=True)]
    assert other == ["4x4" in part.label for part in before.parts]


def test_draws_are_valid_and_spread_over_the_algorithms(space: AlternativeSpaces) -> None:
    rng = np.random.default_rng(0)
    batch = space.sample(rng, 400)
    assert batch.shape == (400, len(space.knobs)) and space.valid(batch).all()
    assert np.bincount(batch[:, 0]).tolist() == [100, 100, 100, 100]
    assert {int(space.sample(rng, 1)[0, 0]) for _ in range(60)} == {0, 1, 2, 3}
    neighbours = space.mutate(rng, batch)
    assert space.valid(neighbours).all()
    changed = neighbours[:, 0] != batch[:, 0]
    assert 0 < changed.mean() < 0.2 and (neighbours != batch).any(axis=1).mean() > 0.9


def test_ids_tell_configurations_apart(space: AlternativeSpaces) -> None:
    batch = space.sample(np.random.default_rng(1), 600)
    assert len(np.unique(space.ids(batch))) == len(np.unique(batch, axis=0))


def test_columns_of_other_algorithms_are_zero(space: AlternativeSpaces) -> None:
    batch = space.sample(np.random.default_rng(2), 30)
    wrong = batch.copy()
    wrong[:, 0] = (wrong[:, 0] + 1) % 4
    assert not space.valid(wrong[batch[:, 1:].any(axis=1)]).any()


def test_described_configurations_are_parsed_again(space: AlternativeSpaces) -> None:
    for row in space.sample(np.random.default_rng(3), 20):
        configuration = space.configuration(row)
        described = space.describe(configuration)
        assert described["algorithm"] == [row[0]]
        assert space.parse(described) == configuration
    with pytest.raises(ScheduleError, match="algorithm: \\[4\\] is none of its 4 choices"):
        space.parse({"algorithm": [4]})
    with pytest.raises(ScheduleError, match="unknown knobs block.h"):
        space.parse({**space.describe(space.default()), "block.h": [1, 1]})


def test_values_are_of_one_algorithm(space: AlternativeSpaces) -> None:
    first, second, *_ = space.batch(space.defaults())
    assert set(space.values(first[None])) == set(space.fields(space.default()))
    with pytest.raises(ScheduleError, match="rows of 2"):
        space.values(np.stack([first, second]))


@pytest.mark.slow
def test_features_of_all_algorithms_equal_the_plain_ones(space: AlternativeSpaces) -> None:
    programs = Programs(space)
    extract = ContextFeatures(programs)
    batch = space.sample(np.random.default_rng(4), 1500)
    _, rows = np.unique(batch[:, list(space.structural)], axis=0, return_index=True)
    assert len(rows) == len(list(space.structures()))
    check(extract, programs, batch[rows])


def test_every_algorithm_takes_the_same_inputs(space: AlternativeSpaces) -> None:
    operator, programs = space.operator, Programs(space)
    rng = np.random.default_rng(5)
    inputs = [rng.uniform(-1, 1, tensor.shape).astype(np.float32) for tensor in operator.inputs]
    want = evaluate(operator, inputs)
    for configuration in space.defaults():
        nest = programs.nest(configuration)
        assert nest.flops == operator.flops
        assert np.abs(interpret(nest, inputs) - want).max() < 1e-4 * np.abs(want).max()


# ---------------------------------------------------------------------------------- whole tiles and guards


def upsampled() -> Operator:
    """Each element three times: what is read depends on quotients by 3."""
    data = placeholder((5,), "A")
    return Operator("repeat", (data,), compute((13,), lambda i: data[i // 3], name="B"))


def test_whole_tiles_divide_indices_when_lowered() -> None:
    schedule = (Split("B", "i", ("t", 3), whole_tiles=True), Unroll("B", "i.2"))
    parametric = lower(upsampled(), schedule)
    verify(parametric.nest, parametric=True)
    data = np.arange(5, dtype=np.float32)
    for tiles in (1, 2, 4):
        nest = bind(parametric, {"t": tiles})
        verify(nest)
        text = to_text(nest)
        assert "//" not in text and "if" in text
        np.testing.assert_array_equal(interpret(nest, [data]), np.repeat(data, 3)[:13])


def test_whole_tiles_that_fit_need_no_guard() -> None:
    data = placeholder((4,), "A")
    operator = Operator("repeat", (data,), compute((12,), lambda i: data[i // 3], name="B"))
    nest = bind(lower(operator, (Split("B", "i", (2, 3), whole_tiles=True),)), {})
    assert "if" not in to_text(nest).split("\n", 1)[1]


def test_whole_tiles_need_a_known_size() -> None:
    with pytest.raises(ScheduleError, match="an integer as last factor"):
        lower(upsampled(), (Split("B", "i", ("t",), whole_tiles=True),))


def test_a_guard_is_checked() -> None:
    buffer, source = argument("C", (4,), "output"), argument("A", (8,), "input")
    inside = Binary("<", Var("i"), Int(4))
    guarded = replace(store(buffer, ("i",), load(source, "i")), guard=inside)
    good = nest_of((source, buffer), loop("i", 8, guarded))
    verify(good)
    np.testing.assert_array_equal(
        interpret(good, [np.arange(8, dtype=np.float32)]), np.arange(4, dtype=np.float32)
    )
    with pytest.raises(VerifyError, match="dtypes: guard of"):
        verify(nest_of((source, buffer), loop("i", 4, replace(guarded, guard=Var("i")))))
    with pytest.raises(VerifyError, match="in-bounds"):
        verify(nest_of((source, buffer), loop("i", 8, replace(guarded, guard=None))))


def test_a_stage_is_attached_around_the_stage_that_reads_it() -> None:
    """P is read by S, which is attached within the loop where P is computed: a block of P at a time."""
    data = placeholder((12,), "A")
    first = compute((12,), lambda i: data[i] + 1.0, name="P")
    k = reduce_axis(1, "k")
    second = compute((12,), lambda i: sum(first[i + k], k), name="S")
    output = compute((12,), lambda i: second[i] * 2.0, name="B")
    schedule = (
        Split("B", "i", ("t", 2)),
        ComputeAt("S", "B", "i.1", "register"),
        Reorder("S", ("k", "i")),
        Unroll("S", "i"),
        Unroll("B", "i.2"),
        ComputeAt("P", "B", "i.0", "local"),
    )
    parametric = lower(Operator("blocks", (data,), output), schedule)
    verify(parametric.nest, parametric=True)
    values = np.arange(12, dtype=np.float32)
    for tiles in (1, 2, 3):
        nest = bind(parametric, {"t": tiles})
        verify(nest)
        assert f"allocate P: float32[{2 * tiles}] in local" in to_text(nest)
        np.testing.assert_array_equal(interpret(nest, [values]), 2 * (values + 1))


def test_a_stage_cannot_be_attached_deeper_than_its_reader() -> None:
    data = placeholder((12,), "A")
    first = compute((12,), lambda i: data[i] + 1.0, name="P")
    second = compute((12,), lambda i: first[i] + 1.0, name="S")
    output = compute((12,), lambda i: second[i] * 2.0, name="B")
    schedule = (
        Split("B", "i", (4,)),
        ComputeAt("S", "B", "i.0", "local"),
        ComputeAt("P", "B", "i.1", "local"),
    )
    with pytest.raises(ScheduleError, match=r"loop i.1 of B lies within i.0"):
        lower(Operator("deep", (data,), output), schedule)


# ------------------------------------------------------------------------------------------- integer forms


def test_divide_takes_indices_apart() -> None:
    tile, inner, block = Var("t"), Var("u"), Knob("r")
    index = add(mul(tile, mul(block, Int(4))), add(mul(Var("v"), Int(4)), inner))
    extents: dict[str, Expr] = {"u": Int(4), "v": block}
    found = divide(index, 4, extents)
    assert found == (add(mul(tile, block), Var("v")), inner)
    shifted = Binary("min", mul(tile, Int(8)), add(Int(12), mul(block, Int(-4))))
    quotient = divide(add(shifted, inner), 4, extents)
    assert quotient is not None and quotient[1] == inner
    assert divide(add(index, Int(1)), 4, extents) is None  # u + 1 reaches 4
    assert divide(index, 4, {"u": block}) is None  # nobody knows how far u goes


def test_equal_terms_of_an_extent_are_put_together() -> None:
    size = Knob("t")
    assert sum_of_terms(add(add(Int(64), mul(size, Int(-1))), size)) == Int(64)
    assert sum_of_terms(add(size, add(Int(2), size))) == add(mul(size, Int(2)), Int(2))


# ------------------------------------------------------------------------------------- literals and packing


def test_a_matrix_of_literals_is_part_of_the_key() -> None:
    data = placeholder((2,), "A")

    def operator(last: float) -> Operator:
        k = reduce_axis(2, "k")
        rows = ((1.0, 2.0), (0.0, last))
        return Operator("m", (data,), compute((2,), lambda i: sum(lookup(rows, i, k) * data[k], k), name="B"))

    assert operator(3.0).key != operator(4.0).key
    got = evaluate(operator(3.0), [np.array([10.0, 1.0], np.float32)])
    assert got.tolist() == [12.0, 3.0]


def test_a_matrix_of_literals_has_rows_of_one_length() -> None:
    with pytest.raises(ExpressionError, match=r"rows of one length, at least 1, found lengths \[2, 1\]"):
        lookup(((1.0, 2.0), (3.0,)), 0, 0)


def test_an_element_outside_its_matrix_is_refused() -> None:
    buffer = argument("C", (3,), "output")
    element = Lookup(((1.0, 2.0),), Int(0), Var("i"), "float32")
    with pytest.raises(
        VerifyError, match=r"in-bounds: index i of a matrix of literals takes values in \[0, 2\]"
    ):
        verify(nest_of((buffer,), loop("i", 3, store(buffer, ("i",), element))))


def test_packing_maps_before_it_lays_out() -> None:
    double = ((2.0, 0.0), (0.0, 2.0), (1.0, 1.0))
    packing = Packing((2, 3), (PackedLoop(1, 3, 1), PackedLoop(0, 3, 1)), ((0, double),))
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    expected = np.stack([2 * array[0], 2 * array[1], array[0] + array[1]])
    np.testing.assert_array_equal(packing.apply(array), expected.T)
    assert packing.apply(array).dtype == np.float32


def test_pack_says_what_the_operand_is_before() -> None:
    weight, data = placeholder((3, 4), "W"), placeholder((4,), "A")
    k = reduce_axis(4, "k")
    operator = Operator(
        "m", (data, weight), compute((3,), lambda i: sum(data[k] * weight[i, k], k), name="B"), frozenset({1})
    )
    double = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0))
    nest = bind(lower(operator, (Pack("W", "B", ((0, double),)),)), {})
    assert "packed from [2, 4] mapped along dim0" in to_text(nest)
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    values = np.ones(4, np.float32)
    np.testing.assert_array_equal(interpret(nest, [values, rows]), [6.0, 22.0, 28.0])
