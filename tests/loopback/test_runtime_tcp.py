"""The opt-in TCP server: mutual authentication, and connections that do not disturb each other."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import pytest

from boards.board import Board, Link
from device_runtime import server
from device_runtime.protocol import (
    Connection,
    FrameDecoder,
    Greeting,
    MeasureRequest,
    encode_frame,
    proof,
    to_plain,
)
from tests.loopback.conftest import CompileKernels
from tests.loopback.kernels import Kernels, assert_right
from toolkit.errors import BoardUnreachable, InputError
from toolkit.measure.archive import runtime_archive
from toolkit.measure.session import open_session
from toolkit.measure.transport import SocketTransport

KEY = b"0123456789abcdef0123456789abcdef"


@pytest.fixture
def tcp_board(tmp_path: Path, local_board: Board) -> Iterator[Board]:
    """A listening runtime, described as a board."""
    archive, key = tmp_path / "runtime.pyz", tmp_path / "key"
    archive.write_bytes(runtime_archive())
    key.write_bytes(KEY + b"\n")
    key.chmod(0o600)
    command = [
        sys.executable, str(archive), "--device-dir", str(tmp_path / "device"),
        "--listen", "127.0.0.1:0", "--key-file", str(key),
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        match = re.fullmatch(r"listening on 127\.0\.0\.1:(\d+)\n", line)
        assert match is not None, line
        link = Link(kind="tcp", host="127.0.0.1", port=int(match[1]), secret_file=str(key))
        yield msgspec.structs.replace(local_board, link=link)
        process.kill()


def connect(board: Board) -> socket.socket:
    return socket.create_connection((board.link.host, board.link.port), timeout=10)


def end_of(peer: socket.socket) -> bytes:
    """All that arrives until the other side closes."""
    received = b""
    while data := peer.recv(1 << 16):
        received += data
    return received


def test_idle_and_garbage_connections_beside_a_working_one(
    tcp_board: Board, compile_kernels: CompileKernels
) -> None:
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(connect(tcp_board))  # says nothing
        garbage = stack.enter_context(connect(tcp_board))
        garbage.sendall(b"\x00\xff" * 10_000)
        with open_session(tcp_board) as session:
            kernels = Kernels(session, compile_kernels(os.uname().machine))
            assert_right(session, kernels)
            late = stack.enter_context(connect(tcp_board))
            late.sendall(b"TFBF" + b"\x7f" * 12)
            assert_right(session, kernels)
            for peer in (garbage, late):
                with suppress(ConnectionResetError):  # closed with our bytes unread; also fine
                    assert b"bad_frame" in (answer := end_of(peer)) or b"too_large" in answer
            assert_right(session, kernels)


def test_a_wrong_key_is_refused(tcp_board: Board, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"another key altogether..........")
    link = msgspec.structs.replace(tcp_board.link, secret_file=str(other))
    with pytest.raises(BoardUnreachable, match="refused this host: wrong proof"):
        open_session(msgspec.structs.replace(tcp_board, link=link))
    with open_session(tcp_board) as session:
        session.put(b"the right key still works")


def test_a_missing_secret_is_bad_input(tcp_board: Board) -> None:
    for secret_file, text in (("", "expected link.secret_file"), ("/no/such/file", "No such file")):
        link = msgspec.structs.replace(tcp_board.link, secret_file=secret_file)
        with pytest.raises(InputError, match=text):
            open_session(msgspec.structs.replace(tcp_board, link=link))


def test_nothing_is_answered_before_authentication(tcp_board: Board) -> None:
    with connect(tcp_board) as peer:
        peer.sendall(encode_frame({"id": 1, "method": "probe", "params": {}}))
        answer = end_of(peer)
    assert b"the first call must be 'authenticate'" in answer
    assert b"storage" not in answer


def test_a_recorded_proof_is_of_no_use(tcp_board: Board) -> None:
    answers = []
    recorded = None
    for _ in range(2):
        with connect(tcp_board) as peer:
            connection = Connection(SocketTransport(peer, "there"))
            frame = connection.receive(10)
            assert frame is not None
            greeting = Greeting.from_plain(frame.header["greeting"])
            own = "ab" * 32
            recorded = recorded or {"challenge": own, "proof": proof(KEY, "host", own, greeting.challenge)}
            connection.send({"id": 1, "method": "authenticate", "params": recorded})
            answer = connection.receive(10)
            assert answer is not None
            answers.append(answer.header)
    assert "result" in answers[0]
    assert answers[1]["error"]["code"] == "unauthenticated"


def test_a_board_that_does_not_know_the_key_is_not_trusted(tcp_board: Board) -> None:
    """A false board greets, takes any proof, and answers with one of its own making."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = msgspec.structs.replace(tcp_board.link, port=listener.getsockname()[1])
        pid = os.fork()
        if pid == 0:
            peer, _ = listener.accept()
            greeting = Greeting(1, "x", "3.8", "x", 1, challenge="00" * 32)
            connection = Connection(SocketTransport(peer, "host"), FrameDecoder())
            connection.send({"greeting": to_plain(greeting)})
            connection.receive(10)
            connection.send({"id": 0, "result": {"proof": "00" * 32}})
            os._exit(0)
        with pytest.raises(BoardUnreachable, match="does not know the secret"):
            open_session(msgspec.structs.replace(tcp_board, link=link))
        os.waitpid(pid, 0)


def test_two_connections_share_the_board_by_lease(tcp_board: Board, compile_kernels: CompileKernels) -> None:
    with open_session(tcp_board) as first, open_session(tcp_board, lease=False) as second:
        assert second.probe().machine == os.uname().machine
        kernels = Kernels(first, compile_kernels(os.uname().machine))
        assert_right(first, kernels)
    with open_session(tcp_board, wait_s=5.0) as third:
        assert third.token > first.token
    assert isinstance(kernels.request("right"), MeasureRequest)


def test_a_key_file_that_others_can_read_or_that_is_short_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(KEY)
    key.chmod(0o644)
    with pytest.raises(server.ProtocolError, match="run: chmod 600"):
        server.read_key(str(key))
    key.write_bytes(b"short")
    key.chmod(0o600)
    with pytest.raises(server.ProtocolError, match="at least 16 bytes, found 5"):
        server.read_key(str(key))


def test_nobody_listens(local_board: Board, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    link = Link(kind="tcp", host="127.0.0.1", port=port, secret_file=str(tmp_path / "key"))
    with pytest.raises(BoardUnreachable, match=r"No runtime listens on .* Start it on the board: python3"):
        open_session(msgspec.structs.replace(local_board, link=link))
