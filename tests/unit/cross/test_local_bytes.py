"""What kernels keep on the stacks of threads."""

from __future__ import annotations

from cross.compile import kernel_of
from cross.expression.language.terms import Const
from cross.loopnest import Programs
from cross.loopnest.nodes import Allocate, Block, Scope, Statement
from cross.schedule import cpu_space
from tests.nests import argument, local, loop, nest, store
from tests.targets import AVX2
from tests.unit.cross.test_winograd import convolution


def block(name: str, extent: int, *inside: Statement, scope: Scope = Scope.LOCAL) -> Statement:
    buffer = local(name, (extent,), scope)
    body = loop(f"{name}.i", extent, store(buffer, (f"{name}.i",), Const(0.0, "float32")))
    return Allocate(buffer, Block((body, *inside)))


def test_the_statement_with_most_counts() -> None:
    """Buffers that are there together are added up, each rounded up to cache lines; registers are none."""
    y = argument("y", (4,), "output")
    first = loop("i", 4, block("a", 100, block("b", 3), block("r", 500, scope=Scope.REGISTER)))
    second = loop("j", 4, block("c", 90))
    assert kernel_of("k", nest((y,), first, second)).local_bytes == 448 + 64
    assert kernel_of("k", nest((y,), second, second)).local_bytes == 384
    assert kernel_of("k", nest((y,))).local_bytes == 0


def test_a_block_of_a_winograd_convolution_is_on_the_stack() -> None:
    space = cpu_space(convolution((1, 56, 56, 64), 64), AVX2)
    kernel = kernel_of("k", Programs(space).nest(space.default()))
    assert 1 << 16 < kernel.local_bytes < 1 << 21
