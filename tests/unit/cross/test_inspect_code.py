"""Loops, instruction mix and spills of machine code, on texts written here and on compiled kernels."""

from __future__ import annotations

import pytest

from boards.target import Target
from cross.codegen.llvm.module import llvm_module
from cross.codegen.llvm.objects import assemble, assembly, compile_ir
from cross.expression import Operator, placeholder
from cross.expression.families.dense import dense
from cross.inspection.cpu_loops import CodeReport, inspect, inspect_listing
from cross.inspection.instructions import Kind, classify
from cross.inspection.listing import Line, architecture_of, functions
from cross.inspection.loops import loops
from cross.inspection.mca import installed, simulate
from cross.inspection.sizes import symbols
from cross.loopnest import Programs, bind, lower
from cross.schedule import cpu_space
from cross.schedule.primitives import CacheWrite, ComputeAt, Reorder, Schedule, Split, Unroll, Vectorize


def _target(
    triple: str, cpu: str, vector_bytes: int, vector_registers: int, flops_per_cycle: float
) -> Target:
    return Target(
        name="cpu", kind="cpu", triple=triple, cpu=cpu, vector_bytes=vector_bytes, l2_bytes=1 << 20,
        clock_hz=1e9, vector_registers=vector_registers, flops_per_cycle=flops_per_cycle,
    )  # fmt: skip


AVX2 = _target("x86_64-unknown-linux-gnu", "x86-64-v3", 32, 16, 32.0)
AVX512 = _target("x86_64-unknown-linux-gnu", "skylake-avx512", 64, 32, 64.0)
A53 = _target("aarch64-unknown-linux-gnu", "cortex-a53", 16, 32, 8.0)
TARGETS = [AVX2, AVX512, A53]
TILES = {AVX2: (6, 2), AVX512: (12, 2), A53: (8, 3)}  # rows and vectors that fit


def tiled(target: Target, rows: int, vectors: int) -> CodeReport:
    """A matmul whose register tile is rows x vectors, legal in the space or not."""
    wide = vectors * target.vector_lanes()
    a, b = placeholder((4 * rows, 32), "A"), placeholder((32, 2 * wide), "B")
    operator = Operator("matmul", (a, b), dense(a, b, "matmul"), frozenset({1}))
    schedule: Schedule = (
        CacheWrite("matmul"),
        Split("matmul", "i", (rows,)), Split("matmul", "j", (wide,)),
        Reorder("matmul", ("i.0", "j.0", "i.1", "j.1")),
        Unroll("matmul", "i.1"), Vectorize("matmul", "j.1"),
        ComputeAt("matmul.acc", "matmul", "j.0", "register"),
        Reorder("matmul.acc", ("k", "i", "j")),
        Unroll("matmul.acc", "i"), Vectorize("matmul.acc", "j"),
    )  # fmt: skip
    return inspect("matmul_0", bind(lower(operator, schedule), {}), target, predict=False)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.cpu)
def test_a_tile_that_fits_has_no_spill_and_one_too_large_is_found(target: Target) -> None:
    rows, vectors = TILES[target]
    fits = tiled(target, rows, vectors).hot
    assert fits is not None and fits.fma == rows * vectors
    assert fits.spills == 0 and fits.moves == 0
    assert fits.flops == 2 * rows * vectors * target.vector_lanes()
    spilled = tiled(target, 2 * rows, vectors).hot
    assert spilled is not None and spilled.fma == 2 * rows * vectors
    assert spilled.vector_spills > 0


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.cpu)
def test_the_default_of_a_space_has_no_spill_in_its_inner_loop(target: Target) -> None:
    a, b = placeholder((96, 64), "A"), placeholder((64, 128), "B")
    space = cpu_space(Operator("matmul", (a, b), dense(a, b, "matmul"), frozenset({1})), target)
    hot = inspect("matmul_0", Programs(space).nest(space.default()), target, predict=False).hot
    assert hot is not None and hot.fma and hot.vector_spills == 0


STACK_TILE = """
	.type	kernel,@function
kernel:
	subq	$128, %rsp
.LBB0_1:
	vmovups	(%rdi,%rax), %ymm0
	vmovups	%ymm0, 32(%rsp)
	vmovups	%ymm1, -32(%rsp)                # 32-byte Spill
	vfmadd231ps	64(%rsp), %ymm2, %ymm3  # 32-byte Folded Reload
	vfmadd231ps	(%rsi){1to8}, %ymm2, %ymm4
	addq	$32, %rax
	cmpq	8(%rsp), %rax                   # 8-byte Folded Reload
	jne	.LBB0_1
# %bb.2:
	retq
.Lfunc_end0:
"""


def test_tiles_on_the_stack_are_no_spills() -> None:
    hot = inspect_listing(STACK_TILE, AVX2, predict=False).hot
    assert hot is not None
    assert (hot.vector_spills, hot.scalar_spills) == (2, 1)
    assert hot.counts == {Kind.VECTOR_LOAD: 1, Kind.STORE: 2, Kind.FMA: 2, Kind.SCALAR: 2, Kind.BRANCH: 1}
    assert (hot.load_bytes, hot.store_bytes, hot.element_loads) == (32 + 32 + 4 + 8, 64, 1)


NESTED = """
	.type	kernel,@function
kernel:
	mov	x0, xzr
.LBB0_1:
	mov	x1, xzr
	cbz	x2, .LBB0_4
.LBB0_2:
	ldp	q0, q1, [x3], #32
	fmla	v2.4s, v0.4s, v1.s[0]
	add	x1, x1, #1
	cmp	x1, #8
	b.lt	.LBB0_2
	str	q2, [x4], #16
	b	.LBB0_5
.LBB0_4:
	add	x5, x5, #1
.LBB0_5:
	add	x0, x0, #1
	cmp	x0, #8
	b.lt	.LBB0_1
	ret
.Lfunc_end0:
"""


def test_nested_loops_with_a_branch_inside() -> None:
    (function,) = functions(NESTED, "aarch64")
    outer, inner = loops(function)
    assert (outer.depth, inner.depth) == (1, 2)
    assert inner.blocks < outer.blocks and not outer.own & inner.blocks
    report = inspect_listing(NESTED, A53, predict=False)
    assert [(loop.label, loop.depth, loop.instructions) for loop in report.loops] == [
        (".LBB0_2", 2, 5),
        (".LBB0_1", 1, 8),
    ]
    hot = report.loops[0]
    assert (hot.flops, hot.load_bytes, hot.code_bytes, hot.fma_share) == (8, 32, 20, 0.2)


@pytest.mark.parametrize(
    ("code", "kind", "load_bytes", "flops"),
    [
        ("fmla v0.4s, v1.4s, v2.s[1]", Kind.FMA, 0, 8),
        ("fmadd s0, s1, s2, s3", Kind.FMA, 0, 2),
        ("ldr s0, [x1]", Kind.BROADCAST, 4, 0),
        ("ldr d0, [x1]", Kind.VECTOR_LOAD, 8, 0),
        ("ldr x0, [x1]", Kind.SCALAR, 8, 0),
        ("mov v0.d[1], x3", Kind.MOVE, 0, 0),
        ("fadd v0.4s, v1.4s, v2.4s", Kind.VECTOR, 0, 4),
        ("b.lt .LBB0_1", Kind.BRANCH, 0, 0),
    ],
)
def test_classes_of_aarch64_instructions(code: str, kind: Kind, load_bytes: int, flops: int) -> None:
    mnemonic, _, rest = code.partition(" ")
    found = classify(Line(mnemonic, tuple(rest.split(", "))), "aarch64")
    assert (found.kind, found.load_bytes, found.flops) == (kind, load_bytes, flops)


@pytest.mark.parametrize(
    ("mnemonic", "operands", "kind", "load_bytes", "flops"),
    [
        ("vfmadd231ps", ("%zmm1", "%zmm2", "%zmm3"), Kind.FMA, 0, 32),
        ("vfmadd231ps", ("4(%rax){1to16}", "%zmm2", "%zmm3"), Kind.FMA, 4, 32),
        ("vfmadd231pd", ("(%rax)", "%ymm2", "%ymm3"), Kind.FMA, 32, 8),
        ("vbroadcastss", ("(%rax)", "%ymm2"), Kind.BROADCAST, 4, 0),
        ("vbroadcastss", ("%xmm1", "%ymm2"), Kind.MOVE, 0, 0),
        ("vmovups", ("(%rax)", "%ymm2"), Kind.VECTOR_LOAD, 32, 0),
        ("vmovups", ("%ymm2", "(%rax)"), Kind.STORE, 0, 0),
        ("vmovss", ("(%rax)", "%xmm2"), Kind.BROADCAST, 4, 0),
        ("vaddps", ("%ymm0", "%ymm1", "%ymm2"), Kind.VECTOR, 0, 8),
        ("leaq", ("8(%rax)", "%rax"), Kind.SCALAR, 0, 0),
        ("jne", (".LBB0_1",), Kind.BRANCH, 0, 0),
    ],
)
def test_classes_of_x86_instructions(
    mnemonic: str, operands: tuple[str, ...], kind: Kind, load_bytes: int, flops: int
) -> None:
    found = classify(Line(mnemonic, operands), "x86_64")
    assert (found.kind, found.load_bytes, found.flops) == (kind, load_bytes, flops)


def test_code_size_is_that_of_the_object() -> None:
    """The blocks of a kernel, assembled again, take the bytes that the object's symbol says."""
    a, b = placeholder((24, 16), "A"), placeholder((16, 64), "B")
    space = cpu_space(Operator("matmul", (a, b), dense(a, b, "matmul"), frozenset({1})), AVX2)
    text = llvm_module("kernel", Programs(space).nest(space.default()), AVX2)
    if assemble("nop\n", AVX2) is None:
        pytest.skip("LLVM has no x86-64 assembler on this machine")
    listing = assembly(text, AVX2, comments=True)
    again = assemble(listing, AVX2)
    assert again is not None
    assert symbols(again)["kernel"] == symbols(compile_ir(text, AVX2))["kernel"]
    assert all(loop.code_bytes for loop in inspect_listing(listing, AVX2, predict=False).loops)


def test_only_known_architectures_are_read() -> None:
    with pytest.raises(ValueError, match="expected an x86-64 or aarch64 triple"):
        architecture_of("riscv64-unknown-linux-gnu")


def test_llvm_mca_predicts_where_it_is_installed() -> None:
    lines = [Line("vfmadd231ps", ("%ymm1", "%ymm2", f"%ymm{register}")) for register in range(3, 13)]
    if not installed():
        assert simulate(lines, AVX2.triple, ["haswell"]) is None
        pytest.skip("llvm-mca is not installed")
    found = simulate(lines, AVX2.triple, ["no-such-cpu", "haswell"])
    assert found is not None and found.cpu == "haswell"
    assert found.resource_cycles == 5.0  # two multiply-adds a cycle
