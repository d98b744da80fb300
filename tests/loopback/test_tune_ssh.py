"""The whole way over a real OpenSSH server, by the Python API: doctor, tune, flash, run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

import toolkit
from boards.board import Board
from tests.loopback.test_runtime_ssh import SSHD, make_key, ssh_board, ssh_link
from tests.loopback.tune_board import onnxruntime_outputs, write_network

__all__ = ["ssh_board", "ssh_link"]

pytestmark = pytest.mark.skipif(SSHD is None, reason="needs OpenSSH's server (Debian: openssh-server)")


@pytest.mark.slow
def test_tune_flash_and_run(ssh_board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    measure = msgspec.structs.replace(ssh_board.measure, repeat=1, min_repeat_ms=0.1)
    board = msgspec.structs.replace(ssh_board, measure=measure)
    options = toolkit.TuneOptions(
        trials=2, shapes={"x": (1, 3, 14, 14)}, records=tmp_path / "r.db", output=tmp_path / "small.tfb"
    )
    report = toolkit.tune(write_network(tmp_path), board, options)
    assert report.coverage == 1.0
    assert toolkit.flash_bundle(report.bundle, board).bundle_id == report.bundle_id
    data = np.random.default_rng(5).standard_normal((1, 3, 14, 14)).astype(np.float32)
    got = toolkit.run_installed(board, {"": data}).outputs["y"]
    expected = onnxruntime_outputs(data)
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()


def test_the_doctor_finds_a_board_fit(ssh_board: Board, teach: Callable[[Path], None]) -> None:
    teach(Path(ssh_board.link.device_dir))
    health = toolkit.check_board(ssh_board)
    assert health.reachable and health.fit
    assert health.checks[0].found.startswith("ssh ")


def test_the_doctor_says_what_to_do_about_a_refused_key(ssh_board: Board, tmp_path: Path) -> None:
    make_key(tmp_path / "stranger")
    link = msgspec.structs.replace(ssh_board.link, identity_file=str(tmp_path / "stranger"))
    health = toolkit.check_board(msgspec.structs.replace(ssh_board, link=link))
    assert not health.reachable
    (check,) = health.checks
    assert f"ssh -p {link.port} " in check.remedy
    assert "without a password" in check.remedy
