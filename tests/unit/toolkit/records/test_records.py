"""The records store: durability, resume queries, versions, JSON lines, readers beside a writer."""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import IO

import msgspec
import pytest

from toolkit.errors import OutputError, RecordsError
from toolkit.records import (
    OperatorLine,
    RecordKey,
    Records,
    TuningRecord,
    check_records,
    database,
    open_to_tune,
    repair_records,
)
from toolkit.records.lines import read_lines

KEY = RecordKey("conv2d/1", "cpu/znver4", "ssrsrs/v1", "0.1.0")


def record(
    trial: int, *, seconds: tuple[float, ...] = (1e-3,), key: RecordKey = KEY, **fields: object
) -> TuningRecord:
    values: dict[str, object] = {
        "operator_key": key.operator_key,
        "target_key": key.target_key,
        "space_key": key.space_key,
        "tool_version": key.tool_version,
        "configuration": {"tile_oc": trial},
        "seconds": seconds,
        "timestamp_s": 1.0,
        "seed": 0,
        "trial": trial,
    }
    return TuningRecord(**(values | fields))  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records.db"


def test_what_is_added_comes_back_in_order_after_reopening(path: Path) -> None:
    with Records(path) as records:
        assert records.add(*(record(t) for t in range(5))) == 5
        assert records.add(record(5, seconds=(), error_kind="timeout", error_text="10 s passed")) == 1
    with Records(path) as records:
        found = records.for_key(KEY)
        assert [r.trial for r in found] == list(range(6))
        assert found[5].error_kind == "timeout" and found[5].cost_s is None
        assert found[0] == record(0)


def test_best_has_the_fastest_repeat_and_failures_never_are(path: Path) -> None:
    with Records(path) as records:
        assert records.best(KEY) is None
        records.add(record(0, seconds=(), error_kind="crash"))
        assert records.best(KEY) is None
        records.add(record(1, seconds=(3e-3, 1e-3, 9e-3)), record(2, seconds=(2e-3, 2e-3)))
        best = records.best(KEY)
        assert best is not None and best.trial == 1 and best.cost_s == 1e-3


def test_records_of_other_keys_stay_apart(path: Path) -> None:
    other = RecordKey(KEY.operator_key, KEY.target_key, "ssrsrs/v2", KEY.tool_version)
    with Records(path) as records:
        records.add(record(0), record(0, key=other), record(1, key=other))
        assert len(records.for_key(KEY)) == 1
        assert records.keys() == [(KEY, 1), (other, 2)]


def test_adding_the_same_record_again_changes_nothing(path: Path) -> None:
    with Records(path) as records:
        assert records.add(record(0)) == 1
        assert records.add(record(0), record(1)) == 1
        assert len(records) == 2


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"seconds": ()}, "either seconds or an error_kind"),
        ({"error_kind": "crash"}, "either seconds or an error_kind"),
        ({"seconds": (0.0,)}, "positive and finite"),
        ({"seconds": (float("inf"),)}, "positive and finite"),
    ],
)
def test_a_record_is_a_time_or_a_failure(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        record(0, **fields)  # type: ignore[arg-type]


def test_lines_go_out_and_come_in_unchanged(path: Path, tmp_path: Path) -> None:
    lines = tmp_path / "records.jsonl"
    with Records(path) as records:
        records.add(*(record(t, facts={"clock_hz": 1.2e9}) for t in range(3)))
        assert records.export_jsonl(lines) == 3
        everything = list(records)
    with Records(tmp_path / "other.db") as other:
        assert other.import_jsonl(lines) == 3
        assert other.import_jsonl(lines) == 0
        assert list(other) == everything
    assert [p.name for p in tmp_path.glob("*.jsonl*")] == ["records.jsonl"]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda line: line[:40], "malformed"),
        (lambda line: line.replace(b'"record_version":1', b'"record_version":2'), "record_version"),
        (lambda line: line.replace(b'"trial":1', b'"trial":"one"'), "trial"),
        (lambda line: line.replace(b'"trial":1', b'"trial":1,"extra":0'), "extra"),
        (lambda line: line.replace(b"[0.001]", b"[-1.0]"), "positive"),
        (lambda line: b"\xff\xfe{}", ":2:"),
    ],
)
def test_an_import_names_file_and_line_and_adds_nothing(
    path: Path, tmp_path: Path, damage, said: str
) -> None:  # type: ignore[no-untyped-def]
    lines = tmp_path / "bad.jsonl"
    good, bad = (msgspec.json.encode(record(t)) for t in range(2))
    lines.write_bytes(good + b"\n" + damage(bad) + b"\n")
    with Records(path) as records:
        with pytest.raises(RecordsError, match=r"bad\.jsonl:2: not a record of version 1") as refusal:
            records.import_jsonl(lines)
        assert said in str(refusal.value)
        assert len(records) == 0
    with pytest.raises(RecordsError, match="cannot read records from"):
        read_lines(tmp_path / "absent.jsonl")


def test_operators_are_described_once_and_travel_with_the_records(path: Path, tmp_path: Path) -> None:
    lines = tmp_path / "records.jsonl"
    one = OperatorLine(operator_key="b", description="{}")
    two = OperatorLine(operator_key="a", description="{1}")
    with Records(path) as records:
        assert records.operators() == []
        records.add(record(0))
        records.describe(one, two)
        records.describe(one)
        assert records.operators() == [two, one]
        assert records.export_jsonl(lines) == 1
    with Records(tmp_path / "other.db") as other:
        assert other.import_jsonl(lines) == 1
        assert other.operators() == [two, one]
    lines.write_bytes(msgspec.json.encode(one).replace(b'"operator_version":1', b'"operator_version":3'))
    with pytest.raises(RecordsError, match=r"records\.jsonl:1: not an operator of version 1"):
        read_lines(lines)


# as version 2 of the schema had them (1: without operators)
OLDER_TABLES = """
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
CREATE TABLE operator (
    operator_key TEXT NOT NULL,
    description TEXT NOT NULL,
    PRIMARY KEY (operator_key, description)
);
"""


def older_store(
    path: Path, version: int, found: list[TuningRecord] | None = None
) -> tuple[list[TuningRecord], list[OperatorLine]]:
    """A store as an earlier version of the tool left it."""
    found = found or [record(0), record(1, seconds=(), error_kind="crash", error_text="SIGSEGV, \u00e9")]
    operators = [OperatorLine(operator_key="a", description="{}")] if version == 2 else []
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(OLDER_TABLES)
        for item in found:
            line = msgspec.json.encode(item)
            key = (item.operator_key, item.target_key, item.space_key, item.tool_version)
            row = (hashlib.sha256(line).digest(), *key, item.cost_s, line.decode())
            connection.execute("INSERT INTO record VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)", row)
        for line in operators:
            connection.execute("INSERT INTO operator VALUES (?, ?)", (line.operator_key, line.description))
        if version == 1:
            connection.execute("DROP TABLE operator")
        connection.execute(f"PRAGMA application_id = {0x74664231}")
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("PRAGMA journal_mode = WAL")
    return found, operators


@pytest.mark.parametrize("version", [1, 2])
def test_older_stores_are_read_and_brought_up_to_date(path: Path, version: int) -> None:
    found, operators = older_store(path, version)
    before = path.read_bytes()
    with Records(path, read_only=True) as records:
        assert (list(records), records.operators()) == (found, operators)
        assert records.best(KEY) == found[0]
    assert path.read_bytes() == before
    with Records(path) as records:
        assert (list(records), records.operators()) == (found, operators)
        assert records.add(*found, record(2)) == 1
        records.describe(OperatorLine(operator_key="b", description="{}"))
        assert len(records.operators()) == len(operators) + 1
    assert (check_records(path).records, check_records(path).damage) == (3, ())


def test_another_schema_version_is_refused(path: Path) -> None:
    Records(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA user_version = 7")
        connection.execute("UPDATE store SET schema_version = 7")
    for refused in (Records, check_records, repair_records):
        with pytest.raises(RecordsError, match="schema version 7, this tool reads version 1, 2, 3"):
            refused(path)


def test_files_of_other_programs_and_damaged_files_are_refused(path: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE t (a)")
    connection.close()
    with pytest.raises(RecordsError, match="SQLite file of another program"):
        Records(foreign)
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(RecordsError, match="not a records file or is damaged"):
        Records(path)


def test_a_missing_file_is_not_created_by_a_reader(path: Path) -> None:
    with pytest.raises(RecordsError, match="no records file"):
        Records(path, read_only=True)
    assert not path.exists()


@pytest.mark.parametrize("place", ["/proc/records.db", "{file}/records.db"])
def test_a_place_that_cannot_be_written_is_an_output_error(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        OutputError, match=r"cannot open or write the records in .*name one with --records FILE"
    ):
        Records(place.format(file=tmp_path / "file"))


def test_a_read_only_folder_reads_but_does_not_write(tmp_path: Path) -> None:
    """As an ordinary user: root may write anywhere."""
    folder = tmp_path / "folder"
    folder.mkdir()
    with Records(folder / "records.db") as records:
        records.add(record(0))
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from toolkit.errors import OutputError\n"
        "from toolkit.records import Records\n"
        "if os.getuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "path = Path(sys.argv[1])\n"
        "print(len(Records(path, read_only=True)))\n"
        "for name in (path, path.with_name('new.db')):\n"
        "    try: Records(name)\n"
        "    except OutputError as error: print(error)\n"
    )
    try:
        os.chmod(folder, 0o555)
        for parent in [folder, *folder.parents]:
            if parent.is_relative_to(tmp_path.parents[-2]) and parent.owner() == folder.owner():
                parent.chmod(parent.stat().st_mode | 0o055)
        done = _python(script, str(folder / "records.db"))
    finally:
        os.chmod(folder, 0o755)
    assert done.stderr == ""
    said = done.stdout.splitlines()
    assert said[0] == "1" and len(said) == 3
    assert all(line.startswith("cannot open or write the records in") for line in said[1:])


def test_readers_work_beside_a_writer(path: Path) -> None:
    with Records(path) as writer:
        writer.add(record(0))
        with Records(path, read_only=True) as first, Records(path, read_only=True) as second:
            writer.add(record(1))
            assert len(first) == len(second) == 2
            with pytest.raises(OutputError):
                first.add(record(2))


_CREATE_AT_ONCE = """
import fcntl, sys
from toolkit.records import Records
start = open(sys.argv[1])
for line in sys.stdin:
    print("ready", flush=True)
    fcntl.flock(start, fcntl.LOCK_SH)
    Records(line.strip()).close()
    fcntl.flock(start, fcntl.LOCK_UN)
    print("done", flush=True)
"""


@pytest.mark.slow
def test_many_processes_may_create_the_same_file_at_once(path: Path) -> None:
    """They wait for a lock that they can share, and begin when the test gives it up."""
    start = path.with_name("start")
    start.touch()
    processes = [_start(_CREATE_AT_ONCE, str(start), stdin=subprocess.PIPE) for _ in range(4)]
    for attempt in range(3):
        with start.open("w") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            for process in processes:
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(f"{path.with_name(f'records-{attempt}.db')}\n")
                process.stdin.flush()
                assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "done\n"
    for process in processes:
        _, stderr = process.communicate(timeout=60)
        assert (process.returncode, stderr) == (0, "")


def test_a_store_that_is_created_while_another_looks_is_there(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, created = database.unfinished_repair_of, []

    def create(where: Path) -> Path:  # asked for after the file's size was found to be 0
        monkeypatch.setattr(database, "unfinished_repair_of", look)
        created.append(Records(where))
        return look(where)

    monkeypatch.setattr(database, "unfinished_repair_of", create)
    assert database.check_place(path, read_only=False) == 0
    (records,) = created
    with records:
        assert database.size_of(path) and database.size_of(database.journal_of(path))


def test_two_writers_take_turns(path: Path) -> None:
    script = _ADD_FOREVER.replace("while True", "for trial in range(40)")
    writers = [_start(script, str(path), str(seed)) for seed in (1, 2)]
    for writer in writers:
        _, stderr = writer.communicate(timeout=60)
        assert (writer.returncode, stderr) == (0, "")
    with Records(path) as records:
        assert len(records) == 80


def _opened_once_more(path: Path) -> None:
    with Records(path, read_only=True) as again:
        assert len(again) == 1


def _opened_to_tune(path: Path) -> None:
    open_to_tune(path, path.with_name("usual.db")).close()


def _checked(path: Path) -> None:
    assert check_records(path).damage == ()


@pytest.mark.parametrize("beside", [_opened_once_more, _opened_to_tune, _checked])
def test_a_store_that_is_open_keeps_its_locks(path: Path, beside: Callable[[Path], None]) -> None:
    """Closing a descriptor of a file ends the process's locks on it; without them the journal is deleted."""
    with Records(path) as records:
        records.add(record(0))
        beside(path)
        other = _python(_ADD_FOREVER.replace("while True", "for trial in range(1)"), str(path), "1")
        assert (other.returncode, other.stderr) == (0, "")
        assert database.journal_of(path).exists()  # the other one was not the last
        records.add(record(1))
        assert len(records) == 3


_ADD_FOREVER = """
import sys
from toolkit.records import Records, TuningRecord
records = Records(sys.argv[1])
trial = -1
while True:
    trial += 1
    records.add(TuningRecord(operator_key="o", target_key="t", space_key="s", tool_version="1",
        configuration={"trial": trial}, seconds=(1e-3,), timestamp_s=0.0, seed=int(sys.argv[2]), trial=trial))
    print(trial, flush=True)
"""


@pytest.mark.slow
def test_kill_9_loses_no_acknowledged_record(path: Path, tmp_path: Path) -> None:
    """Twenty writers, one after the other, each killed at a random moment of its writing."""
    rng = random.Random(7)
    acknowledged: set[tuple[int, int]] = set()
    for seed in range(20):
        said = tmp_path / f"said-{seed}"
        with said.open("w") as stdout:
            writer = _start(_ADD_FOREVER, str(path), str(seed), stdout=stdout)
        enough = rng.randint(1, 12)
        while said.read_text().count("\n") < enough:
            assert writer.poll() is None
            time.sleep(0.002)
        time.sleep(rng.uniform(0.0, 0.01))
        writer.send_signal(signal.SIGKILL)
        writer.communicate(timeout=60)
        acknowledged |= {(seed, int(trial)) for trial in said.read_text().split()}
        with Records(path) as records:
            stored = {(r.seed, r.trial) for r in records}
        assert acknowledged <= stored
        assert len(stored - acknowledged) <= seed + 1  # at most one unacknowledged record for each kill
    assert {seed for seed, _ in acknowledged} == set(range(20))


def _start(
    script: str, *arguments: str, stdin: int | None = None, stdout: IO[str] | int = subprocess.PIPE
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )


def _python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    process = _start(script, *arguments)
    stdout, stderr = process.communicate(timeout=60)
    return subprocess.CompletedProcess([], process.returncode, stdout, stderr)


def test_the_winners_travel_in_a_small_file_that_is_read_like_a_store(path: Path, tmp_path: Path) -> None:
    best, failed = tmp_path / "best.jsonl", {"seconds": (), "error_kind": "crash"}
    with Records(path) as records:
        records.add(record(0, seconds=(3e-3,)), record(1, seconds=(1e-3, 2e-3)), record(2, **failed))
        records.add(record(0, operator_key="b", **failed))
        records.describe(
            *(OperatorLine(operator_key=key, description="{}") for key in (KEY.operator_key, "b"))
        )
        assert records.export_jsonl(best, best=True) == 1
    with Records(best, read_only=True) as found:
        assert list(found) == [record(1, seconds=(1e-3, 2e-3))]
        assert found.best(KEY) == record(1, seconds=(1e-3, 2e-3))
        assert [line.operator_key for line in found.operators()] == [KEY.operator_key]
    with pytest.raises(RecordsError, match="not a records file"):
        Records(best)
    usual = tmp_path / "usual.db"
    for count in (1, 2):  # what is there already is not added again
        with open_to_tune(best, usual) as store:
            assert store.path == usual and len(store) == count
            store.add(record(7))
    with open_to_tune(path, usual) as store:
        assert store.path == path and len(store) == 4
    best.write_bytes(best.read_bytes()[:-5])
    with pytest.raises(RecordsError, match=r"best\.jsonl:3"):
        Records(best, read_only=True)
