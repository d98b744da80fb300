"""Schedules: what primitives do, what they refuse, and what spaces promise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from boards.target import Target
from cross.errors import ExpressionError, ScheduleError
from cross.expression import Axis, Operator, Tensor, Term, compute, maximum, placeholder, reduce_axis, sum
from cross.expression import max as reduce_max
from cross.expression import min as reduce_min
from cross.expression.families.conv import conv2d
from cross.expression.families.data_movement import transpose
from cross.expression.families.elementwise import UNARY, apply
from cross.expression.families.norm import softmax
from cross.expression.families.window import Window
from cross.expression.reference import evaluate
from cross.expression.rewrites.rfactor import rfactor
from cross.loopnest import Programs, bind, lower, to_text, verify
from cross.schedule import Constraint, Knob, ScheduleSpace, cpu_space
from cross.schedule.packing import PackedLoop, Packing
from cross.schedule.primitives import (
    CacheWrite,
    ComputeAt,
    Inline,
    Pack,
    Parallel,
    Reorder,
    Split,
    Unroll,
    Vectorize,
)
from cross.schedule.tiles import space_tiles, vector_count, vector_tiles, waste
from cross.schedule.vector_axis import with_vector_axes
from tests.closeness import assert_sums_close
from tests.interpreter.interpreter import interpret
from tests.targets import AVX2_TWO_CORES as TARGET


def matmul(m: int = 12, n: int = 10, k: int = 6, constant: bool = False) -> Operator:
    a, b = placeholder((m, k), "A"), placeholder((k, n), "B")
    axis = reduce_axis(k, "k")
    c = compute((m, n), lambda i, j: sum(a[i, axis] * b[axis, j], axis=axis), name="C")
    out = compute((m, n), lambda i, j: maximum(c[i, j], 0.0), name="D")
    return Operator("matmul", (a, b), out, constants=frozenset({1} if constant else ()))


def _inputs(operator: Operator) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.standard_normal(tensor.shape).astype(tensor.dtype) for tensor in operator.inputs]


def positive_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.maximum(a @ b, 0)


def _check(operator: Operator, schedule: tuple, **knobs: int) -> str:
    nest = bind(lower(operator, schedule), knobs)
    verify(nest)
    a, b = _inputs(operator)
    assert_sums_close(interpret(nest, [a, b]), positive_product, a, b)
    return to_text(nest)


def test_no_primitive_at_all_is_a_correct_program() -> None:
    text = _check(matmul(), ())
    assert "workspace C: float32[12, 10]" in text


def test_split_that_divides_and_one_that_does_not() -> None:
    even = _check(matmul(), (Split("D", "i", (4,)),))
    assert "for D.i.0 in 3:" in even and "min(" not in even
    uneven = _check(matmul(), (Split("D", "i", (5,)),))
    # The last tile starts at 7, so that it ends with the axis.
    assert "min(D.i.0 * 5, 7) + D.i.1" in uneven


def test_reorder_moves_loops() -> None:
    text = _check(matmul(), (Reorder("C", ("k", "j", "i")),))
    update = text[text.index("for C.k") :]
    assert update.index("C.k") < update.index("C.j") < update.index("C.i")


def test_annotations_print_as_loop_kinds() -> None:
    schedule = (Parallel("D", "i"), Split("D", "j", (5,)), Vectorize("D", "j.1"), Unroll("C", "k"))
    text = _check(matmul(), schedule)
    assert "parallel D.i in 12:" in text
    assert "vectorized D.j.1 in 5:" in text
    assert "unrolled C.k in 6:" in text


@pytest.mark.parametrize(("limit", "unrolled"), [(5, False), (6, True)])
def test_unroll_limit_counts_statements(limit: int, unrolled: bool) -> None:
    text = _check(matmul(), (Unroll("C", "k", "limit"),), limit=limit)
    assert ("unrolled C.k in 6:" in text) is unrolled


def test_compute_at_needs_only_the_region_of_its_consumer() -> None:
    schedule = (
        Split("D", "i", (4,)),
        Split("D", "j", ("tj",)),
        Reorder("D", ("i.0", "j.0", "i.1", "j.1")),
        ComputeAt("C", "D", "j.0", "local"),
    )
    text = _check(matmul(), schedule, tj=5)
    assert "allocate C: float32[4, 5] in local" in text


def test_cache_write_computes_in_a_buffer_of_its_own() -> None:
    a, b = placeholder((4, 3), "A"), placeholder((3, 5), "B")
    axis = reduce_axis(3, "k")
    operator = Operator(
        "mm", (a, b), compute((4, 5), lambda i, j: sum(a[i, axis] * b[axis, j], axis=axis), "C")
    )
    nest = bind(lower(operator, (CacheWrite("C"), ComputeAt("C.acc", "C", "i", "local"))), {})
    verify(nest)
    first, second = _inputs(operator)
    assert_sums_close(interpret(nest, [first, second]), np.matmul, first, second)
    assert "allocate C.acc: float32[1, 5] in local" in to_text(nest)


def test_pack_lays_a_constant_out_in_loop_order() -> None:
    operator = matmul(constant=True)
    schedule = (
        Split("D", "j", (4,)),
        Reorder("D", ("j.0", "i", "j.1")),
        ComputeAt("C", "D", "i", "register"),
        Reorder("C", ("k", "i", "j")),
        Unroll("C", "i"),
        Vectorize("C", "j"),
        Vectorize("D", "j.1"),
        Pack("B", "C"),
    )
    parametric = lower(operator, schedule)
    nest = bind(parametric, {})
    packing = nest.arguments[1].packing
    assert packing is not None and packing.packed_shape == (3, 6, 4)
    a, b = _inputs(operator)
    packed = packing.apply(b)
    # The third tile of ten columns by fours starts at column 6.
    np.testing.assert_array_equal(packed[2], b[:, 6:10])
    assert_sums_close(interpret(nest, [a, b]), positive_product, a, b)


def test_packing_refuses_another_shape() -> None:
    packing = Packing((4, 2), (PackedLoop(0, 4, 1), PackedLoop(1, 2, 1)))
    with pytest.raises(ValueError, match=r"shape \(4, 2\), found \(2, 4\)"):
        packing.apply(np.zeros((2, 4)))


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ((Split("E", "i", (2,)),), "has no stage 'E', only C, D"),
        ((Split("D", "x", (2,)),), "stage D has no loop 'x'; its loops are i, j"),
        ((Reorder("D", ("i",)),), "expected each of i, j once, found i"),
        ((Parallel("C", "k"),), "reduction loop k cannot run in parallel"),
        ((Inline("C"),), "stage C is a reduction and cannot be inlined"),
        ((Inline("D"),), "stage D is the output and cannot be inlined"),
        ((ComputeAt("C", "X", "i", "local"),), "no consumer stage 'X'"),
        ((Split("D", "i", (2,)), Split("D", "i.0", (2,))), "loop i.0 is already split"),
    ],
)
def test_primitives_that_do_not_fit_say_so(schedule: tuple, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        lower(matmul(), schedule)


def test_binding_names_a_missing_knob() -> None:
    with pytest.raises(ScheduleError, match="no value for knob ti"):
        bind(lower(matmul(), (Split("D", "i", ("ti",)),)), {})


def test_tiles_fit_their_axis() -> None:
    for extent in (1, 7, 13, 55, 112, 1000):
        tiles = space_tiles(extent, [size for size in (1, 2, 7, 8) if size <= extent])
        assert tiles
        for first, second, third in tiles:
            assert first * second * third <= extent
            assert waste(extent, first * second * third) <= 1.2 or extent == 1
    assert vector_tiles(10, 8) == [1, 2, 4, 8, 10]
    assert [vector_count(size, 8) for size in (1, 7, 8, 10, 15, 16)] == [1, 3, 1, 2, 4, 2]


def test_samples_and_neighbours_are_valid_and_seeded() -> None:
    space = cpu_space(matmul(64, 48, 30, constant=True), TARGET)
    batch = space.sample(np.random.default_rng(1), 500)
    assert batch.shape == (500, len(space.knobs)) and space.valid(batch).all()
    np.testing.assert_array_equal(batch, space.sample(np.random.default_rng(1), 500))
    moved = space.mutate(np.random.default_rng(2), batch)
    assert space.valid(moved).all()
    changed = (moved != batch).sum(axis=1)
    assert changed.max() == 1 and changed.mean() > 0.9


def test_ids_tell_configurations_apart() -> None:
    space = cpu_space(matmul(64, 48, 30), TARGET)
    batch = np.unique(space.sample(np.random.default_rng(1), 3000), axis=0)
    assert len(np.unique(space.ids(batch))) == len(batch)


def test_registers_are_never_oversubscribed() -> None:
    space = cpu_space(matmul(64, 64, 64), TARGET)
    values = space.values(space.sample(np.random.default_rng(0), 1000))
    vectors = -(-values["D.j.3"] // 8)
    assert (vectors * values["D.i.3"] + vectors + 1 <= TARGET.vector_registers).all()


def test_configurations_survive_being_described() -> None:
    space = cpu_space(matmul(), TARGET)
    for row in space.sample(np.random.default_rng(0), 20):
        configuration = space.configuration(row)
        assert space.parse(space.describe(configuration)) == configuration
    with pytest.raises(ScheduleError, match="unknown knobs no_such"):
        space.parse({"no_such": [1]})
    with pytest.raises(ScheduleError, match=r"knob D\.i: \[99, 1, 1\] is none of its"):
        space.parse({**space.describe(space.default()), "D.i": [99, 1, 1]})


def test_space_key_depends_on_operator_and_target() -> None:
    keys = {
        cpu_space(matmul(12, 64), TARGET).key,
        cpu_space(matmul(13, 64), TARGET).key,
        cpu_space(matmul(12, 64), Target(**{**_fields(TARGET), "vector_bytes": 16})).key,
    }
    assert len(keys) == 3


def _fields(target: Target) -> dict:
    return {name: getattr(target, name) for name in target.__struct_fields__}


def test_users_may_write_a_space_of_their_own() -> None:
    """A template: its own knobs, constraint and schedule, run by the same machinery."""
    operator = matmul()
    knobs = (
        Knob("tile_i", ("ti",), ((1,), (2,), (3,), (4,)), preferred=(4,)),
        Knob("tile_j", ("tj",), ((1,), (2,), (5,)), preferred=(2,)),
        Knob("order", ("order",), ((0,), (1,)), structural=True, labels=("ij", "ji")),
    )

    def build(structure):  # type: ignore[no-untyped-def]
        order = ("i.0", "j.0", "i.1", "j.1") if structure["order"] == 0 else ("j.0", "i.0", "i.1", "j.1")
        return (
            Split("D", "i", ("ti",)),
            Split("D", "j", ("tj",)),
            Reorder("D", order),
            ComputeAt("C", "D", order[1], "local"),
        )

    small = Constraint("tile", "at most 10 elements", lambda values: values["ti"] * values["tj"] <= 10)
    space = ScheduleSpace(operator, TARGET, knobs, (small,), build)
    assert space.size == 24 and space.describe(space.default()) == {
        "tile_i": [4],
        "tile_j": [2],
        "order": [0],
    }
    programs = Programs(space)
    a, b = _inputs(operator)
    for row in np.unique(space.sample(np.random.default_rng(0), 200), axis=0):
        nest = programs.nest(space.configuration(row))
        verify(nest)
        assert_sums_close(interpret(nest, [a, b]), positive_product, a, b)


def _row_reduction(x: Tensor, combiner: Callable[[Term, Axis], Term], k: Axis) -> tuple[Tensor, Tensor]:
    y = compute(x.shape[:1], lambda i: combiner(x[i, k], k), name="y")
    return y, compute(x.shape[:1], lambda i: y[i] + 1.0, name="z")


def test_rfactor_keeps_the_meaning() -> None:
    """Partial sums and maxima, with factors that do and do not divide the extent."""
    x = placeholder((3, 37), "x")
    data = np.random.default_rng(0).standard_normal((3, 37)).astype(np.float32)
    for combiner, exact in ((sum, np.sum), (reduce_max, np.max), (reduce_min, np.min)):
        k = reduce_axis(37, "k")
        y, z = _row_reduction(x, combiner, k)
        operator = Operator("reduce", (x,), z)
        wanted = exact(data.astype(np.float64), axis=1) + 1
        for factor in (1, 4, 8, 37, 40):
            changed = rfactor(operator, y, k, factor)
            assert [stage.name for stage in changed.stages] == ["y.rf", "y", "z"]
            np.testing.assert_allclose(evaluate(changed, [data]), wanted, rtol=1e-6)
    with pytest.raises(ExpressionError, match="does not reduce over axis i"):
        rfactor(operator, y, y.axes[0], 4)


def test_reductions_along_memory_run_in_vectors() -> None:
    """Row sums leave the space axis strided: partial sums take the vector; matrix products stay whole."""
    x = placeholder((40, 64), "x")
    k = reduce_axis(64, "k")
    rows = Operator("rows", (x,), compute((40,), lambda i: sum(x[i, k], k), name="y"))
    q = reduce_axis(40, "q")
    columns = Operator("columns", (x,), compute((64,), lambda j: sum(x[q, j], q), name="y"))
    assert [stage.name for stage in with_vector_axes(rows, TARGET).stages] == ["y.rf", "y"]
    assert with_vector_axes(columns, TARGET) is columns
    product = matmul(64, 64, 64)
    assert with_vector_axes(product, TARGET) is product


def test_an_axis_that_crosses_the_vectors_is_tiled() -> None:
    """A transpose runs in square tiles, whose cache lines are read once."""
    data = placeholder((40, 48), "X")
    moved = cpu_space(Operator("t", (data,), transpose(data, (1, 0))), TARGET)
    kept = cpu_space(Operator("k", (data,), apply(UNARY["Relu"], data, "relu")), TARGET)
    assert [knob.name for knob in moved.knobs if not knob.structural] == ["transpose.i1", "transpose.i0"]
    assert [knob.name for knob in kept.knobs if not knob.structural] == ["relu.i1"]
    nest = Programs(moved).nest(moved.default())
    verify(nest)
    array = np.arange(40 * 48, dtype=np.float32).reshape(40, 48)
    np.testing.assert_array_equal(interpret(nest, [array]), array.T)


def test_the_untuned_program_of_a_narrow_convolution_keeps_its_tiles() -> None:
    """Partial results run in vectors, and no knob is made smaller for the sake of another stage."""
    data, weight = placeholder((1, 16, 16, 32), "X"), placeholder((3, 3, 32, 3), "W")
    operator = Operator("narrow", (data, weight), conv2d(data, weight, Window()), frozenset({1}))
    space = cpu_space(operator, TARGET)
    described = space.describe(space.default())
    assert described["conv.rf.kc_lane"][2] >= 8
    assert described["conv.rf.x"][2] > 1
    assert described["conv.c"][2] == 1  # the partial results of an element are a vector by themselves
    assert described["conv.acc.kc_lane"] == [TARGET.vector_lanes()]


def test_only_what_a_constraint_asks_is_made_smaller() -> None:
    def small(values: dict[str, np.ndarray]) -> np.ndarray:
        return values["b"] <= 2

    knobs = tuple(Knob(name, (name,), ((1,), (2,), (4,)), preferred=(4,)) for name in ("a", "b", "c"))
    space = ScheduleSpace(
        matmul(),
        TARGET,
        knobs,
        (Constraint("b", "b is at most 2", small),),
        lambda _: (),
    )
    assert space.describe(space.default()) == {"a": [4], "b": [1], "c": [4]}


def test_exponentials_that_two_nests_read_are_computed_once() -> None:
    data = placeholder((4, 64), "X")
    space = cpu_space(Operator("softmax", (data,), softmax(data, 1)), TARGET)
    text = to_text(Programs(space).nest(space.default()))
    assert text.count("exp(") == 1
