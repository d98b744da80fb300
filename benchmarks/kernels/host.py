"""A board, `host` as a rule, with as many of its cores as a benchmark asks for."""

from __future__ import annotations

import msgspec

from boards.board import load
from boards.description import Board
from boards.target import Target


def board_with(threads: int, name: str = "host") -> tuple[Board, Target]:
    """A board and a target on the first cores of its fastest CPU cluster.

    Raises:
        ValueError: it has fewer cores, or no CPU.
        BoardError: there is no such board.
    """
    board = load(name)
    cpus = [target for target in board.targets if target.kind == "cpu"]
    target = max(cpus, key=lambda item: item.estimated_peak_gflops, default=None)
    if target is None or not 1 <= threads <= target.threads:
        most = target.threads if target else 0
        raise ValueError(f"board {name}: expected 1 to {most} CPU threads, found {threads}")
    return board, msgspec.structs.replace(target, cores=target.cores[:threads])
