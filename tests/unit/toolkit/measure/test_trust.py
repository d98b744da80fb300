"""Programs that board files name: refused and shown until the user agrees, and remembered by their hash."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from toolkit import load_board
from toolkit.cli.main import main
from toolkit.errors import UntrustedBoard

HOST = Path("boards/host.toml").read_text()
EMULATED = Path("boards/emulated-a53.toml").read_text()


def board_file(folder: Path, python: str) -> Path:
    path = folder / "other.toml"
    path.write_text(HOST.replace('kind = "local"', f'kind = "local"\npython = "{python}"', 1))
    return path


def test_a_program_is_refused_until_it_is_agreed_to(tmp_path: Path) -> None:
    path = board_file(tmp_path, "/opt/a python")
    with pytest.raises(UntrustedBoard, match=r"run on this machine: '/opt/a python'; .* --trust-board-file"):
        load_board(path, config_dir=tmp_path)
    assert load_board(path, config_dir=tmp_path, to_run=False).link.python == "/opt/a python"
    load_board(path, config_dir=tmp_path, trust=True)
    load_board(path, config_dir=tmp_path)
    with pytest.raises(UntrustedBoard):
        load_board(board_file(tmp_path, "/opt/another"), config_dir=tmp_path)
    load_board(board_file(tmp_path, "/opt/another"), config_dir=tmp_path, trust=True)
    load_board(board_file(tmp_path, "/opt/a python"), config_dir=tmp_path)


def test_a_python_over_ssh_is_agreed_to_for_one_address(tmp_path: Path) -> None:
    path = tmp_path / "ssh.toml"
    text = Path("boards/rpi3b.toml").read_text()
    for host in ("one", "two"):
        path.write_text(text.replace('host = "rpi3b"', f'host = "{host}"\npython = "sh"'))
        with pytest.raises(UntrustedBoard, match=f"run on .*{host}: sh;"):
            load_board(path, config_dir=tmp_path)
        load_board(path, config_dir=tmp_path, trust=True)


def test_what_the_tools_own_boards_run_needs_no_consent(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(EMULATED)
    assert load_board(tmp_path / "own.toml", config_dir=tmp_path).link.command
    load_board("host", config_dir=tmp_path)
    assert not (tmp_path / "trusted_programs").exists()


def test_commands_run_nothing_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    path = board_file(tmp_path, str(program))
    refused = CliRunner().invoke(main, ["doctor", str(path)])
    assert (refused.exit_code, (tmp_path / "ran").exists()) == (2, False)
    assert str(program) in refused.stderr
    assert CliRunner().invoke(main, ["boards", "show", str(path)]).exit_code == 0
    assert not (tmp_path / "ran").exists()
    CliRunner().invoke(main, ["doctor", str(path), "--trust-board-file"])
    assert (tmp_path / "ran").exists()
