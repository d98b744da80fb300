"""Figures as text: rows in columns, and the spread of repeated figures."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows in columns: numbers to the right, text to the left; columns without any text are left out."""
    kept = [column for column in range(len(rows[0])) if any(row[column] for row in rows)]
    widths = {column: max(len(row[column]) for row in rows) for column in kept}
    for row in rows:
        cells = [_cell(row[column], widths[column]) for column in kept]
        yield ("  " + "  ".join(cells)).rstrip()


def _cell(text: str, width: int) -> str:
    number = text[:1].isdigit() or text[:1] in ("~", "-", "*")
    return text.rjust(width) if number else text.ljust(width)


def spread(name: str, values: Sequence[float], unit: str) -> str:
    """One line: median, minimum and maximum of repeated figures."""
    middle = statistics.median(values)
    return (
        f"{name:44s} {middle:12,.1f} {unit:14s} (min {min(values):,.1f}, max {max(values):,.1f}, "
        f"{len(values)} runs)"
    )


def thread_count(threads: int) -> str:
    """1 thread, 2 threads."""
    return f"{threads} thread{'s' * (threads > 1)}"
