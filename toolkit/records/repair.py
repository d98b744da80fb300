"""A damaged store made into a sound one: everything intact goes into a new file, which then replaces it.

The damaged file and its journal are kept beside it as they were (`FILE.damaged-1`). The new store is built as
`FILE.repairing`; while that is there nobody opens the store. A repair that is killed anywhere is done again:
it then takes what the kept files hold, too.
"""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from toolkit.errors import RecordsError
from toolkit.records.damage import Salvaged, salvage
from toolkit.records.database import (
    cannot_write,
    check_rollback_journal,
    journal_of,
    size_of,
    unfinished_repair_of,
)
from toolkit.records.lines import OperatorLine, TuningRecord, either_kind
from toolkit.records.store import Records

SQLITE_SHARED: Final = (510, 0x40000002)
"""SHARED_SIZE and SHARED_FIRST of SQLite: the bytes that every open connection to a store has locked."""


class StoreCheck(msgspec.Struct, frozen=True):
    """Intact records and operators of a store, what is damaged; after a repair, where the damaged file is."""

    path: Path
    records: int
    operators: int
    damage: tuple[str, ...]
    backup: Path | None = None


def check_records(path: Path | str) -> StoreCheck:
    """What is intact in a store and what is damaged; changes nothing.

    Raises RecordsError: no such file, another program's, of another version; OutputError: it cannot be read.
    No other `Records` of this process may have the file open.
    """
    path = Path(path)
    found = _salvaged(path)
    if unfinished_repair_of(path).exists():
        found.damage.append("a repair of it was interrupted")
    return _checked(path, found)


def repair_records(path: Path | str) -> StoreCheck:
    """Keep everything intact of a damaged store in a new file at its place; a sound one is left alone.

    Intact records of a transaction that a power cut ended are taken up, too.

    Raises what `check` raises, and RecordsError where another process has the store open or nothing is left.
    """
    path = Path(path)
    new = unfinished_repair_of(path)
    sound = not new.exists()
    found = _salvaged(path)
    if sound and not found.damage and not found.unreached:
        return _checked(path, found)
    found.lines |= found.unreached
    if not found.lines:
        raise RecordsError(f"no record is left in {path}: move it away to begin anew")
    try:
        with _alone(path) as raw, ExitStack() as unfinished:
            new.touch()
            if sound:  # else the files that an interrupted repair kept are still wanted
                unfinished.callback(new.unlink)
            backup = _kept(path, raw)
            for file in [backup] if sound else _kept_before(path):
                held = salvage(file)
                found.lines |= held.lines | held.unreached
                _tidy(file)
            _build(new, found)
            shutil.copymode(backup, new)
            unfinished.pop_all()
            journal_of(path).unlink(missing_ok=True)  # it would be read as the new file's
            _tidy(path)
            os.replace(new, path)
            _sync(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from error
    return _checked(path, found, backup)


def _salvaged(path: Path) -> Salvaged:
    check_rollback_journal(path)
    if not path.exists() and not journal_of(path).exists():
        raise RecordsError(f"no records file at {path}: name an existing one")
    if not size_of(path) and not size_of(journal_of(path)):
        raise RecordsError(f"{path} holds no records yet: it is empty")
    return salvage(path)


def _checked(path: Path, found: Salvaged, backup: Path | None = None) -> StoreCheck:
    lines = _decoded(path, found)
    records = sum(isinstance(line, TuningRecord) for line in lines)
    return StoreCheck(path, records, len(lines) - records, tuple(found.damage), backup)


def _decoded(path: Path, found: Salvaged) -> list[TuningRecord | OperatorLine]:
    """Raises RecordsError for an intact line of another version: a repair would lose it."""
    return [either_kind(line, str(path)) for line in found.lines.values()]


@contextmanager
def _alone(path: Path) -> Iterator[BinaryIO]:
    """The store's file, locked as SQLite locks it: no other process has it open, or opens it now."""
    with path.open("a+b") as raw:
        try:
            fcntl.lockf(raw, fcntl.LOCK_EX | fcntl.LOCK_NB, *SQLITE_SHARED)
        except BlockingIOError:
            raise RecordsError(
                f"{path} is open in another process: repair it when tuning runs and reports have ended"
            ) from None
        yield raw


def _kept(path: Path, raw: BinaryIO) -> Path:
    """Copies of the file and its journal, safe on the disk."""
    names = (path.with_name(f"{path.name}.damaged-{number}") for number in count(1))
    backup = next(name for name in names if not name.exists())
    raw.seek(0)
    _copy(raw, backup)
    if size_of(journal_of(path)):
        with journal_of(path).open("rb") as journal:
            _copy(journal, journal_of(backup))
    _sync(path.parent)
    return backup


def _tidy(path: Path) -> None:
    """Remove what SQLite leaves beside a file that was only read."""
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
    if not size_of(journal_of(path)):
        journal_of(path).unlink(missing_ok=True)


def _copy(source: BinaryIO, path: Path) -> None:
    with path.open("xb") as copy:
        shutil.copyfileobj(source, copy)
        copy.flush()
        os.fsync(copy.fileno())


def _kept_before(path: Path) -> list[Path]:
    """The files that this repair and earlier ones kept."""
    kept = path.parent.glob(f"{glob.escape(path.name)}.damaged-*")
    return sorted(file for file in kept if file.name.rpartition("-")[2].isdigit())


def _build(new: Path, found: Salvaged) -> None:
    """The new store, complete and without a journal. An interrupted one is completed."""
    lines = _decoded(new, found)
    with Records(new) as records:
        records.describe(*(line for line in lines if isinstance(line, OperatorLine)))
        records.add(*(line for line in lines if isinstance(line, TuningRecord)))


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
