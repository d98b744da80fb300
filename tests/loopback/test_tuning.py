"""Tuning for real on this machine: results, resume and interruption (kill -9 is an attack of
tests/torture)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from boards.board import Board
from device_runtime.protocol import Timing
from tests.loopback.tuning_process import QUICK, board_in, small_dense
from tests.signals import interruptible
from toolkit.measure.builder import Builder
from toolkit.measure.live import LiveRunner, RunnerOptions
from toolkit.measure.session import open_session
from toolkit.records import Records
from toolkit.tuning.on_board import open_task, tune_on_board
from toolkit.tuning.progress import Budget

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("overlap", [False, True])
def test_every_candidate_is_right_and_the_best_is_kept(tmp_path: Path, overlap: bool) -> None:
    """Also when the next batch is built while the board measures, as for boards with cores of their own."""
    options = replace(QUICK, tuning=replace(QUICK.tuning, overlap=overlap))
    board = board_in(tmp_path / "device")
    jobs = [("dense", small_dense())]
    with Records(tmp_path / "records.db") as records, open_session(board) as session:
        (result,) = tune_on_board(jobs, board, session, records, Budget(24), options=options)
        assert (result.trials, result.measured) == (24, 24)
        assert [record.error_text for record in records if record.error_kind] == []
        assert all(record.max_abs_error is not None for record in records)
        assert result.best is not None and result.default is not None
        assert result.best.cost_s is not None and result.default.cost_s is not None
        assert result.best.cost_s <= result.default.cost_s
        assert 0 < result.accounts.busy_share < 1
        (again,) = tune_on_board(jobs, board, session, records, Budget(32), options=options)
        assert (again.trials, again.measured) == (32, 8)
        assert len({str(record.configuration) for record in records}) == 32


def test_a_live_runner_measures_what_the_space_describes(tmp_path: Path) -> None:
    """A candidate's cost is its fastest repeat; a program that was measured is not measured again."""
    board = board_in(tmp_path / "device")
    target = board.target()
    programs = open_task("dense", small_dense(), board, target).programs
    batch = programs.space.batch([programs.space.default(), programs.space.default()])
    options = RunnerOptions(Timing(repeat=3, min_repeat_ms=0.1))
    with Builder(target, workers=1) as builder, open_session(board) as session:
        runner = LiveRunner(programs, builder, session, options)
        measured, again = runner.prepare(batch)
        assert measured.error is None
        assert len(measured.seconds) == 3 and measured.cost_s == min(measured.seconds)
        assert measured.device_s > 0
        assert again.seconds == measured.seconds and again.device_s == 0


def test_trials_go_to_the_operator_that_takes_the_time(tmp_path: Path) -> None:
    """Two real operators, one with forty times the work: it gets most of the trials."""
    board = board_in(tmp_path / "device")
    jobs = [("small", small_dense()), ("large", small_dense(rows=1280))]
    with Records(tmp_path / "records.db") as records, open_session(board) as session:
        small, large = tune_on_board(jobs, board, session, records, Budget(total=64), options=QUICK)
    assert small.trials + large.trials == 64
    assert large.trials > 2 * small.trials >= 16
    assert small.best is not None and large.best is not None


def start(tmp_path: Path, trials: int, said: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.loopback.tuning_process"]
    arguments = [str(tmp_path / "records.db"), str(tmp_path / "device"), str(trials)]
    with said.open("wb") as stdout:
        return subprocess.Popen(
            [*command, *arguments],
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            start_new_session=True,
            preexec_fn=interruptible,
        )


def acknowledged_in(said: Path) -> list[tuple[str, int]]:
    """Operators and trials of whole lines: a killed process may leave a part of one."""
    words = [line.split() for line in said.read_text().split("\n")[:-1]]
    return [(name, int(trial)) for name, trial, _ in words]


def trials_in(path: Path) -> dict[str, list[int]]:
    """Recorded trials of each operator."""
    names = {small_dense().key: "dense", small_dense(rows=24).key: "other"}
    found: dict[str, list[int]] = {"dense": [], "other": []}
    with Records(path) as records:
        for record in records:
            found[names[record.operator_key]].append(record.trial)
    return found


def wait_for_words(said: Path, tuner: subprocess.Popen[bytes]) -> None:
    while not said.stat().st_size:
        assert tuner.poll() is None, tuner.stderr.read() if tuner.stderr else ""
        time.sleep(0.01)


def test_an_interrupt_ends_the_tuner_and_everything_it_started(tmp_path: Path) -> None:
    said = tmp_path / "said"
    tuner = start(tmp_path, 4000, said)
    wait_for_words(said, tuner)
    tuner.send_signal(signal.SIGINT)
    _, stderr = tuner.communicate(timeout=60)
    assert stderr.decode().rstrip().endswith("KeyboardInterrupt")
    found = trials_in(tmp_path / "records.db")
    assert all(trial in found[name] for name, trial in acknowledged_in(said))
    deadline_s = time.monotonic() + 60.0  # it takes no time unless the machine is busy
    while alive := processes_that_name(str(tmp_path / "device")):
        assert time.monotonic() < deadline_s, alive
        time.sleep(0.05)


def processes_that_name(text: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if entry.name.isdigit() and int(entry.name) != os.getpid() and text in words:
            found.append(words)
    return found


@pytest.mark.emulated
def test_an_emulated_board_is_tuned_the_same_way(emulated_board: Board, tmp_path: Path) -> None:
    """aarch64 code, checked under qemu; its times mean nothing, its records name the board."""
    jobs = [("dense", small_dense())]
    with Records(tmp_path / "records.db") as records, open_session(emulated_board) as session:
        (result,) = tune_on_board(jobs, emulated_board, session, records, Budget(9), options=QUICK)
        assert (result.trials, result.failures) == (9, 0)
        ((key, count),) = records.keys()
    assert count == 9
    assert key.target_key.startswith("emulated-a53:cpu/aarch64")
