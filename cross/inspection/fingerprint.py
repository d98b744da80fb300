"""Whether two objects hold the same machine code, whatever their kernels are called. Start at `code_hash`.

What counts is what would be loaded and run: the allocated sections, the relocations that the linker will
apply to them, and where exported functions begin. Names do not, except those of other objects' functions.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

_ALLOCATED: Final = 2  # section flag
_SYMBOL_TABLE, _RELOCATIONS, _NO_BYTES = 2, 4, 8  # section types
_RESERVED: Final = 0xFF00  # section numbers from here on mean something else


class _Section(NamedTuple):
    """A section header of a 64-bit little-endian ELF object."""

    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_bytes: int


class _Symbol(NamedTuple):
    name: int
    info: int
    other: int
    section: int
    value: int
    size: int


def code_hash(code: bytes, symbol: str) -> str:
    """SHA-256 in hex of what an ELF object loads; `symbol` is the name of its kernel or
    piece, which does not count."""
    table = struct.unpack_from("<Q", code, 40)[0]
    entry_bytes, count = struct.unpack_from("<HH", code, 58)
    sections = [
        _Section(*struct.unpack_from("<IIQQQQIIQQ", code, table + entry_bytes * number))
        for number in range(count)
    ]
    digest = hashlib.sha256()
    for part in _parts(code, sections, symbol.encode()):
        digest.update(struct.pack("<Q", len(part)) + part)
    return digest.hexdigest()


def _parts(code: bytes, sections: list[_Section], own: bytes) -> Iterator[bytes]:
    symbols = _symbols(code, sections)
    for number, section in enumerate(sections):
        if section.flags & _ALLOCATED:
            yield struct.pack("<5Q", number, section.type, section.flags, section.alignment, section.size)
            if section.type != _NO_BYTES:
                yield code[section.offset : section.offset + section.size]
        elif section.type == _RELOCATIONS and sections[section.info].flags & _ALLOCATED:
            entries = code[section.offset : section.offset + section.size]
            for place, info, addend in struct.iter_unpack("<QQq", entries):
                yield struct.pack("<QQQq", section.info, place, info & 0xFFFFFFFF, addend)
                symbol, name = symbols[info >> 32]
                yield _named(symbol, name, own)
    yield b"".join(
        sorted(_named(symbol, name, own) for symbol, name in symbols if _defined(symbol) and own in name)
    )


def _symbols(code: bytes, sections: list[_Section]) -> list[tuple[_Symbol, bytes]]:
    """Every symbol with its name, in the order that relocations count them."""
    table = next((section for section in sections if section.type == _SYMBOL_TABLE), None)
    if table is None:
        return []
    names = sections[table.link].offset
    found = []
    for fields in struct.iter_unpack("<IBBHQQ", code[table.offset : table.offset + table.size]):
        symbol = _Symbol(*fields)
        start = names + symbol.name
        found.append((symbol, code[start : code.index(b"\0", start)]))
    return found


def _defined(symbol: _Symbol) -> bool:
    return 0 < symbol.section < _RESERVED


def _named(symbol: _Symbol, name: bytes, own: bytes) -> bytes:
    """A place in this object, or another object's name."""
    if _defined(symbol):
        return struct.pack("<QQ", symbol.section, symbol.value)
    return name.replace(own, b"")
