"""The configurations nearest to a kernel's that were tried as well, and what they cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from toolkit.records import TuningRecord
from toolkit.report.columns import table
from toolkit.report.tables import NOTHING, time_text

SHOWN: Final = 8  # rows of the table


class Alternative(msgspec.Struct, frozen=True):
    """A configuration that was tried: the knobs that differ, by name, and what it took or why it failed."""

    knobs: dict[str, Any]
    seconds: float | None
    failure: str


def nearest(
    configuration: Mapping[str, Any], trials: Iterable[TuningRecord], count: int = SHOWN
) -> tuple[Alternative, ...]:
    """Those that differ in the fewest knobs, the faster ones first; each once, with its fastest trial."""
    known: dict[str, Alternative] = {}
    for record in trials:
        tried = record.configuration
        knobs = {
            name: tried.get(name)
            for name in dict.fromkeys([*configuration, *tried])
            if tried.get(name) != configuration.get(name)
        }
        found, before = Alternative(knobs, record.cost_s, record.error_kind), known.get(str(knobs))
        if knobs and (before is None or _cost(found) < _cost(before)):
            known[str(knobs)] = found
    return tuple(sorted(known.values(), key=lambda item: (len(item.knobs), _cost(item)))[:count])


def alternatives_text(found: Iterable[Alternative], seconds: float | None) -> str:
    """One line each; times beside the kernel's own `seconds`."""
    rows = [
        [
            time_text(item.seconds) if item.seconds else item.failure,
            f"{item.seconds / seconds:.2f}x" if item.seconds and seconds else NOTHING,
            "; ".join(f"{name} {_value(value)}" for name, value in item.knobs.items()),
        ]
        for item in found
    ]
    headers = ["a call", "beside this one", "what is different"]
    return table(headers, rows, left=3) if rows else "no other configuration is recorded"


def _cost(item: Alternative) -> float:
    return float("inf") if item.seconds is None else item.seconds


def _value(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
