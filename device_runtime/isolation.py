"""Run something that may crash, hang, exit or scribble, in a child process of its own.

What enters: a function that returns a plain dict, and limits. What leaves: an Outcome with that dict, or with
a typed failure. The child is forked (so it inherits the inputs copy-on-write), leads a session of its own, is
killed with its whole process group at the deadline, and answers through a pipe: nonce, length, msgpack and a
digest over both. Anything else that comes out of the pipe, or nothing, means that the child crashed.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import resource
import select
import signal
import struct
import sys
import time
import traceback
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Tuple

import msgpack

from device_runtime.protocol import MeasureFailure

WATCH_S = 0.05  # how often the child's memory is looked at
ENDING_S = 0.001  # and whether it has ended, once its pipe is closed
MAX_ANSWER_BYTES = 1 << 20
MAX_OUTPUT_BYTES = 1 << 20  # of what the child prints; more is killed by SIGXFSZ
ADDRESS_SLACK_BYTES = 1 << 30  # address space is cheap: thread stacks, allocator arenas
# Python ignores or catches the first three; a driver in the parent may have taken the others, and a kernel
# that raises one must be seen to die of it.
TAKEN_SIGNALS = (
    signal.SIGINT,
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGILL,
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGABRT,
    signal.SIGTRAP,
)
PR_SET_PDEATHSIG = 1
NONCE_BYTES = 32
LENGTH = struct.Struct(">I")

LIBC = ctypes.CDLL(None, use_errno=True)


class Fault(Exception):
    """Raised by the isolated function to fail in a typed way; `kind` is one of protocol.FAILURE_KINDS."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


class PeerGone(Exception):
    """The host closed its connection while the child ran; the child has been killed."""


@dataclass(frozen=True)
class Limits:
    """Wall time, and memory beyond what the parent already has. GPU drivers reserve far more address space
    than they use; for them only resident memory is limited. `file_bytes`: of any file, what the child prints
    included."""

    timeout_s: float
    memory_bytes: int
    limit_address_space: bool = True
    file_bytes: int = MAX_OUTPUT_BYTES


@dataclass(frozen=True)
class Outcome:
    """`answer` when the child gave one (it may carry a failure, too), else only `failure`; `wall_s` from
    before the fork until the child was gone."""

    answer: Optional[Dict[str, Any]]
    failure: Optional[MeasureFailure]
    wall_s: float


def run_isolated(
    work: Callable[[], Dict[str, Any]], limits: Limits, watch_fd: Optional[int] = None
) -> Outcome:
    """Run `work` in a child. Raises PeerGone when `watch_fd` (the host's connection) hangs up meanwhile."""
    started_s = time.monotonic()
    nonce = os.urandom(NONCE_BYTES)
    base_bytes = memory_of("self")
    answer_fd, child_fd = os.pipe()
    output_fd = os.memfd_create("output")
    try:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _be_the_child(work, limits, (child_fd, output_fd, parent), nonce)
        os.close(child_fd)
        child = _Child(pid, answer_fd, nonce, limits, base_bytes)
        try:
            reason = child.wait(started_s + limits.timeout_s, watch_fd)
        finally:
            status, peak_bytes = _kill(pid)
        answer = child.answer() if reason == "" else None
        failure = None
        if answer is None:
            reason = reason or ("garbled" if child.complete() else "")
            failure = _failure(reason, status, peak_bytes - base_bytes[1], limits, _tail(output_fd))
        elif "failure" in answer:
            failure = MeasureFailure.from_plain(answer.pop("failure"))
        return Outcome(answer, failure, time.monotonic() - started_s)
    finally:
        os.close(answer_fd)
        os.close(output_fd)


def memory_of(pid: object) -> Tuple[int, int]:
    """Address space and resident bytes of a process; (0, 0) when it has gone."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            words = file.read().split()
    except OSError:
        return 0, 0
    page_bytes = resource.getpagesize()
    return int(words[0]) * page_bytes, int(words[1]) * page_bytes


# ------------------------------------------------------------------------------------------ in the child


def _be_the_child(
    work: Callable[[], Dict[str, Any]], limits: Limits, fds_and_parent: Tuple[int, int, int], nonce: bytes
) -> None:
    answer_fd, output_fd, parent = fds_and_parent
    try:
        os.setsid()
        die_with_parent(parent)
        for number in TAKEN_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(output_fd, 1)
        os.dup2(output_fd, 2)
        _close_all_but(answer_fd)
        _limit(limits)
        try:
            answer = work()
        except Fault as fault:
            answer = {"failure": {"kind": fault.kind, "text": fault.text, "signal": None}}
        except MemoryError as error:
            text = f"out of memory before the kernel ran: {error}"
            answer = {"failure": {"kind": "out_of_memory", "text": text, "signal": None}}
        packed = msgpack.packb(answer)
        digest = hashlib.sha256(nonce + packed).digest()
        data = memoryview(nonce + LENGTH.pack(len(packed)) + packed + digest)
        while data:
            data = data[os.write(answer_fd, data) :]
    finally:
        if sys.exc_info()[0] is not None:
            os.write(2, traceback.format_exc().encode())
        os._exit(0)  # never back into the server's code, whatever was raised


def die_with_parent(parent: int) -> None:
    """Have this process killed when `parent` ends, or at once when it has already."""
    LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def _close_all_but(kept_fd: int) -> None:
    """The connection and the lease are the server's; a child that lives on must not hold them."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != kept_fd:
            try:
                os.close(int(name))
            except OSError:
                continue  # the listing's own descriptor


def _limit(limits: Limits) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file_bytes, limits.file_bytes))
    if limits.limit_address_space and sys.maxsize > 1 << 32:
        address_bytes = memory_of("self")[0] + limits.memory_bytes + ADDRESS_SLACK_BYTES
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        if hard == resource.RLIM_INFINITY or hard > address_bytes:
            resource.setrlimit(resource.RLIMIT_AS, (address_bytes, address_bytes))
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")  # if memory ends after all, this process goes first


# ----------------------------------------------------------------------------------------- in the parent


class _Child:
    def __init__(
        self, pid: int, answer_fd: int, nonce: bytes, limits: Limits, base_bytes: Tuple[int, int]
    ) -> None:
        self.pid = pid
        self.answer_fd = answer_fd
        self.nonce = nonce
        self.limits = limits
        self.allowed_bytes = base_bytes[1] + limits.memory_bytes
        self.received = bytearray()

    def wait(self, deadline_s: float, watch_fd: Optional[int]) -> str:
        """Until it has answered or ended (""), or must be killed ("timeout", "memory")."""
        poller = select.poll()
        poller.register(self.answer_fd, select.POLLIN)
        if watch_fd is not None:
            poller.register(watch_fd, select.POLLRDHUP)
        look_s = WATCH_S
        while not self._ended():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return "timeout"
            ready = [fd for fd, _ in poller.poll(1 + 1e3 * min(left_s, look_s))]
            if watch_fd in ready:
                raise PeerGone("the host closed the connection during a measurement")
            if ready:
                data = os.read(self.answer_fd, 1 << 16)
                self.received += data
                if self.complete():
                    return ""
                if not data:
                    poller.unregister(self.answer_fd)
                    look_s = ENDING_S
            elif memory_of(self.pid)[1] > self.allowed_bytes:
                return "memory"
        self._drain()
        return ""

    def _drain(self) -> None:
        """Read what a child that has ended left in the pipe: it may have answered since the last look."""
        poller = select.poll()
        poller.register(self.answer_fd, select.POLLIN)
        while not self.complete() and poller.poll(0):
            data = os.read(self.answer_fd, 1 << 16)
            if not data:
                return
            self.received += data

    def _ended(self) -> bool:
        """Asked because something that the child started may hold the pipe open."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def complete(self) -> bool:
        """Whether as much as an answer has arrived, right or not."""
        if len(self.received) < NONCE_BYTES + LENGTH.size:
            return False
        length: int = LENGTH.unpack_from(self.received, NONCE_BYTES)[0]
        return len(self.received) >= NONCE_BYTES + LENGTH.size + min(length, MAX_ANSWER_BYTES) + 32

    def answer(self) -> Optional[Dict[str, Any]]:
        """What the child answered; None unless nonce, length and digest are right."""
        start = NONCE_BYTES + LENGTH.size
        if len(self.received) < start + 32 or bytes(self.received[:NONCE_BYTES]) != self.nonce:
            return None
        packed, digest = bytes(self.received[start:-32]), bytes(self.received[-32:])
        if hashlib.sha256(self.nonce + packed).digest() != digest:
            return None
        answer: Dict[str, Any] = msgpack.unpackb(packed)
        return answer


def _kill(pid: int) -> Tuple[int, int]:
    """Kill the child and its group; its wait status and the peak of its resident bytes."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # no group yet, or gone already
    _, status, usage = os.wait4(pid, 0)
    return status, usage.ru_maxrss * 1024


def _tail(output_fd: int) -> str:
    size = os.fstat(output_fd).st_size
    return os.pread(output_fd, 1000, max(0, size - 1000)).decode(errors="replace").strip()


def _failure(reason: str, status: int, grown_bytes: int, limits: Limits, output: str) -> MeasureFailure:
    printed = f"; it printed: {output}" if output else ""
    memory = f"{limits.memory_bytes >> 20} MiB"
    if reason == "timeout":
        return MeasureFailure("timeout", f"no answer within {limits.timeout_s:g} s{printed}")
    if reason == "memory":
        return MeasureFailure("out_of_memory", f"used more than the {memory} it may{printed}")
    if reason == "garbled":
        return MeasureFailure("crash", f"something wrote over its answer{printed}")
    if not os.WIFSIGNALED(status):
        return MeasureFailure("crash", f"exited with status {os.WEXITSTATUS(status)} and no answer{printed}")
    number = os.WTERMSIG(status)
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if number == signal.SIGKILL:
        return MeasureFailure(
            "out_of_memory", f"killed by the system, most likely for memory{printed}", number
        )
    if grown_bytes > limits.memory_bytes // 2:
        text = f"killed by {name} after using {grown_bytes >> 20} MiB of the {memory} it may{printed}"
        return MeasureFailure("out_of_memory", text, number)
    return MeasureFailure("crash", f"killed by {name}{printed}", number)
