"""Lines that are almost records, and lines that are anything: imported whole, or refused by file and line."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.errors import RecordsError
from toolkit.records import Records, TuningRecord
from toolkit.records.lines import read_lines

GOOD = msgspec.to_builtins(
    TuningRecord(
        operator_key="o",
        target_key="t",
        space_key="s",
        tool_version="1",
        configuration={"tile": [1, 2]},
        seconds=(1e-3,),
        timestamp_s=1.0,
        seed=0,
        trial=0,
    )
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def imported(content: bytes) -> list[TuningRecord]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lines.jsonl"
        path.write_bytes(content)
        try:
            found = [line for line in read_lines(path) if isinstance(line, TuningRecord)]
        except RecordsError as error:
            assert "lines.jsonl:" in str(error)
            return []
        with Records(Path(folder) / "records.db") as records:
            records.add(*found)
            assert {msgspec.json.encode(r) for r in records} == {msgspec.json.encode(r) for r in found}
        return found


@given(st.binary(max_size=200))
def test_any_bytes(content: bytes) -> None:
    imported(content)


@pytest.mark.slow
@settings(max_examples=150)
@given(st.sampled_from(sorted(GOOD)), JSON)
def test_one_entry_replaced(name: str, value: object) -> None:
    line = json.dumps(GOOD | {name: value}).encode()
    for record in imported(line + b"\n"):
        assert bool(record.seconds) != bool(record.error_kind)


@given(st.sampled_from(sorted(GOOD)))
def test_one_entry_left_out(name: str) -> None:
    line = json.dumps({key: value for key, value in GOOD.items() if key != name}).encode()
    optional = {"record_version", "number", "error_kind", "error_text", "max_abs_error", "facts"}
    assert len(imported(line)) == (name in optional)


@given(st.integers(min_value=0, max_value=len(json.dumps(GOOD)) - 1), st.integers(min_value=0, max_value=255))
def test_one_byte_changed(place: int, byte: int) -> None:
    line = bytearray(json.dumps(GOOD).encode())
    line[place] = byte
    imported(bytes(line))
