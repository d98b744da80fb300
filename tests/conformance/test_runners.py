"""One suite for every Runner (toolkit/measure/runner.py holds the contract)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cross.schedule.space import ScheduleSpace
from device_runtime.protocol import Timing
from tests.loopback.tuning_process import board_in, small_dense
from toolkit.explore.space import Batch
from toolkit.measure.builder import Builder
from toolkit.measure.live import LiveRunner, RunnerOptions
from toolkit.measure.measurement import Measurement
from toolkit.measure.runner import ReplayRunner, Runner
from toolkit.measure.session import open_session
from toolkit.tuning.on_board import open_task

Kit = tuple[Runner, ScheduleSpace, Batch]


@pytest.fixture(scope="module", name="live")
def _live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kit]:
    board = board_in(tmp_path_factory.mktemp("device"))
    programs = open_task("dense", small_dense(), board, board.target()).programs
    options = RunnerOptions(Timing(repeat=2, min_repeat_ms=0.1))
    with Builder(board.target(), workers=1) as builder, open_session(board) as session:
        batch = drawn(programs.space, 6)
        yield LiveRunner(programs, builder, session, options), programs.space, batch


@pytest.fixture(scope="module", name="replay")
def _replay() -> Kit:
    board = board_in(Path("unused"))
    programs = open_task("dense", small_dense(), board, board.target()).programs
    batch = drawn(programs.space, 6)
    table = {
        number: Measurement(seconds=(1e-3 * (1 + place),), number=1, max_abs_error=0.0, device_s=1e-3)
        for place, number in enumerate(programs.space.ids(batch).tolist())
    }
    return ReplayRunner(programs.space, table), programs.space, batch


@pytest.fixture(params=["replay", pytest.param("live", marks=pytest.mark.slow)], name="kit")
def _kit(request: pytest.FixtureRequest) -> Kit:
    kit: Kit = request.getfixturevalue(request.param)
    return kit


def drawn(space: ScheduleSpace, count: int) -> Batch:
    rows = space.sample(np.random.default_rng(0), 4 * count)
    return rows[np.unique(space.ids(rows), return_index=True)[1]][:count]


def test_one_measurement_for_each_row(kit: Kit) -> None:
    runner, _, batch = kit
    measured = list(runner.prepare(batch))
    assert len(measured) == len(batch)
    for measurement in measured:
        assert measurement.error is None, measurement.error
        assert math.isfinite(measurement.cost_s) and measurement.cost_s == min(measurement.seconds)
        assert measurement.device_s >= 0


def test_an_empty_batch_measures_nothing(kit: Kit) -> None:
    runner, _, batch = kit
    assert list(runner.prepare(batch[:0])) == []


def test_batches_may_be_prepared_ahead(kit: Kit) -> None:
    runner, _, batch = kit
    first, second = runner.prepare(batch[:2]), runner.prepare(batch[2:4])
    assert [math.isfinite(m.cost_s) for m in (*second, *first)] == [True] * 4


def test_a_batch_may_be_left_unfinished(kit: Kit) -> None:
    runner, _, batch = kit
    measurements = runner.prepare(batch)
    assert math.isfinite(next(measurements).cost_s)
    assert len(list(runner.prepare(batch[::-1]))) == len(batch)


def test_the_table_answers_what_was_measured_and_fails_the_rest(replay: Kit) -> None:
    runner, space, batch = replay
    others = space.sample(np.random.default_rng(9), 50)
    unknown = others[~np.isin(space.ids(others), space.ids(batch))][:1]
    known, missing = runner.prepare(np.concatenate([batch[2:3], unknown]))
    assert known.cost_s == pytest.approx(3e-3)
    assert missing.error is not None and "never measured" in missing.error.text
    assert math.isnan(missing.cost_s)
