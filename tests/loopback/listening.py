"""A runtime that listens on this machine, as the board that a host reaches over TCP."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from boards.board import Board
from boards.description import Link
from toolkit.measure.archive import runtime_archive
from toolkit.measure.credentials import make_credentials


@contextmanager
def listening(board: Board, folder: Path, python: str = sys.executable) -> Iterator[tuple[Board, int]]:
    """The board with a link to a runtime of its own, and that runtime's process id."""
    archive, board_file, host_file = (folder / name for name in ("runtime.pyz", "board.pem", "host.pem"))
    archive.write_bytes(runtime_archive())
    make_credentials(board_file, host_file)
    command = [
        python, str(archive), "--device-dir", str(folder / "device"),
        "--listen", "127.0.0.1:0", "--tls", str(board_file),
    ]  # fmt: skip
    printed = folder / "printed"
    with printed.open("w") as stream, subprocess.Popen(command, stderr=stream) as process:
        try:
            while not (match := re.match(r"listening on 127\.0\.0\.1:(\d+)\n", printed.read_text())):
                assert process.poll() is None, printed.read_text()
            link = Link(kind="tcp", host="127.0.0.1", port=int(match[1]), tls_file=str(host_file))
            yield msgspec.structs.replace(board, link=link), process.pid
            assert process.poll() is None, printed.read_text()
        finally:
            process.kill()
    assert printed.read_text().count("\n") == 1, printed.read_text()
