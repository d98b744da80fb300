"""The door of this room: `load("rpi3b")` gives a `Board`, `board_names()` those that ship with the tool.

A board is a name, the path of a TOML file, or a name with an address: `rpi3b@pi@192.168.1.7:22` is the board
rpi3b reached there (the user and the port may be left out). `host:x86-64-v3` is this machine as if its CPU
had no more than that level.
"""

from __future__ import annotations

import difflib
import functools
import re
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from boards.description import Board
from boards.errors import (
    BadAddress,
    BadBoardFile,
    NoBoardFile,
    Problem,
    UnknownBoard,
    UnknownLevel,
)
from boards.keys import TABLES
from boards.probe import HostFacts, host_target, narrowed, pocl_target, read_host_facts
from boards.rules import broken_rules

_TOML_WORDS = {"array": "a list", "object": "a table", "str": "text in quotes", "int": "a whole number",
               "float": "a number", "bool": "true or false"}  # fmt: skip
_RETIRED = {  # keys of earlier versions, and what to do instead
    "link.secret_file": "link.tls_file instead: `toolkit runtime archive` makes the credentials that both "
    "sides need now in place of a shared secret"
}
_SHIPPED = Path(__file__).parent
MAX_FILE_BYTES = 1 << 16  # the ones that ship have 3,000; more only takes a parser's time
_ADDRESS = re.compile(
    r"(?:(?P<user>[^@:/\s]+)@)?(?P<host>\[[0-9a-fA-F:]+\]|[^@:/\s\[\]]+)(?::(?P<port>\d{1,5}))?"
)


def board_names() -> tuple[str, ...]:
    """Names of the boards that ship with the tool, sorted."""
    return tuple(sorted(path.stem for path in _SHIPPED.glob("*.toml")))


def load(name_or_path: str | Path, *, facts: HostFacts | None = None) -> Board:
    """The board of this name, of this file, of NAME@[USER@]HOST[:PORT], or of NAME:LEVEL[+FEATURE...].

    A board that is probed is filled in with `facts` (default: this machine's, read once in a process).
    Raises UnknownBoard, UnknownLevel, BadAddress, NoBoardFile, BadBoardFile, UnsupportedHost.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(".toml") or "/" in text:
        return _filled_in(_read(Path(name_or_path)), facts)
    named, at, address = text.partition("@")
    name, colon, level = named.partition(":")
    if name not in board_names():
        raise UnknownBoard(name, board_names())
    board = _read(_SHIPPED / f"{name}.toml")
    if colon and not board.probed:
        raise UnknownLevel(name, level, "only a board that is this machine has levels")
    return _filled_in(reached_at(board, address) if at else board, facts, level if colon else None)


def _read(path: Path) -> Board:
    """The board in one file, every type and rule checked."""
    try:
        content = _content(path)
    except OSError as error:
        raise NoBoardFile(str(path), error.strerror or str(error)) from error
    except ValueError as error:  # a zero byte in the path
        raise NoBoardFile(str(path), str(error)) from error
    return parsed(content, path)


def parsed(content: bytes, path: Path) -> Board:
    """The board in the content of a file, every type and rule checked. Raises BadBoardFile."""
    try:
        tables = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # among them wrong UTF-8, TOML and integers of 5,000 digits
        raise BadBoardFile(str(path), [Problem("toml", "", "TOML in UTF-8", str(error))]) from error
    if wide := next(_wide_integers(tables), None):
        raise BadBoardFile(
            str(path), [Problem("toml", wide, "an integer of 64 bits, as TOML has them", "a larger one")]
        )
    board = converted(tables, path)
    problems = broken_rules(board)
    if problems:
        raise BadBoardFile(str(path), problems)
    return board


def converted(tables: dict[str, Any], path: Path) -> Board:
    """The board of a file's tables, whose types are checked, and not the rules. Raises BadBoardFile."""
    try:
        return msgspec.convert(tables, Board)
    except msgspec.ValidationError as error:
        raise BadBoardFile(str(path), [_type_problem(str(error), tables)]) from error


def _wide_integers(tables: dict[str, Any]) -> Iterator[str]:
    """Innermost keys of the integers beyond 64 bits: Python reads them, and arithmetic in float64 overflows.

    A file may nest tables deeper than Python recurses: those that are still to be searched wait in a list.
    """
    waiting: list[tuple[str, object]] = [("", tables)]
    for key, value in waiting:
        if isinstance(value, dict):
            waiting += value.items()
        elif isinstance(value, list):
            waiting += [(key, inner) for inner in value]
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            yield key


def _content(path: Path) -> bytes:
    """The bytes of a file, of which there are few. Raises OSError."""
    if path.exists() and not path.is_file() and not path.is_dir():  # reading one may never end
        raise OSError(None, "it is a pipe or a device")
    with path.open("rb") as stream:
        content = stream.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise OSError(None, f"a board file has at most {MAX_FILE_BYTES} bytes, and it has more")
    return content


def _type_problem(message: str, tables: dict[str, Any]) -> Problem:
    """msgspec's sentence about the first wrong key as a Problem.

    "Expected `int`, got `str` - at `$.link.port`" is about the key link.port.
    """
    sentence, _, where = message.partition(" - at ")
    key = where.strip("`").removeprefix("$").removeprefix(".")
    if unknown := re.search(r"unknown field `(.+)`", sentence):
        found = f"{key}.{unknown.group(1)}".removeprefix(".")
        if found in _RETIRED:
            return Problem("known-keys", found, _RETIRED[found], "a key of earlier versions")
        known = TABLES[re.sub(r"\d+", "", key)].__struct_fields__
        near = difflib.get_close_matches(unknown.group(1), known, n=1) or sorted(known)
        return Problem("known-keys", found, f"a known key ({', '.join(near)})", "an unknown one")
    if missing := re.search(r"missing required field `(.+)`", sentence):
        return Problem("required-keys", f"{key}.{missing.group(1)}".removeprefix("."), "this key", "nothing")
    table, _, field = key.rpartition(".")
    if "Invalid enum value" in sentence:
        hint = typing.get_type_hints(TABLES[re.sub(r"\d+", "", table)])[field]
        expected = " or ".join(repr(choice) for choice in typing.get_args(hint))
    else:
        wanted = sentence.partition(", got ")[0].removeprefix("Expected ").replace("`", "")
        expected = _TOML_WORDS.get(wanted, wanted)
    return Problem("types", key, expected, _value_at(tables, key))


def _value_at(tables: dict[str, Any], key: str) -> str:
    """What the file holds at `targets[0].cores`, for the message."""
    value: Any = tables
    for part in re.findall(r"[^.\[\]]+", key):
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (KeyError, IndexError, ValueError, TypeError):
            return "something else"
    return repr(value)


def reached_at(board: Board, address: str) -> Board:
    """The board with the address of NAME@ADDRESS in its link. Raises BadAddress."""
    match = _ADDRESS.fullmatch(address)
    if not board.link.has_address:
        raise BadAddress(board.name, address, f"its link is {board.link.kind!r}, which has no address")
    if match is None:
        raise BadAddress(board.name, address, "expected [USER@]HOST[:PORT]")
    port = int(match["port"] or board.link.port)
    if not 1 <= port <= 65535:
        raise BadAddress(board.name, address, f"expected a port from 1 to 65535, found {port}")
    link = msgspec.structs.replace(
        board.link, host=match["host"].strip("[]"), user=match["user"] or board.link.user, port=port
    )
    reached: Board = msgspec.structs.replace(board, link=link)
    return reached


def _filled_in(board: Board, facts: HostFacts | None, level: str | None = None) -> Board:
    """A probed board with the targets and the memory of the machine; any other board as it is."""
    if not board.probed:
        return board
    known = facts or _host_facts()
    if level is not None:
        known = narrowed(known, board.name, level)
    targets = (*(pocl_target(target, known) for target in board.targets), host_target(known))
    filled: Board = msgspec.structs.replace(board, targets=targets, memory_bytes=known.memory_bytes)
    return filled


@functools.cache
def _host_facts() -> HostFacts:
    return read_host_facts()
