"""Flashes on demand, each in a forked process: python -m tests.torture.flash_host BUNDLE BOARD.JSON FOLDER.

A line of input starts a flash; its process id and, when it has ended, its exit status are printed. The status
is what the command `flash` would give.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import msgspec

from boards.board import Board
from toolkit.cli.answers import answering
from toolkit.flash import job as flashing
from toolkit.flash.values import FlashOptions


def main(bundle: str, board_file: str, folder: str) -> None:
    board = msgspec.json.decode(Path(board_file).read_bytes(), type=Board)
    options = FlashOptions(
        config_dir=Path(folder, "config"), cache_dir=Path(folder, "cache"), test_timeout_s=60.0
    )

    @answering
    def flash(as_json: bool) -> None:
        flashing.flash_bundle(Path(bundle), board, options)

    spare = ctypes.CDLL(None).tfb_io_spare
    spare(1)
    print("ready", flush=True)
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                null = os.open(os.devnull, os.O_RDWR)
                for fd in (0, 1):
                    os.dup2(null, fd)
                spare(0)
                flash(as_json=False)
                status = 0
            except SystemExit as ended:
                status = int(str(ended.code or 0))
            finally:
                os._exit(status)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
