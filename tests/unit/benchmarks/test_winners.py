"""The loops of winning kernels, read off machine code, for both architectures."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness.place import board_with
from benchmarks.kernels.winners import Winner, loop_findings, table, winners
from benchmarks.kernels.workloads import WORKLOADS
from boards.errors import UnknownBoard
from cross.codegen.llvm.objects import assembly
from cross.inspection.cpu_loops import inspect_listing
from toolkit.measure.peak import peak_loop


def fma_winner(board: str, accumulators: int) -> Winner:
    """A loop with so many accumulators, which fit into the registers or do not."""
    _, target = board_with(1, board)
    text = peak_loop(target, 64, accumulators)
    report = inspect_listing(assembly(text, target, comments=True), target, predict=False)
    return Winner("fma", "tuned", "key", tuple(loop for loop in report.loops if loop.innermost and loop.fma))


@pytest.mark.parametrize("board", ["host", "rpi3b"])
def test_accumulators_beyond_the_registers_are_spills(board: str) -> None:
    found, target = board_with(1, board)
    few, many = fma_winner(board, 10), fma_winner(board, 48)
    (loop,) = few.loops
    assert (loop.fma, few.spills) == (10, 0)
    assert many.loops[0].fma == 48
    assert many.spills >= 48 - target.vector_registers
    (goal,) = loop_findings(found, target, [few, many])
    assert (goal.found, goal.reached, goal.detail) == (1.0, False, f"fma {many.spills}")
    rows = list(table(found, target, [few, many]))
    assert rows[2].endswith("pass") and rows[3].endswith("FAIL")


@pytest.mark.slow
@pytest.mark.parametrize("board", ["host", "rpi3b"])
def test_untuned_kernels_have_clean_loops(board: str, tmp_path: Path) -> None:
    found, target = board_with(1, board)
    rows = list(winners([WORKLOADS["C9"]], found, target, tmp_path / "none.db", drawn=0))
    assert [(item.name, item.how, item.spills) for item in rows] == [("C9", "default", 0)]
    assert rows[0].loops
    (goal,) = loop_findings(found, target, rows)
    assert goal.name == f"{board}, 1 thread, 1 default kernels: with spills in inner loops"
    assert goal.reached


@pytest.mark.slow
def test_a_model_chooses_for_a_board_without_records(tmp_path: Path) -> None:
    found, target = board_with(1, "rpi3b")
    default, modelled = winners([WORKLOADS["D9"]], found, target, tmp_path / "none.db", drawn=3)
    assert (default.how, modelled.how) == ("default", "modelled")
    assert modelled.cycles_per_flop <= default.cycles_per_flop < float("inf")


def test_boards_that_will_not_do() -> None:
    with pytest.raises(ValueError, match="board rpi3b: expected 1 to 4 CPU threads, found 5"):
        board_with(5, "rpi3b")
    with pytest.raises(ValueError, match="board h200: expected 1 to 0 CPU threads, found 1"):
        board_with(1, "h200")
    with pytest.raises(UnknownBoard):
        board_with(1, "toaster")
