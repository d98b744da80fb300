"""The host's side of a connection to a board: one call at a time, and the board's lease while it lasts.

open_session(board) reaches the board, greets it and takes its lease; Session then uploads, measures and
calls. A kernel that fails is a value in MeasureResult.error; a board that is gone is BoardUnreachable; a
call that the board refuses is DeviceError.
"""

from __future__ import annotations

import getpass
import hashlib
import hmac
import os
import platform
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from boards.board import Board
from device_runtime.protocol import (
    BUSY,
    CHUNK_BYTES,
    MAX_TIMEOUT_S,
    NOT_FOUND,
    REFUSED,
    Buffer,
    Connection,
    Frame,
    FrameDecoder,
    Greeting,
    MeasureRequest,
    MeasureResult,
    ProtocolError,
    proof,
    take,
    to_plain,
)
from toolkit.errors import BoardBusy, BoardUnreachable, TimedOut, ToolkitError
from toolkit.measure.transport import Transport, open_transport, read_secret

GREETING_S = 60.0  # an emulated or slow board compiles the runtime's sources first
ANSWER_S = 120.0  # beyond a request's own time limit: loading inputs, a slow disk
POLL_S = 0.25  # while waiting for the lease
NOISE_BYTES = 1 << 16  # what a login shell may print before the greeting

Progress = Callable[[int, int], None]  # bytes on the board, bytes in all


class DeviceError(ToolkitError):
    """The board understood a call and refused it, or failed at it; `code` is one of protocol's."""

    def __init__(self, method: str, error: ProtocolError) -> None:
        super().__init__(f"{method} on the board: {error.text}")
        self.code = error.code
        self.text = error.text
        self.details = error.details


class Session:
    """An open connection; use as a context manager. Calls from several threads take turns."""

    def __init__(
        self, board: Board, transport: Transport, greeting: Greeting, connection: Connection
    ) -> None:
        self.board = board
        self.hello = greeting
        self.token = 0
        self._transport = transport
        self._connection = connection
        self._lock = threading.Lock()
        self._calls = 0
        self._put: set[str] = set()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the board and its lease."""
        self._transport.close()

    def probe(self) -> dict[str, Any]:
        """Facts about the board: cpu, cores, caches, thermal, memory, storage, opencl, cuda."""
        return self.call("probe")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the runtime. Raises DeviceError, BoardUnreachable."""
        return self.exchange(method, params)[0]

    def exchange(
        self,
        method: str,
        params: dict[str, Any],
        buffers: tuple[Buffer, ...] = (),
        timeout_s: float = MAX_TIMEOUT_S + ANSWER_S,
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Call with raw buffers both ways. Raises DeviceError, BoardUnreachable."""
        with self._lock:
            self._calls += 1
            try:
                self._connection.send({"id": self._calls, "method": method, "params": params}, buffers)
                frame = self._receive(self._calls, timeout_s)
            except (OSError, ProtocolError) as error:
                raise _gone(self._transport, f"lost during {method}: {error}") from error
            if frame is None:
                raise _gone(self._transport, f"ended during {method}")
        if "error" in frame.header:
            raise DeviceError(method, read_error(frame))
        result = frame.header.get("result")
        if not isinstance(result, dict):
            raise _gone(self._transport, f"answered {method} with {result!r:.80}, expected a map")
        return result, frame.buffers

    def put(self, data: bytes, progress: Progress | None = None) -> str:
        """Upload what the board lacks of it; its SHA-256. Raises DeviceError, BoardUnreachable."""
        sha = hashlib.sha256(data).hexdigest()
        if sha in self._put:
            return sha
        state = self.call("status", sha=sha)
        offset = len(data) if state.get("size_bytes") is not None else int(state.get("received_bytes", 0))
        done = state.get("size_bytes") is not None
        while not done:
            offset = self._put_chunk(sha, data, min(offset, len(data)))
            done = offset == len(data)
            if progress is not None:
                progress(offset, len(data))
        self._put.add(sha)
        return sha

    def read(self, sha: str) -> bytes:
        """An object of the board's store. Raises DeviceError, BoardUnreachable."""
        data = b""
        while True:
            _, buffers = self.exchange("read", {"sha": sha, "offset": len(data)})
            if not buffers or not buffers[0]:
                return data
            data += buffers[0]

    def measure(self, request: MeasureRequest) -> MeasureResult:
        """Check and time one kernel. A kernel's failure is in the result. Raises DeviceError for a request
        that cannot be (an object that was never put), BoardUnreachable."""
        timeout_s = request.timeout_s + ANSWER_S
        try:
            plain, _ = self.exchange("measure", to_plain(request), timeout_s=timeout_s)
        except DeviceError as error:
            if error.code == NOT_FOUND:
                self._put.clear()  # the store made room; ask again before putting
            raise
        try:
            return MeasureResult.from_plain(plain)
        except ProtocolError as error:
            raise _gone(self._transport, f"answered measure with nonsense: {error}") from error

    def _put_chunk(self, sha: str, data: bytes, offset: int) -> int:
        chunk = memoryview(data)[offset : offset + CHUNK_BYTES]
        params = {"sha": sha, "total_bytes": len(data), "offset": offset}
        try:
            return int(self.exchange("put", params, (chunk,))[0]["received_bytes"])
        except DeviceError as error:
            if error.code != REFUSED or "offset" not in error.details or error.details["offset"] == offset:
                raise
            return int(error.details["offset"])  # somebody else's unfinished upload: go on from its end

    def _receive(self, number: int, timeout_s: float) -> Frame | None:
        """The answer to call `number`; answers to earlier, interrupted calls are passed over."""
        while True:
            frame = self._connection.receive(timeout_s)
            if frame is None or frame.header.get("id") in (number, 0):
                return frame


def open_session(
    board: Board, *, cache_dir: Path | None = None, wait_s: float = 0.0, holder: str = "", lease: bool = True
) -> Session:
    """Reach the board and take its lease, waiting up to `wait_s` for who holds it.

    `lease` False: look only (probe, status); measuring and putting are refused. `cache_dir` holds the
    runtime's archive and the emulation. Raises BoardUnreachable, BoardBusy (names the holder; TimedOut
    when it was waited for), InputError.
    """
    with ExitStack() as unfinished:
        transport = open_transport(board.link, cache_dir)
        unfinished.callback(transport.close)
        connection = Connection(transport, FrameDecoder(noise_bytes=NOISE_BYTES))
        greeting = _greet(transport, connection)
        if greeting.challenge:
            _authenticate(transport, connection, greeting, read_secret(board.link))
        session = Session(board, transport, greeting, connection)
        if lease:
            session.token = _take_lease(session, wait_s, holder or default_holder())
        unfinished.pop_all()
    return session


def default_holder() -> str:
    """Who this is, for whoever waits: user, machine and process."""
    return f"{getpass.getuser()}@{platform.node()} (process {os.getpid()})"


def read_error(frame: Frame) -> ProtocolError:
    """The error of a reply; a malformed one is an error of its own."""
    error = take(frame.header, "error", dict)
    details = error.get("details")
    return ProtocolError(
        take(error, "code", str), take(error, "text", str), details if isinstance(details, dict) else None
    )


def _greet(transport: Transport, connection: Connection) -> Greeting:
    try:
        frame = connection.receive(GREETING_S)
        if frame is None:
            raise _gone(
                transport, "ended before it greeted; it needs Python 3.8 or newer and a folder to write to"
            )
        return Greeting.from_plain(frame.header.get("greeting"))
    except TimeoutError as error:
        raise _gone(transport, f"did not greet within {GREETING_S:g} s") from error
    except (OSError, ProtocolError) as error:
        raise _gone(transport, f"did not greet: {error}") from error


def _authenticate(transport: Transport, connection: Connection, greeting: Greeting, key: bytes) -> None:
    own = secrets.token_hex(32)
    params = {"challenge": own, "proof": proof(key, "host", own, greeting.challenge)}
    try:
        connection.send({"id": 0, "method": "authenticate", "params": params})
        frame = connection.receive(GREETING_S)
        if frame is None:
            raise _gone(transport, "closed the connection during authentication")
        if "error" in frame.header:
            raise read_error(frame)
        given: str = take(take(frame.header, "result", dict), "proof", str)
    except (OSError, ProtocolError) as error:
        raise _gone(transport, f"refused this host: {error}") from error
    if not hmac.compare_digest(given.encode(), proof(key, "board", greeting.challenge, own).encode()):
        raise _gone(transport, "does not know the secret of link.secret_file; it may not be the board")


def _take_lease(session: Session, wait_s: float, holder: str) -> int:
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            return int(session.call("lease", holder=holder)["token"])
        except DeviceError as error:
            if error.code != BUSY:
                raise
            if time.monotonic() >= deadline_s:
                raise _busy(session.board, error, wait_s) from error
        time.sleep(POLL_S)


def _busy(board: Board, error: DeviceError, waited_s: float) -> ToolkitError:
    """Why there is no lease: somebody has it, or still had it when the time to wait was over."""
    if waited_s > 0:
        return TimedOut(
            f"Board {board.name} is still {error.text}, after waiting {waited_s:g} s for it. "
            "Wait longer, or ask the holder."
        )
    return BoardBusy(f"Board {board.name} is {error.text}. Try again later, or ask the holder.")


def _gone(transport: Transport, what: str) -> BoardUnreachable:
    words = transport.last_words()
    printed = f" It printed:\n{words}" if words else ""
    return BoardUnreachable(f"The runtime on {transport.where} {what}.{printed}")
