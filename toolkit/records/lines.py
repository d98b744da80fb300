"""What is recorded, and how it is written: one line of JSON for each measurement and for each operator.

The store keeps each line beside its SHA-256. Between machines they travel in a file of their own: there each
is an object `{"line_version": 2, "sha256": DIGEST, "line": LINE}`, and the last one says how many there were.
Files of earlier versions have the lines alone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec

from device_runtime.protocol import MeasureFailure
from toolkit.errors import RecordsError
from toolkit.measure.measurement import Measurement, best_s

RECORD_VERSION: Final = 1  # of one JSON line
OPERATOR_VERSION: Final = 1  # of the JSON line of an operator
EXPORT_VERSION: Final = 2  # of a line of an exported file; files of version 1 had neither digests nor an end
LINE_LIMIT_BYTES: Final = 1 << 20
OPEN_FILES: Final = Path("/dev/fd")  # of this process, by number

# names among the facts of a record
SPENT: Final = "spent_s"  # where the time of its trial went (toolkit.tuning.time_breakdown), seconds by name
REUSED: Final = "reused"  # key of the operator whose tuned program the search began with
PREDICTED: Final = (
    "predicted"  # "score" (higher is faster) by a cost model "fitted_to" so many records, if any
)
BRIDGE: Final = "bridge"  # true for an operator that no model has, which was tuned to be reused


class RecordKey(msgspec.Struct, frozen=True):
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


class _Exported(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    line_version: Literal[2]
    sha256: str
    line: msgspec.Raw


class _End(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    line_version: Literal[2]
    end: int


Line = TypeVar("Line", TuningRecord, OperatorLine)


def encoded(line: TuningRecord | OperatorLine) -> tuple[bytes, bytes]:
    """What the store keeps of a record or operator: its digest (SHA-256), and the text that has it."""
    text = msgspec.json.encode(line)
    return hashlib.sha256(text).digest(), text


def exported(lines: Iterable[TuningRecord | OperatorLine]) -> Iterator[bytes]:
    """The lines of a file that `read_lines` reads."""
    count = 0
    for line in lines:
        count += 1
        digest, text = encoded(line)
        written = _Exported(EXPORT_VERSION, digest.hex(), msgspec.Raw(text))
        yield msgspec.json.encode(written) + b"\n"
    yield msgspec.json.encode(_End(EXPORT_VERSION, count)) + b"\n"


def is_exported(path: Path) -> bool:
    """Whether the file is one that `read_lines` reads, of any version, and no store."""
    if not path.is_file():  # opening a pipe would wait for somebody to write
        return False
    try:
        return first_bytes(path, 1) == b"{"
    except OSError:
        return False


def first_bytes(path: Path, count: int) -> bytes:
    """The first `count` bytes of a file that SQLite may have open. Raises OSError.

    Closing any descriptor of a file ends the locks that the process has on it (POSIX). Without the locks of
    its connections another process may take itself for the last one, and delete the journal that they read
    and write (https://sqlite.org/howtocorrupt.html, section 2.2). So a descriptor that is there is read, and
    left open.
    """
    wanted = path.stat()
    for name in os.listdir(OPEN_FILES) if OPEN_FILES.is_dir() else ():
        with suppress(OSError):  # it is not open for reading, or was closed meanwhile
            if os.path.samestat(os.fstat(int(name)), wanted):
                found = os.pread(int(name), count, 0)
                if os.path.samestat(os.fstat(int(name)), wanted):
                    return found
    with path.open("rb") as stream:
        return stream.read(count)


def read_lines(path: Path | str) -> list[TuningRecord | OperatorLine]:
    """Every line of a JSON lines file, validated. Raises RecordsError that names file and line."""
    path = Path(path)
    found: list[TuningRecord | OperatorLine] = []
    open_since = number = 0  # `open_since`: lines of version 2 that no end has counted yet
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(iter(lambda: lines.readline(LINE_LIMIT_BYTES), b""), start=1):
                where = f"{path}:{number}"
                if line.startswith(b'{"line_version":2,"end"'):
                    _check_end(decoded(line, where, _End).end, open_since, where)
                    open_since = 0
                elif line.startswith(b'{"line_version"'):
                    found.append(_unpacked(decoded(line, where, _Exported), where))
                    open_since += 1
                elif line.strip():
                    found.append(either_kind(line, where))
    except OSError as error:
        raise RecordsError(
            f"cannot read records from {path}: {error.strerror}; "
            "name a file that `toolkit records export` wrote"
        ) from error
    if not number:
        raise RecordsError(f"{path}:1: the file is empty: expected lines that toolkit records export wrote")
    if open_since:
        _check_end(None, open_since, f"{path}:{number}")
    return found


def either_kind(text: bytes, where: str) -> TuningRecord | OperatorLine:
    """A record or an operator. Raises RecordsError that begins with `where`."""
    if text.startswith(b'{"operator_version"'):
        return decoded(text, where, OperatorLine)
    return decoded(text, where, TuningRecord)


def _unpacked(line: _Exported, where: str) -> TuningRecord | OperatorLine:
    text = bytes(line.line)
    found = hashlib.sha256(text).hexdigest()
    if found != line.sha256:
        raise RecordsError(
            f"{where}: damaged: expected the SHA-256 {line.sha256[:16]}..., found {found[:16]}...; copy the "
            "file again, or take this line and the last one out to import the others"
        )
    return either_kind(text, where)


def _check_end(count: int | None, found: int, where: str) -> None:
    if count != found:
        expected = "a last line that says how many lines there are" if count is None else f"{count} lines"
        raise RecordsError(
            f"{where}: lines are missing or too many: expected {expected}, found {found} lines; copy the "
            f'file again, or end it with {{"line_version":2,"end":{found}}} to import what is there'
        )


_WHAT: Final = {
    TuningRecord: f"a record of version {RECORD_VERSION}",
    OperatorLine: f"an operator of version {OPERATOR_VERSION}",
}
Decoded = TypeVar("Decoded", TuningRecord, OperatorLine, _Exported, _End)


def decoded(line: bytes | str, where: str, kind: type[Decoded]) -> Decoded:
    """One line of this kind. Raises RecordsError that begins with `where`."""
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        what = _WHAT.get(kind, f"a line of version {EXPORT_VERSION}")
        raise RecordsError(
            f"{where}: not {what}: {error}; expected one JSON object as written by toolkit records export"
        ) from error
