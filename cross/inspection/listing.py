"""Assembly text as functions of basic blocks. Start at `functions`.

The text is what LLVM prints for an object, with its comments: they say which accesses to the stack are
spills (`64-byte Spill`, `16-byte Folded Reload`), and so tell them apart from tiles that live there.
"""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

Architecture = Literal["x86_64", "aarch64"]

COMMENTS: Final = {"x86_64": "#", "aarch64": "//"}
_LABEL: Final = re.compile(r"^([.\w$@]+):")
_TYPE: Final = re.compile(r"^\.type\s+([.\w$@]+),\s*[@%]function")
_CONDITIONAL: Final = {
    "x86_64": re.compile(r"j(?!mp)\w+$"),
    "aarch64": re.compile(r"(b\.\w+|cbn?z|tbn?z)$"),
}
_UNCONDITIONAL: Final = {"x86_64": re.compile(r"jmpq?$"), "aarch64": re.compile(r"b$")}
_RETURN: Final = {"x86_64": re.compile(r"(ret[lq]?|ud2)$"), "aarch64": re.compile(r"(ret|br|brk)$")}


class Line(msgspec.Struct, frozen=True):
    """One instruction: mnemonic, operands as written (AT&T order on x86-64), and LLVM's comment."""

    mnemonic: str
    operands: tuple[str, ...]
    comment: str = ""

    @property
    def text(self) -> str:
        return f"{self.mnemonic}\t{', '.join(self.operands)}".rstrip()


class Block(msgspec.Struct):
    """Instructions that run one after the other; successors are positions in `Function.blocks`."""

    labels: list[str] = []
    lines: list[Line] = []
    successors: tuple[int, ...] = ()


class Function(msgspec.Struct, frozen=True):
    """One function, blocks in the order of the text."""

    name: str
    blocks: tuple[Block, ...]


def architecture_of(triple: str) -> Architecture:
    """The architecture of an LLVM triple.

    Raises:
        ValueError: neither x86-64 nor aarch64.
    """
    name = triple.split("-")[0]
    if name in ("x86_64", "amd64"):
        return "x86_64"
    if name in ("aarch64", "arm64"):
        return "aarch64"
    raise ValueError(f"machine code of {triple!r} cannot be read: expected an x86-64 or aarch64 triple")


def functions(listing: str, architecture: Architecture) -> list[Function]:
    """The functions of an assembly text."""
    found: list[Function] = []
    declared: set[str] = set()
    name, blocks = "", [Block()]
    for raw in listing.splitlines():
        code, _, comment = raw.partition(COMMENTS[architecture])
        code = code.strip()
        declaration = _TYPE.match(code)
        if declaration:
            declared.add(declaration[1])
        label = _LABEL.match(code)
        if label and label[1] in declared:
            name, blocks = label[1], [Block()]
        elif label and label[1].startswith(".Lfunc_end"):
            found.append(_linked(name, [block for block in blocks if block.lines], architecture))
            name = ""
        elif label and name:
            if blocks[-1].lines:
                blocks.append(Block())
            blocks[-1].labels.append(label[1])
        elif name and code and not code.startswith("."):
            line = instruction_line(code, comment.strip())
            blocks[-1].lines.append(line)
            if is_branch(line, architecture):
                blocks.append(Block())
    return found


def is_branch(line: Line, architecture: Architecture) -> bool:
    """Whether control may go elsewhere than to the next instruction (a call comes back)."""
    return any(kind[architecture].match(line.mnemonic) for kind in (_CONDITIONAL, _UNCONDITIONAL, _RETURN))


def instruction_line(code: str, comment: str = "") -> Line:
    """One instruction as it is printed, without its comment."""
    code = code.removeprefix("{vex}").lstrip()  # an encoding, which LLVM prints where there are two
    mnemonic, _, rest = code.partition("\t")
    if not rest:
        mnemonic, _, rest = code.partition(" ")
    return Line(mnemonic.strip(), tuple(_operands(rest)), comment)


def _operands(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    result, depth, current = [], 0, ""
    for character in text.strip():
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            result.append(current.strip())
            current = ""
        else:
            current += character
    return [*result, current.strip()] if current.strip() else result


def _linked(name: str, blocks: list[Block], architecture: Architecture) -> Function:
    where = {label: position for position, block in enumerate(blocks) for label in block.labels}
    for position, block in enumerate(blocks):
        last = block.lines[-1]
        following = (position + 1,) if position + 1 < len(blocks) else ()
        target = where.get(last.operands[-1]) if last.operands else None
        taken = () if target is None else (target,)
        if _CONDITIONAL[architecture].match(last.mnemonic):
            block.successors = (*taken, *following)
        elif _UNCONDITIONAL[architecture].match(last.mnemonic):
            block.successors = taken
        elif not _RETURN[architecture].match(last.mnemonic):
            block.successors = following
    return Function(name, tuple(blocks))
