"""toolkit doctor."""

from __future__ import annotations

import click

import toolkit
from toolkit.cli.answers import answer, answering, board_to_run, say, trust_option

UNREACHABLE = 3
UNFIT = 6
SIGNS = {"ok": "ok     ", "warning": "WARNING", "failure": "FAILURE", "unknown": "unknown"}


@click.command()
@click.argument("name", metavar="BOARD")
@trust_option
@answering
def doctor(*, name: str, as_json: bool) -> None:
    """Check that a board can be tuned for, and say what to do where it cannot.

    Exit code 0: nothing failed; 3: the board cannot be reached; 6: a check failed.
    """
    board = board_to_run(name)
    say(f"asking {board.name}")
    health = toolkit.check_board(board)
    lines = []
    for check in health.checks:
        lines.append(f"{SIGNS[check.state]}  {check.name}: {check.found}")
        if check.remedy:
            lines.append(f"         -> {check.remedy}")
    answer("doctor", health, "\n".join(lines), as_json=as_json)
    if not health.reachable:
        raise SystemExit(UNREACHABLE)
    if not health.fit:
        raise SystemExit(UNFIT)
