"""A schedule space whose every configuration was measured once, as a file, to search in without a board.

`ReplayTable.read` is the door: `table.space(operator)` is the recorded space, a reduced one (some choices of
each knob of the full space), rebuilt and checked; `table.runner(space)` measures by looking up. Searches on
it take seconds and are deterministic: same table, same seed, same course.

The file: MAGIC, the table's version, the SHA-256 of the rest, then msgpack in LZMA. Configurations are kept
by the VALUES of their knobs: a table stays readable while the full space gains choices, and is refused when
its own space has changed.
"""

from __future__ import annotations

import hashlib
import lzma
import struct
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from boards.files import write_file
from boards.target import Target
from cross.errors import CrossError
from cross.expression.language.operator import Operator
from cross.schedule.alternatives import ALGORITHM
from cross.schedule.choose import space_of
from cross.schedule.space import ScheduleSpace
from device_runtime.protocol import MeasureFailure
from toolkit.errors import OutputError, ReplayError
from toolkit.explore.space import Batch, enumerated
from toolkit.measure.measurement import GIVEN_UP_S, IDENTICAL_CODE, Measurement
from toolkit.measure.runner import ReplayRunner

TABLE_VERSION: Final = 1
MAGIC: Final = b"TFBreply"
SUFFIX: Final = ".tfbr"
LARGEST_BYTES: Final = 64 << 20  # unpacked
MARKS: Final = (IDENTICAL_CODE, GIVEN_UP_S)
_HEADER: Final = struct.Struct("<8sI32s")


class KnobChoices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The choices of one knob that the reduced space keeps, as values."""

    name: str
    choices: tuple[tuple[int, ...], ...]


class Provenance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a table comes from. `rule` says how its choices were chosen, `command` records it again."""

    machine: str
    date: str
    tool_version: str
    rule: str
    command: str
    timing: dict[str, Any]
    seed: int
    wall_s: float


class ReplayTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """The measurements of all N valid configurations of a reduced space of K knobs.

    Columns are raw little-endian arrays: `rows` uint16 [N, K] indices into the choices of `knobs`; `repeats`
    uint8 [N] and `seconds` float32, those of all rows one after the other; `numbers` uint32 [N] calls a
    repeat; `errors` (kind, text) by row; `marks` some facts by row (MARKS).
    """

    name: str
    flops: int
    operator_key: str
    target: Target
    space_key: str
    knobs: tuple[KnobChoices, ...]
    provenance: Provenance
    rows: bytes
    repeats: bytes
    seconds: bytes
    numbers: bytes
    errors: dict[int, tuple[str, str]]
    marks: dict[int, dict[str, Any]]

    def __len__(self) -> int:
        return len(self.repeats)

    @cached_property
    def batch(self) -> Batch:
        """Every configuration of the reduced space, int64 [N, K]."""
        return np.frombuffer(self.rows, "<u2").reshape(-1, len(self.knobs)).astype(np.int64)

    @cached_property
    def measurements(self) -> tuple[Measurement, ...]:
        """What each row cost, [N]."""
        counts = np.frombuffer(self.repeats, np.uint8)
        ends = np.cumsum(counts, dtype=np.int64)
        seconds = np.frombuffer(self.seconds, "<f4").astype(np.float64)
        numbers = np.frombuffer(self.numbers, "<u4")
        return tuple(
            self._measurement(row, tuple(seconds[end - count : end].tolist()), int(number))
            for row, (count, end, number) in enumerate(zip(counts.tolist(), ends, numbers, strict=True))
        )

    def _measurement(self, row: int, seconds: tuple[float, ...], number: int) -> Measurement:
        facts = dict(self.marks.get(row, {}))
        if row in self.errors:
            return Measurement(error=MeasureFailure(*self.errors[row]), facts=facts)
        return Measurement(
            seconds, number=number, max_abs_error=0.0, device_s=number * sum(seconds), facts=facts
        )

    @cached_property
    def costs_s(self) -> NDArray[np.float64]:
        """Seconds per call of each row, float64 [N], NaN where it failed."""
        return np.array([measurement.cost_s for measurement in self.measurements], dtype=np.float64)

    def space(self, operator: Operator) -> ScheduleSpace:
        """The recorded space of the operator that was recorded.

        Raises ReplayError when the operator is another one, when the space of today has not the choices that
        were recorded, or when other configurations of them are valid now.
        """
        if operator.key != self.operator_key:
            raise self._changed("operator", self.operator_key, operator.key)
        kept = {knob.name: knob.choices for knob in self.knobs if knob.name != ALGORITHM}
        try:
            space = space_of(operator, self.target).restricted(kept)
        except CrossError as error:
            raise self._changed("schedule space", "the choices that were recorded", str(error)) from error
        if space.key != self.space_key:
            raise self._changed("schedule space", self.space_key, space.key)
        valid = np.concatenate(list(enumerated(space)))
        if not np.array_equal(np.sort(space.ids(valid)), np.sort(space.ids(self.batch))):
            raise self._changed(
                "set of valid configurations", f"{len(self)} of them", f"{len(valid)}, or others"
            )
        return space

    def runner(self, space: ScheduleSpace) -> ReplayRunner:
        """Measures configurations of `space(...)` by looking them up."""
        numbers = space.ids(self.batch).tolist()
        return ReplayRunner(space, dict(zip(numbers, self.measurements, strict=True)))

    def _changed(self, what: str, expected: str, found: str) -> ReplayError:
        return ReplayError(
            f"the replay table {self.name} was recorded for another {what}: expected {expected}, "
            f"found {found}; record it again with `{self.provenance.command}`"
        )

    @classmethod
    def read(cls, path: Path) -> ReplayTable:
        """The table in a file. Raises ReplayError: no such file, not a table, another version, damaged."""
        again = f"record it again with `python -m benchmarks.replay record {path.stem}`"
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ReplayError(f"no replay table at {path}: {error.strerror}; {again}") from error
        if len(data) < _HEADER.size or not data.startswith(MAGIC):
            raise ReplayError(f"{path} is no replay table: it does not begin with {MAGIC!r}; {again}")
        _, version, digest = _HEADER.unpack_from(data)
        if version != TABLE_VERSION:
            raise ReplayError(f"{path}: expected table version {TABLE_VERSION}, found {version}; {again}")
        packed = data[_HEADER.size :]
        if hashlib.sha256(packed).digest() != digest:
            raise ReplayError(f"{path} is damaged: its content does not have the hash it names; {again}")
        try:
            content = lzma.LZMADecompressor().decompress(packed, LARGEST_BYTES)
            table = msgspec.msgpack.decode(content, type=cls)
            _check_columns(table)
        except (lzma.LZMAError, msgspec.MsgspecError, ValueError) as error:
            raise ReplayError(f"{path} is damaged: {error}; {again}") from error
        return table

    def write(self, path: Path) -> None:
        """Put the table into a file, whole or not at all. Raises OutputError."""
        packed = lzma.compress(msgspec.msgpack.encode(self), preset=9 | lzma.PRESET_EXTREME)
        header = _HEADER.pack(MAGIC, TABLE_VERSION, hashlib.sha256(packed).digest())
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, header + packed)
        except OSError as error:
            raise OutputError(f"cannot write the replay table {path}: {error}") from error


def make_table(
    name: str, space: ScheduleSpace, batch: Batch, measurements: Sequence[Measurement], provenance: Provenance
) -> ReplayTable:
    """The table of a reduced space: rows int64 [N, K], all that are valid, and a measurement of each."""
    for measurement in measurements:
        if len(measurement.seconds) > 255:
            raise ValueError(f"at most 255 repeats fit a table, found {len(measurement.seconds)}")
    seconds = [value for measurement in measurements for value in measurement.seconds]
    failed = {row: item.error for row, item in enumerate(measurements) if item.error is not None}
    return ReplayTable(
        name=name,
        flops=space.operator.flops,
        operator_key=space.operator.key,
        target=space.target,
        space_key=space.key,
        knobs=tuple(KnobChoices(knob.name, knob.choices) for knob in space.knobs),
        provenance=provenance,
        rows=batch.astype("<u2").tobytes(),
        repeats=bytes(len(measurement.seconds) for measurement in measurements),
        seconds=np.array(seconds, "<f4").tobytes(),
        numbers=np.array([measurement.number for measurement in measurements], "<u4").tobytes(),
        errors={row: (error.kind, error.text) for row, error in failed.items()},
        marks={row: marks for row, item in enumerate(measurements) if (marks := _marks(item))},
    )


def _marks(measurement: Measurement) -> dict[str, Any]:
    return {name: measurement.facts[name] for name in MARKS if name in measurement.facts}


def _check_columns(table: ReplayTable) -> None:
    """Raise ValueError unless the columns have a row each and name existing choices."""
    rows, knobs = len(table), len(table.knobs)
    repeats = np.frombuffer(table.repeats, np.uint8)
    found = (len(table.rows), len(table.numbers), len(table.seconds))
    expected = (2 * rows * knobs, 4 * rows, 4 * int(repeats.sum()))
    if found != expected:
        raise ValueError(f"its columns should have {expected} bytes and have {found}")
    if rows and (table.batch >= [len(knob.choices) for knob in table.knobs]).any():
        raise ValueError("a row names a choice that its knob has not")
    if {row for row in range(rows) if not repeats[row]} != set(table.errors):
        raise ValueError("a row should have either times or an error")
