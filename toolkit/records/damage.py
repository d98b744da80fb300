"""What of a store is damaged, and what is intact.

Two kinds of damage. That of the file's structure (pages, indexes, the journal) makes every answer of SQLite
doubtful: `refuse_damaged` refuses such a file whenever a store is opened. That of a line is found by its
digest when it is read (store.py); such a record is left out, and said. `salvage` reads whatever can be read:
it follows the tables as far as they go, then looks for lines with their digest in the bytes themselves.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from toolkit.errors import RecordsError
from toolkit.records.database import (
    APPLICATION_ID,
    IDENTITY_BYTES,
    READABLE_VERSIONS,
    SCHEMA_VERSION,
    TABLES,
    connect,
    damaged,
    journal_of,
    operators_of_version_2,
    says_damage,
    size_of,
    translated,
)
from toolkit.records.journal import FOREIGN, NUMBER_BYTES, Mark, journal_damage, number_in
from toolkit.records.lines import encoded, first_bytes

MOST_TEXTS: Final = 100  # of what SQLite finds in one file
SMALLEST_ROW_BYTES: Final = 64  # a digest and the shortest line
FORMATS_AT: Final = 18  # bytes 18 and 19 of the header (https://sqlite.org/fileformat2.html)
FILE_FORMATS: Final = {1, 2}  # with a rollback journal, with a write-ahead log
_LINE_BEGINS: Final = re.compile(rb'\{"(?:record|operator)_version":')
_LARGEST_PAGE_BYTES: Final = 1 << 16  # of SQLite; what does not fit a page is in several places


class Salvaged(msgspec.Struct):
    """What a store still holds: each intact line by its digest, in order, and what is damaged.

    `unreached` are intact lines of a sound store's journal that SQLite does not read: a power cut ended their
    transaction, or damage at the journal's end that looks the same.
    """

    lines: dict[bytes, bytes] = {}
    damage: list[str] = []
    unreached: dict[bytes, bytes] = {}


def refuse_damaged(path: Path) -> bool:
    """Raise RecordsError for a file whose structure is damaged, another program's, or of another version.

    Returns whether there is anything in it. Nothing is written: not even the journal is carried over.
    """
    with translated(path), closing(connect(path, "ro")) as connection:
        found, version = _structure(path, connection)
    if found:
        raise damaged(path, found)
    return version > 0


def is_intact(digest: object, line: object) -> bool:
    """Whether a row is as it was written."""
    return isinstance(line, bytes) and hashlib.sha256(line).digest() == digest


def salvage(path: Path) -> Salvaged:
    """Everything intact in a file and its journal.

    Raises RecordsError: it is another program's, or of another version. No other connection of this process
    may have the file open: closing a file ends SQLite's locks on it.
    """
    found = Salvaged()
    foreign = False
    if size_of(path):
        with translated(path):
            foreign = _journal_damage(path) == FOREIGN
        # The journal of another store hides what this one holds.
        with translated(path), closing(connect(path, "ro", immutable=foreign)) as connection:
            found.damage, version = _structure(path, connection, journal=not foreign)
            _follow_tables(path, connection, version, found)
        if foreign:
            found.damage.insert(0, FOREIGN)
    elif size_of(journal_of(path)):
        found.damage.append("the file is empty or missing, its journal is there")
    if found.damage:
        for file in (path, journal_of(path))[: 1 if foreign else 2]:
            if size_of(file):
                _add(found.lines, _lines_in(file.read_bytes()))
    elif size_of(journal_of(path)):
        _add(found.unreached, _lines_in(journal_of(path).read_bytes()))
        found.unreached = {key: line for key, line in found.unreached.items() if key not in found.lines}
    return found


# -- structure ----------------------------------------------------------------------------------------------


def _structure(path: Path, connection: sqlite3.Connection, *, journal: bool = True) -> tuple[list[str], int]:
    """What is wrong with the file, and the version of its schema, 0 for an empty one."""
    found, version = [], SCHEMA_VERSION
    if journal and (text := _journal_damage(path)):
        found.append(text)
    try:
        connection.execute("BEGIN")  # one snapshot: another process may be writing the schema at this moment
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (stated,) = connection.execute("PRAGMA user_version").fetchone()
        if tables == application == stated == 0:
            return found, 0
        version = stated if stated in READABLE_VERSIONS else SCHEMA_VERSION
        found += _header_damage(path, connection, application, stated)
        checked = connection.execute(f"PRAGMA integrity_check({MOST_TEXTS})").fetchall()
        texts = b"\n".join(text for (text,) in checked).decode(errors="replace").splitlines()
        found += [text for text in texts if text != "ok" and not text.startswith("***")]
        connection.execute("COMMIT")
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the second: SQLite quotes the file
        if not says_damage(error):
            raise
        found.append(str(error))
    return found, version


def _header_damage(
    path: Path, connection: sqlite3.Connection, application: int, version: int
) -> Iterator[str]:
    """What is wrong with the header and the schema.

    Raises RecordsError: it is another program's, or of another version. A damaged number in the
    header is told from another version by the table that repeats it.
    """
    schema = {text for (text,) in connection.execute("SELECT sql FROM sqlite_master") if text}
    ours = {text.encode() for text in TABLES}
    repeated = None
    if TABLES[0].encode() in schema:
        rows = connection.execute(
            "SELECT schema_version, length(identity), length(changes) FROM store"
        ).fetchall()
        repeated = rows[0][0] if rows else None
        if [row[1:] for row in rows] != [(IDENTITY_BYTES, NUMBER_BYTES)]:
            yield "its table `store` does not say which store it is"
    if repeated == SCHEMA_VERSION:
        if (application, version) != (APPLICATION_ID, SCHEMA_VERSION):
            yield f"its header says application {application:#x}, schema version {version}"
    elif application != APPLICATION_ID:
        raise RecordsError(f"{path} is an SQLite file of another program; name another file with --records")
    elif version not in READABLE_VERSIONS:
        raise RecordsError(
            f"{path} has records schema version {version}, this tool reads version "
            f"{', '.join(map(str, READABLE_VERSIONS))}: export it with the tool that wrote it "
            "(toolkit records export) and import the lines into a new file"
        )
    if SCHEMA_VERSION in (version, repeated) and schema != ours:
        yield "its schema is not the one that this tool writes"
    formats = _formats(path)
    if not formats <= FILE_FORMATS:
        yield f"its header says file format {max(formats)}, which SQLite only reads"
    (encoding,) = connection.execute("PRAGMA encoding").fetchone()
    if encoding != b"UTF-8":
        yield f"its header says that its texts are {encoding.decode()}"


def _formats(path: Path) -> set[int]:
    """The file formats for writing and for reading that the file's header states."""
    return set(first_bytes(path, FORMATS_AT + 2)[FORMATS_AT:])


def _journal_damage(path: Path) -> str:
    """What is wrong with the journal: damaged, or another store's."""
    if not size_of(journal_of(path)):
        return ""
    mark = None  # unknown: damaged, of an earlier version, or not written yet
    with closing(connect(path, "ro", immutable=True)) as alone, suppress(sqlite3.Error, UnicodeDecodeError):
        (page,) = alone.execute("SELECT rootpage FROM sqlite_master WHERE name = 'store'").fetchone() or (0,)
        identity, changes = alone.execute("SELECT identity, changes FROM store").fetchone() or (b"", b"")
        if page and identity and isinstance(identity, bytes) and isinstance(changes, bytes):
            mark = Mark(page, identity, number_in(changes))
    return journal_damage(journal_of(path), mark)


# -- salvage ------------------------------------------------------------------------------------------------


def _follow_tables(path: Path, connection: sqlite3.Connection, version: int, found: Salvaged) -> None:
    """Add every line that SQLite finds by its number, and what is wrong with the others."""
    tables = {0: (), 1: ("record",), 2: ("record",)}.get(version, ("operator", "record"))
    if version == 2:
        try:
            _add(found.lines, [encoded(line)[1] for line in operators_of_version_2(connection)])
        except (sqlite3.Error, UnicodeDecodeError) as error:
            found.damage.append(f"operators cannot be read: {error}")
    sound, most = not found.damage, (size_of(path) + size_of(journal_of(path))) // SMALLEST_ROW_BYTES
    for table in tables:
        query = f"SELECT id, digest, line FROM {table}"
        rows = connection.execute(query) if sound else _one_by_one(connection, query, most)
        numbers = set()
        for number, digest, line in rows:
            numbers.add(number)
            if is_intact(digest, line):
                found.lines[digest] = line
            else:
                found.damage.append(f"{table} {number}: its line does not have its digest")
        missing = sorted(set(range(1, max(numbers, default=0))) - numbers)
        if missing:
            found.damage.append(f"{table} {ranges(missing)}: missing")


def _one_by_one(connection: sqlite3.Connection, query: str, most: int) -> Iterator[tuple[int, Any, Any]]:
    """The rows that SQLite finds by their number: up to the highest that it finds, or to `most`."""
    try:
        (highest,) = connection.execute(f"SELECT max(id) FROM ({query})").fetchone()
    except (sqlite3.Error, UnicodeDecodeError):
        highest = most
    for number in range(1, min(highest or 0, most) + 1):
        try:
            row = connection.execute(f"{query} WHERE id = ?", (number,)).fetchone()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_NOTADB:
                return
            continue
        if row:
            yield row


def _lines_in(data: bytes) -> list[bytes]:
    """The lines that stand in these bytes in one piece, their digest a little before them, oldest first."""
    found: list[tuple[float, bytes]] = []
    for match in _LINE_BEGINS.finditer(data):
        start = match.start()
        try:  # in Latin-1 characters are bytes
            content, end = json.JSONDecoder().raw_decode(
                data[start : start + _LARGEST_PAGE_BYTES].decode("latin-1")
            )
        except (ValueError, RecursionError):
            continue
        line = data[start : start + end]
        if hashlib.sha256(line).digest() in data[max(0, start - _LARGEST_PAGE_BYTES) : start]:
            found.append((content.get("timestamp_s", 0.0), line))
    return [line for _, line in sorted(found)]


def _add(lines: dict[bytes, bytes], texts: Iterable[bytes]) -> None:
    for text in texts:
        lines.setdefault(hashlib.sha256(text).digest(), text)


def ranges(numbers: list[int]) -> str:
    """1-3, 7 for 1, 2, 3, 7."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
