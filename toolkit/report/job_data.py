"""What a page about a job says in numbers: from the file of the job and the records of its operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec
import numpy as np

from toolkit.model_job.job_file import JobFile, JobOperator
from toolkit.records import Records, TuningRecord
from toolkit.records.failures import FailureReason, failure_reasons
from toolkit.records.lines import PREDICTED
from toolkit.tuning.time_breakdown import TimeBreakdown, trial_time

MOST_POINTS: Final = 4000  # of a chart: more would make a page large and show nothing new
LEAST_RANKED: Final = 4  # trials of one batch, below which their order says nothing
Point = TypeVar("Point")


class Step(msgspec.Struct, frozen=True):
    """The best time so far, `best_s` after `trials` trials that took `seconds` in all."""

    trials: int
    seconds: float
    best_s: float


class Prediction(msgspec.Struct, frozen=True):
    """A trial whose rank among the `batch` trials that one fit of the cost model chose was predicted.

    Both ranks are shares, 0 the fastest and 1 the slowest; a failure is the slowest.
    """

    operator: int
    predicted: float
    measured: float


class Sample(msgspec.Struct, frozen=True):
    """The board at `seconds` of tuning; None: it does not say."""

    seconds: float
    celsius: float | None
    clock_hz: float | None


class OperatorData(msgspec.Struct, frozen=True):
    """An operator of the job with what its records say; before_s and after_s are seconds of a call."""

    operator: JobOperator
    before_s: float | None
    after_s: float | None
    trials: int
    reasons: tuple[FailureReason, ...]
    steps: tuple[Step, ...]
    rank_correlation: float | None

    @property
    def model_s(self) -> float | None:
        """Seconds that all its calls in a run of the model take."""
        return None if self.after_s is None else self.operator.count * self.after_s


class JobData(msgspec.Struct, frozen=True):
    """A job in numbers; `whole` is the sum of the operators' times, of those that have any."""

    job: JobFile
    operators: tuple[OperatorData, ...]
    whole: tuple[Step, ...]
    predictions: tuple[Prediction, ...]
    samples: tuple[Sample, ...]
    spent: TimeBreakdown


def job_data(job: JobFile, records: Records) -> JobData:
    """Read the records of every operator of a job. Raises RecordsError."""
    found = [records.for_key(item.key) for item in job.operators]
    order = sorted(
        ((record, number) for number, of in enumerate(found) for record in of),
        key=lambda item: (item[0].timestamp_s, item[0].trial),
    )
    ends_s = np.cumsum([trial_time(record).wall_s for record, _ in order]).tolist()
    reported = job.report.operators if job.report else ()
    known = {item.operator_key: (item.default_s, item.best_s) for item in reported}
    batches = [_batches(number, of) for number, of in enumerate(found)]
    return JobData(
        job=job,
        operators=tuple(
            _operator(item, of, known.get(item.operator_key), ranked)
            for item, of, ranked in zip(job.operators, found, batches, strict=True)
        ),
        whole=_whole([item.count for item in job.operators], order, ends_s),
        predictions=tuple(thinned([point for of in batches for batch in of for point in batch])),
        samples=tuple(
            thinned([
                Sample(end_s, record.facts.get("temperature_c"), record.facts.get("clock_hz"))
                for (record, _), end_s in zip(order, ends_s, strict=True)
            ])
        ),
        spent=sum((trial_time(record) for record, _ in order), TimeBreakdown()),
    )  # fmt: skip


def thinned(points: Sequence[Point]) -> Sequence[Point]:
    """At most MOST_POINTS of them, evenly, the first and the last one among them."""
    if len(points) <= MOST_POINTS:
        return points
    return [points[at] for at in np.linspace(0, len(points) - 1, MOST_POINTS).round().astype(int)]


def _operator(
    operator: JobOperator,
    records: Sequence[TuningRecord],
    known: tuple[float | None, float | None] | None,
    batches: Sequence[Sequence[Prediction]],
) -> OperatorData:
    """Times are those of the report where there is one, otherwise the records'."""
    steps: list[Step] = []
    spent_s = 0.0
    for number, record in enumerate(records, 1):
        spent_s += trial_time(record).wall_s
        best_s = min(record.cost_s or math.inf, steps[-1].best_s if steps else math.inf)
        if math.isfinite(best_s):
            steps.append(Step(number, spent_s, best_s))
    default_s = [
        record.cost_s for record in records if record.cost_s and record.configuration == operator.untuned
    ]
    before_s, after_s = known or (min(default_s, default=None), steps[-1].best_s if steps else None)
    return OperatorData(
        operator=operator,
        before_s=before_s,
        after_s=after_s,
        trials=len(records),
        reasons=failure_reasons(records),
        steps=_changes(steps),
        rank_correlation=_correlation(batches),
    )


def _changes(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps at which the best time fell, and the last one."""
    fell = [
        step for before, step in zip([None, *steps][:-1], steps, strict=True)
        if before is None or step.best_s < before.best_s
    ]  # fmt: skip
    return tuple(thinned([*fell, *(steps[-1:] if fell and fell[-1] != steps[-1] else [])]))


def _whole(
    counts: Sequence[int], order: Sequence[tuple[TuningRecord, int]], ends_s: Sequence[float]
) -> tuple[Step, ...]:
    """The sum of all operators' best times; until an operator is tried it counts with its first time."""
    best_s: dict[int, float] = {}
    for record, number in order:
        if record.cost_s is not None:
            best_s.setdefault(number, record.cost_s)
    steps = []
    for trial, ((record, number), end_s) in enumerate(zip(order, ends_s, strict=True), 1):
        if record.cost_s is not None:
            best_s[number] = min(best_s[number], record.cost_s)
        if best_s:
            steps.append(Step(trial, end_s, sum(counts[item] * best_s[item] for item in best_s)))
    return _changes(steps)


def _batches(operator: int, records: Sequence[TuningRecord]) -> list[list[Prediction]]:
    """The predicted trials of an operator, those together that one fit of the cost model ranked."""
    fits: dict[int, list[TuningRecord]] = {}
    for record in records:
        if PREDICTED in record.facts:
            fits.setdefault(int(record.facts[PREDICTED]["fitted_to"]), []).append(record)
    found = []
    for batch in fits.values():
        scores = [float(record.facts[PREDICTED]["score"]) for record in batch]
        if len(batch) >= LEAST_RANKED and len(set(scores)) > 1:  # a model that knows nothing yet ranks none
            predicted = _ranks([-score for score in scores])
            measured = _ranks([record.cost_s or math.inf for record in batch])
            found.append([Prediction(operator, *pair) for pair in zip(predicted, measured, strict=True)])
    return found


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks as shares, 0 of the smallest value and 1 of the largest; equal values share their mean rank."""
    ordered = np.sort(values)
    below, upto = np.searchsorted(ordered, values), np.searchsorted(ordered, values, "right")
    found: list[float] = ((below + upto - 1) / 2 / (len(values) - 1)).tolist()
    return found


def _correlation(batches: Sequence[Sequence[Prediction]]) -> float | None:
    """Spearman's rank correlation in the batches, the mean by their sizes; None where nothing was ranked."""
    found = []
    for batch in batches:
        predicted, measured = np.array([(item.predicted, item.measured) for item in batch]).T
        if predicted.std() and measured.std():
            found.append((float(np.corrcoef(predicted, measured)[0, 1]), len(batch)))
    return sum(value * size for value, size in found) / sum(size for _, size in found) if found else None
