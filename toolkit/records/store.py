"""D, the records: every measurement that was ever taken, in one SQLite file.

What enters is a `TuningRecord`; what leaves are the records of one `RecordKey` (operator, target, schedule
space, tool version), in the order in which they were measured. `Records.add` is durable when it returns (WAL
journal, synchronous=FULL), so that the tuner can be killed at any moment and continue with everything it had
acknowledged. Any number of processes may read while one writes; writers wait for each other.

Beside them the store keeps a description of every operator (cross.expression.description), from which its
schedule space can be built again without the model it came from.

A record travels between machines as one line of JSON (`export_jsonl`, `import_jsonl`), and so does an
operator. Adding a record that is already there changes nothing.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec

from toolkit.errors import InputError, OutputError, RecordsError
from toolkit.records.lines import OperatorLine, RecordKey, TuningRecord, decoded, read_lines

SCHEMA_VERSION: Final = 2  # of the SQLite file; 1 had no operators, and gets the table when it is opened
READABLE_VERSIONS: Final = (1, 2)
APPLICATION_ID: Final = 0x74664231  # "tfB1": tells our files from other people's SQLite files
LOCK_WAIT_S: Final = 30.0
LOCK_RETRY_S: Final = 0.01

_SCHEMA: Final = """
CREATE TABLE record (
    id INTEGER PRIMARY KEY,
    digest BLOB NOT NULL UNIQUE,
    operator_key TEXT NOT NULL,
    target_key TEXT NOT NULL,
    space_key TEXT NOT NULL,
    tool_version TEXT NOT NULL,
    cost_s REAL,
    line TEXT NOT NULL
);
CREATE INDEX record_by_key ON record (operator_key, target_key, space_key, tool_version);
"""
_OPERATORS: Final = """
CREATE TABLE operator (
    operator_key TEXT NOT NULL,
    description TEXT NOT NULL,
    PRIMARY KEY (operator_key, description)
);
"""


class Records:
    """The store at `path`, created when missing; a context manager.

    Raises RecordsError when the file is damaged, not ours, or of another schema version, and OutputError when
    the folder or file cannot be written. With `read_only` the file must exist and is never changed.
    """

    def __init__(self, path: Path | str, *, read_only: bool = False) -> None:
        self.path = Path(path)
        self.read_only = read_only
        if read_only and not self.path.is_file():
            raise RecordsError(
                f"no records file at {self.path}: tune first, or name an existing file with --records"
            )
        self._connection = self._connect()
        try:
            with self._translated():
                self._prepare_patiently()
        except InputError:
            self._connection.close()
            raise

    def __enter__(self) -> Records:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def add(self, *records: TuningRecord) -> int:
        """Store records in one transaction, durable on return. Returns how many of them were new."""
        rows = [_row(record) for record in records]
        with self._translated(), self._transaction():
            before = self._connection.total_changes
            self._connection.executemany(
                "INSERT OR IGNORE INTO record"
                " (digest, operator_key, target_key, space_key, tool_version, cost_s, line)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
            return self._connection.total_changes - before

    def describe(self, *operators: OperatorLine) -> None:
        """Keep descriptions of operators; those that are there already cost one look."""
        rows = [(operator.operator_key, operator.description) for operator in operators]
        rows = sorted(set(rows) - {(known.operator_key, known.description) for known in self.operators()})
        if rows:
            with self._translated(), self._transaction():
                self._connection.executemany("INSERT OR IGNORE INTO operator VALUES (?, ?)", rows)

    def operators(self) -> list[OperatorLine]:
        """Every operator that is described; none in a file of schema version 1 that is only read."""
        with self._translated():
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            if version < SCHEMA_VERSION:
                return []
            rows = self._connection.execute("SELECT operator_key, description FROM operator ORDER BY 1, 2")
            return [OperatorLine(operator_key=key, description=text) for key, text in rows]

    def for_key(self, key: RecordKey) -> list[TuningRecord]:
        """The records that a tuning run of `key` continues from, oldest first."""
        where = "operator_key = ? AND target_key = ? AND space_key = ? AND tool_version = ?"
        parameters = (key.operator_key, key.target_key, key.space_key, key.tool_version)
        return list(self._select(f"WHERE {where} ORDER BY id", parameters))

    def best(self, key: RecordKey) -> TuningRecord | None:
        """The fastest record of `key`, the older one of equals; None when nothing ran without failure."""
        where = "operator_key = ? AND target_key = ? AND space_key = ? AND tool_version = ?"
        parameters = (key.operator_key, key.target_key, key.space_key, key.tool_version)
        found = self._select(f"WHERE {where} AND cost_s IS NOT NULL ORDER BY cost_s, id LIMIT 1", parameters)
        return next(iter(found), None)

    def keys(self) -> list[tuple[RecordKey, int]]:
        """Every key in the store with the number of its records, in order of first appearance."""
        with self._translated():
            rows = self._connection.execute(
                "SELECT operator_key, target_key, space_key, tool_version, count(*) FROM record"
                " GROUP BY 1, 2, 3, 4 ORDER BY min(id)"
            ).fetchall()
        return [(RecordKey(*row[:4]), row[4]) for row in rows]

    def __len__(self) -> int:
        with self._translated():
            (count,) = self._connection.execute("SELECT count(*) FROM record").fetchone()
        return int(count)

    def __iter__(self) -> Iterator[TuningRecord]:
        return self._select("ORDER BY id", ())

    def export_jsonl(self, path: Path | str) -> int:
        """Write every operator and record as one JSON line; atomic. Returns the number of records."""
        path = Path(path)
        count = 0
        try:
            with (
                tempfile.NamedTemporaryFile("wb", dir=path.parent, prefix=path.name, delete=False) as out,
                ExitStack() as unfinished,
            ):
                unfinished.callback(os.unlink, out.name)
                for operator in self.operators():
                    out.write(msgspec.json.encode(operator) + b"\n")
                for record in self:
                    out.write(msgspec.json.encode(record) + b"\n")
                    count += 1
                out.flush()
                os.fsync(out.fileno())
                os.replace(out.name, path)
                unfinished.pop_all()
        except OSError as error:
            raise OutputError(
                f"cannot write the records to {path}: {error.strerror}; name a file in an existing folder "
                "that you may write to"
            ) from error
        return count

    def import_jsonl(self, path: Path | str) -> int:
        """Add every line of a file written by `export_jsonl`; all lines or none. Returns how many were new.

        Raises RecordsError that names file and line when a line is not a valid record.
        """
        lines = read_lines(path)
        self.describe(*(line for line in lines if isinstance(line, OperatorLine)))
        return self.add(*(line for line in lines if isinstance(line, TuningRecord)))

    # -- inside --------------------------------------------------------------------------------------------

    @property
    def _journal(self) -> Path:
        return self.path.with_name(self.path.name + "-wal")

    def _connect(self) -> sqlite3.Connection:
        target = f"{self.path.absolute().as_uri()}?mode={'ro' if self.read_only else 'rwc'}"
        if self.read_only and not os.access(self.path.parent, os.W_OK) and not self._journal.exists():
            target += "&immutable=1"  # WAL readers need a writable folder unless nobody can be writing
        try:
            if not self.read_only:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            return sqlite3.connect(target, uri=True, timeout=LOCK_WAIT_S, isolation_level=None)
        except (sqlite3.OperationalError, OSError) as error:
            raise _cannot_write(self.path, error) from error

    def _prepare_patiently(self) -> None:
        """`_prepare`, again while another process does it: SQLite does not wait to change the journal."""
        deadline_s = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                self._prepare()
                return
            except sqlite3.OperationalError as error:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                if "locked" not in str(error) or time.monotonic() > deadline_s:
                    raise
                time.sleep(LOCK_RETRY_S)

    def _prepare(self) -> None:
        """Check that the file is ours and of this version; give an empty one its schema."""
        connection = self._connection
        # One snapshot for all three: another process may be writing the schema at this moment.
        connection.execute("BEGIN")
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute("COMMIT")
        empty = tables == 0 and application == 0 and version == 0
        if not empty and application != APPLICATION_ID:
            raise RecordsError(
                f"{self.path} is an SQLite file of another program; name another file with --records"
            )
        if not empty and version not in READABLE_VERSIONS:
            raise RecordsError(
                f"{self.path} has records schema version {version}, this tool reads version "
                f"{' and '.join(map(str, READABLE_VERSIONS))}: export it with the tool that wrote it "
                "(toolkit records export) and import the lines into a new file"
            )
        if self.read_only:
            if empty:
                raise RecordsError(
                    f"{self.path} holds no records yet: tune first, or name another file with --records"
                )
            return
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        with self._transaction():
            # asked again under the write lock: another process may have prepared the file in between
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            missing = _SCHEMA + _OPERATORS if tables == 0 else _OPERATORS if version < SCHEMA_VERSION else ""
            for statement in missing.split(";"):
                connection.execute(statement)
            if missing:
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._connection:  # commits at the end, rolls back where anything is raised
            self._connection.execute("BEGIN IMMEDIATE")
            yield

    def _select(self, where: str, parameters: tuple[str, ...]) -> Iterator[TuningRecord]:
        with self._translated():
            rows = self._connection.execute(f"SELECT line FROM record {where}", parameters)
            for (line,) in rows:
                yield decoded(line, str(self.path), TuningRecord)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """SQLite's errors, in the tool's words."""
        try:
            yield
        except sqlite3.OperationalError as error:
            text = str(error)
            if "locked" in text or "busy" in text:
                raise RecordsError(
                    f"{self.path} stayed locked by another process for {LOCK_WAIT_S:.0f} s: "
                    "wait for the other tuning run to end, or give this one its own file with --records"
                ) from error
            raise _cannot_write(self.path, error) from error
        except sqlite3.DatabaseError as error:
            raise RecordsError(
                f"{self.path} is not a records file or is damaged ({error}): restore a copy, "
                "or move it away and tune again"
            ) from error


def _row(record: TuningRecord) -> tuple[bytes, str, str, str, str, float | None, str]:
    line = msgspec.json.encode(record)
    key = (record.operator_key, record.target_key, record.space_key, record.tool_version)
    return (hashlib.sha256(line).digest(), *key, record.cost_s, line.decode())


def _cannot_write(path: Path, error: Exception) -> OutputError:
    detail = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return OutputError(
        f"cannot write the records to {path}: {detail}; expected a file in a writable folder, "
        "name one with --records FILE"
    )
