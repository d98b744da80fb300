"""What the innermost loops of a kernel consist of, read off the machine code that LLVM writes for it.

A loop is what lies between a label and a later jump back to it; it is innermost when it holds no other loop.
Of these, those that multiply and add are looked at. An access to the stack in such a loop is a value that
found no register: the code generator keeps nothing else there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_LABEL = re.compile(r"^(\.L\w+):")
_INSTRUCTION = re.compile(r"^\s+([a-z][\w.]*)\s*(.*)$")
_JUMP = re.compile(r"^(?:j\w+|b(?:\.\w+)?|cbn?z|tbn?z)$")
_MULTIPLY_ADD = re.compile(r"^(?:vfn?m(?:add|sub)\d+[sp][sdh]|fn?m(?:add|sub)|fml[as])$")
_STACK = re.compile(r"\(%rsp\b|\[sp\b")
_FRAME = re.compile(r"^\s+movq\s+%rsp, %rbp")
_FRAME_ACCESS = re.compile(r"\(%rbp\b")


@dataclass(frozen=True, slots=True)
class Loop:
    """One innermost loop: its instructions, those that multiply and add, those that touch the stack."""

    label: str
    instructions: int
    multiply_adds: int
    stack: int

    @property
    def share(self) -> float:
        """Part of the instructions that multiply and add."""
        return self.multiply_adds / self.instructions


def multiplying_loops(assembly: str) -> list[Loop]:
    """The innermost loops with multiply-adds of a listing, those with most of them first.

    The listing is x86-64 in AT&T form, or aarch64.
    """
    loops = [
        loop
        for function in re.split(r"^\s*\.size\b.*$", assembly, flags=re.MULTILINE)
        for loop in _innermost(function.splitlines())
    ]
    return sorted(
        (loop for loop in loops if loop.multiply_adds), key=lambda loop: loop.multiply_adds, reverse=True
    )


def _innermost(lines: list[str]) -> Iterator[Loop]:
    spans = _spans(lines)
    framed = any(_FRAME.match(line) for line in lines)
    for first, last in spans:
        if any(first <= start and end <= last and (start, end) != (first, last) for start, end in spans):
            continue
        body = [match for line in lines[first : last + 1] if (match := _INSTRUCTION.match(line))]
        yield Loop(
            label=lines[first].partition(":")[0],
            instructions=len(body),
            multiply_adds=sum(bool(_MULTIPLY_ADD.match(match[1])) for match in body),
            stack=sum(bool(_touches_stack(match[2], framed)) for match in body),
        )


def _touches_stack(operands: str, framed: bool) -> bool:
    return bool(_STACK.search(operands) or (framed and _FRAME_ACCESS.search(operands)))


def _spans(lines: list[str]) -> list[tuple[int, int]]:
    """(label's line, line of the last jump back to it) of every loop."""
    labels = {match[1]: number for number, line in enumerate(lines) if (match := _LABEL.match(line))}
    ends: dict[int, int] = {}
    for number, line in enumerate(lines):
        match = _INSTRUCTION.match(line)
        if match is None or not _JUMP.match(match[1]):
            continue
        start = labels.get(match[2].split(",")[-1].split("#")[0].split("//")[0].strip())
        if start is not None and start <= number:
            ends[start] = number
    return list(ends.items())
