"""Aligned columns as plain text that fit a terminal; the same without a limit for files and programs."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

GAP: Final = "  "
READABLE: Final = 36  # characters of a text column that are worth more than an optional column
LEAST: Final = 6  # characters that a cut cell keeps


class _Column(msgspec.Struct, frozen=True):
    head: tuple[str, ...]
    cells: tuple[str, ...]
    text: bool

    @property
    def width(self) -> int:
        return max(map(len, (*self.head, *self.cells)))

    def lines(self, width: int, head: int) -> list[str]:
        """Every cell as wide as the column, below `head` lines of heading and a rule."""
        empty = ("",) * (head - len(self.head))
        cells = [cut(cell, width) for cell in (*empty, *self.head)] + ["-" * width]
        cells += [cut(cell, width) for cell in self.cells]
        return [cell.ljust(width) if self.text else cell.rjust(width) for cell in cells]


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: int = 1,
    *,
    width: int = 0,
    optional: Sequence[int] = (),
) -> str:
    """Columns as wide as their widest cell, two spaces apart; the first `left` ones flush left.

    With a `width` (0: none), columns of `optional` are left out in that order until the others fit, then the
    widest of the flush-left ones are cut; the last line names the columns that were left out.
    """
    columns = {
        number: _Column((_flat(header),), tuple(_flat(row[number]) for row in rows), number < left)
        for number, header in enumerate(headers)
    }
    if width and _needed({number: column.width for number, column in columns.items()}) > width:
        columns = {number: _narrow(column) for number, column in columns.items()}
    dropped = _dropped(columns, width, optional) if width else []
    columns = {number: column for number, column in columns.items() if number not in dropped}
    widths = _fitting(columns, width)
    head = max(len(column.head) for column in columns.values())
    lines = zip(*(column.lines(widths[number], head) for number, column in columns.items()), strict=True)
    text = "\n".join(GAP.join(line).rstrip() for line in lines)
    hidden = ", ".join(headers[number] for number in sorted(dropped))
    return f"{text}\n\n{fold(f'Not shown: {hidden}; --wide shows every column.', width)}" if hidden else text


def fold(text: str, width: int) -> str:
    """Lines of at most `width` columns (0: no limit); a line's rest stands below its second column.

    A word that is longer, such as a path, stays whole.
    """
    return "\n".join(part for line in text.split("\n") for part in _folded(line, width))


def cut(text: str, width: int) -> str:
    """The beginning of a text that is longer than `width`."""
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _folded(line: str, width: int) -> list[str]:
    if not width or len(line) <= width:
        return [line]
    indent = len(line) - len(line.lstrip())
    second = line.find(GAP, indent)
    if 0 < second < width // 2:
        indent = second + len(line[second:]) - len(line[second:].lstrip())
    return textwrap.wrap(
        line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False,
        drop_whitespace=True,
    )  # fmt: skip


def _flat(cell: str) -> str:
    return cell.replace("\n", "\\n")


def _narrow(column: _Column) -> _Column:
    """The column with its heading in several lines where that makes it narrower."""
    width = max([*map(len, column.cells), *map(len, column.head[0].split()), 1])
    return replace(column, head=tuple(textwrap.wrap(column.head[0], width)) or ("",))


def _needed(widths: Mapping[int, int]) -> int:
    return sum(widths.values()) + len(GAP) * (len(widths) - 1)


def _dropped(columns: Mapping[int, _Column], width: int, optional: Sequence[int]) -> list[int]:
    """The optional columns to leave out, so that the text columns stay readable."""
    wanted = {
        number: min(column.width, READABLE) if column.text else column.width
        for number, column in columns.items()
    }
    dropped = []
    for number in optional:
        if _needed(wanted) <= width:
            break
        dropped.append(number)
        del wanted[number]
    return dropped


def _fitting(columns: Mapping[int, _Column], width: int) -> dict[int, int]:
    """Widths of columns: their own, or less for the widest text columns."""
    widths = {number: column.width for number, column in columns.items()}
    texts = [number for number, column in columns.items() if column.text]
    while width and texts and _needed(widths) > width:
        widest = max(texts, key=lambda number: widths[number])
        if widths[widest] <= LEAST:
            break
        widths[widest] -= 1
    return widths


def named(facts: Sequence[tuple[str, str]]) -> list[str]:
    """Names and values in two columns, a line each."""
    width = max(len(name) for name, _ in facts)
    return [f"{name.ljust(width)}{GAP}{value}" for name, value in facts]
