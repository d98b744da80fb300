"""On a real runtime: a program that was measured is not measured again, a beaten one gets no more repeats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from boards.board import Board
from device_runtime.protocol import Timing
from tests.loopback.tuning_process import QUICK, board_in, small_dense
from tests.nests import elementwise
from toolkit.explore.space import Batch
from toolkit.measure.builder import Builder
from toolkit.measure.live import LiveRunner, RunnerOptions
from toolkit.measure.measurement import CODE, GIVEN_UP_S, IDENTICAL_CODE, Measurement
from toolkit.measure.session import Session, open_session
from toolkit.records import Records
from toolkit.tuning.on_board import open_task, tune_on_board
from toolkit.tuning.progress import Budget

pytestmark = pytest.mark.slow
SHORT = RunnerOptions(Timing(repeat=50, min_repeat_ms=1e-4, warmup=0))


@pytest.fixture(scope="module", name="board")
def _board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    return board_in(tmp_path_factory.mktemp("device"))


@pytest.fixture(scope="module", name="session")
def _session(board: Board) -> Iterator[Session]:
    with open_session(board) as session:
        yield session


def runner(board: Board, builder: Builder, session: Session, *recorded: Measurement) -> LiveRunner:
    programs = open_task("dense", small_dense(), board, board.target()).programs
    return LiveRunner(programs, builder, session, SHORT, recorded=recorded)


def rows(board: Board, count: int) -> Batch:
    task = open_task("dense", small_dense(), board, board.target())
    return task.space.sample(np.random.default_rng(5), count)


def test_equal_binaries_share_a_measurement_across_runners(board: Board, session: Session) -> None:
    batch = rows(board, 3)
    with Builder(board.target(), workers=1) as builder:
        first = list(runner(board, builder, session).prepare(batch))
    with Builder(board.target(), workers=1) as builder:  # which calls the same pieces by other names
        builder.build([("another", elementwise("exp", 16, 8))])
        second = list(runner(board, builder, session, *first).prepare(batch))
    assert all(m.error is None and m.device_s > 0 and IDENTICAL_CODE not in m.facts for m in first)
    assert all(m.device_s == 0 and m.facts[IDENTICAL_CODE] for m in second)
    assert [(m.seconds, m.facts[CODE]) for m in first] == [(m.seconds, m.facts[CODE]) for m in second]


def test_a_clearly_beaten_candidate_ends_early_and_keeps_its_time(board: Board, session: Session) -> None:
    champion = Measurement(seconds=(1e-9,), facts={CODE: "another"})
    with Builder(board.target(), workers=1) as builder:
        (beaten,) = runner(board, builder, session, champion).prepare(rows(board, 1))
    assert beaten.error is None and 1 <= len(beaten.seconds) < 6
    assert beaten.facts[GIVEN_UP_S] == pytest.approx(3e-9)
    assert beaten.cost_s > 3e-9


def test_the_records_of_a_tuning_run_say_so(board: Board, session: Session, tmp_path: Path) -> None:
    with Records(tmp_path / "records.db") as records:
        jobs = [("dense", small_dense())]
        (result,) = tune_on_board(jobs, board, session, records, Budget(8), options=QUICK)
        facts = [record.facts for record in records]
        (again,) = tune_on_board(jobs, board, session, records, Budget(12), options=QUICK)
        assert all(CODE in record.facts for record in records if not record.error_kind)
        assert again.identical == sum(IDENTICAL_CODE in record.facts for record in records)
        assert again.given_up == sum(GIVEN_UP_S in record.facts for record in records)
    assert result.identical == sum(IDENTICAL_CODE in item for item in facts)
