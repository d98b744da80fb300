"""The runtime over a real OpenSSH server on this machine, with keys of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from boards.board import Board, load
from boards.description import Link
from tests.loopback.conftest import CompileKernels, descendants
from tests.loopback.kernels import Kernels, assert_right
from tests.loopback.sshd import SSHD, free_port, make_key, ssh_server
from toolkit.errors import BoardBusy, BoardUnreachable, InputError
from toolkit.measure.archive import archive_name, runtime_archive
from toolkit.measure.session import open_session

pytestmark = pytest.mark.skipif(SSHD is None, reason="needs OpenSSH's server (Debian: openssh-server)")


@pytest.fixture(scope="module")
def ssh_link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Link]:
    with ssh_server(tmp_path_factory.mktemp("sshd")) as link:
        yield link


@pytest.fixture
def ssh_board(ssh_link: Link, tmp_path: Path) -> Board:
    link = msgspec.structs.replace(ssh_link, device_dir=str(tmp_path / "device dir"))  # a name to quote
    board: Board = msgspec.structs.replace(load("host"), link=link)
    return board


def with_link(board: Board, **changes: object) -> Board:
    changed: Board = msgspec.structs.replace(board, link=msgspec.structs.replace(board.link, **changes))
    return changed


@pytest.mark.slow
def test_measure_and_misbehave(ssh_board: Board, compile_kernels: CompileKernels) -> None:
    with open_session(ssh_board) as session:
        kernels = Kernels(session, compile_kernels(os.uname().machine))
        assert_right(session, kernels)
        for symbol, kind in (
            ("segfault", "crash"),
            ("exits", "crash"),
            ("one_element_wrong", "wrong_answer"),
        ):
            failure = session.measure(kernels.request(symbol)).error
            assert failure is not None
            assert failure.kind == kind
            assert_right(session, kernels)


@pytest.mark.slow
def test_the_archive_is_uploaded_once_and_a_damaged_one_again(ssh_board: Board) -> None:
    archive = Path(ssh_board.link.device_dir) / archive_name()
    open_session(ssh_board).close()
    assert archive.read_bytes() == runtime_archive()
    first = archive.stat().st_mtime_ns
    open_session(ssh_board, wait_s=5).close()
    assert archive.stat().st_mtime_ns == first
    archive.write_bytes(bytes(len(runtime_archive())))  # what a power cut can leave
    open_session(ssh_board, wait_s=5).close()
    assert archive.read_bytes() == runtime_archive()


@pytest.mark.slow
def test_closing_ends_the_runtime_and_frees_the_lease(ssh_board: Board) -> None:
    first = open_session(ssh_board, holder="alice")
    with pytest.raises(BoardBusy, match="held by alice"):
        open_session(ssh_board)
    first.close()
    with open_session(ssh_board, wait_s=10) as second:
        assert second.token > first.token


@pytest.mark.slow
def test_a_cut_connection_ends_a_hanging_measurement(
    ssh_board: Board, compile_kernels: CompileKernels
) -> None:
    session = open_session(ssh_board)
    kernels = Kernels(session, compile_kernels(os.uname().machine))
    request = kernels.request("hangs", timeout_s=100.0)
    with session._lock:  # the request without waiting for its answer
        params = {**request.__dict__, "buffers": [b.__dict__ for b in request.buffers]}
        params["timing"] = request.timing.__dict__ if request.timing else None
        session._connection.send({"id": 9, "method": "measure", "params": params})
    while not descendants(session.hello.pid):
        time.sleep(0.01)
    session.close()
    with open_session(ssh_board, wait_s=10) as after:
        assert_right(after, Kernels(after, compile_kernels(os.uname().machine)))


def test_an_unknown_host_key_is_refused_with_the_remedy(ssh_board: Board, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    with pytest.raises(BoardUnreachable, match=r"not among the known hosts of .*\n?.*ssh-keyscan -p"):
        open_session(with_link(ssh_board, known_hosts_file=str(tmp_path / "empty")))


def test_a_changed_host_key_is_refused(ssh_board: Board, tmp_path: Path) -> None:
    other = make_key(tmp_path / "other")
    (tmp_path / "known").write_text(f"[127.0.0.1]:{ssh_board.link.port} {other}")
    with pytest.raises(BoardUnreachable, match=r"shows another host key than .*ssh-keygen -f .* -R"):
        open_session(with_link(ssh_board, known_hosts_file=str(tmp_path / "known")))


def test_a_key_that_is_not_authorized(ssh_board: Board, tmp_path: Path) -> None:
    make_key(tmp_path / "stranger")
    with pytest.raises(BoardUnreachable, match="lets nobody in as .*ssh-copy-id"):
        open_session(with_link(ssh_board, identity_file=str(tmp_path / "stranger")))


def test_key_files_that_are_not_there_are_bad_input(ssh_board: Board, tmp_path: Path) -> None:
    for key in ("identity_file", "known_hosts_file"):
        with pytest.raises(InputError, match=f"link.{key} of the board file: expected a file"):
            open_session(with_link(ssh_board, **{key: str(tmp_path / "none")}))


def test_nothing_listens(ssh_board: Board) -> None:
    port = free_port()
    with pytest.raises(
        BoardUnreachable, match=f"127.0.0.1 is on, but nothing listens on port {port}. Start sshd"
    ):
        open_session(with_link(ssh_board, port=port))


def test_a_name_without_an_address(ssh_board: Board) -> None:
    with pytest.raises(BoardUnreachable, match="the name 'board.invalid' leads to no address"):
        open_session(with_link(ssh_board, host="board.invalid"))


def test_no_key_to_log_in_with(ssh_board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with pytest.raises(
        BoardUnreachable, match="there is no SSH key here .*ssh-keygen -t ed25519 && ssh-copy-id"
    ):
        open_session(with_link(ssh_board, identity_file=""))


def test_no_python_on_the_board(ssh_board: Board) -> None:
    with pytest.raises(BoardUnreachable, match=r"ended before it greeted(.|\n)*no-such-python"):
        open_session(with_link(ssh_board, python="no-such-python"))
