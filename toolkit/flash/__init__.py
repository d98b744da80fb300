"""A bundle put on a board, or taken back. Start at job.py (the doors); values.py is what goes in and out."""

from toolkit.flash.job import flash_bundle, roll_back, run, slot_status
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
    "flash_bundle",
    "roll_back",
    "run",
    "slot_status",
]
