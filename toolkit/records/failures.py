"""Why trials failed, by kind, from what was recorded of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from toolkit.records.lines import RecordKey, TuningRecord


class FailureReason(msgspec.Struct, frozen=True):
    """`count` trials failed with errors of one `kind`; text and configuration are those of the first."""

    kind: str
    count: int
    text: str
    configuration: dict[str, Any]


class RecordedFailures(msgspec.Struct, frozen=True):
    """What failed of the `trials` recorded for one key."""

    key: RecordKey
    trials: int
    reasons: tuple[FailureReason, ...]

    @property
    def failures(self) -> int:
        """How many trials failed."""
        return sum(reason.count for reason in self.reasons)


def failure_reasons(records: Iterable[TuningRecord]) -> tuple[FailureReason, ...]:
    """One reason for each kind of error, the most frequent first; records that succeeded are skipped."""
    by_kind: dict[str, list[TuningRecord]] = {}
    for record in records:
        if record.error_kind:
            by_kind.setdefault(record.error_kind, []).append(record)
    reasons = (
        FailureReason(kind, len(failed), failed[0].error_text, failed[0].configuration)
        for kind, failed in by_kind.items()
    )
    return tuple(sorted(reasons, key=lambda reason: -reason.count))


def recorded_failures(records: Iterable[TuningRecord]) -> tuple[RecordedFailures, ...]:
    """The failures of every key that has any, in the order of first appearance."""
    by_key: dict[RecordKey, list[TuningRecord]] = {}
    for record in records:
        by_key.setdefault(record.key, []).append(record)
    found = (RecordedFailures(key, len(of_key), failure_reasons(of_key)) for key, of_key in by_key.items())
    return tuple(item for item in found if item.reasons)
