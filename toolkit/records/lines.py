"""What is recorded, and how it is written: one line of JSON for each measurement and for each operator.

The store keeps the same lines; between machines they travel in a file of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec

from device_runtime.protocol import MeasureFailure
from toolkit.errors import RecordsError
from toolkit.measure.measurement import Measurement, best_s

RECORD_VERSION: Final = 1  # of one JSON line
OPERATOR_VERSION: Final = 1  # of the JSON line of an operator
LINE_LIMIT_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class RecordKey:
    """Which measurements may be compared: the space key names the version of the schedule space too."""

    operator_key: str
    target_key: str
    space_key: str
    tool_version: str


class TuningRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One measured configuration.

    `seconds` holds the seconds per call of each repeat and is empty exactly when `error_kind` names a
    failure; `configuration` is what `ScheduleSpace.describe` returned; `trial` counts from 0 for each key.
    """

    record_version: Literal[1] = RECORD_VERSION
    operator_key: str
    target_key: str
    space_key: str
    tool_version: str
    configuration: dict[str, Any]
    seconds: tuple[float, ...]
    number: int = 0
    error_kind: str = ""
    error_text: str = ""
    max_abs_error: float | None = None
    facts: dict[str, Any] = {}
    timestamp_s: float
    seed: int
    trial: int

    def __post_init__(self) -> None:
        if bool(self.seconds) == bool(self.error_kind):
            raise ValueError(
                "a record has either seconds or an error_kind: "
                f"found seconds={list(self.seconds)} and error_kind={self.error_kind!r}"
            )
        if not all(0.0 < s < float("inf") for s in self.seconds):
            raise ValueError(f"seconds must be positive and finite: found {list(self.seconds)}")

    @property
    def key(self) -> RecordKey:
        return RecordKey(self.operator_key, self.target_key, self.space_key, self.tool_version)

    @property
    def cost_s(self) -> float | None:
        """Seconds per call of the fastest repeat, which candidates are compared by; None for a failure."""
        return best_s(self.seconds) if self.seconds else None

    @property
    def measurement(self) -> Measurement:
        """What was measured, as the runner returned it; it kept no board busy this time."""
        return Measurement(
            seconds=self.seconds,
            error=MeasureFailure(self.error_kind, self.error_text) if self.error_kind else None,
            number=self.number,
            max_abs_error=self.max_abs_error,
            facts=dict(self.facts),
        )


class OperatorLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An operator that records are about. Two that differ in names only have one key and two descriptions."""

    operator_version: Literal[1] = OPERATOR_VERSION
    operator_key: str
    description: str


Line = TypeVar("Line", TuningRecord, OperatorLine)


def read_lines(path: Path | str) -> list[TuningRecord | OperatorLine]:
    """Every line of a JSON lines file, validated. Raises RecordsError that names file and line."""
    path = Path(path)
    found: list[TuningRecord | OperatorLine] = []
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(iter(lambda: lines.readline(LINE_LIMIT_BYTES), b""), start=1):
                if line.startswith(b'{"operator_version"'):
                    found.append(decoded(line, f"{path}:{number}", OperatorLine))
                elif line.strip():
                    found.append(decoded(line, f"{path}:{number}", TuningRecord))
    except OSError as error:
        raise RecordsError(
            f"cannot read records from {path}: {error.strerror}; "
            "name a file that `toolkit records export` wrote"
        ) from error
    return found


def decoded(line: bytes | str, where: str, kind: type[Line]) -> Line:
    """One line of this kind. Raises RecordsError that begins with `where`."""
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        what = f"a record of version {RECORD_VERSION}"
        if kind is OperatorLine:
            what = f"an operator of version {OPERATOR_VERSION}"
        raise RecordsError(
            f"{where}: not {what}: {error}; expected one JSON object as written by toolkit records export"
        ) from error
