"""Replay tables: what is written is read again, measurements come by configuration, misfits are refused."""

from __future__ import annotations

import hashlib
import math
import struct
from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks.replay.operators import operator
from boards.board import load
from cross.expression import Operator
from cross.schedule.choose import space_of
from cross.schedule.space import ScheduleSpace
from device_runtime.protocol import MeasureFailure
from tests.loopback.tuning_process import small_dense
from tests.targets import AVX2 as TARGET
from toolkit.errors import ReplayError
from toolkit.explore.space import enumerated
from toolkit.measure.measurement import Measurement
from toolkit.measure.replay import MAGIC, TABLE_VERSION, Provenance, ReplayTable, make_table

PROVENANCE = Provenance(
    machine="a machine",
    date="2026-11-21",
    tool_version="0.1.0",
    rule="the first two choices of each knob",
    command="python -m benchmarks.replay record tiny",
    timing={"repeat": 3},
    seed=0,
    wall_s=1.0,
)


@pytest.fixture(scope="module", name="space", params=["tiny", "dense", "dense on a GPU"])
def _space(request: pytest.FixtureRequest) -> ScheduleSpace:
    made: Operator = operator("tiny") if request.param == "tiny" else small_dense()
    full = space_of(made, load("pocl").target() if "GPU" in request.param else TARGET)
    kept = {knob.name: knob.choices[:2] for knob in full.knobs if knob.name != "algorithm"}
    return full.restricted(kept)


def made(space: ScheduleSpace) -> tuple[ReplayTable, list[Measurement]]:
    """Row r: r % 4 repeats and a failure where that is none."""
    batch = np.concatenate(list(enumerated(space)))
    crash = Measurement.failed(MeasureFailure("crash", "signal 11"))
    found = [
        Measurement(tuple(2.0**-k for k in range(7, 7 + row % 4)), number=row, max_abs_error=0.0)
        if row % 4
        else crash
        for row in range(len(batch))
    ]
    found[1] = Measurement((0.5,), number=1, facts={"given_up_s": 0.1, "clock_hz": 1e9})
    return make_table("tiny", space, batch, found, PROVENANCE), found


def test_what_is_written_is_read_again(space: ScheduleSpace, tmp_path: Path) -> None:
    table, found = made(space)
    table.write(tmp_path / "tiny.tfbr")
    assert [item.name for item in tmp_path.iterdir()] == ["tiny.tfbr"]
    read = ReplayTable.read(tmp_path / "tiny.tfbr")
    assert read == table and len(read) == len(found)
    assert [item.seconds for item in read.measurements] == [item.seconds for item in found]
    assert [item.error for item in read.measurements] == [item.error for item in found]
    assert [item.number for item in read.measurements] == [item.number for item in found]
    assert read.measurements[1].facts == {"given_up_s": 0.1}
    assert np.array_equal(read.costs_s, [item.cost_s for item in found], equal_nan=True)
    read.write(tmp_path / "again.tfbr")
    assert (tmp_path / "again.tfbr").read_bytes() == (tmp_path / "tiny.tfbr").read_bytes()


def test_the_space_comes_back_and_its_runner_looks_up(space: ScheduleSpace) -> None:
    table, found = made(space)
    again = table.space(space.operator)
    assert again.key == space.key and again.shape == space.shape
    rows = np.random.default_rng(0).permutation(len(table))[:30]
    measured = list(table.runner(again).prepare(table.batch[rows]))
    for row, measurement in zip(rows.tolist(), measured, strict=True):
        assert measurement.seconds == found[row].seconds
        assert measurement.device_s == pytest.approx(found[row].number * math.fsum(found[row].seconds))


def refusal(table: ReplayTable, made: Operator) -> str:
    with pytest.raises(ReplayError) as caught:
        table.space(made)
    assert "record it again with `python -m benchmarks.replay record tiny`" in str(caught.value)
    return str(caught.value)


def test_tables_of_other_spaces_are_refused(space: ScheduleSpace) -> None:
    table, _ = made(space)
    other = small_dense() if space.operator.name == "tiny" else operator("tiny")
    assert "for another operator: expected" in refusal(table, other)
    last = table.knobs[-1]
    renamed = msgspec.structs.replace(last, name="magic")
    lost = msgspec.structs.replace(last, choices=((7777,),))
    for knob, said in ((renamed, "unknown knobs magic"), (lost, "[7777] is none of its")):
        changed = msgspec.structs.replace(table, knobs=(*table.knobs[:-1], knob))
        assert said in refusal(changed, space.operator)
    changed = msgspec.structs.replace(table, space_key="0" * 16)
    assert f"expected {'0' * 16}, found {space.key}" in refusal(changed, space.operator)
    fewer, _ = table.rows[: 2 * len(table.knobs)], table
    shorter = msgspec.structs.replace(table, rows=fewer)
    assert "another set of valid configurations" in refusal(shorter, space.operator)


@pytest.fixture(scope="module", name="data")
def _data(space: ScheduleSpace, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("table") / "tiny.tfbr"
    made(space)[0].write(path)
    return path.read_bytes()


def sealed(packed: bytes) -> bytes:
    return struct.pack("<8sI32s", MAGIC, TABLE_VERSION, hashlib.sha256(packed).digest()) + packed


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: b"", "is no replay table"),
        (lambda data: b"PK" + data[2:], "is no replay table"),
        (
            lambda data: data[:8] + b"\x63\0\0\0" + data[12:],
            "expected table version 1, found 99",
        ),
        (lambda data: data[:-1], "is damaged"),
        (lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:], "is damaged"),
        (lambda data: sealed(b"no lzma"), "is damaged"),
        (lambda data: sealed(data[44:-40]), "is damaged"),
    ],
)
def test_damaged_files_are_refused(data: bytes, damage: object, said: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.tfbr"
    path.write_bytes(damage(data))  # type: ignore[operator]
    with pytest.raises(ReplayError, match=said) as caught:
        ReplayTable.read(path)
    assert "record it again with `python -m benchmarks.replay record tiny`" in str(caught.value)


def test_a_missing_table_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ReplayError, match="no replay table at .*C6.tfbr: .*benchmarks.replay record C6`"):
        ReplayTable.read(tmp_path / "C6.tfbr")


@pytest.mark.slow
def test_columns_that_do_not_fit_are_refused(space: ScheduleSpace, tmp_path: Path) -> None:
    table, _ = made(space)
    path = tmp_path / "tiny.tfbr"
    for changes in (
        {"rows": table.rows[2:]},
        {"rows": b"\xff" * len(table.rows)},
        {"errors": {}},
        {"seconds": table.seconds + b"1234"},
    ):
        msgspec.structs.replace(table, **changes).write(path)
        with pytest.raises(ReplayError, match="is damaged"):
            ReplayTable.read(path)
