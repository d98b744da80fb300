"""Trials that two searches share: with Winograd's algorithms and without."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness.place import board_with
from benchmarks.kernels.direct import FROM_SPACE, algorithm, share_records, translated
from benchmarks.kernels.expressions import operator
from benchmarks.kernels.tune import direct_trials_left, trials_left
from benchmarks.kernels.workloads import Image, Workload
from cross.schedule.cpu_sketch import cpu_space
from cross.schedule.space import ScheduleSpace
from toolkit.records import RecordKey, Records, TuningRecord
from toolkit.tuning.on_board import record_key

OPERATOR = operator(Workload("small", "conv", Image("conv", 28, 64, 64, 3, 1, 1)))
POINTWISE = operator(Workload("pointwise", "conv", Image("conv", 14, 64, 64, 1, 1, 0)))
BOARD, TARGET = board_with(1)


def spaces() -> tuple[ScheduleSpace, ScheduleSpace]:
    return cpu_space(OPERATOR, TARGET), cpu_space(OPERATOR, TARGET, winograd=False)


def record(space: ScheduleSpace, key: RecordKey, row: np.ndarray, trial: int) -> TuningRecord:
    return TuningRecord(
        operator_key=key.operator_key,
        target_key=key.target_key,
        space_key=key.space_key,
        tool_version=key.tool_version,
        configuration=space.describe(space.configuration(row)),
        seconds=(1e-3 + 1e-6 * trial,),
        timestamp_s=0.0,
        seed=0,
        trial=trial,
    )


@pytest.fixture
def store(tmp_path: Path) -> Records:
    """Eight trials of the larger space, some of each algorithm."""
    larger, _ = spaces()
    key = record_key(larger, BOARD)
    records = Records(tmp_path / "records.db")
    for trial, row in enumerate(larger.sample(np.random.default_rng(0), 9)):
        records.add(record(larger, key, row, trial))
    return records


def test_shared_trials_are_the_same_programs(store: Records) -> None:
    larger, smaller = spaces()
    keys = record_key(larger, BOARD), record_key(smaller, BOARD)
    known = [(item, larger.parse(item.configuration)) for item in store.for_key(keys[0])]
    direct = [item for item, found in known if algorithm(larger, found) == "direct"]
    assert 0 < len(direct) < len(known)
    assert share_records(larger, smaller, store, keys, most=400) == len(direct)
    shared = store.for_key(keys[1])
    assert [item.seconds for item in shared] == [item.seconds for item in direct]
    assert [item.trial for item in shared] == list(range(len(direct)))
    assert all(item.facts[FROM_SPACE] == keys[0].space_key for item in shared)
    values = [smaller.fields(smaller.parse(item.configuration)) for item in shared]
    assert values == [larger.fields(larger.parse(item.configuration)) for item in direct]
    assert share_records(larger, smaller, store, keys, most=400) == 0, "they are known by now"


def test_no_more_are_shared_than_the_search_may_have(store: Records) -> None:
    larger, smaller = spaces()
    keys = record_key(larger, BOARD), record_key(smaller, BOARD)
    assert share_records(larger, smaller, store, keys, most=1) == 1
    assert len(store.for_key(keys[1])) == 1


def test_programs_of_other_algorithms_are_in_no_smaller_space() -> None:
    larger, smaller = spaces()
    direct, *others = larger.defaults()
    assert translated(larger, smaller, larger.describe(direct)) == smaller.describe(smaller.default())
    assert others
    assert all(translated(larger, smaller, larger.describe(item)) is None for item in others)
    assert algorithm(larger, others[0]).startswith("F(")
    assert algorithm(smaller, smaller.default()) == "direct"


def test_trials_left(store: Records) -> None:
    assert trials_left(OPERATOR, BOARD, TARGET, store, 12) == 3
    assert trials_left(OPERATOR, BOARD, TARGET, store, 9) == 0
    _, smaller = spaces()
    left = direct_trials_left(OPERATOR, BOARD, TARGET, store, 12)
    shared = len(store.for_key(record_key(smaller, BOARD)))
    assert 0 < shared < 9 and left == 12 - shared
    assert direct_trials_left(POINTWISE, BOARD, TARGET, store, 12) == 0
