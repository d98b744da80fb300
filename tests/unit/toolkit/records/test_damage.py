"""Damaged stores: found when they are opened or read, said, and repaired with every intact record."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.unit.toolkit.records.test_records import KEY, older_store, record
from toolkit.cli.main import main
from toolkit.errors import OutputError, RecordsError
from toolkit.records import OperatorLine, RecordKey, Records, check_records, repair_records
from toolkit.records.journal import journal_damage

OPERATOR = OperatorLine(operator_key=KEY.operator_key, description='{"name":"conv2d"}')
MANY = 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of MANY records and an operator, without a journal."""
    path = tmp_path / "records.db"
    with Records(path) as records:
        records.describe(OPERATOR)
        records.add(*(record(trial) for trial in range(MANY)))
    return path


def with_journal(path: Path, folder: Path, first: int = MANY, more: int = 10) -> Path:
    """A copy of the store with `more` records in its journal, a transaction each, as after a power cut."""
    folder.mkdir()
    copy = folder / path.name
    with Records(path) as records:
        for trial in range(first, first + more):
            records.add(record(trial))
        shutil.copy(path, copy)
        shutil.copy(f"{path}-wal", f"{copy}-wal")
    return copy


def replace_in(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert data.count(old) == 1 and len(old) == len(new)
    path.write_bytes(data.replace(old, new))


def trials(path: Path) -> list[int]:
    with Records(path) as records:
        assert all(item == record(item.trial) for item in records)
        return [item.trial for item in records]


def cli(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.exit_code, result.output


def test_a_record_that_was_changed_is_left_out_and_said(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A line that is valid, and not the one that was stored: another time, another configuration."""
    replace_in(path, b'{"tile_oc":7},"seconds":[0.001]', b'{"tile_oc":7},"seconds":[0.009]')
    rest = [trial for trial in range(MANY) if trial != 7]
    with Records(path) as records:
        assert [item.trial for item in records.for_key(KEY)] == rest
        assert len(records) == MANY - 1 and records.keys() == [(KEY, MANY - 1)]
        assert [text for text in caplog.messages if "record 8" in text] == [
            f"{path}: damaged and left out: record 8; tuning measures again what it misses; "
            f"`toolkit records repair {path}` keeps the rest"
        ]
        assert records.export_jsonl(tmp_path / "lines") == MANY - 1
        assert records.add(record(7), record(8)) == 1  # the damaged one is as good as new
        assert [item.trial for item in records] == list(range(MANY))


def test_check_and_repair_of_changed_lines(path: Path) -> None:
    replace_in(path, b'{"tile_oc":7},"seconds":[0.001]', b'{"tile_oc":7},"seconds":[0.009]')
    damaged = path.read_bytes()
    code, text = cli("records", "check", path)
    assert code == 6
    assert text.splitlines() == [
        f"{path}: {MANY - 1} records and 1 operators are intact; damaged:",
        "  record 8: its line does not have its digest",
    ]
    assert path.read_bytes() == damaged
    code, text = cli("records", "repair", path, "--json")
    found = json.loads(text)
    assert code == 0 and (found["records"], found["operators"]) == (MANY - 1, 1)
    assert Path(found["backup"]).read_bytes() == damaged
    assert trials(path) == [trial for trial in range(MANY) if trial != 7]
    assert cli("records", "check", path) == (
        0, f"{path}: {MANY - 1} records and 1 operators are intact; nothing is damaged\n",
    )  # fmt: skip
    assert cli("records", "repair", path)[1].endswith("kept; nothing was damaged\n")


def lose_header(data: bytearray) -> None:
    data[:100] = bytes(100)


def lose_schema(data: bytearray) -> None:
    place = data.index(b"CREATE TABLE record")
    data[place : place + 6] = b"CREATF"


def lose_a_name(data: bytearray) -> None:
    """SQLite's message quotes the name, which is no UTF-8 now."""
    place = data.index(b"space_key, tool_version)")
    data[place : place + 2] = b"\xf2\xff"


def another_version(data: bytearray) -> None:
    data[60:64] = (9).to_bytes(4, "big")


def another_program(data: bytearray) -> None:
    data[68:72] = b"\0\0\0\1"


def another_encoding(data: bytearray) -> None:
    data[59] = 2  # UTF-16


def another_format(data: bytearray) -> None:
    """SQLite would read such a file and refuse to write to it."""
    data[18] = 9


def swap_pages(data: bytearray) -> None:
    first, second = 4096, len(data) - 4096
    data[first : first + 4096], data[second:] = data[second:], data[first : first + 4096]


def zero_an_index(data: bytearray) -> None:
    """The root page of the index by key: the last of the tables' pages (database.TABLES)."""
    with_key = [
        at
        for at in range(0, len(data), 4096)
        if data[at] in (2, 10) and KEY.target_key.encode() in data[at : at + 4096]
    ]
    data[with_key[0] : with_key[0] + 4096] = bytes(4096)


def hide_a_row(data: bytearray) -> None:
    """One row less in the first leaf of records: SQLite reads the rest without a word."""
    leaf = next(
        at for at in range(4096, len(data), 4096) if data[at] == 13 and b"tile_oc" in data[at : at + 4096]
    )
    data[leaf + 4] -= 1


@pytest.mark.parametrize(
    "damage",
    [
        lose_header, lose_schema, lose_a_name, another_version, another_program, another_encoding,
        another_format, swap_pages, zero_an_index, hide_a_row,
    ],
)  # fmt: skip
def test_a_damaged_structure_is_refused_and_every_record_saved(
    path: Path, damage: Callable[[bytearray], None]
) -> None:
    data = bytearray(path.read_bytes())
    damage(data)
    path.write_bytes(data)
    for read_only in (False, True):
        with pytest.raises(RecordsError, match=r"damaged \(.*`toolkit records repair .*` keeps every intact"):
            Records(path, read_only=read_only)
    assert path.read_bytes() == data
    assert check_records(path).records == MANY and check_records(path).damage
    found = repair_records(path)
    assert found.records == MANY and found.backup is not None and found.backup.read_bytes() == data
    assert sorted(trials(path)) == list(range(MANY))
    assert sorted(item.name for item in path.parent.iterdir()) == ["records.db", "records.db.damaged-1"]


def test_a_cut_store_gives_what_is_left(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b'"tile_oc":0}') & -4096 | 2048])
    with pytest.raises(RecordsError, match="is damaged"):
        Records(path)
    found = repair_records(path)
    assert 0 < found.records < MANY and len(trials(path)) == found.records


def test_a_journal_that_is_damaged_in_the_middle_is_not_cut_there_silently(
    path: Path, tmp_path: Path
) -> None:
    copy = with_journal(path, tmp_path / "copy")
    journal = copy.with_name(f"{copy.name}-wal")
    assert journal_damage(journal) == ""
    sound = journal.read_bytes()
    for place, said in (
        (20, "the header of its journal"),
        (32 + 24 + 2000, "at frame 1: 9 transactions after"),
    ):
        data = bytearray(sound)
        data[place] ^= 1
        journal.write_bytes(data)
        with pytest.raises(RecordsError, match=f"journal is damaged.*{said}|{said}"):
            Records(copy)
        assert journal.read_bytes() == data
    journal.write_bytes(sound[:9000] + b"x" + sound[9000:])
    with pytest.raises(RecordsError, match="at frame 3: 9 transactions after"):
        Records(copy, read_only=True)
    found = repair_records(copy)
    assert found.records == MANY + 10
    assert sorted(trials(copy)) == list(range(MANY + 10))


def test_a_journal_that_ends_early_is_what_a_power_cut_leaves(path: Path, tmp_path: Path) -> None:
    copy = with_journal(path, tmp_path / "copy")
    journal = copy.with_name(f"{copy.name}-wal")
    journal.write_bytes(journal.read_bytes()[:-5])
    data = copy.read_bytes(), journal.read_bytes()
    assert check_records(copy).damage == ()
    repaired = repair_records(copy)
    assert repaired.backup is not None and sorted(trials(copy)) == list(range(MANY + 10))
    copy.write_bytes(data[0])
    journal.write_bytes(data[1])
    assert trials(copy) == list(range(MANY + 9))


def test_what_a_killed_writer_left_behind_the_end_is_not_damage(path: Path, tmp_path: Path) -> None:
    """A long transaction was written, not acknowledged, and a short one of another process over its begin."""
    copy = with_journal(path, tmp_path / "copy")
    other = tmp_path / "other"
    shutil.copytree(copy.parent, other)
    written = []
    for place, trials_there in ((copy, range(900, 960)), (other / path.name, range(500, 501))):
        with Records(place) as records:
            records.add(*(record(trial) for trial in trials_there))
            written.append((place.read_bytes(), place.with_name(f"{place.name}-wal").read_bytes()))
    (_, long), (store, short) = written
    assert len(long) > len(short) + 5 * 4120 and long[:32] == short[:32]
    copy.write_bytes(store)
    copy.with_name(f"{copy.name}-wal").write_bytes(short + long[len(short) :])
    assert check_records(copy).damage == ()
    assert trials(copy) == [*range(MANY + 10), 500]


def test_the_journal_of_another_store_is_refused(path: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "records.db"
    Records(other).close()  # the journal begins anew: it says nothing of the schema
    with Records(other) as records:
        records.add(record(1000))
        shutil.copy(f"{other}-wal", f"{path}-wal")
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(RecordsError, match="its journal is another store's"):
            Records(path)
    assert path.read_bytes() == before
    repair_records(path)
    assert trials(path) == list(range(MANY))


@pytest.mark.parametrize("empty", [False, True])
def test_a_journal_without_its_store_is_not_deleted(path: Path, tmp_path: Path, empty: bool) -> None:
    copy = with_journal(path, tmp_path / "copy")
    copy.unlink()
    if empty:
        copy.touch()
    with pytest.raises(RecordsError, match="its journal records.db-wal is there"):
        Records(copy)
    assert {MANY, MANY + 9} <= set(range(MANY + 10)) and repair_records(copy).records >= 10
    assert set(range(MANY, MANY + 10)) <= set(trials(copy))


def test_a_lost_or_damaged_shared_memory_file_changes_nothing(path: Path, tmp_path: Path) -> None:
    copy = with_journal(path, tmp_path / "copy")
    copy.with_name(f"{copy.name}-shm").write_bytes(os.urandom(32768))
    assert trials(copy) == list(range(MANY + 10))


def test_what_is_no_store_is_named(path: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, said in (("", "is a folder, not a records file"), ("pipe", "is a pipe, a socket or a device")):
        for opened in (Records, check_records, repair_records, lambda place: Records(place, read_only=True)):
            with pytest.raises(RecordsError, match=said):
                opened(tmp_path / name)
    (tmp_path / "empty").touch()
    for name, said in (("missing", "no records file at"), ("empty", "empty holds no records yet")):
        with pytest.raises(RecordsError, match=said):
            check_records(tmp_path / name)
    noise = tmp_path / "noise.db"
    noise.write_bytes(b"not a database at all" * 100)
    assert cli("records", "check", noise)[0] == 6
    assert cli("records", "repair", noise)[0] == 2 and noise.read_bytes().startswith(b"not a database")
    assert not list(tmp_path.glob("noise.db.*"))
    rollback = path.with_name(f"{path.name}-journal")
    rollback.write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(504))
    with pytest.raises(RecordsError, match="records.db-journal is not this tool's"):
        Records(path)


def test_a_store_that_is_open_is_not_repaired(path: Path) -> None:
    replace_in(path, b'{"tile_oc":7}', b'{"tile_oc":9}')
    script = (
        "import sys\nfrom toolkit.records import Records\n"
        "with Records(sys.argv[1], read_only=True): print(flush=True), sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, str(path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(item for item in sys.path if item)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as reader:
        assert reader.stdout is not None and reader.stdout.readline() == b"\n"
        with pytest.raises(RecordsError, match="is open in another process"):
            repair_records(path)
        reader.communicate()
    assert not list(path.parent.glob("*.db.*"))
    assert repair_records(path).records == MANY - 1


@pytest.mark.slow
@pytest.mark.parametrize("call", ["shutil.copyfileobj", "shutil.copymode", "os.replace"])
def test_a_repair_that_is_killed_is_done_again(path: Path, tmp_path: Path, call: str) -> None:
    """Killed before each of its steps, for real; with records that only the journal holds."""
    copy = with_journal(path, tmp_path / "copy")
    replace_in(copy, b'{"tile_oc":7}', b'{"tile_oc":9}')
    script = (
        "import os, shutil, signal, sys\nfrom toolkit.records import repair_records\n"
        f"{call} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "repair_records(sys.argv[1])\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(item for item in sys.path if item)}
    done = subprocess.run([sys.executable, "-c", script, str(copy)], env=environment)
    assert done.returncode == -9
    with pytest.raises(RecordsError, match="a repair of .* is under way or was interrupted"):
        Records(copy)
    assert repair_records(copy).records == MANY + 9
    assert trials(copy) == [trial for trial in range(MANY + 10) if trial != 7]


def test_a_full_disk_and_a_lock_are_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that may have no more pages: what SQLite says of a full disk."""
    with Records(path) as records:
        records._connection.execute("PRAGMA max_page_count = 1")
        with pytest.raises(OutputError, match="cannot open or write the records in .*full"):
            for trial in range(1000, 1100):
                records.add(record(trial))
    monkeypatch.setattr("toolkit.records.database.LOCK_WAIT_S", 0.05)
    monkeypatch.setattr("toolkit.records.store.LOCK_WAIT_S", 0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as other, Records(path) as records:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RecordsError, match="stayed locked by another process"):
            records.add(record(2000))


def another_time(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], lines[2].replace(b"[0.001]", b"[0.009]"), *lines[3:]]


def nested(_: list[bytes]) -> list[bytes]:
    return [b'{"record_version":1,"facts":' + b'{"":' * 9999 + b"\n"]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (another_time, ":3: damaged: expected the SHA-256"),
        (lambda lines: lines[:-2], f":{MANY}: lines are missing or too many: expected a last line"),
        (lambda lines: [*lines[:5], *lines[6:]], f":{MANY + 1}: lines are missing or too many: expected"),
        (lambda lines: [lines[0][:-9], *lines[1:]], ":1: not a line of version 2"),
        (nested, ":1: not a record of version 1: max"),
        (lambda lines: [], ":1: the file is empty"),
    ],
)
def test_a_damaged_line_of_an_exported_file_is_named(
    path: Path, tmp_path: Path, damage: Callable[[list[bytes]], list[bytes]], said: str
) -> None:
    lines = tmp_path / "lines.jsonl"
    with Records(path, read_only=True) as records:
        records.export_jsonl(lines)
    lines.write_bytes(b"".join(damage(lines.read_bytes().splitlines(keepends=True))))
    with Records(tmp_path / "new.db") as new:
        with pytest.raises(RecordsError, match=rf"lines\.jsonl{said}"):
            new.import_jsonl(lines)
        assert len(new) == 0


def test_exported_files_can_be_joined_and_those_of_before_be_read(path: Path, tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    with Records(path, read_only=True) as records:
        records.export_jsonl(lines)
    plain = [json.loads(line) for line in lines.read_bytes().splitlines()[:-1]]
    older = b"".join(json.dumps(line["line"]).encode() + b"\n" for line in plain)
    lines.write_bytes(older[: len(older) // 2].rpartition(b"\n")[0] + b"\n" + lines.read_bytes() * 2)
    with Records(tmp_path / "new.db") as new:
        assert new.import_jsonl(lines) == MANY


@pytest.mark.parametrize("version", [2, 3])
def test_what_a_store_holds_does_not_command_the_terminal(tmp_path: Path, version: int) -> None:
    """Keys and texts with escape sequences and lines of their own, in old stores, too."""
    path = tmp_path / "records\x1b[2J.db"
    key = RecordKey("\x1b]0;title\x07conv\nfake  line", "board\x9b2J:cpu", "space\u202e", "0.1.0\r")
    item = record(0, key=key, seconds=(), error_kind="crash", error_text="\x1b[31mred\x00")
    if version == 2:
        older_store(path, 2, [item])
    else:
        with Records(path) as records:
            records.add(item)
    for name in ("list", "tree", "check"):
        store = ("--records", path) if name != "check" else (path,)
        for form in ((), ("--json",)):
            code, text = cli("records", name, *store, *form)
            assert code == 0 and all(character.isprintable() or character == "\n" for character in text)
            assert "\nfake" not in text
    with Records(path, read_only=True) as records:
        assert records.for_key(key) == [item]  # kept as it was
