"""Each rule of the verifier, kept and broken; the interval analysis under it; races."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cross.errors import VerifyError
from cross.expression.language.terms import Binary, Call, Cast, Const, Int, Select
from cross.loopnest.bounds import assume, bounds, linear
from cross.loopnest.nodes import (
    Allocate,
    Block,
    Expr,
    For,
    Knob,
    LoopKind,
    LoopNest,
    Scope,
    Statement,
    Store,
    Var,
)
from cross.loopnest.races import conflict
from cross.loopnest.verify import verify
from tests.integer_expressions import integer_expressions, value_of
from tests.nests import (
    FLOAT_ZERO,
    argument,
    both,
    elementwise,
    load,
    local,
    loop,
    matmul,
    nest,
    op,
    padded_convolution,
    parallel,
    plus,
    store,
    times,
    unrolled,
    vectorized,
)

X = argument("X", (8,), "input")
Y = argument("Y", (8,), "output")
ONE = Const(1.0, "float32")


def refuse(program: LoopNest, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify(program)


@pytest.mark.parametrize(
    "program",
    [
        matmul(8, 8, 5, 4, 4),
        matmul(7, 8, 5, 4, 4),
        matmul(3, 4, 2, 1, 4),
        padded_convolution(5, 7, 3),
        padded_convolution(1, 1, 5),
        elementwise("exp", 16, 4),
    ],
)
def test_sound_nests_pass(program: LoopNest) -> None:
    verify(program)


def test_the_message_says_rule_node_nest_and_place() -> None:
    program = nest((X, Y), parallel("i", 4, loop("k", 9, store(Y, ("i",), load(X, "k")))))
    refuse(
        program,
        r"^in-bounds: index k in dimension 0 of X takes values in \[0, 8\], expected \[0, 7\] "
        r"\(in nest test, at parallel i in 4 > for k in 9\)$",
    )


def test_unique_names() -> None:
    fill = store(Y, ("i",), ONE)
    refuse(nest((Y,), loop("i", 8, fill), loop("i", 8, fill)), "^unique-names: two loops .* i ")
    acc = local("Y", (8,))
    refuse(nest((Y,), Allocate(acc, loop("i", 8, fill))), "^unique-names: two buffers are called Y")


def test_declared() -> None:
    acc = local("acc", (8,))
    after = Block((Allocate(acc, store(acc, (0,), ONE)), store(Y, (0,), load(acc, 0))))
    refuse(nest((Y,), after), "^declared: .*buffer acc is used outside its scope")
    refuse(nest((Y,), store(Y, ("i",), ONE)), "^declared: loop variable i is used outside its loop")
    other = replace(Y, shape=(Int(16),))
    refuse(
        nest((Y,), store(other, (0,), ONE)),
        r"^declared: .*declared as Y: float32\[8\], used as Y: float32\[16\]",
    )


def test_scopes() -> None:
    fill = loop("i", 8, store(Y, ("i",), ONE))
    refuse(
        nest((Y,), Allocate(local("t", (1,), Scope.WORKSPACE), fill)),
        "^scopes: t is in workspace, expected local",
    )
    refuse(nest((Y,), fill, workspace=(local("t", (1,)),)), "^scopes: t is in local, expected workspace")
    refuse(nest((replace(Y, role=""),), fill), "^scopes: Y has role ''")


def test_index_count() -> None:
    refuse(nest((Y,), store(Y, (0, 0), ONE)), "^index-count: Y has 1 dimensions, found 2 indices")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (Const(1, "int32"), "stores int32 into float32"),
        (Binary("+", ONE, Int(1)), "operands of dtypes float32 and int64"),
        (Binary("@", ONE, ONE), "unknown operation"),
        (Select(ONE, ONE, ONE), "condition of dtype float32, expected bool"),
        (Select(op("<", 0, 1), ONE, Const(1, "int8")), "branches of dtypes float32 and int8"),
        (Select(Binary("and", ONE, ONE), ONE, ONE), "and of dtype float32, expected bool"),
        (Call("gamma", (ONE,)), "unknown function 'gamma'"),
        (Call("pow", (ONE, Const(2, "int8"))), "operands of dtypes float32 and int8"),
        (Call("pow", (ONE,)), "operands of dtypes float32"),
        (Call("exp", (Cast("int8", ONE),)), "exp of dtype int8, expected float"),
        (Call("+", (ONE, ONE)), r"unknown function '\+'"),
    ],
)
def test_dtypes(value: Expr, problem: str) -> None:
    refuse(nest((Y,), store(Y, (0,), value)), f"^dtypes: .*{problem}")


def test_an_index_is_int64() -> None:
    refuse(
        nest((X, Y), store(Y, (0,), load(X, load(X, 0)))), r"^dtypes: index X\[0\] is float32, expected int64"
    )


def test_read_only() -> None:
    refuse(nest((X, Y), store(X, (0,), ONE)), "^read-only: .* writes an input")


def test_written_first() -> None:
    refuse(nest((Y,), store(Y, (0,), plus(load(Y, 0), ONE))), r"^written-first: Y\[0\] is read before")
    acc = local("acc", (1,))
    refuse(nest((Y,), Allocate(acc, store(Y, (0,), load(acc, 0)))), r"^written-first: acc\[0\]")


def test_output_written() -> None:
    refuse(nest((X, Y)), "^output-written: nothing writes the output Y")


def test_loop_kinds() -> None:
    fill = store(Y, ("i",), ONE)
    refuse(nest((Y,), vectorized("v", 2, loop("i", 8, fill))), "^loop-kinds: loop i inside a vectorized loop")
    refuse(
        nest((Y,), loop("s", 2, parallel("i", 8, fill))),
        "^loop-kinds: parallel loop i inside a loop that is not",
    )
    acc = local("acc", (1,))
    inside = vectorized("i", 8, Allocate(acc, fill))
    refuse(nest((Y,), inside), "^loop-kinds: allocation of acc inside a vectorized loop")
    y = argument("Y", (4, 2), "output")
    verify(nest((y,), parallel("a", 4, parallel("b", 2, store(y, ("a", "b"), ONE)))))


def test_bound() -> None:
    fill = store(Y, ("i",), ONE)
    refuse(nest((Y,), loop("i", Knob("n"), fill)), r"^bound: the extent of loop i: .* found \$n")
    refuse(nest((Y,), loop("i", 0, fill)), "^bound: .*expected an integer of at least 1, found 0")
    refuse(nest((Y,), loop("i", 8, loop("j", Var("i"), fill))), "^bound: .* depends on a loop variable")
    refuse(nest((Y,), store(Y, (Knob("n"),), ONE)), "^bound: knob n is left")


def test_parametric_nests_keep_their_knobs_but_not_their_mistakes() -> None:
    knob = Knob("tile")
    inner = For("i.1", knob, LoopKind.UNROLLED, store(Y, (plus(times("i.0", knob), "i.1"),), ONE), Knob("u"))
    program = nest((Y,), loop("i.0", op("ceildiv", 8, knob), inner))
    verify(program, parametric=True)
    refuse(program, "^bound")
    with pytest.raises(VerifyError, match="^declared"):
        verify(nest((Y,), loop("i.0", knob, store(Y, ("i.1",), ONE))), parametric=True)


def test_register_index() -> None:
    acc = local("acc", (8,), Scope.REGISTER)

    def program(kind: LoopKind) -> LoopNest:
        fill = loop("i", 8, store(acc, ("i",), ONE), kind)
        return nest((Y,), Allocate(acc, Block((fill, loop("o", 8, store(Y, ("o",), load(acc, 0)))))))

    verify(program(LoopKind.UNROLLED))
    verify(program(LoopKind.VECTORIZED))
    refuse(program(LoopKind.SERIAL), "^register-index: index i of acc is not constant after unrolling")
    outside = unrolled("u", 8, Allocate(acc, store(acc, ("u",), ONE)))
    refuse(nest((Y,), outside), "^register-index: index u of acc")


def test_register_scope() -> None:
    acc = local("acc", (1,), Scope.REGISTER)
    body = Allocate(acc, Block((store(acc, (0,), ONE), parallel("p", 8, store(Y, ("p",), load(acc, 0))))))
    refuse(nest((Y,), body), "^register-scope: acc is allocated outside a parallel loop")


# ------------------------------------------------------------------------------------------ in-bounds


@pytest.mark.parametrize(
    ("index", "extents", "sound"),
    [
        (plus(times("o", 3), "i"), {"o": 3, "i": 3}, False),
        (plus(op("min", times("o", 3), 5), "i"), {"o": 3, "i": 3}, True),
        (plus(op("min", times("o", 3), 6), "i"), {"o": 3, "i": 3}, False),
        (op("-", plus("o", "i"), "o"), {"o": 100, "i": 8}, True),
        (plus(times(op("//", "f", 3), 3), op("%", "f", 3)), {"f": 8}, True),
        (op("%", "f", 8), {"f": 100}, True),
        (op("//", "f", 12), {"f": 96}, True),
        (op("//", "f", 12), {"f": 97}, False),
        (op("-", 7, "i"), {"i": 8}, True),
        (op("-", 6, "i"), {"i": 8}, False),
        (op("max", op("-", "i", 2), 0), {"i": 10}, True),
        (op("ceildiv", "i", 2), {"i": 15}, True),
        (op("ceildiv", "i", 2), {"i": 16}, False),
        (times("i", "j"), {"i": 3, "j": 4}, True),
        (Select(op("<", "i", 8), Var("i"), Int(0)), {"i": 100}, True),
    ],
)
def test_in_bounds(index: Expr, extents: dict[str, int], sound: bool) -> None:
    statement: Statement = store(Y, (0,), load(X, index))
    for name, extent in extents.items():
        statement = loop(name, extent, statement)
    if sound and not isinstance(index, Select):
        verify(nest((X, Y), statement))
    elif not sound:
        refuse(nest((X, Y), statement), "^in-bounds")
    ranges = {name: (0.0, float(extent - 1)) for name, extent in extents.items()}
    low, high = bounds(index, ranges)
    assert (0 <= low and high < 8) == sound


def guarded(condition: Expr, index: Expr, extent: int) -> LoopNest:
    value = Select(condition, load(X, index), FLOAT_ZERO)
    return nest((X, Y), loop("i", 8, loop("r", extent, store(Y, ("i",), value))))


def test_a_guard_proves_the_load_under_it() -> None:
    index = op("-", plus(times("i", 2), "r"), 1)
    inside = both(op("<=", 0, index), op("<", index, 8))
    ranges = {"i": (0.0, 7.0), "r": (0.0, 2.0)}
    assert bounds(index, ranges, assume(inside, True)) == (0, 7)
    verify(guarded(inside, index, 3))


def test_a_guard_is_used_in_its_negation_and_through_division() -> None:
    outside = Binary("or", op("<", "i", 2), op("<=", 18, "i"))
    facts = assume(outside, False)
    assert bounds(op("//", op("-", "i", 2), 2), {"i": (0.0, 99.0)}, facts) == (0, 7)
    assert bounds(Var("i"), {"i": (0.0, 99.0)}, assume(op("==", "i", 5), True)) == (5, 5)
    assert bounds(Var("i"), {"i": (0.0, 99.0)}, assume(Call("not", (op("<=", "i", 5),)), True)) == (6, 99)


def test_a_guard_on_other_variables_is_no_excuse() -> None:
    refuse(guarded(op("<", "i", 4), plus("r", 6), 3), "^in-bounds")


def test_a_guard_without_proof_leaves_the_load_to_the_interpreter() -> None:
    verify(guarded(op("==", op("%", "r", 5), 0), plus("r", 6), 3))
    refuse(guarded(op("==", op("%", "r", 5), 0), plus("r", 8), 3), "^in-bounds")


def test_stores_are_never_guarded() -> None:
    refuse(nest((Y,), loop("i", 9, store(Y, ("i",), Select(op("<", "i", 8), ONE, ONE)))), "^in-bounds")


def test_an_index_read_from_memory_is_clamped() -> None:
    rows = argument("R", (8,), "input", "int64")
    row = load(rows, "i")
    for index, fits in ((row, False), (op("min", row, 7), False), (op("max", op("min", row, 7), 0), True)):
        gathered = nest((X, rows, Y), loop("i", 8, store(Y, ("i",), load(X, index))))
        if fits:
            verify(gathered)
        else:
            refuse(gathered, "^in-bounds: index .* takes values in")


EXTENTS = {"a": 4, "b": 7}
EXPRESSIONS = integer_expressions([Var("a"), Var("b")])


def all_values() -> list[dict[str, int]]:
    return [
        dict(zip(EXTENTS, point, strict=True)) for point in itertools.product(*map(range, EXTENTS.values()))
    ]


@given(EXPRESSIONS, EXPRESSIONS, st.sampled_from(["<", "<=", "=="]), EXPRESSIONS, st.booleans())
def test_bounds_hold_every_value_that_the_condition_admits(
    expression: Expr, left: Expr, comparison: str, right: Expr, holds: bool
) -> None:
    ranges = {name: (0.0, float(extent - 1)) for name, extent in EXTENTS.items()}
    condition = Binary(comparison, left, right)
    low, high = bounds(expression, ranges, assume(condition, holds))
    for values in all_values():
        if bool(value_of(condition, values)) == holds:
            assert low <= value_of(expression, values) <= high


@given(EXPRESSIONS)
def test_linear_forms_keep_the_value(expression: Expr) -> None:
    form = linear(expression)
    for values in all_values():
        total = sum(value_of(atom, values) * coefficient for atom, coefficient in form.terms)
        assert form.constant + total == value_of(expression, values)


# -------------------------------------------------------------------------------------------- no-race


def test_parallel_iterations_that_meet_are_refused() -> None:
    refuse(
        nest((Y,), parallel("p", 4, store(Y, (0,), ONE))),
        "^no-race: parallel loop p over buffer Y: iterations",
    )
    refuse(nest((Y,), parallel("p", 3, loop("i", 3, store(Y, (plus(times("p", 2), "i"),), ONE)))), "^no-race")
    refuse(nest((Y,), parallel("p", 4, store(Y, (op("//", "p", 2),), ONE))), "^no-race")


def test_a_parallel_reduction_is_refused() -> None:
    init = store(Y, (0,), FLOAT_ZERO)
    refuse(nest((X, Y), init, parallel("p", 8, store(Y, (0,), plus(load(Y, 0), load(X, "p"))))), "^no-race")


def test_reading_the_neighbours_element_is_refused() -> None:
    init = loop("i", 8, store(Y, ("i",), ONE))
    step = store(Y, ("p",), load(Y, op("-", 7, "p")))
    refuse(nest((Y,), init, parallel("p", 8, step)), "^no-race")


def test_private_buffers_may_be_shared_in_name() -> None:
    acc = local("acc", (1,))
    body = Allocate(acc, Block((store(acc, (0,), ONE), store(Y, ("p",), load(acc, 0)))))
    verify(nest((Y,), parallel("p", 8, body)))
    workspace = local("W", (1,), Scope.WORKSPACE)
    shared = Block((store(workspace, (0,), ONE), store(Y, ("p",), load(workspace, 0))))
    refuse(nest((Y,), parallel("p", 8, shared), workspace=(workspace,)), "^no-race: .*buffer W")


def test_collapsed_loops_are_told_apart_by_quotient_and_remainder_together() -> None:
    y = argument("Y", (4, 6), "output")
    row, column = op("//", "p", 3), times(op("%", "p", 3), 2)
    verify(nest((y,), parallel("p", 12, loop("v", 2, store(y, (row, plus(column, "v")), ONE)))))
    refuse(nest((y,), parallel("p", 12, loop("v", 6, store(y, (row, "v"), ONE)))), "^no-race")
    refuse(
        nest((y,), parallel("p", 12, loop("v", 3, store(y, (row, plus(op("%", "p", 3), "v")), ONE)))),
        "^no-race",
    )


@pytest.mark.parametrize("columns, sound", [(6, True), (5, False)])
def test_fused_dimensions_need_not_lie_side_by_side(columns: int, sound: bool) -> None:
    """Threads p and a loop f number 24 rows of 6 elements together; in between lies another dimension."""
    y = argument("Y", (24, 4, 6), "output")
    counter = plus(times("f", 16), "p")
    element = store(y, (op("//", counter, 6), "q", op("%", counter, columns)), ONE)
    program = nest((y,), parallel("q", 4, parallel("p", 16, loop("f", 9, element))))
    if sound:
        verify(program)
    else:
        refuse(program, "^no-race")


def test_a_shifted_last_tile_may_overlap_only_where_nothing_is_read() -> None:
    start = op("min", times("p", 3), 5)
    fill = loop("i", 3, store(Y, (plus(start, "i"),), ONE))
    verify(nest((Y,), parallel("p", 3, fill)))
    add = loop("j", 3, store(Y, (plus(start, "j"),), plus(load(Y, plus(start, "j")), ONE)))
    refuse(nest((Y,), parallel("p", 3, Block((fill, add)))), "^no-race: .*the shifted last tile overlaps")


@pytest.mark.parametrize("end, sound", [(7, True), (8, True), (9, False)])
def test_a_guard_takes_away_the_clamp_of_a_fused_counter(end: int, sound: bool) -> None:
    """min(counter, 7) is the counter where the store happens for counters below 8 alone."""
    counter = plus(times("p", 3), "i")
    clamped = Store(Y, (op("min", counter, 7),), ONE, op("<", counter, end))
    both_guards = Store(Y, (op("min", counter, 7),), ONE, op("and", op("<", 0, "i"), op("<", counter, end)))
    for guarded_store in (clamped, both_guards):
        program = nest((Y,), parallel("p", 3, loop("i", 3, guarded_store)))
        if sound:
            verify(program)
        else:
            refuse(program, "^no-race")


@pytest.mark.parametrize("end, sound", [(4, True), (5, False)])
def test_a_guard_takes_away_the_clamp_of_a_scaled_counter(end: int, sound: bool) -> None:
    """min(counter * 2, 6) is counter * 2 for counters below 4 alone."""
    counter = plus(times("p", 2), "q")
    lane = Store(Y, (plus(op("min", times(counter, 2), 6), "i"),), ONE, op("<", counter, end))
    program = nest((Y,), parallel("p", 3, loop("q", 2, loop("i", 2, lane))))
    if sound:
        verify(program)
    else:
        refuse(program, "^no-race")


def test_loops_inside_are_lower_digits_however_many_values_they_have() -> None:
    y = argument("Y", (5000 * 1024,), "output")

    def program(step: int) -> LoopNest:
        place = plus(plus(times("f", 16 * step), times("p", step)), "c")
        return nest((y,), parallel("p", 16, loop("f", 5000, loop("c", 32, store(y, (place,), ONE)))))

    verify(program(64))
    refuse(program(31), "^no-race")


@pytest.mark.parametrize("below, sound", [(1, True), (2, False)])
def test_iterations_that_store_nothing_meet_nobody(below: int, sound: bool) -> None:
    """As of more threads than a buffer has rows, where the index of its only row is 0."""
    only = Store(Y, (Int(0),), ONE, op("<", "p", below))
    if not sound:
        refuse(nest((Y,), parallel("p", 4, only)), "^no-race")
        return
    verify(nest((Y,), parallel("p", 4, only)))
    init, added = store(Y, (0,), ONE), Store(Y, (Int(0),), plus(load(Y, 0), ONE), op("<", "p", below))
    refuse(nest((Y,), init, parallel("p", 4, added)), "^no-race")  # others may read it all the same


def test_vectorized_lanes_must_not_meet() -> None:
    refuse(nest((Y,), vectorized("v", 4, store(Y, (0,), ONE))), "^no-race: vectorized loop v")
    verify(nest((Y,), loop("o", 2, vectorized("v", 4, store(Y, (plus(times("o", 4), "v"),), ONE)))))


ACCESS = st.tuples(EXPRESSIONS, EXPRESSIONS)


@given(ACCESS, st.none() | ACCESS)
def test_iterations_said_to_be_apart_are_apart(
    written: tuple[Expr, Expr], read: tuple[Expr, Expr] | None
) -> None:
    """`conflict` against enumeration, for the loop over a with the loop over b inside."""
    shared, y = local("W", (64, 64), Scope.WORKSPACE), argument("Y", (1,), "output")
    statements: list[Statement] = [Store(shared, written, ONE)]
    if read is not None:
        statements.append(store(y, (Var("a"),), load(shared, *read)))
    body = loop("b", EXTENTS["b"], Block(tuple(statements)))
    if conflict(parallel("a", EXTENTS["a"], body), {}) is not None:
        return

    def touched(indices: tuple[Expr, Expr], a: int) -> set[tuple[int, ...]]:
        points = ({"a": a, "b": b} for b in range(EXTENTS["b"]))
        return {tuple(value_of(index, values) for index in indices) for values in points}

    shifted = "min" in repr(written)
    for one, other in itertools.permutations(range(EXTENTS["a"]), 2):
        if read is not None:
            assert touched(written, one).isdisjoint(touched(read, other))
        if not shifted:
            assert touched(written, one).isdisjoint(touched(written, other))


def test_loops_that_binding_leaves_out_may_stand_anywhere_in_a_parametric_nest() -> None:
    y = argument("Y", (8, 1), "output")
    inner = parallel("j", 1, store(y, ("i", "j"), ONE))
    verify(nest((y,), loop("i", Knob("n"), inner, LoopKind.VECTORIZED)), parametric=True)
    refuse(nest((y,), vectorized("i", 8, inner)), "^loop-kinds")
