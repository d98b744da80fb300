"""A bundle put on a board, or taken back. Start at job.py (the doors); values.py is what goes in and out."""

from toolkit.flash.job import flash, rollback, run, status
from toolkit.flash.values import (
    FlashEvent,
    FlashOptions,
    FlashProgress,
    FlashReport,
    RunResult,
    SlotStatus,
    StartedVariant,
)

__all__ = [
    "FlashEvent",
    "FlashOptions",
    "FlashProgress",
    "FlashReport",
    "RunResult",
    "SlotStatus",
    "StartedVariant",
    "flash",
    "rollback",
    "run",
    "status",
]
