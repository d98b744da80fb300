"""Lines of C within braces."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

INDENT = "    "
_DECLARATION = re.compile(r"(?:const )?\w+ (\w+)")  # not of statements: a bracket or a sign comes first there


class Lines:
    """The body of a function as it is written."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 1

    def line(self, text: str) -> None:
        """One line at the current depth."""
        self.lines.append(INDENT * self.depth + text)

    @contextmanager
    def braces(self, head: str = "") -> Iterator[None]:
        """Lines within a block of their own."""
        self.line(f"{head} {{" if head else "{")
        self.depth += 1
        start = len(self.lines)
        yield
        self._open_last_block(start)
        self.depth -= 1
        self.line("}")

    def _open_last_block(self, start: int) -> None:
        """What stands in braces of its own at the end of a block needs none, unless it hides a name."""
        lines, own = self.lines[start:], INDENT * self.depth
        if not lines or lines[-1] != f"{own}}}":
            return
        head = max(place for place, line in enumerate(lines[:-1]) if not line.startswith(f"{own} "))
        inner = [line.removeprefix(INDENT) for line in lines[head + 1 : -1]]
        if lines[head] == f"{own}{{" and _declared(lines[:head], own).isdisjoint(_declared(inner, own)):
            self.lines[start + head :] = inner


def _declared(lines: Sequence[str], indent: str) -> set[str]:
    """The names that lines at this depth declare."""
    found = (_DECLARATION.match(line, len(indent)) for line in lines if line.startswith(indent))
    return {match[1] for match in found if match is not None}
