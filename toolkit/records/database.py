"""The SQLite file that records are kept in: where it may be, how it is opened, its tables, SQLite's errors.

Every version has the tables `record` and, from 2 on, `operator`; version 3 keeps a digest beside every line
and says in the table `store` which store it is. Older files are brought up to date when they are opened for
writing, and only read where they are opened for reading.
"""

from __future__ import annotations

import os
import shlex
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from toolkit.errors import InputError, OutputError, RecordsError
from toolkit.records.journal import NUMBER_BYTES
from toolkit.records.lines import OperatorLine, encoded

SCHEMA_VERSION: Final = 3
READABLE_VERSIONS: Final = (1, 2, 3)
APPLICATION_ID: Final = 0x74664231  # "tfB1": tells our files from other people's SQLite files
IDENTITY_BYTES: Final = 16  # drawn for each store
LOCK_WAIT_S: Final = 30.0
FIRST_PAGE_BYTES: Final = 4096  # after that the write-ahead log is used: SQLite's own journal is not there

TABLES: Final = (
    "CREATE TABLE store (schema_version INTEGER NOT NULL, identity BLOB NOT NULL, changes BLOB NOT NULL)",
    "CREATE TABLE operator (id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, line TEXT NOT NULL)",
    "CREATE TABLE record (id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE,"
    " operator_key TEXT NOT NULL, target_key TEXT NOT NULL, space_key TEXT NOT NULL,"
    " tool_version TEXT NOT NULL, line TEXT NOT NULL)",
    "CREATE INDEX record_by_key ON record (operator_key, target_key, space_key, tool_version)",
)

_LOCKED: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DENIED: Final = (
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_AUTH,
)  # fmt: skip
_DISK: Final = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOLFS, sqlite3.SQLITE_NOMEM)


def journal_of(path: Path) -> Path:
    """The write-ahead log beside a store: what was written last is there first."""
    return path.with_name(f"{path.name}-wal")


def unfinished_repair_of(path: Path) -> Path:
    """Where `repair` builds the new store. While it is there, the store must not be used."""
    return path.with_name(f"{path.name}.repairing")


def size_of(path: Path) -> int:
    """Bytes of a file, 0 where there is none. Raises RecordsError for no regular file, OutputError."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise cannot_write(path, error) from error
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe, a socket or a device"
        raise RecordsError(f"{path} is {kind}, not a records file: name a file with --records FILE")
    return found.st_size


def check_place(path: Path, *, read_only: bool) -> int:
    """The size of the file in bytes. Raises RecordsError where there is no store that could be opened."""
    size = size_of(path)
    if unfinished_repair_of(path).exists():
        raise RecordsError(
            f"a repair of {path} is under way or was interrupted: wait until "
            f"{unfinished_repair_of(path).name} is gone, or run {command('repair', path)} again"
        )
    check_rollback_journal(path)
    # whoever creates the store at this moment writes its first page before its journal
    if not size and size_of(journal_of(path)) and not size_of(path):
        raise RecordsError(
            f"{path} is empty or missing, but its journal {journal_of(path).name} is there: "
            f"{command('repair', path)} takes the records out of the journal; to begin anew, delete it"
        )
    if read_only and not path.exists():
        raise RecordsError(f"no records file at {path}: tune first, or name an existing file with --records")
    return size


def check_rollback_journal(path: Path) -> None:
    """Raise RecordsError for a journal that would be copied over the records when they are opened."""
    rollback = path.with_name(f"{path.name}-journal")
    if size_of(path) > FIRST_PAGE_BYTES and size_of(rollback):
        raise RecordsError(
            f"{rollback} is not this tool's, and SQLite would copy it over the records: move it away"
        )


def connect(path: Path, mode: Literal["ro", "rw", "rwc"], *, immutable: bool = False) -> sqlite3.Connection:
    """A connection without transactions of its own; text comes as bytes, whatever it holds.

    `immutable` leaves the journal out. Raises sqlite3.Error, OSError.
    """
    target = f"{path.absolute().as_uri()}?mode={mode}"
    if immutable or (mode == "ro" and not os.access(path.parent, os.W_OK) and not journal_of(path).exists()):
        target += "&immutable=1"  # WAL readers need a writable folder unless nobody can be writing
    connection = sqlite3.connect(target, uri=True, timeout=LOCK_WAIT_S, isolation_level=None)
    connection.text_factory = bytes
    connection.execute("PRAGMA cell_size_check = ON")
    # A page that goes into the journal twice in one transaction changes checksums there: an import that is
    # interrupted would look like damage.
    connection.execute("PRAGMA cache_spill = OFF")
    return connection


def in_memory() -> sqlite3.Connection:
    """An empty store that no file keeps."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.text_factory = bytes
    prepare(connection)
    return connection


def prepare(connection: sqlite3.Connection) -> None:
    """Give an empty file its tables, and an older one the tables of today."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    with connection:  # commits at the end, rolls back where anything is raised
        connection.execute("BEGIN IMMEDIATE")
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if tables and version == SCHEMA_VERSION:
            return
        operators: list[tuple[bytes, bytes]] = []
        if tables:
            connection.execute("ALTER TABLE record RENAME TO older")
            connection.execute("DROP INDEX record_by_key")
        if tables and version > 1:
            operators = [encoded(line) for line in operators_of_version_2(connection)]
            connection.execute("DROP TABLE operator")
        for statement in TABLES:
            connection.execute(statement)
        number = (1).to_bytes(NUMBER_BYTES, "big")
        connection.execute(
            f"INSERT INTO store VALUES (?, randomblob({IDENTITY_BYTES}), ?)", (SCHEMA_VERSION, number)
        )
        connection.executemany("INSERT INTO operator (digest, line) VALUES (?, CAST(? AS TEXT))", operators)
        if tables:
            columns = "id, digest, operator_key, target_key, space_key, tool_version, line"
            connection.execute(f"INSERT INTO record SELECT {columns} FROM older ORDER BY id")
            connection.execute("DROP TABLE older")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def operators_of_version_2(connection: sqlite3.Connection) -> list[OperatorLine]:
    """The operators of a file of that version; they have no digests."""
    rows = connection.execute("SELECT operator_key, description FROM operator ORDER BY 1, 2")
    return [OperatorLine(operator_key=key.decode(), description=text.decode()) for key, text in rows]


# -- what went wrong ----------------------------------------------------------------------------------------


def command(name: str, path: Path) -> str:
    """The command that checks or repairs a store, to be printed."""
    return f"`toolkit records {name} {shlex.quote(str(path))}`"


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """SQLite's errors, in the tool's words."""
    try:
        yield
    except sqlite3.Error as error:
        raise refusal(path, error) from error
    except UnicodeDecodeError as error:
        raise damaged(path, [str(error)]) from error
    except OSError as error:
        raise cannot_write(path, error) from error


def says_damage(error: sqlite3.Error | UnicodeDecodeError) -> bool:
    """Whether it is the file's content that SQLite cannot use."""
    return _code(error) not in (*_LOCKED, *_DENIED, *_DISK)


def is_locked(error: BaseException | None) -> bool:
    """Whether another process stood in the way."""
    return isinstance(error, sqlite3.Error) and _code(error) in _LOCKED


def _code(error: sqlite3.Error | UnicodeDecodeError) -> int:
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF  # without the extension


def refusal(path: Path, error: sqlite3.Error) -> InputError:
    """The tool's error for one of SQLite's."""
    code = _code(error)
    if code in _LOCKED:
        return RecordsError(
            f"{path} stayed locked by another process for {LOCK_WAIT_S:.0f} s: "
            "wait for the other tuning run to end, or give this one its own file with --records"
        )
    if code in _DENIED:
        return cannot_write(path, error)
    if code in _DISK:
        return RecordsError(
            f"{path} cannot be read or written ({error}): the disk is failing, or its file system has no "
            f"locks, as on a network; {command('check', path)} says what can be read, --records FILE names "
            "another place"
        )
    return damaged(path, [str(error)])


def damaged(path: Path, found: list[str]) -> RecordsError:
    """The refusal of a file whose structure is damaged."""
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return RecordsError(
        f"{path} is not a records file or is damaged ({found[0]}{more}): {command('check', path)} says what "
        f"is damaged, {command('repair', path)} keeps every intact record, and the damaged file beside it"
    )


def cannot_write(path: Path, error: Exception) -> OutputError:
    """The refusal of a place that cannot be written."""
    detail = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return OutputError(
        f"cannot open or write the records in {path}: {detail}; expected a file in a writable folder, "
        "name one with --records FILE"
    )
