"""One suite for every kind of link (toolkit/measure/links): what a session may rely on over any of them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from boards.board import Board, load
from device_runtime.protocol import CHUNK_BYTES
from tests.loopback.conftest import CompileKernels, compile_kernels, descendants, in_folder, state_and_parent
from tests.loopback.kernels import Kernels, assert_right
from tests.loopback.listening import listening
from tests.loopback.sshd import SSHD, ssh_server
from toolkit.errors import BoardUnreachable
from toolkit.measure import emulation
from toolkit.measure.links.kinds import TRANSPORTS, open_transport
from toolkit.measure.session import Session, open_session

__all__ = ["compile_kernels"]
PATIENCE_S = 60.0


def local(folder: Path) -> Iterator[Board]:
    yield in_folder(load("host"), folder / "device")


def emulator(folder: Path) -> Iterator[Board]:
    if emulation.find() is None:
        pytest.skip("the emulation is not installed; run `make emulation`")
    yield in_folder(load("emulated-a53"), folder / "device")


def ssh(folder: Path) -> Iterator[Board]:
    if SSHD is None:
        pytest.skip("needs OpenSSH's server (Debian: openssh-server)")
    with ssh_server(folder) as link:
        yield in_folder(msgspec.structs.replace(load("host"), link=link), folder / "device")


def tcp(folder: Path) -> Iterator[Board]:
    with listening(in_folder(load("host"), folder / "device"), folder) as (board, _):
        yield in_folder(board, folder / "device")


@pytest.fixture(
    scope="module",
    params=[
        local,
        tcp,
        pytest.param(ssh, marks=pytest.mark.slow),
        pytest.param(emulator, marks=[pytest.mark.emulated, pytest.mark.slow]),
    ],
    ids=lambda kind: kind.__name__,
)
def board(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    yield from request.param(tmp_path_factory.mktemp(request.param.__name__))


@contextmanager
def connected(board: Board) -> Iterator[Session]:
    """A session; whoever had the board before may need a moment to let go of it."""
    with open_session(board, wait_s=PATIENCE_S) as session:
        yield session


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt also where a shell started the tests with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def wait_until_gone(pid: int) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while state_and_parent(pid)[0] not in "ZX":
        assert time.monotonic() < deadline_s, f"process {pid} is still there"
        time.sleep(0.01)


def test_every_kind_is_in_this_suite() -> None:
    assert set(TRANSPORTS) == {kind.__name__ for kind in (local, ssh, tcp, emulator)}


def test_the_runtime_greets_and_gives_the_lease(board: Board) -> None:
    with connected(board) as session:
        assert session.hello.machine == board.targets[0].triple.split("-")[0]
        assert session.hello.python.startswith("3.")
        first = session.token
    with connected(board) as session:
        assert session.token > first > 0


def test_what_was_put_is_there_whole(board: Board) -> None:
    data = os.urandom(2 * CHUNK_BYTES + 3)
    seen: list[int] = []
    with connected(board) as session:
        sha = session.put(data, lambda done, total: seen.append(done))
        assert session.read(sha, len(data)) == data
    assert seen == [CHUNK_BYTES, 2 * CHUNK_BYTES, len(data)]
    with connected(board) as session:
        assert session.put(data, lambda done, total: pytest.fail("it was there")) == sha


@pytest.mark.slow
def test_a_kernel_is_measured_and_a_wild_one_is_a_failure(
    board: Board, compile_kernels: CompileKernels
) -> None:
    with connected(board) as session:
        kernels = Kernels(session, compile_kernels(session.hello.machine))
        assert_right(session, kernels)
        failure = session.measure(kernels.request("segfault")).error
        assert failure is not None and failure.kind == "crash"
        assert_right(session, kernels)


@pytest.mark.slow
def test_an_interrupted_host_takes_its_measurement_with_it(
    board: Board, compile_kernels: CompileKernels
) -> None:
    measuring: set[int] = set()

    def interrupt(runtime: int) -> None:
        while not measuring:
            measuring.update(descendants(runtime))
        os.kill(os.getpid(), signal.SIGINT)

    with interruptible(), pytest.raises(KeyboardInterrupt), connected(board) as session:
        kernels = Kernels(session, compile_kernels(session.hello.machine))
        runtime = session.hello.pid
        threading.Thread(target=interrupt, args=(runtime,), daemon=True).start()
        session.measure(kernels.request("hangs", timeout_s=10 * PATIENCE_S))
    for pid in (runtime, *measuring):
        wait_until_gone(pid)
    with connected(board) as session:  # long before the measurement would have ended
        assert_right(session, kernels)


def test_a_runtime_that_dies_is_unreachable_and_named(board: Board) -> None:
    with connected(board) as session:
        os.kill(session.hello.pid, signal.SIGKILL)
        with pytest.raises(BoardUnreachable) as caught:
            session.probe(gpus=False)
    assert session._transport.where in str(caught.value)
    with connected(board) as session:
        assert session.put(b"the next connection works")


@pytest.mark.slow  # the end of a runtime that is still sending is waited for
def test_no_more_is_taken_than_was_asked_for(board: Board) -> None:
    data = bytes(CHUNK_BYTES)
    with connected(board) as session:
        sha = session.put(data)
        session._connection.decoder.max_payload_bytes = 1000
        with pytest.raises(BoardUnreachable, match="lost during read: frame announces .* at most .* 1000"):
            session.read(sha, len(data))


def test_silence_ends_in_time(board: Board) -> None:
    transport = open_transport(board.link)
    try:
        while transport.read(PATIENCE_S).find(b"greeting") < 0:
            pass
        with pytest.raises(TimeoutError, match=r"within 0\.1 s"):
            while True:  # the rest of the greeting
                transport.read(0.1)
    finally:
        transport.close()


def test_closing_ends_the_runtime_and_nothing_can_be_asked_any_more(board: Board) -> None:
    with connected(board) as session:
        runtime = session.hello.pid
    wait_until_gone(runtime)
    session.close()  # twice is fine
    with pytest.raises(BoardUnreachable, match="probe"):
        session.probe(gpus=False)
