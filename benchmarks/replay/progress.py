"""How far a long measurement is: a bar on a terminal, a line now and then elsewhere; on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Final, TextIO, TypeVar

Item = TypeVar("Item")

WIDTH: Final = 24
DRAWN_EVERY_S: Final = 0.2
SAID_EVERY_S: Final = 15.0


class Bar:
    """Passes items on and shows how many of `total` came, how fast, and when the rest will be done."""

    def __init__(self, what: str, total: int, stream: TextIO | None = None) -> None:
        self._what = what
        self._total = total
        self._stream = stream or sys.stderr
        self._drawn = self._stream.isatty()

    def __call__(self, items: Iterable[Item]) -> Iterator[Item]:
        """The same items; may be called again for more of them."""
        self._started_s = self._shown_s = time.monotonic()
        done = 0
        for done, item in enumerate(items, 1):
            yield item
            self._show(done)
        if done:
            self._say(done, "\n")

    def _show(self, done: int) -> None:
        every_s = DRAWN_EVERY_S if self._drawn else SAID_EVERY_S
        if done < self._total and time.monotonic() - self._shown_s >= every_s:
            self._shown_s = time.monotonic()
            self._say(done, "" if self._drawn else "\n")

    def _say(self, done: int, end: str) -> None:
        seconds = max(time.monotonic() - self._started_s, 1e-9)
        rate, filled = done / seconds, round(WIDTH * done / max(self._total, 1))
        left_s = (self._total - done) / rate
        bar = "█" * filled + "░" * (WIDTH - filled)
        start = "\r" if self._drawn else ""
        text = f"{bar} {done}/{self._total}  {rate:.1f}/s  {left_s / 60:.1f} min left  {self._what}"
        print(f"{start}{text}", end=end, file=self._stream, flush=True)
