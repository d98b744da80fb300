"""The rules of GPU nests, kept and broken: barriers, what threads share and own, loop kinds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from msgspec.structs import replace

from boards.board import load as load_board
from cross.errors import VerifyError
from cross.expression import Operator, placeholder
from cross.expression.families.dense import dense
from cross.expression.families.pool import unpool
from cross.expression.families.sampling import align_regions
from cross.expression.families.window import Window
from cross.expression.language.terms import Const
from cross.loopnest import Programs
from cross.loopnest.nodes import (
    Allocate,
    Barrier,
    Block,
    Buffer,
    Expr,
    For,
    LoopKind,
    LoopNest,
    Scope,
    Statement,
)
from cross.loopnest.verify import verify
from cross.schedule.choose import space_of
from tests.nests import FLOAT_ZERO, argument, load, local, loop, nest, op, plus, store, times

BLOCKS, STEPS, THREADS = 2, 4, 8
X = argument("X", (BLOCKS, STEPS, THREADS), "input")
Y = argument("Y", (BLOCKS, THREADS), "output")
S = local("S", (THREADS,), Scope.SHARED)
ACC = local("acc", (THREADS,), Scope.REGISTER)
ONE = Const(1.0, "float32")


def block(var: str, extent: int, *statements: Statement) -> For:
    return loop(var, extent, Block(statements), LoopKind.BLOCK)


def threads(var: str, extent: int, *statements: Statement) -> For:
    body = statements[0] if len(statements) == 1 else Block(statements)
    return loop(var, extent, body, LoopKind.THREAD)


def refuse(program: LoopNest, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify(program)


FETCH = threads("t", THREADS, store(S, ("t",), load(X, "b", "k", "t")))
INIT = threads("z", THREADS, store(Y, ("b", "z"), FLOAT_ZERO))
USE = threads("u", THREADS, store(Y, ("b", "u"), plus(load(Y, "b", "u"), load(S, op("-", 7, "u")))))


def sums(*step: Statement, shared: Buffer = S, before: Statement = INIT) -> LoopNest:
    """Y[b, u] = sum over k of X[b, k, 7 - u], by way of S; `step` is one iteration over k."""
    body = Block((before, loop("k", STEPS, Block(step))))
    return nest((X, Y), loop("b", BLOCKS, Allocate(shared, body), LoopKind.BLOCK))


def test_fetch_and_use_between_barriers() -> None:
    verify(sums(Barrier(), FETCH, Barrier(), USE))


# ---------------------------------------------------------------------------------------------- barriers


def test_a_use_right_after_the_fetch() -> None:
    refuse(
        sums(Barrier(), FETCH, USE),
        r"^barrier: threads may meet in S: no barrier since it was accessed "
        r"\(in nest test, at block b in 2 > for k in 4 > thread u in 8\)$",
    )


def test_a_fetch_right_after_the_use_of_the_step_before() -> None:
    refuse(
        sums(FETCH, Barrier(), USE),
        r"^barrier: threads may meet in S: .* at block b in 2 > for k in 4 > thread t in 8\)$",
    )


def test_a_barrier_before_the_loop_holds_for_its_first_step_only() -> None:
    step = loop("k", STEPS, Block((FETCH, Barrier(), USE)))
    body = Allocate(S, Block((INIT, Barrier(), step)))
    refuse(nest((X, Y), loop("b", BLOCKS, body, LoopKind.BLOCK)), "^barrier: threads may meet in S")


def test_what_thread_0_stores_needs_a_barrier() -> None:
    first = store(S, (0,), ONE)
    read = threads("u", THREADS, store(Y, ("b", "u"), load(S, 0)))

    def program(*statements: Statement) -> LoopNest:
        return nest((X, Y), loop("b", BLOCKS, Allocate(S, Block(statements)), LoopKind.BLOCK))

    verify(program(first, Barrier(), read))
    refuse(program(first, read), r"^barrier: threads may meet in S: .*thread u in 8\)$")


def without_barrier(statement: Statement, number: Iterator[int], dropped: int) -> Statement:
    """The statement without one of its barriers."""
    match statement:
        case For(_, _, _, body) | Allocate(_, body):
            return replace(statement, body=without_barrier(body, number, dropped))
        case Block(statements):
            kept = [
                without_barrier(item, number, dropped)
                for item in statements
                if not (isinstance(item, Barrier) and next(number) == dropped)
            ]
            return Block(tuple(kept))
        case _:
            return statement


@pytest.mark.slow
def test_every_barrier_of_a_generated_program_is_needed() -> None:
    """Tiles of both operands are fetched in several steps: a barrier before each fetch and before its use."""
    a, b = placeholder((32, 32), "A"), placeholder((32, 32), "B")
    target = load_board("jetson-nano").target("gpu")
    space = space_of(Operator("matmul", (a, b), dense(a, b, "matmul")), target)
    programs, checked = Programs(space), 0
    for row in space.sample(np.random.default_rng(0), 80):
        configuration = space.configuration(row)
        fields = space.fields(configuration)
        steps = 32 // (fields["matmul.acc.k.1"] * fields["matmul.acc.k.2"])
        if fields["shared"] != 0 or steps == 1 or fields["matmul.i.2"] * fields["matmul.j.2"] == 1:
            continue
        program = programs.nest(configuration)
        verify(program)
        for dropped in range(2):
            body = without_barrier(program.body, iter(range(9)), dropped)
            assert isinstance(body, Block) and body != program.body
            refuse(replace(program, body=body), r"^barrier: threads may meet in [AB]\.shared: .*thread ")
            checked += 1
    assert checked >= 10


# ------------------------------------------------------------------------------------- what threads share


@pytest.mark.parametrize("index", [op("//", "t", 2), op("%", "t", 4), plus(0, 0)])
def test_two_threads_that_store_one_element(index: Expr) -> None:
    fetch = threads("t", THREADS, store(S, (index,), load(X, "b", "k", "t")))
    refuse(
        sums(Barrier(), fetch, Barrier(), USE),
        r"^no-race: thread loop t over buffer S: .* \(in nest test, at block b in 2 > for k in 4\)$",
    )


def test_two_threads_that_store_one_element_of_the_output() -> None:
    fill = threads("z", THREADS, store(Y, ("b", op("//", "z", 2)), FLOAT_ZERO))
    refuse(nest((Y,), block("b", BLOCKS, fill)), "^no-race: thread loop z over buffer Y")


def test_two_blocks_that_store_one_element() -> None:
    fill = threads("z", THREADS, store(Y, (0, "z"), FLOAT_ZERO))
    refuse(nest((Y,), block("b", BLOCKS, fill)), "^no-race: block loop b over buffer Y")


def test_a_neighbours_element_within_one_region() -> None:
    both = threads(
        "t",
        THREADS,
        store(S, ("t",), load(X, "b", "k", "t")),
        store(Y, ("b", "t"), load(S, op("-", 7, "t"))),
    )
    refuse(sums(Barrier(), both), "^no-race: thread loop t over buffer S")


def test_shared_memory_out_of_bounds() -> None:
    beyond = threads("t", THREADS, store(S, (plus("t", 1),), load(X, "b", "k", "t")))
    place = r"\(in nest test, at block b in 2 > for k in 4 > thread t in 8\)$"
    refuse(
        sums(Barrier(), beyond, Barrier(), USE),
        rf"^in-bounds: index t \+ 1 in dimension 0 of S takes values in \[1, 8\], expected \[0, 7\] {place}",
    )
    small = local("S", (THREADS - 1,), Scope.SHARED)
    fetch = threads("t", THREADS, store(small, ("t",), load(X, "b", "k", "t")))
    use = threads("u", THREADS, store(Y, ("b", "u"), load(small, 0)))
    refuse(sums(Barrier(), fetch, Barrier(), use, shared=small), "^in-bounds: index t in dimension 0 of S")


def test_a_vector_beyond_the_end_of_shared_memory() -> None:
    lanes = loop("v", 4, store(S, (plus(times("t", 4), "v"),), ONE), LoopKind.VECTORIZED)
    refuse(sums(Barrier(), threads("t", 3, lanes), Barrier(), USE), r"^in-bounds: .* of S takes .* \[0, 11\]")


# ------------------------------------------------------------------------------------- what threads own


def accumulated(first: For, last: For) -> LoopNest:
    return nest((Y,), loop("b", BLOCKS, Allocate(ACC, Block((first, last))), LoopKind.BLOCK))


def test_registers_outlive_a_loop_over_threads() -> None:
    write = threads("z", THREADS, store(ACC, ("z",), ONE))
    verify(accumulated(write, threads("u", THREADS, store(Y, ("b", "u"), load(ACC, "u")))))


def test_thread_extents_that_disagree() -> None:
    write = threads("z", THREADS, store(ACC, ("z",), ONE))
    fewer = threads("u", 4, store(Y, ("b", "u"), load(ACC, "u")))
    refuse(
        accumulated(write, fewer),
        r"^own-registers: acc is accessed by regions of threads that differ: expected 8 threads in "
        r"dimensions 0, found 4 threads in dimensions 0 \(in nest test, at block b in 2 > thread u in 4\)$",
    )


def test_thread_extents_in_another_order() -> None:
    own = local("acc", (2, 4), Scope.REGISTER)
    write = threads("i", 2, threads("j", 4, store(own, ("i", "j"), ONE)))
    read = threads("m", 4, threads("n", 2, store(Y, ("b", plus(times("n", 4), "m")), load(own, "n", "m"))))
    program = nest((Y,), loop("b", BLOCKS, Allocate(own, Block((write, read))), LoopKind.BLOCK))
    refuse(program, r"^own-registers: .* expected 2 x 4 threads in .* 0, 1, found 4 x 2 threads in .* 1, 0 ")


def test_registers_of_another_thread() -> None:
    write = threads("z", THREADS, store(ACC, ("z",), ONE))
    other = threads("u", THREADS, store(Y, ("b", "u"), load(ACC, op("-", 7, "u"))))
    refuse(accumulated(write, other), r"^own-registers: acc is not told apart .* > thread u in 8\)$")


def test_registers_that_thread_0_alone_reads() -> None:
    write = threads("z", THREADS, store(ACC, ("z",), ONE))
    alone = loop("i", THREADS, store(Y, ("b", "i"), load(ACC, "i")), LoopKind.UNROLLED)
    refuse(accumulated(write, alone), "^own-registers: .* expected 8 threads .*, found thread 0 ")


# ------------------------------------------------------------------------------------------- loop kinds


def test_what_one_thread_runs_has_no_barriers_threads_or_shared_memory() -> None:
    place = r" \(in nest test, at block b in 2 > thread z in 8\)$"
    fill = store(Y, ("b", "z"), FLOAT_ZERO)

    def within(*statements: Statement) -> LoopNest:
        return nest((Y,), block("b", BLOCKS, threads("z", THREADS, *statements)))

    refuse(within(fill, Barrier()), f"^loop-kinds: a barrier inside what a thread runs{place}")
    refuse(
        within(fill, Allocate(S, store(S, (0,), ONE))), f"^loop-kinds: shared buffer S .*one thread{place}"
    )
    z = argument("Z", (BLOCKS, THREADS, 4), "output")
    inner = loop("i", 2, threads("w", 4, store(z, ("b", "z", "w"), FLOAT_ZERO)))
    program = nest((z,), block("b", BLOCKS, threads("z", THREADS, inner)))
    refuse(program, "^loop-kinds: thread loop w inside what a thread runs .* > thread z in 8 > for i in 2")


def test_block_and_parallel_loops_stand_outermost() -> None:
    fill = threads("z", THREADS, store(Y, ("b", "z"), FLOAT_ZERO))
    late = loop("i", 1, loop("b", BLOCKS, fill, LoopKind.BLOCK))
    refuse(nest((Y,), late), r"^loop-kinds: block loop b inside a loop that is none \(in nest test, at for i")
    mixed = loop("b", BLOCKS, fill, LoopKind.PARALLEL)
    refuse(nest((Y,), mixed), "^loop-kinds: parallel loop b among the loops of a GPU")


@pytest.mark.parametrize("combiner", ["sum", "max"])
def test_regions_are_read_inside_of_their_image(combiner: str) -> None:
    data, regions = placeholder((1, 10, 10, 1), "data"), placeholder((3, 4), "regions")
    batches = placeholder((3,), "batches", "int64")
    output = align_regions(data, regions, batches, (5, 5), 2, combiner)
    read_inside(Operator("regions", (data, regions, batches), output))


def test_unpooled_elements_are_read_inside_of_their_image() -> None:
    data, places = placeholder((1, 2, 2, 1), "data"), placeholder((1, 2, 2, 1), "places", "int64")
    output = unpool(data, places, (2, 2), Window((2, 2), (0,) * 4, (1, 1)), (4, 4))
    read_inside(Operator("unpool", (data, places), output))


def read_inside(operator: Operator) -> None:
    space = space_of(operator, load_board("pocl").target("opencl"))
    verify(Programs(space).nest(space.default()))
