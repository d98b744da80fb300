"""The board `host` with as many of its cores as a benchmark asks for."""

from __future__ import annotations

import msgspec

from boards.board import load
from boards.description import Board
from boards.target import Target


def host(threads: int) -> tuple[Board, Target]:
    """This machine and a target on its first cores.

    Raises:
        ValueError: it has fewer cores.
    """
    board = load("host")
    target = board.target()
    if not 1 <= threads <= target.threads:
        raise ValueError(f"expected 1 to {target.threads} threads on this machine, found {threads}")
    return board, msgspec.structs.replace(target, cores=target.cores[:threads])
