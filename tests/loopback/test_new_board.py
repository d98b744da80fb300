"""`toolkit boards new` on real links: this machine with PoCL, over SSH, under qemu; what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from boards.board import load
from boards.target import POCL
from tests.loopback.listening import listening
from tests.loopback.sshd import SSHD, ssh_server
from toolkit.cli.main import main
from toolkit.measure import emulation

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(main, ["boards", "new", *map(str, arguments)])


@pytest.mark.slow
def test_this_machine_and_its_opencl(run: Run, teach: Callable[[Path], None]) -> None:
    teach(Path.cwd() / "device")
    done = run("here.toml", "--local", "--set", f"link.device_dir={Path.cwd() / 'device'}")
    assert done.exit_code == 0, done.stderr
    board, host = load("here.toml"), load("host").target()
    assert (board.target("cpu").key, board.target("cpu").cores) == (host.key, host.cores)
    found = [target for target in board.targets if target.is_pocl]
    assert len(found) == 1 and found[0].device == POCL, "the extra [pocl] is installed for tests"
    again = run("here.toml", "--local")
    assert (again.exit_code, "is there already: expected a new file" in again.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.skipif(SSHD is None, reason="needs OpenSSH's server (Debian: openssh-server)")
def test_over_ssh(run: Run, tmp_path: Path, teach: Callable[[Path], None]) -> None:
    teach(tmp_path / "device")
    (tmp_path / "sshd").mkdir()
    with ssh_server(tmp_path / "sshd") as link:
        keys = {"identity_file": link.identity_file, "known_hosts_file": link.known_hosts_file,
                "python": link.python, "device_dir": str(tmp_path / "device")}  # fmt: skip
        settings = [text for key, value in keys.items() for text in ("--set", f"link.{key}={value}")]
        done = run("mine.toml", "--ssh", link.address, *settings)
        assert done.exit_code == 0, done.stderr
    board, host = load("mine.toml"), load("host").target()
    assert (board.link.host, board.link.port) == (link.host, link.port)
    target = board.target("cpu")
    assert target.cpu in ("x86-64-v2", "x86-64-v3", "x86-64-v4", "generic") or "cortex" in target.cpu
    assert (target.l2_bytes, target.l1d_bytes) == (host.l2_bytes, host.l1d_bytes)


@pytest.mark.slow
def test_over_tcp(run: Run, tmp_path: Path, teach: Callable[[Path], None]) -> None:
    teach(tmp_path / "device")
    with listening(load("host"), tmp_path) as (reached, _):
        link = reached.link
        for address, words in (
            ("127.0.0.1", "expected a port from 1 to 65535"),
            ("a b", "expected [USER@]HOST"),
        ):
            refused = run("mine.toml", "--tcp", address, "--set", f"link.tls_file={link.tls_file}")
            assert (refused.exit_code, words in refused.stderr) == (2, True), refused.stderr
        done = run("mine.toml", "--tcp", f"127.0.0.1:{link.port}", "--set", f"link.tls_file={link.tls_file}")
        assert done.exit_code == 0, done.stderr
        board = load("mine.toml")
        assert board.link == msgspec.structs.replace(link, device_dir=board.link.device_dir)
        assert CliRunner().invoke(main, ["doctor", "mine.toml"]).exit_code == 0


@pytest.mark.slow
@pytest.mark.emulated
def test_an_emulated_board(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the emulation lies in the real home folder
    if emulation.find() is None:
        pytest.skip("the emulation is not installed; run `make emulation`")
    path = tmp_path / "mine.toml"
    refused = run(path, "--like", "emulated-a53", "--set", "cpu.cores=[0, 99]")
    assert refused.exit_code == 6, refused.stderr
    assert "cores 99 are not there" in refused.stderr and not path.exists()
    done = run(path, "--like", "emulated-a53", "--set", f"link.device_dir={tmp_path / 'device'}")
    assert done.exit_code == 0, done.stderr
    board, shipped = load(path), load("emulated-a53")
    assert board.emulated and board.link.command == shipped.link.command
    assert board.target().clock_hz == shipped.target().clock_hz
    assert board.target().peak_gflops is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("x.toml",), "name one of --ssh"),
        (("x.toml", "--local", "--ssh", "a"), "name one of --ssh"),
        (("x.txt", "--local"), "expected NAME.toml"),
        (("x.toml", "--ssh", "a b"), r"expected [USER@]HOST[:PORT]"),
        (("x.toml", "--tcp", "a:1"), "which `toolkit runtime archive` makes"),
        (("x_.toml", "--local", "--set", "nonsense=1"), "--set nonsense: expected TABLE.KEY=VALUE"),
        (("x.toml", "--local", "--set", "link.user=me"), "`link.user`: expected nothing"),
        (("x.toml", "--local", "--set", "link.kind=post"), "`link.kind`: expected 'local' or 'ssh'"),
    ],
)
def test_what_is_refused_before_a_board_is_asked(run: Run, arguments: tuple[str, ...], words: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2 and words in done.stderr, done.stderr
    assert list(Path.cwd().iterdir()) == []
