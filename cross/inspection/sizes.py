"""How many bytes blocks of machine code take: exact, by assembling them. Start at `block_sizes`."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import Final

from cross.inspection.listing import Architecture, Function

Assembler = Callable[[str], bytes | None]
"""Assembler text to an ELF object; None where there is no assembler for the architecture."""

_SYMBOL_TABLE: Final = 2  # section type
_MARK: Final = "tfb.block."
_CONSTANT: Final = re.compile(r"\.L(?:CPI|JTI)\w+")


def block_sizes(
    functions: Sequence[Function], architecture: Architecture, assembler: Assembler
) -> dict[tuple[str, int], int] | None:
    """Bytes of every block, by function name and position; padding for alignment is not counted.

    Returns:
        None for variable-length instructions without an assembler.
    """
    if architecture == "aarch64":
        return {
            (function.name, position): 4 * len(block.lines)
            for function in functions
            for position, block in enumerate(function.blocks)
        }
    code = assembler(_marked(functions))
    if code is None:
        return None
    places = symbols(code)
    sizes = {}
    for number, function in enumerate(functions):
        for position in range(len(function.blocks)):
            start, end = (places[f"{_MARK}{number}.{place}"] for place in (position, position + 1))
            sizes[function.name, position] = end - start
    return sizes


def _marked(functions: Sequence[Function]) -> str:
    """The functions as text, with a symbol at the start of every block and one at the end."""
    lines = [".text"]
    for number, function in enumerate(functions):
        lines.append(f"{function.name}:")
        for position, block in enumerate(function.blocks):
            lines.append(f"{_MARK}{number}.{position}:")
            lines += [f"{label}:" for label in block.labels]
            lines += [f"\t{line.text}" for line in block.lines]
        lines.append(f"{_MARK}{number}.{len(function.blocks)}:")
    # The listing has the functions only: constants that they read are defined as anything at all.
    constants = dict.fromkeys(_CONSTANT.findall("\n".join(lines)))
    lines += [".section .rodata", *(f"{name}:" for name in constants)]
    return "\n".join(lines) + "\n"


def symbols(code: bytes) -> dict[str, int]:
    """Values of the symbols of a 64-bit little-endian ELF object."""
    table = struct.unpack_from("<Q", code, 40)[0]
    entry_bytes, count = struct.unpack_from("<HH", code, 58)
    sections = [
        struct.unpack_from("<IIQQQQIIQQ", code, table + entry_bytes * number) for number in range(count)
    ]
    found = {}
    for section in sections:
        if section[1] != _SYMBOL_TABLE:
            continue
        offset, size, names = section[4], section[5], sections[section[6]][4]
        for start in range(offset, offset + size, 24):
            name, value = struct.unpack_from("<I4xQ", code, start)
            end = code.index(b"\0", names + name)
            found[code[names + name : end].decode()] = value
    return found
