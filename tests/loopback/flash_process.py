"""A flash in a process of its own: prints each event and waits for a line before it goes on.

python -m tests.loopback.flash_process BUNDLE DEVICE_DIR CONFIG_DIR CACHE_DIR
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from boards.board import load
from toolkit.flash import FlashEvent, FlashOptions, flash


def main(bundle: str, device_dir: str, config_dir: str, cache_dir: str) -> None:
    board = load("host")
    board = msgspec.structs.replace(board, link=msgspec.structs.replace(board.link, device_dir=device_dir))
    options = FlashOptions(config_dir=Path(config_dir), cache_dir=Path(cache_dir), wait_s=10.0)
    flash(Path(bundle), board, options, wait)


def wait(event: FlashEvent) -> None:
    print(event.step, event.state, flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
