"""Why trials failed, as text: kind, count, and the message and configuration of the first of each kind."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from typing import Final

from toolkit.escaping import printable
from toolkit.records.failures import FailureReason, RecordedFailures

WIDTH: Final = 80  # columns of the narrowest terminal in common use
TEXT_LIMIT: Final = 480  # characters of a message or configuration that are shown; JSON has all of them
INDENT: Final = "  "


def failure_text(name: str, trials: int, reasons: Sequence[FailureReason], width: int = 0) -> str:
    """The reasons of one operator, wrapped at `width` columns, at WIDTH where that is 0."""
    width = width or WIDTH
    failures = sum(reason.count for reason in reasons)
    lines = textwrap.wrap(f"{name}: {failures} of {trials} trials failed", width, subsequent_indent=INDENT)
    for reason in reasons:
        lines += _wrapped(brief(reason), width, 1)
        lines += _wrapped(f"with {json.dumps(reason.configuration, ensure_ascii=False)}", width, 2)
    return "\n".join(lines)


def brief(reason: FailureReason) -> str:
    """Count, kind and message in one line: `3 x timeout: no answer within 2 s`."""
    return f"{reason.count} x {reason.kind}: {' '.join(printable(reason.text).split())}"


def recorded_text(found: Sequence[RecordedFailures], names: Sequence[str], width: int = 0) -> str:
    """The operators of a store that have failures; `names`: what to call each of them."""
    if not found:
        return "no recorded trial failed"
    return "\n\n".join(
        failure_text(f"{name} on {item.key.target_key}", item.trials, item.reasons, width)
        for item, name in zip(found, names, strict=True)
    )


def _wrapped(text: str, width: int, depth: int) -> list[str]:
    cut = text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]}..."
    return textwrap.wrap(
        cut,
        width,
        initial_indent=INDENT * depth,
        subsequent_indent=INDENT * (depth + 2),
        break_on_hyphens=False,
    )
