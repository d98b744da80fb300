"""Run something that may crash, hang, exit or scribble, in a child process of its own.

What enters: a function that returns a plain dict, and limits. What leaves: an Outcome with that dict or a
typed failure. A keeper is forked, and by it the child. The keeper is the first process of namespaces of its
own where there are any (confinement.py), becomes the parent of whatever loses its own, and says how the child
ended. The child (which inherits the inputs copy-on-write) leads a session and answers through a pipe: nonce,
length, msgpack and a digest over both. Anything else that comes out of the pipe, or nothing, means that it
crashed. In the end, or at the deadline, the keeper and all below it are killed.
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
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import msgpack

from device_runtime.protocol import MeasureFailure
from device_runtime.sandbox.confinement import confine_files, enter_namespaces, fork_apart
from device_runtime.sandbox.process_tree import (
    children,
    descendants,
    kill_below,
    memory_of,
    out_of_memory_kills,
    send,
    take_more_than,
)

WATCH_S = 0.05  # how often the child's memory is looked at
MAX_ANSWER_BYTES = 1 << 20
MAX_OUTPUT_BYTES = 1 << 20  # of what the child prints; more is killed by SIGXFSZ
MAX_PROCESSES = 256  # of a child, itself included; a compiler of kernels starts a few
ADDRESS_SLACK_BYTES = 1 << 30  # address space is cheap: thread stacks, allocator arenas
# Python ignores or catches the first three; a driver in the parent may have taken the others, and a kernel
# that raises one must be seen to die of it.
TAKEN_SIGNALS = (
    signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGILL, signal.SIGSEGV, signal.SIGBUS,
    signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP,
)  # fmt: skip
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
NONCE_BYTES = 32
LENGTH = struct.Struct(">I")
REPORT = struct.Struct(">iq")  # the child's wait status and the peak of its resident bytes

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
    included. `writable`: folders, the only ones where Landlock lets it write files. `cpu_s`: seconds of
    processor time of any of its processes, which the machine's load does not change. `namespaces`: in some of
    its own, where the system has them."""

    timeout_s: float
    memory_bytes: int
    limit_address_space: bool = True
    file_bytes: int = MAX_OUTPUT_BYTES
    writable: Tuple[str, ...] = ()
    cpu_s: Optional[int] = None
    namespaces: bool = True


@dataclass(frozen=True)
class Outcome:
    """`answer` when the child gave one (it may carry a failure, too), else only `failure`; `wall_s` from
    before the fork until the child was killed."""

    answer: Optional[Dict[str, Any]]
    failure: Optional[MeasureFailure]
    wall_s: float


class _Ends(NamedTuple):
    """Descriptors of the keeper and the child: of the answer, of what is printed, of the keeper's report."""

    answer_fd: int
    output_fd: int
    report_fd: int


_ENDING: List[int] = []  # keepers that have been killed and not been waited for


def wait_until_gone() -> None:
    """Until the processes that `run_isolated` was not to wait for are gone."""
    while _ENDING:
        os.waitpid(_ENDING.pop(), 0)


def run_isolated(
    work: Callable[[], Dict[str, Any]],
    limits: Limits,
    watch_fd: Optional[int] = None,
    until_gone: bool = True,
) -> Outcome:
    """Run `work` in a child. Raises PeerGone when `watch_fd` (the host's connection) hangs up meanwhile.

    Not `until_gone`: return when a child that answered has been killed. It takes the system about as long to
    end it as to fork it, and the host can have its answer meanwhile. It is waited for once the next one has
    been forked, or by `wait_until_gone`.
    """
    started_s = time.monotonic()
    nonce = os.urandom(NONCE_BYTES)
    base_bytes = memory_of("self")[1]
    kills = out_of_memory_kills()
    answer_fd, child_fd = os.pipe()
    report_fd, keeper_fd = os.pipe()
    output_fd = os.memfd_create("output")
    try:
        pid, apart = fork_apart() if limits.namespaces else (os.fork(), False)
        if pid == 0:
            _be_the_keeper(work, limits, _Ends(child_fd, output_fd, keeper_fd), nonce, apart)
        os.close(child_fd)
        os.close(keeper_fd)
        child = _Child(pid, (answer_fd, report_fd), nonce, limits, base_bytes)
        ends_later = False
        try:
            wait_until_gone()
            reason = child.wait(started_s + limits.timeout_s, watch_fd)
            ends_later = not until_gone and apart and reason == "" and child.complete()
        finally:
            _kill(pid, apart)
            _ENDING.append(pid)
            if not ends_later:
                wait_until_gone()
        answer = child.answer() if reason == "" else None
        failure = None
        if answer is None:
            reason = reason or ("garbled" if child.complete() else "")
            if reason == "" and out_of_memory_kills() != kills:
                reason = "system memory"
            failure = _failure(reason, child.report(), base_bytes, limits, _tail(output_fd))
        elif "failure" in answer:
            failure = MeasureFailure.from_plain(answer.pop("failure"))
        return Outcome(answer, failure, time.monotonic() - started_s)
    finally:
        os.close(answer_fd)
        os.close(report_fd)
        os.close(output_fd)


# ----------------------------------------------------------------------------------------- in the keeper


def _be_the_keeper(
    work: Callable[[], Dict[str, Any]], limits: Limits, ends: _Ends, nonce: bytes, apart: bool
) -> None:
    """Fork the child, wait for it and for all that become children here, report, and wait to be killed."""
    try:
        os.setsid()
        _close_all_but(ends)
        confined = limits.namespaces and not apart and enter_namespaces()
        _end_with_parent(ends.report_fd)
        if confined and os.fork() != 0:  # the first process in there keeps, this one only stays its parent
            _close_all_but(())
            _pause()
        _end_with_parent(ends.report_fd)
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        keeper = os.getpid()
        child = os.fork()
        if child == 0:
            _be_the_child(work, limits, ends, keeper, nonce)
        os.close(ends.answer_fd)
        ended = 0
        while ended != child:
            ended, status, usage = os.wait4(-1, 0)
        os.write(ends.report_fd, nonce + REPORT.pack(status, usage.ru_maxrss << 10))
        _pause()
    finally:
        os._exit(1)


def _end_with_parent(pipe_fd: int) -> None:
    """Have this process killed when its parent ends, or at once when nobody reads from the pipe any more."""
    LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if _is_closed(pipe_fd):
        os._exit(0)


def _pause() -> None:
    """Until killed: what is left below must stay below."""
    while True:
        signal.pause()


def _is_closed(pipe_fd: int) -> bool:
    """Whether nobody reads from this pipe any more."""
    poller = select.poll()
    poller.register(pipe_fd, 0)
    return bool(poller.poll(0))


# ------------------------------------------------------------------------------------------ in the child


def _be_the_child(
    work: Callable[[], Dict[str, Any]], limits: Limits, ends: _Ends, keeper: int, nonce: bytes
) -> None:
    try:
        os.setsid()
        die_with_parent(keeper)
        for number in TAKEN_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(ends.output_fd, 1)
        os.dup2(ends.output_fd, 2)
        _close_all_but((ends.answer_fd,))
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
            data = data[os.write(ends.answer_fd, data) :]
    finally:
        if sys.exc_info()[0] is not None:
            os.write(2, traceback.format_exc().encode())
        os._exit(0)  # never back into the server's code, whatever was raised


def die_with_parent(parent: int) -> None:
    """Have this process killed when `parent` ends, or at once when it has already."""
    LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def _close_all_but(kept: Sequence[int]) -> None:
    """The connection and the lease are the server's; a child that lives on must not hold them."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                continue  # the listing's own descriptor


def _limit(limits: Limits) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file_bytes, limits.file_bytes))
    if limits.cpu_s is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s + 1))  # SIGXCPU, then SIGKILL
    if limits.limit_address_space and sys.maxsize > 1 << 32:
        address_bytes = memory_of("self")[0] + limits.memory_bytes + ADDRESS_SLACK_BYTES
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        if hard == resource.RLIM_INFINITY or hard > address_bytes:
            resource.setrlimit(resource.RLIMIT_AS, (address_bytes, address_bytes))
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")  # if memory ends after all, this process goes first
    confine_files(limits.writable)


# ----------------------------------------------------------------------------------------- in the parent


class _Child:
    """The child with this keeper, seen from its parent, which reads both their pipes."""

    def __init__(
        self, keeper: int, pipes: Tuple[int, int], nonce: bytes, limits: Limits, base_bytes: int
    ) -> None:
        self.keeper = keeper
        self.answer_fd, self.report_fd = pipes
        self.nonce = nonce
        self.limits = limits
        self.allowed_bytes = base_bytes + limits.memory_bytes
        self.received = bytearray()

    def wait(self, deadline_s: float, watch_fd: Optional[int]) -> str:
        """Until it has answered or ended (""), or must be killed ("timeout", "memory", "processes")."""
        poller = select.poll()
        poller.register(self.answer_fd, select.POLLIN)
        poller.register(self.report_fd, select.POLLIN)
        if watch_fd is not None:
            poller.register(watch_fd, select.POLLRDHUP)
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return "timeout"
            ready = [fd for fd, _ in poller.poll(1 + 1e3 * min(left_s, WATCH_S))]
            if watch_fd in ready:
                raise PeerGone("the host closed the connection during a measurement")
            if self.answer_fd in ready:
                data = os.read(self.answer_fd, 1 << 16)
                self.received += data
                if self.complete():
                    return ""
                if not data:
                    poller.unregister(self.answer_fd)
            elif self.report_fd in ready:
                return ""  # it has ended, and left no more in the other pipe
            elif not ready:
                below = descendants(self.keeper, MAX_PROCESSES)
                if len(below) > MAX_PROCESSES:
                    return "processes"
                if take_more_than(below, self.allowed_bytes):
                    return "memory"

    def report(self) -> Optional[Tuple[int, int]]:
        """Wait status and peak of resident bytes; None where the keeper came to no report."""
        readable = select.select([self.report_fd], [], [], 0)[0]
        data = os.read(self.report_fd, NONCE_BYTES + REPORT.size) if readable else b""
        if len(data) < NONCE_BYTES + REPORT.size or data[:NONCE_BYTES] != self.nonce:
            return None
        status, peak_bytes = REPORT.unpack_from(data, NONCE_BYTES)
        return status, peak_bytes

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


def _kill(keeper: int, apart: bool) -> None:
    """End a keeper and all below it. Those in a namespace end with its first process, before it is gone."""
    if not apart:
        send(keeper, signal.SIGSTOP)
        for child in children(keeper):
            send(child, signal.SIGKILL)
        kill_below(keeper)
    send(keeper, signal.SIGKILL)


def _tail(output_fd: int) -> str:
    size = os.fstat(output_fd).st_size
    return os.pread(output_fd, 1000, max(0, size - 1000)).decode(errors="replace").strip()


def _failure(
    reason: str, report: Optional[Tuple[int, int]], base_bytes: int, limits: Limits, output: str
) -> MeasureFailure:
    printed = f"; it printed: {output}" if output else ""
    memory = f"{limits.memory_bytes >> 20} MiB"
    if reason == "timeout":
        return MeasureFailure("timeout", f"no answer within {limits.timeout_s:g} s{printed}")
    if reason == "memory":
        return MeasureFailure("out_of_memory", f"used more than the {memory} it may{printed}")
    if reason == "processes":
        return MeasureFailure("crash", f"started more than {MAX_PROCESSES} processes{printed}")
    if reason == "garbled":
        return MeasureFailure("crash", f"something wrote over its answer{printed}")
    if report is None:
        return MeasureFailure("crash", f"the process that watches over it was killed{printed}")
    status, peak_bytes = report
    if not os.WIFSIGNALED(status):
        return MeasureFailure("crash", f"exited with status {os.WEXITSTATUS(status)} and no answer{printed}")
    number = os.WTERMSIG(status)
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if number == signal.SIGKILL and reason == "system memory":
        text = f"killed by the system, which had no memory left{printed}"
        return MeasureFailure("out_of_memory", text, number)
    grown_bytes = peak_bytes - base_bytes
    if number != signal.SIGKILL and grown_bytes > limits.memory_bytes // 2:
        text = f"killed by {name} after using {grown_bytes >> 20} MiB of the {memory} it may{printed}"
        return MeasureFailure("out_of_memory", text, number)
    return MeasureFailure("crash", f"killed by {name}{printed}", number)
