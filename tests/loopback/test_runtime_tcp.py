"""The opt-in TCP server: TLS with pinned certificates, and connections that do not disturb each other."""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from cryptography import x509

from boards.board import Board
from boards.description import Link
from device_runtime.protocol import Connection, FrameDecoder, Greeting, encode_frame, to_plain
from device_runtime.server import listen
from tests.loopback.conftest import CompileKernels
from tests.loopback.kernels import Kernels, assert_right
from tests.loopback.listening import listening
from tests.loopback.test_runtime_archive import INTERPRETERS
from toolkit.cli.main import main
from toolkit.errors import BoardUnreachable, InputError
from toolkit.measure.archive import runtime_archive
from toolkit.measure.credentials import make_credentials
from toolkit.measure.links.kinds import open_transport
from toolkit.measure.links.tcp import TcpTransport
from toolkit.measure.session import Session, open_session


@pytest.fixture
def tcp_board(tmp_path: Path, local_board: Board) -> Iterator[Board]:
    """A listening runtime, described as a board."""
    with listening(local_board, tmp_path) as (board, _):
        yield board


def linked(board: Board, **changes: object) -> Board:
    link = msgspec.structs.replace(board.link, **changes)
    changed: Board = msgspec.structs.replace(board, link=link)
    return changed


def connect(board: Board) -> socket.socket:
    return socket.create_connection((board.link.host, board.link.port), timeout=30)


def end_of(peer: socket.socket) -> bytes:
    """All that arrives until the other side closes."""
    received = b""
    try:
        while data := peer.recv(1 << 16):
            received += data
    except ConnectionResetError:  # closed with our bytes unread; also fine
        pass
    return received


@pytest.mark.slow
def test_idle_and_garbage_connections_beside_a_working_one(
    tcp_board: Board, compile_kernels: CompileKernels
) -> None:
    with ExitStack() as stack:
        for _ in range(listen.MAX_WAITING):
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
                assert b"TFBF" not in end_of(peer)
            assert_right(session, kernels)
            with open_session(tcp_board, lease=False) as other:
                assert other.hello.machine == os.uname().machine


def test_the_oldest_that_is_not_authenticated_makes_room(tcp_board: Board) -> None:
    with ExitStack() as stack:
        first, *_ = [stack.enter_context(connect(tcp_board)) for _ in range(listen.MAX_WAITING)]
        stack.enter_context(connect(tcp_board))
        start_s = time.monotonic()
        assert end_of(first) == b""
        assert time.monotonic() - start_s < listen.AUTH_DEADLINE_S / 2


@pytest.mark.slow
def test_one_deadline_until_authenticated_whatever_arrives(tcp_board: Board) -> None:
    """A connection that always sends one more byte of a handshake is over as soon as a silent one."""
    with connect(tcp_board) as silent, connect(tcp_board) as slow:
        start_s = time.monotonic()
        hello = bytes([22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3]) + bytes(400)  # the beginning of a ClientHello
        with pytest.raises(OSError):
            for byte in hello:
                slow.sendall(bytes([byte]))
                time.sleep(0.1)
        assert end_of(silent) == b""
        assert listen.AUTH_DEADLINE_S - 2 < time.monotonic() - start_s < 3 * listen.AUTH_DEADLINE_S


@pytest.mark.slow
def test_a_full_house_says_so_and_lets_who_waits_in_later(tcp_board: Board) -> None:
    with ExitStack() as stack:
        sessions = [
            stack.enter_context(open_session(tcp_board, lease=False)) for _ in range(listen.MAX_CONNECTIONS)
        ]
        with pytest.raises(BoardUnreachable, match="16 connections of this host's are open; close one"):
            open_session(tcp_board)
        sessions[3].close()
        deadline_s = time.monotonic() + 30
        while time.monotonic() < deadline_s:
            try:
                stack.enter_context(open_session(tcp_board)).put(b"in")
                return
            except BoardUnreachable:
                time.sleep(0.05)
        pytest.fail("nobody was let in after one had gone")


def test_an_authenticated_host_that_only_sits_there_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = socket.socketpair()
    context = listen.make_context(str(tmp_path), theirs.fileno())
    serving = threading.Thread(target=listen.serve, args=(Connection(_Plain(theirs)), context, 0.1))
    serving.start()
    ours.settimeout(30)
    decoder = FrameDecoder()
    while (frame := decoder.next()) is None or "greeting" in frame.header:
        decoder.feed(ours.recv(1 << 16))
    serving.join()
    assert frame.header["error"]["code"] == "deadline"
    assert "without the lease" in frame.header["error"]["text"]


class _Plain(TcpTransport):
    """Without TLS."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer  # type: ignore[assignment]


# ---------------------------------------------------------------------------------------- who is let in


def test_another_host_is_refused(tcp_board: Board, tmp_path: Path) -> None:
    """It trusts the board's certificate, but its own is not the pinned one."""
    make_credentials(tmp_path / "other-board.pem", tmp_path / "other.pem")
    lines = (tmp_path / "other.pem").read_text().splitlines()
    lines[1] = (tmp_path / "host.pem").read_text().splitlines()[1]
    (tmp_path / "other.pem").write_text("\n".join(lines))
    with pytest.raises(BoardUnreachable, match="does not accept this host's certificate|did not greet"):
        open_session(linked(tcp_board, tls_file=str(tmp_path / "other.pem")))
    with open_session(tcp_board) as session:
        session.put(b"the right key still works")


def test_a_host_without_a_certificate_gets_no_greeting(tcp_board: Board) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with connect(tcp_board) as peer, pytest.raises(ssl.SSLError), context.wrap_socket(peer) as secured:
        secured.sendall(encode_frame({"id": 1, "method": "probe", "params": {}}))
        while data := secured.recv(1 << 16):
            assert b"greeting" not in data


def test_nothing_is_answered_before_authentication(tcp_board: Board) -> None:
    with connect(tcp_board) as peer:
        peer.sendall(encode_frame({"id": 1, "method": "probe", "params": {}}))
        answer = end_of(peer)
    assert b"TFBF" not in answer and b"storage" not in answer


@pytest.fixture
def false_board(tcp_board: Board) -> Iterator[Callable[[Callable[[socket.socket], None]], Board]]:
    """A board where somebody else answers one connection: `false_board(what_it_does)`."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:

        def impostor(act: Callable[[socket.socket], None]) -> Board:
            def once() -> None:
                peer, _ = listener.accept()
                with peer:
                    act(peer)

            thread = threading.Thread(target=once)
            thread.start()
            stack.callback(thread.join)
            return linked(tcp_board, port=listener.getsockname()[1])

        yield impostor


def greet(stream: TcpTransport) -> None:
    """As a board does, and as an impostor did that wanted no proof."""
    connection = Connection(stream)
    connection.send({"greeting": to_plain(Greeting(2, "0.1.0", "3.8.10", "x86_64", 1))})
    while (frame := connection.receive(10)) is not None:
        connection.send({"id": frame.header["id"], "result": {"token": 1}})


def test_an_impostor_that_wants_no_proof_gets_nothing(
    false_board: Callable[[Callable[[socket.socket], None]], Board],
) -> None:
    received = b""

    def plain(peer: socket.socket) -> None:
        nonlocal received
        Connection(_Plain(peer)).send({"greeting": to_plain(Greeting(2, "0.1.0", "3.8.10", "x86_64", 1))})
        peer.settimeout(10)
        received = end_of(peer)

    with pytest.raises(BoardUnreachable, match="does not speak TLS as a runtime of this version does"):
        open_session(false_board(plain))
    assert b"lease" not in received and b"TFBF" not in received


def test_an_impostor_with_a_certificate_of_its_own_gets_nothing(
    false_board: Callable[[Callable[[socket.socket], None]], Board], tmp_path: Path
) -> None:
    make_credentials(tmp_path / "false.pem", tmp_path / "unused.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "false.pem")

    def own(peer: socket.socket) -> None:
        with pytest.raises(OSError), context.wrap_socket(peer, server_side=True) as secured:
            greet(TcpTransport(secured, "host"))
            raise ConnectionResetError  # in TLS 1.3 the host's refusal may only be seen here

    with pytest.raises(
        BoardUnreachable, match="shows another certificate than the board's .* may not be the board"
    ):
        open_session(false_board(own))


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_a_relay_changes_or_adds_never_arrives(tcp_board: Board) -> None:
    """Whoever stands between may pass bytes on or end the connection, and no more."""
    with socket.create_server(("127.0.0.1", 0)) as listener, connect(tcp_board) as behind:
        asked, changed = threading.Event(), threading.Event()

        def one_way(source: socket.socket, sink: socket.socket, spoiled: bool) -> None:
            with contextlib.suppress(OSError):  # either end has gone
                while data := source.recv(1 << 16):
                    if spoiled and asked.is_set():
                        data = data[:-1] + bytes([data[-1] ^ 1])
                        changed.set()
                    sink.sendall(data)
                sink.shutdown(socket.SHUT_WR)  # the other direction may still read from it

        with open_session_through(tcp_board, listener, behind, one_way) as session:
            session.put(b"through the relay")
            asked.set()
            with pytest.raises(BoardUnreachable, match="was lost during status"):
                session.put(b"changed on its way")
        assert changed.is_set()
    with open_session(tcp_board) as again:
        again.put(b"and the board goes on")


def open_session_through(
    board: Board, listener: socket.socket, behind: socket.socket, one_way: Callable[..., None]
) -> Session:
    def relay() -> None:
        front, _ = listener.accept()
        with front:
            back = threading.Thread(target=one_way, args=(behind, front, False), daemon=True)
            back.start()
            one_way(front, behind, True)
            back.join()

    threading.Thread(target=relay, daemon=True).start()
    return open_session(linked(board, port=listener.getsockname()[1]))


@pytest.mark.slow
def test_two_connections_share_the_board_by_lease(tcp_board: Board, compile_kernels: CompileKernels) -> None:
    with open_session(tcp_board) as first, open_session(tcp_board, lease=False) as second:
        assert second.probe(gpus=False).machine == os.uname().machine
        assert_right(first, Kernels(first, compile_kernels(os.uname().machine)))
    with open_session(tcp_board, wait_s=5.0) as third:
        assert third.token > first.token


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", INTERPRETERS)
def test_other_pythons_listen(interpreter: str, local_board: Board, tmp_path: Path) -> None:
    data = os.urandom(1 << 21)
    with listening(local_board, tmp_path, interpreter) as (board, _), open_session(board) as session:
        assert session.read(session.put(data), len(data)) == data
        transport = open_transport(board.link)
        assert isinstance(transport, TcpTransport)
        assert transport.peer.version() == "TLSv1.3"
        transport.close()


# ------------------------------------------------------------------------------------------ credentials


def test_the_archive_comes_with_credentials_for_both_sides(tmp_path: Path) -> None:
    output = tmp_path / "device_runtime.pyz"
    made = CliRunner().invoke(main, ["runtime", "archive", "-o", str(output)])
    assert made.exit_code == 0, made.output
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "device_runtime.board.pem",
        "device_runtime.host.pem",
        "device_runtime.pyz",
    ]
    assert "device_runtime.host.pem, link.tls_file of its file" in made.stdout
    again = CliRunner().invoke(main, ["runtime", "archive", "-o", str(output)])
    assert "device_runtime.host.pem (kept)" in again.stdout
    (tmp_path / "device_runtime.board.pem").unlink()
    half = CliRunner().invoke(main, ["runtime", "archive", "-o", str(output)])
    assert (half.exit_code, "is there without its other half" in half.stderr) == (2, True)


def test_credentials_are_for_their_owner_and_hold_whatever_the_clock_says(tmp_path: Path) -> None:
    files = tmp_path / "board.pem", tmp_path / "host.pem"
    assert make_credentials(*files)
    before = [path.read_bytes() for path in files]
    assert not make_credentials(*files), "made once, kept"
    assert [path.read_bytes() for path in files] == before
    for path in files:
        assert path.stat().st_mode & 0o777 == 0o600
        certificate = x509.load_pem_x509_certificate(
            path.read_bytes()[path.read_bytes().index(b"-----BEGIN CERT") :]
        )
        assert certificate.not_valid_before_utc < datetime.datetime.fromtimestamp(0, datetime.UTC)
        assert certificate.not_valid_after_utc.year == 9999


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda path: path.unlink(), "No such file.*toolkit runtime archive"),
        (lambda path: path.chmod(0o640), "others may read it; run: chmod 600"),
        (lambda path: path.write_bytes(b"a shared secret of earlier days\n"), "expected the first line"),
        (
            lambda path: path.write_text(path.read_text().replace("trusts ", "trusts AA")),
            "damaged credentials",
        ),
        (lambda path: path.write_text(path.read_text()[:-100]), "damaged credentials"),
        (
            lambda path: path.write_text(path.read_text().replace("version 1", "version 2")),
            "expected the first",
        ),
    ],
)
def test_credentials_that_cannot_be_used_are_refused_on_both_sides(
    tmp_path: Path, spoil: Callable[[Path], None], text: str
) -> None:
    board_file, host_file = tmp_path / "board.pem", tmp_path / "host.pem"
    make_credentials(board_file, host_file)
    for path in (board_file, host_file):
        spoil(path)
    with pytest.raises(InputError, match=f"link.tls_file .*{text}"):
        open_transport(Link(kind="tcp", host="127.0.0.1", port=1, tls_file=str(host_file)))
    archive = tmp_path / "runtime.pyz"
    archive.write_bytes(runtime_archive())
    command = [sys.executable, str(archive), "--device-dir", str(tmp_path / "d"), "--listen", "127.0.0.1:0"]
    done = subprocess.run([*command, "--tls", str(board_file)], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("runtime: ") and "Traceback" not in done.stderr


def test_listening_beyond_loopback_says_what_it_opens(tmp_path: Path) -> None:
    make_credentials(tmp_path / "board.pem", tmp_path / "host.pem")
    archive = tmp_path / "runtime.pyz"
    archive.write_bytes(runtime_archive())
    command = [sys.executable, str(archive), "--device-dir", str(tmp_path / "d"), "--listen", "0.0.0.0:0"]
    with subprocess.Popen(
        [*command, "--tls", str(tmp_path / "board.pem")], stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stderr is not None
        lines = [run.stderr.readline() for _ in range(3)]
        run.kill()
    assert lines[0].startswith("listening on 0.0.0.0:")
    assert "open to the network: who holds the key of the host's certificate (SHA-256 " in lines[1]
    assert f"can run native code here as user {os.getuid()}" in lines[2]


def test_nobody_listens(local_board: Board, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    make_credentials(tmp_path / "board.pem", tmp_path / "host.pem")
    link = Link(kind="tcp", host="127.0.0.1", port=port, tls_file=str(tmp_path / "host.pem"))
    with pytest.raises(BoardUnreachable, match=r"No runtime listens on .* Start it on the board: python3"):
        open_session(msgspec.structs.replace(local_board, link=link))


def test_a_tcp_board_without_credentials_is_bad_input(tcp_board: Board) -> None:
    with pytest.raises(InputError, match=r"expected link\.tls_file"):
        open_session(linked(tcp_board, tls_file=""))
