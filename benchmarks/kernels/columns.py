"""Rows of text in columns."""

from __future__ import annotations

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
