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
        self._what, self._total, self._stream = what, total, stream or sys.stderr
        self._drawn = self._stream.isatty()

    def __call__(self, items: Iterable[Item]) -> Iterator[Item]:
        """The same items; may be called again for more of them."""
        started_s = shown_s = time.monotonic()
        done = 0
        for done, item in enumerate(items, 1):
            yield item
            waited_s = time.monotonic() - shown_s
            if done < self._total and waited_s >= (DRAWN_EVERY_S if self._drawn else SAID_EVERY_S):
                shown_s = time.monotonic()
                self._say(done, shown_s - started_s, "" if self._drawn else "\n")
        if done:
            self._say(done, time.monotonic() - started_s, "\n")

    def _say(self, done: int, seconds: float, end: str) -> None:
        rate, filled = done / max(seconds, 1e-9), round(WIDTH * done / max(self._total, 1))
        left_min = (self._total - done) / rate / 60
        text = f"{'█' * filled:░<{WIDTH}} {done}/{self._total}  {rate:.1f}/s  {left_min:.1f} min left"
        start = "\r" if self._drawn else ""
        print(f"{start}{text}  {self._what}", end=end, file=self._stream, flush=True)
