"""Which barriers GPU sources have: those that something was accessed before, for the memory that it is in."""

from __future__ import annotations

import pytest

from cross.codegen.c.cuda import CUDA_C
from cross.codegen.c.dialect import Dialect
from cross.codegen.c.family import c_program
from cross.codegen.c.opencl import OPENCL_C
from cross.loopnest.nodes import Allocate, Barrier, Block, Expr, LoopKind, LoopNest, Scope, Statement
from cross.loopnest.verify import verify
from tests.nests import FLOAT_ZERO, argument, load, local, loop, nest, op, plus, store

THREADS = 8
X, Y = argument("X", (THREADS,), "input"), argument("Y", (THREADS,), "output")
S = local("S", (THREADS,), Scope.SHARED)
W = local("W", (THREADS,), Scope.WORKSPACE)


def threads(var: str, body: Statement) -> Statement:
    return loop(var, THREADS, body, LoopKind.THREAD)


def barriers(program: LoopNest, dialect: Dialect) -> list[str]:
    verify(program)
    lines = [line.strip() for line in c_program("k", program, dialect).source.splitlines()]
    return [line for line in lines if line.startswith(("barrier", "__syncthreads"))]


def through_shared(*before: Statement) -> LoopNest:
    fetch, use = threads("t", store(S, ("t",), load(X, "t"))), threads("u", store(Y, ("u",), _opposite()))
    return nest((X, Y), Allocate(S, Block((*before, Barrier(), fetch, Barrier(), use))))


def _opposite() -> Expr:
    return load(S, op("-", THREADS - 1, "u"))


@pytest.mark.parametrize("dialect", [OPENCL_C, CUDA_C], ids=["opencl", "cuda"])
def test_a_barrier_before_which_nothing_was_accessed_is_left_out(dialect: Dialect) -> None:
    assert barriers(through_shared(), dialect) == [dialect.barrier]


def test_a_barrier_after_an_access_stays() -> None:
    assert len(barriers(through_shared(store(S, (0,), FLOAT_ZERO)), OPENCL_C)) == 2


def test_a_barrier_inside_a_loop_stays() -> None:
    init = threads("z", store(Y, ("z",), FLOAT_ZERO))
    fetch = threads("t", store(S, ("t",), load(X, "t")))
    use = threads("u", store(Y, ("u",), plus(load(Y, "u"), _opposite())))
    step = loop("k", 4, Block((Barrier(), fetch, Barrier(), use)))
    assert len(barriers(nest((X, Y), Allocate(S, Block((init, step)))), OPENCL_C)) == 2


def test_what_goes_through_global_memory_needs_a_barrier_for_it() -> None:
    """In OpenCL C a barrier orders only the memory that it names."""
    write = threads("t", store(W, ("t",), load(X, "t")))
    read = threads("u", store(Y, ("u",), load(W, op("-", THREADS - 1, "u"))))
    program = nest((X, Y), Allocate(S, Block((write, Barrier(), read))), workspace=(W,))
    assert barriers(program, OPENCL_C) == ["barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);"]
    assert barriers(program, CUDA_C) == ["__syncthreads();"]
