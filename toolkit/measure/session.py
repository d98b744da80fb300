"""The host's side of a connection to a board: calls, and the board's lease while it lasts.

open_session(board) reaches the board, greets it and takes its lease; Session then uploads, measures and
calls. A kernel that fails is a value in MeasureResult.error; a board that is gone, or answers nonsense, is
BoardUnreachable; a call that the board refuses is DeviceError.

Nothing that a board says is trusted: each answer is made a type (replies.py) or refused, each loop goes on
only while there is progress, sizes are bounded by what the host expects, and texts are printable before
anything else sees them (`_heard`).
"""

from __future__ import annotations

import getpass
import hashlib
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from boards.board import Board
from device_runtime.protocol import (
    BAD_FRAME,
    BAD_HASH,
    BUSY,
    CHUNK_BYTES,
    FAILED,
    NO_LEASE,
    NO_SPACE,
    NOT_ALLOWED,
    NOT_FOUND,
    REFUSED,
    UNTRUSTED,
    Buffer,
    Connection,
    Frame,
    FrameDecoder,
    Greeting,
    MeasureRequest,
    MeasureResult,
    ProtocolError,
    take,
    to_plain,
)
from toolkit.errors import (
    BoardBusy,
    BoardUnreachable,
    InputError,
    OutputError,
    TimedOut,
    ToolkitError,
    VerificationError,
)
from toolkit.escaping import printable, printable_plain
from toolkit.measure.links.kinds import open_transport
from toolkit.measure.links.transport import Transport
from toolkit.measure.replies import Lease, Probe, Received, StoredObject, reply_of

GREETING_S = 60.0  # an emulated or slow board compiles the runtime's sources first
ANSWER_S = 120.0  # beyond a request's own `timeout_s`: loading inputs, a slow disk
POLL_S = 0.25  # while waiting for the lease
MOST_WORDS = 2000  # of what the other side printed
NOISE_BYTES = 1 << 16  # what a login shell may print before the greeting

Progress = Callable[[int, int], None]  # bytes on the board, bytes in all
R = TypeVar("R")


class DeviceError(ToolkitError):
    """The board understood a call and refused it, or failed at it; `code` is one of protocol's."""

    exit_code = BoardUnreachable.exit_code

    def __init__(self, method: str, error: ProtocolError) -> None:
        super().__init__(f"{method} on the board: {error.text}")
        self.code = error.code
        self.text = error.text
        self.details = error.details


class StorageFailed(OutputError, DeviceError):
    """The board's storage is full, does not let the runtime write, or fails; the text says what to do."""


class LeaseLost(BoardBusy, DeviceError):
    """The board was given to somebody else meanwhile."""


class Untrusted(VerificationError, DeviceError):
    """The board does not accept a bundle's signer, board or age."""


class Refused(InputError, DeviceError):
    """The board will not do it; the text says why, and what to do."""


_REFUSALS: dict[str, type[DeviceError]] = {
    NO_SPACE: StorageFailed,
    NOT_ALLOWED: StorageFailed,
    FAILED: StorageFailed,
    NO_LEASE: LeaseLost,
    REFUSED: Refused,
    UNTRUSTED: Untrusted,
}


class _Call(NamedTuple):
    """A call that was sent: its number, and how long its answer may take."""

    number: int
    method: str
    timeout_s: float


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
        self._unanswered: set[int] = set()
        # With the answer, if it came while another was waited for.
        self._awaited: dict[_Call, Frame | None] = {}
        self._put: set[str] = set()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the board and its lease."""
        self._transport.close()

    def probe(self, gpus: bool = True) -> Probe:
        """What the board is and how it is doing; without `gpus`, which take seconds, these are left out."""
        return self.call("probe", Probe, gpus=gpus)

    def call(self, method: str, kind: type[R], /, **params: Any) -> R:
        """Call a method of the runtime; its answer as `kind`. Raises DeviceError, BoardUnreachable."""
        answer, _ = self.exchange(method, params)
        with self._sense(method):
            return reply_of(kind, answer)

    def exchange(
        self, method: str, params: dict[str, Any], buffers: tuple[Buffer, ...] = ()
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Call with raw buffers both ways; an answer of any entries. Raises DeviceError, BoardUnreachable."""
        return self._answer(self._asked(method, params, buffers))

    def _asked(self, method: str, params: dict[str, Any], buffers: tuple[Buffer, ...] = ()) -> _Call:
        """Send a call. Raises BoardUnreachable."""
        with self._lock, self._connected(method):
            if buffers:  # a board that measures reads nothing, and what is written has a deadline
                for begun in list(self._awaited):
                    self._receive(begun)
            self._calls += 1
            call = _Call(self._calls, method, float(params.get("timeout_s", 0.0)) + ANSWER_S)
            self._unanswered.add(call.number)
            self._connection.send({"id": call.number, "method": method, "params": params}, buffers)
            self._awaited[call] = None
        return call

    def _answer(self, call: _Call) -> tuple[dict[str, Any], list[bytes]]:
        """Wait for the answer to a call. Raises DeviceError, BoardUnreachable."""
        with self._lock, self._connected(call.method):
            try:
                frame = self._receive(call)
            finally:
                del self._awaited[call]
        if frame is None:
            raise _gone(self._transport, f"ended during {call.method}")
        with self._sense(call.method):
            if "error" not in frame.header:
                return take(frame.header, "result", dict), frame.buffers
            refusal = read_error(frame)
        if refusal.code == NOT_FOUND:
            self._put.clear()  # the store made room, or found an object damaged; ask again before putting
        raise _REFUSALS.get(refusal.code, DeviceError)(call.method, refusal)

    def put(self, data: bytes, progress: Progress | None = None) -> str:
        """Upload what the board lacks of it; its SHA-256. Raises DeviceError, BoardUnreachable."""
        sha = hashlib.sha256(data).hexdigest()
        if sha in self._put:
            return sha
        state = self.call("status", StoredObject, sha=sha)
        if state.size_bytes is None:
            self._upload(
                sha, data, min(state.received_bytes, len(data)), progress or (lambda done, total: None)
            )
        self._put.add(sha)
        return sha

    def read(self, sha: str, size_bytes: int) -> bytes:
        """An object of the board's store, which has this size. Raises DeviceError, BoardUnreachable."""
        data = bytearray()
        while True:
            _, buffers = self.exchange("read", {"sha": sha, "offset": len(data)})
            data += b"".join(buffers)
            if len(data) == size_bytes and hashlib.sha256(data).hexdigest() == sha:
                return bytes(data)
            if len(data) >= size_bytes or sum(map(len, buffers)) != CHUNK_BYTES:
                raise self._nonsense("read", f"{len(data)} bytes that are not the {size_bytes} of {sha}")

    def measure(self, request: MeasureRequest) -> MeasureResult:
        """Check and time one kernel. A kernel's failure is in the result. Raises DeviceError for a request
        that cannot be (an object that was never put), BoardUnreachable."""
        return self.measuring(request)()

    def measuring(self, request: MeasureRequest) -> Callable[[], MeasureResult]:
        """Begin what `measure` does; the function waits for its end, and may be called once or not at all.
        Raises BoardUnreachable, and the function what `measure` raises."""
        call = self._asked("measure", to_plain(request))

        def measured() -> MeasureResult:
            plain, _ = self._answer(call)
            with self._sense("measure"):
                result = MeasureResult.from_plain(plain)
            most = 0 if request.timing is None else request.timing.repeat
            some = request.timing is not None and (request.timing.give_up_s > 0 or request.timing.few > 0)
            least = min(most, 1) if some else most
            if result.error is None and not least <= len(result.seconds) <= most:
                raise self._nonsense("measure", f"{len(result.seconds)} times, expected {least} to {most}")
            return result

        return measured

    def _upload(self, sha: str, data: bytes, offset: int, progress: Progress) -> None:
        """Send what is missing from `offset` on. The board may correct that once: somebody else's unfinished
        upload goes on from its own end, a damaged one from the beginning."""
        corrected = False
        while True:
            chunk = memoryview(data)[offset : offset + CHUNK_BYTES]
            params = {"sha": sha, "total_bytes": len(data), "offset": offset}
            try:
                answer, _ = self.exchange("put", params, (chunk,))
            except DeviceError as error:
                right = 0 if error.code == BAD_HASH else error.details.get("offset")
                if (
                    corrected
                    or error.code not in (REFUSED, BAD_HASH)
                    or type(right) is not int
                    or not 0 <= right <= len(data)
                ):
                    raise
                offset, corrected = right, True
                continue
            with self._sense("put"):
                received_bytes = reply_of(Received, answer).received_bytes
            if received_bytes not in (offset + len(chunk), len(data)):
                what = f"{received_bytes} bytes after {offset + len(chunk)} of {len(data)} were sent"
                raise self._nonsense("put", what)
            offset = received_bytes
            progress(offset, len(data))
            if offset == len(data):
                return

    def _receive(self, call: _Call) -> Frame | None:
        """The answer to a call. Those to calls that were begun before are kept for them; interrupted ones may
        each be answered once, to nobody."""
        while (frame := self._awaited[call]) is None:
            heard = _heard(self._connection, call.timeout_s)
            number = None if heard is None else heard.header.get("id")
            if heard is None or (number == 0 and "error" in heard.header):
                return heard
            if type(number) is not int or number not in self._unanswered:
                raise ProtocolError(BAD_FRAME, f"answer to {number!r:.40}, expected {call.number}")
            self._unanswered.discard(number)
            self._awaited |= {begun: heard for begun in self._awaited if begun.number == number}
        return frame

    @contextmanager
    def _connected(self, method: str) -> Iterator[None]:
        """A connection that fails is BoardUnreachable."""
        try:
            yield
        except (OSError, ProtocolError) as error:
            raise _gone(self._transport, f"was lost during {method}: {error}") from error

    @contextmanager
    def _sense(self, method: str) -> Iterator[None]:
        """Whatever in an answer cannot be used is BoardUnreachable."""
        try:
            yield
        except ProtocolError as error:
            raise self._nonsense(method, str(error)) from error

    def _nonsense(self, method: str, what: str) -> BoardUnreachable:
        return _gone(self._transport, f"answered {method} with nonsense: {what}")


def open_session(
    board: Board,
    *,
    cache_dir: Path | str | None = None,
    wait_s: float = 0.0,
    holder: str = "",
    lease: bool = True,
) -> Session:
    """Reach the board and take its lease, waiting up to `wait_s` for who holds it.

    `lease` False: look only (probe, status); measuring and putting are refused. `cache_dir` holds the
    runtime's archive and the emulation. Raises BoardUnreachable, BoardBusy (names the holder; TimedOut
    when it was waited for), InputError.
    """
    with ExitStack() as unfinished:
        transport = open_transport(board.link, Path(cache_dir) if cache_dir else None)
        unfinished.callback(transport.close)
        connection = Connection(
            transport, FrameDecoder(max_payload_bytes=CHUNK_BYTES, noise_bytes=NOISE_BYTES)
        )
        greeting = _greet(transport, connection)
        session = Session(board, transport, greeting, connection)
        if lease:
            session.token = _take_lease(session, wait_s, holder or default_holder())
        unfinished.pop_all()
    return session


def put_again(work: Callable[[], R]) -> R:
    """The result of `work`, which puts objects and makes a call that needs them; once more when the board has
    lost one in between."""
    try:
        return work()
    except DeviceError as error:
        if error.code != NOT_FOUND or "sha" not in error.details:
            raise
    return work()


def fastest_s(measured: Callable[[], MeasureResult], session: Session, target: str, what: str) -> float:
    """The shortest time of a loop that measures the board itself, in seconds.

    Raises:
        VerificationError: it fails, or computes something wrong.
    """
    result = put_again(measured)
    if result.error is not None:
        raise VerificationError(
            f"{what} failed on board {session.board.name}, target {target}: "
            f"{result.error.kind}: {result.error.text}; check its cpu and features in the board file"
        )
    return min(result.seconds)


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


def _heard(connection: Connection, timeout_s: float) -> Frame | None:
    """The next frame, every text in it printable and short: the one place where a board's words come in."""
    frame = connection.receive(timeout_s)
    return (
        None if frame is None else Frame(cast(dict[str, Any], printable_plain(frame.header)), frame.buffers)
    )


def _greet(transport: Transport, connection: Connection) -> Greeting:
    try:
        frame = _heard(connection, GREETING_S)
        if frame is None:
            raise _gone(transport, f"ended before it greeted; {transport.silence}")
        if "error" in frame.header:
            raise _gone(transport, f"refused to be spoken to: {read_error(frame).text}")
        return Greeting.from_plain(frame.header.get("greeting"))
    except TimeoutError as error:
        raise _gone(transport, f"did not greet within {GREETING_S:g} s") from error
    except (OSError, ProtocolError) as error:
        raise _gone(transport, f"did not greet: {error}") from error


def _take_lease(session: Session, wait_s: float, holder: str) -> int:
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            return session.call("lease", Lease, holder=holder).token
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
    words = printable(transport.last_words(), MOST_WORDS)
    printed = f" It printed:\n{words}" if words else ""
    return BoardUnreachable(f"The runtime on {transport.where} {what}.{printed}")
