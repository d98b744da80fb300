"""A whole flash over a real OpenSSH server: the calls as locally, trust over the authenticated channel."""

from __future__ import annotations

from pathlib import Path

import pytest

from boards.board import Board
from tests.loopback.flashing import Flasher
from tests.loopback.test_runtime_ssh import SSHD, ssh_board, ssh_link
from toolkit.flash import job as flashing

__all__ = ["ssh_board", "ssh_link"]

pytestmark = pytest.mark.skipif(SSHD is None, reason="needs OpenSSH's server (Debian: openssh-server)")


@pytest.mark.slow
def test_flash_update_and_roll_back(ssh_board: Board, tmp_path: Path) -> None:
    flasher = Flasher(ssh_board, tmp_path)
    assert flasher.flash(1).changed
    signers = (flasher.device_dir / "allowed_signers").read_text()
    assert signers == flasher.key.public.allowed_signers_line
    assert not flasher.flash(1).changed
    flasher.flash(2)
    flasher.assert_runs(2)
    flashing.roll_back(flasher.board, flasher.options)
    flasher.assert_runs(1)
