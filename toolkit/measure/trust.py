"""Board files name programs: an emulator, a Python. One of somebody else's runs only once the user agreed.

What the boards that ship with the tool run needs no consent. Any other program is remembered by its hash.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path

from boards.board import board_names, load
from boards.description import Board
from boards.files import write_file
from toolkit.errors import UntrustedBoard


def trusted_programs_path(config_dir: Path | None = None) -> Path:
    """Where the hashes are kept: ~/.config/tune-for-board/trusted_programs unless a folder is given."""
    return (config_dir or Path.home() / ".config" / "tune-for-board") / "trusted_programs"


def check_program(board: Board, *, trust: bool, config_dir: Path | None = None) -> None:
    """Refuse a board whose file runs a program that the user has not agreed to; `trust` agrees for good.

    Raises:
        UntrustedBoard: it says what would run and where.
        OSError: the hashes cannot be read or written.
    """
    program = board.link.program
    if not program or program in {load(name).link.program for name in board_names()}:
        return
    path = trusted_programs_path(config_dir)
    digest = hashlib.sha256(json.dumps(program).encode()).hexdigest()
    known = path.read_text().split() if path.exists() else []
    if digest in known:
        return
    where, *command = program
    if not trust:
        raise UntrustedBoard(
            f"the file of board {board.name} has the tool run on {where}: {shlex.join(command)}; expected a "
            "program that you agreed to; read the file, and if you trust who wrote it, give "
            f"--trust-board-file once (Python: load_board(..., trust=True)), which {path} remembers"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, "".join(f"{line}\n" for line in (*known, digest)).encode(), 0o600)
