"""Reading loops off machine code: the compiler's own for both architectures, and crooked ones by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.kernels.host import board_with
from benchmarks.kernels.machine_code import machine_text
from benchmarks.kernels.machine_loops import Loop, multiplying_loops
from benchmarks.kernels.winners import table, winning_loops
from benchmarks.kernels.workloads import WORKLOADS
from boards.errors import UnknownBoard
from cross.codegen.objects import assembly


@pytest.mark.parametrize(("board", "lanes"), [("host", 8), ("rpi3b", 4)])
def test_accumulators_beyond_the_registers_are_spills(board: str, lanes: int) -> None:
    _, target = board_with(1, board)

    def fma_loop(accumulators: int) -> Loop:
        text = machine_text(lanes, accumulators, blocks=4, passes=2)
        (loop,) = multiplying_loops(assembly(text, target, passes="none"))
        return loop

    few, many = fma_loop(10), fma_loop(48)
    assert (few.multiply_adds, few.stack) == (10, 0)
    assert few.share > 0.7
    assert many.multiply_adds == 48
    assert many.stack >= 48 - target.vector_registers


def test_only_innermost_loops_count() -> None:
    (loop,) = multiplying_loops("""
kernel:
	movq	%rsp, %rbp
.LBB0_1:
	vfmadd231ps	%zmm0, %zmm1, %zmm2
	movq	-8(%rsp), %rax
.LBB0_2:                                # =>  inner
	vfmadd231ps	64(%rbp), %zmm1, %zmm2
	vmovaps	%zmm2, (%rdi)
	decq	%rax
	jne	.LBB0_2
	jmp	.LBB0_1
	.size	kernel, .-kernel
other:
.LBB1_1:
	addq	$1, %rax
	jne	.LBB1_1
	.size	other, .-other
""")
    assert loop == Loop(".LBB0_2", instructions=4, multiply_adds=1, stack=1)


def test_aarch64_forms() -> None:
    (loop,) = multiplying_loops("""
.LBB0_3:
	ldr	q1, [sp, #16]
	fmla	v0.4s, v1.4s, v2.s[0]
	fmadd	s0, s1, s2, s3
	subs	x8, x8, #1
	b.ne	.LBB0_3
""")
    assert (loop.instructions, loop.multiply_adds, loop.stack) == (5, 2, 1)


@pytest.mark.parametrize("board", ["host", "rpi3b"])
def test_untuned_kernels_have_clean_loops(board: str, tmp_path: Path) -> None:
    found, target = board_with(1, board)
    tuned, loops = winning_loops(WORKLOADS["C9"], found, target, tmp_path / "none.db")
    assert not tuned
    assert loops and sum(loop.stack for loop in loops) == 0
    lines = list(table([WORKLOADS["C9"]], found, target, tmp_path / "none.db"))
    assert lines[0] == f"{board} ({target.name}), loops with multiply-adds:"
    assert lines[-1] == "  with spills: none.  *: not tuned, the default schedule"


def test_boards_that_will_not_do() -> None:
    with pytest.raises(ValueError, match="board rpi3b: expected 1 to 4 CPU threads, found 5"):
        board_with(5, "rpi3b")
    with pytest.raises(ValueError, match="board h200: expected 1 to 0 CPU threads, found 1"):
        board_with(1, "h200")
    with pytest.raises(UnknownBoard):
        board_with(1, "toaster")
