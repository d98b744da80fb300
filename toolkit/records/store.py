"""D, the records: every measurement that was ever taken, in one SQLite file.

What enters is a `TuningRecord`; what leaves are the records of one `RecordKey` (operator, target, schedule
space, tool version), in the order in which they were measured. `Records.add` is durable when it returns (WAL
journal, synchronous=FULL), so that the tuner can be killed at any moment and continue with everything it had
acknowledged. Any number of processes may read while one writes; writers wait for each other.

Beside them the store keeps a description of every operator (expression/language/description.py), from which
its schedule space can be built again without the model it came from.

A record travels between machines as one line of JSON (`export_jsonl`, `import_jsonl`), and so does an
operator. Adding a record that is already there changes nothing.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Final, TypeVar

from msgspec.structs import astuple

from cross.errors import ExpressionError
from cross.expression.language.description import from_json
from cross.expression.language.operator import Operator
from toolkit.errors import OutputError, RecordsError
from toolkit.escaping import printable
from toolkit.records.damage import is_intact, ranges, refuse_damaged
from toolkit.records.database import (
    LOCK_WAIT_S,
    SCHEMA_VERSION,
    check_place,
    command,
    connect,
    in_memory,
    is_locked,
    operators_of_version_2,
    prepare,
    translated,
    unfinished_repair_of,
)
from toolkit.records.journal import NUMBER_BYTES, number_in
from toolkit.records.lines import (
    OperatorLine,
    RecordKey,
    TuningRecord,
    decoded,
    encoded,
    exported,
    is_exported,
    read_lines,
)

LOCK_RETRY_S: Final = 0.01
Line = TypeVar("Line", TuningRecord, OperatorLine)
_LOG: Final = logging.getLogger(__name__)  # without a handler, warnings go to stderr


class Records:
    """The store at `path`, created when missing; a context manager. An exported file can be read like one.

    Raises RecordsError when the file is damaged, not ours, or of another schema version, and OutputError when
    the folder or file cannot be written. With `read_only` the file must exist and is never changed. Records
    whose line does not have its digest are left out; each is warned about once, by `logging`.
    """

    def __init__(self, path: Path | str, *, read_only: bool = False) -> None:
        self.path = Path(path)
        self.read_only = read_only
        self._warned: set[tuple[str, int]] = set()
        if read_only and is_exported(self.path):
            self._connection = in_memory()
            self.import_jsonl(self.path)
        else:
            self._connection = self._opened()

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def commits(self) -> int:
        """A number that is another one whenever others have added something since it was asked for last.

        Files say so too early: the log has grown, and its time is of now, before what is in it can be read.
        """
        with translated(self.path):
            (number,) = self._connection.execute("PRAGMA data_version").fetchone()
        return int(number)

    def add(self, *records: TuningRecord) -> int:
        """Store records in one transaction, durable on return. Returns how many of them were new.

        One that is there with a damaged line is as good as new.
        """
        rows = []
        for record in records:
            digest, line = encoded(record)
            rows.append((digest, *astuple(record.key), line.decode()))
        return self._insert("record (digest, operator_key, target_key, space_key, tool_version, line)", rows)

    def describe(self, *operators: OperatorLine) -> None:
        """Keep descriptions of operators; those that are there already cost one look."""
        if new := set(operators) - set(self.operators()):
            pairs = [encoded(operator) for operator in sorted(new, key=encoded)]
            self._insert("operator (digest, line)", [(digest, line.decode()) for digest, line in pairs])

    def operators(self) -> list[OperatorLine]:
        """Every operator that is described; none in a file of schema version 1 that is only read."""
        with translated(self.path):
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            if version < SCHEMA_VERSION:
                return operators_of_version_2(self._connection) if version == 2 else []
        found = list(self._select(OperatorLine, "operator"))
        return sorted(found, key=lambda line: (line.operator_key, line.description))

    def described(self) -> dict[str, Operator]:
        """The operators by their keys, without those whose description cannot be read."""
        found = {}
        for line in self.operators():
            with suppress(ExpressionError):
                found[line.operator_key] = from_json(line.description)
        return found

    def for_key(self, key: RecordKey) -> list[TuningRecord]:
        """The records that a tuning run of `key` continues from, oldest first."""
        where = "operator_key = ? AND target_key = ? AND space_key = ? AND tool_version = ?"
        return list(self._select(TuningRecord, "record", f"WHERE {where}", astuple(key)))

    def best(self, key: RecordKey) -> TuningRecord | None:
        """The fastest record of `key`, the older one of equals; None when nothing ran without failure."""
        worked = [(record.cost_s, record) for record in self.for_key(key) if record.cost_s is not None]
        return min(worked, key=lambda item: item[0], default=(None, None))[1]

    def keys(self) -> list[tuple[RecordKey, int]]:
        """Every key in the store with the number of its records, in order of first appearance."""
        return list(Counter(record.key for record in self).items())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[TuningRecord]:
        return self._select(TuningRecord, "record")

    def export_jsonl(self, path: Path | str, *, best: bool = False) -> int:
        """Write every operator and record as one JSON line; atomic. Returns the number of records.

        `best`: of every key the fastest record alone, and the operators of those.
        """
        path = Path(path)
        try:
            with (
                tempfile.NamedTemporaryFile("wb", dir=path.parent, prefix=path.name, delete=False) as out,
                ExitStack() as unfinished,
            ):
                unfinished.callback(os.unlink, out.name)
                records, operators = list(self), self.operators()
                if best:
                    records = [found for key in dict.fromkeys(item.key for item in records)
                               if (found := self.best(key)) is not None]  # fmt: skip
                    kept = {record.operator_key for record in records}
                    operators = [line for line in operators if line.operator_key in kept]
                out.writelines(exported([*operators, *records]))
                out.flush()
                os.fsync(out.fileno())
                os.replace(out.name, path)
                unfinished.pop_all()
        except OSError as error:
            raise OutputError(
                f"cannot write the records to {path}: {error.strerror}; name a file in an existing folder "
                "that you may write to"
            ) from error
        return len(records)

    def import_jsonl(self, path: Path | str) -> int:
        """Add every line of a file written by `export_jsonl`; all lines or none. Returns how many were new.

        Raises RecordsError that names file and line when a line is not a valid record.
        """
        lines = read_lines(path)
        self.describe(*(line for line in lines if isinstance(line, OperatorLine)))
        return self.add(*(line for line in lines if isinstance(line, TuningRecord)))

    # -- inside --------------------------------------------------------------------------------------------

    def _opened(self) -> sqlite3.Connection:
        """A connection to a sound file with its tables in it; waits while others prepare or repair it."""
        deadline_s = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                with translated(self.path), ExitStack() as unfinished:
                    connection = self._tried(unfinished)
                    if connection is not None:
                        unfinished.pop_all()
                        return connection
            except RecordsError as error:
                # SQLite does not wait for the lock with which the journal's kind is changed
                if not is_locked(error.__cause__) or time.monotonic() > deadline_s:
                    raise
            time.sleep(LOCK_RETRY_S)

    def _tried(self, unfinished: ExitStack) -> sqlite3.Connection | None:
        """None where the file was replaced by a repaired one meanwhile."""
        size = check_place(self.path, read_only=self.read_only)
        before = self.path.stat().st_ino if size else None
        filled = refuse_damaged(self.path) if size else False
        if self.read_only and not filled:
            raise RecordsError(
                f"{self.path} holds no records yet: tune first, or name another file with --records"
            )
        if not self.read_only:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = unfinished.enter_context(closing(connect(self.path, "ro" if self.read_only else "rwc")))
        if not self.read_only:
            prepare(connection)
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # from now on no repair begins
        replaced = before not in (None, self.path.stat().st_ino) or unfinished_repair_of(self.path).exists()
        return None if replaced else connection

    def _insert(self, into: str, rows: Sequence[tuple[bytes | str, ...]]) -> int:
        """How many rows were not there, or were damaged."""
        if not rows:
            return 0
        places = ", ".join("?" * len(rows[0]))
        with (
            translated(self.path),
            self._connection,
        ):  # commits at the end, rolls back where anything is raised
            self._connection.execute("BEGIN IMMEDIATE")
            # Every transaction numbers itself, beside the store's identity: see journal.py.
            (changes,) = self._connection.execute("SELECT changes FROM store").fetchone()
            number = number_in(changes) + 1
            self._connection.execute("UPDATE store SET changes = ?", (number.to_bytes(NUMBER_BYTES, "big"),))
            before = self._connection.total_changes
            self._connection.executemany(
                f"INSERT INTO {into} VALUES ({places})"
                " ON CONFLICT (digest) DO UPDATE SET line = excluded.line WHERE line IS NOT excluded.line",
                rows,
            )
            return self._connection.total_changes - before

    def _select(
        self, kind: type[Line], table: str, where: str = "", parameters: tuple[str, ...] = ()
    ) -> Iterator[Line]:
        """The intact lines of a table in order; warns about the others."""
        bad = []
        with translated(self.path):
            rows = self._connection.execute(
                f"SELECT id, digest, line FROM {table} {where} ORDER BY id", parameters
            )
            for number, digest, line in rows:
                if is_intact(digest, line):
                    yield decoded(line, f"{self.path}: {table} {number}", kind)
                elif (table, number) not in self._warned:
                    bad.append(number)
        if bad:
            self._warned |= {(table, number) for number in bad}
            _LOG.warning(
                "%s: damaged and left out: %s %s; tuning measures again what it misses; %s keeps the rest",
                printable(str(self.path)), table, ranges(bad), printable(command("repair", self.path)),
            )  # fmt: skip


def open_to_tune(path: Path | str, usual: Path | str) -> Records:
    """The store at `path`, to add to; for an exported file the `usual` one, to which its lines are added."""
    exported_file = is_exported(Path(path))
    with ExitStack() as unfinished:
        store = unfinished.enter_context(Records(usual if exported_file else path))
        if exported_file:
            store.import_jsonl(path)
        unfinished.pop_all()
    return store
