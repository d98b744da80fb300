"""What flashing shows while it runs: its steps, and how far an upload is."""

from __future__ import annotations

import sys
from typing import Final, TextIO

from toolkit.flash.values import FlashEvent

WORDS: Final = {
    "verify": "verifying the bundle",
    "connect": "connecting",
    "trust": "checking who signed",
    "upload": "uploading",
    "install": "installing",
    "self_test": "self-test in the new slot",
    "activate": "switching",
    "health_check": "health check",
    "commit": "committing",
    "rollback": "rolling back",
}


class LineDisplay:
    """A line that is drawn over where `stream` is a terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._drawn = self._stream.isatty()

    def _write(self, text: str) -> None:
        print(text, end="", file=self._stream, flush=True)


class FlashDisplay(LineDisplay):
    """A listener for `flash_bundle` and `roll_back`."""

    def __call__(self, event: FlashEvent) -> None:
        words = WORDS[event.step]
        if event.state == "progress" and self._drawn:
            share = event.done_bytes / max(1, event.total_bytes)
            self._write(f"\r{words} {share:4.0%} of {event.total_bytes / 2**20:.1f} MiB")
        elif event.state == "begin":
            self._write(f"\r{words}" if self._drawn else f"{words} ... ")
        elif event.state == "end":
            self._write(f"\r\033[K{words}: done\n" if self._drawn else "done\n")
        elif event.state == "failed":
            self._write(f"\r\033[K{words}: failed\n" if self._drawn else "failed\n")
