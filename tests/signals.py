"""Signals for processes that tests start."""

from __future__ import annotations

import signal


def interruptible() -> None:
    """To run before exec: SIGINT interrupts, also where the tests run in the background of a shell.

    A shell without job control starts background commands with SIGINT ignored, and they pass that on.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
