"""run_isolated with plain Python in the child; kernels that misbehave are in tests/loopback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from device_runtime.sandbox.isolation import Fault, Limits, PeerGone, run_isolated

LIMITS = Limits(timeout_s=10.0, memory_bytes=256 << 20)


def for_ever() -> dict[str, Any]:
    while True:
        signal.pause()


def test_an_answer_comes_back() -> None:
    outcome = run_isolated(lambda: {"pid": os.getpid(), "session": os.getsid(0)}, LIMITS)
    assert outcome.failure is None
    assert outcome.answer is not None
    assert outcome.answer["pid"] == outcome.answer["session"] != os.getpid()
    assert outcome.wall_s > 0


def test_a_fault_keeps_its_kind() -> None:
    def work() -> dict[str, Any]:
        raise Fault("link", "no such symbol")

    outcome = run_isolated(work, LIMITS)
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.text) == ("link", "no such symbol")


def test_no_exception_escapes_the_child() -> None:
    parent = os.getpid()

    def work() -> dict[str, Any]:
        raise RuntimeError("a bug")

    outcome = run_isolated(work, LIMITS)
    assert os.getpid() == parent
    assert outcome.failure is not None
    assert outcome.failure.kind == "crash"
    assert outcome.failure.text.endswith("RuntimeError: a bug")


def test_nothing_open_is_passed_on() -> None:
    with open(os.devnull, "rb") as kept:
        outcome = run_isolated(lambda: {"open": os.listdir("/proc/self/fd")}, LIMITS)
        assert outcome.answer is not None
        # standard streams, the answer's pipe and the listing's own
        assert len(outcome.answer["open"]) == 5
        assert not kept.closed


def test_an_answer_with_another_nonce_is_no_answer() -> None:
    def work() -> dict[str, Any]:
        for fd in range(3, 20):
            try:
                os.write(fd, bytes(200))
            except OSError:
                continue
        os._exit(0)

    outcome = run_isolated(work, LIMITS)
    assert outcome.answer is None
    assert outcome.failure is not None
    assert outcome.failure.kind == "crash"


def test_a_closed_pipe_is_not_the_end() -> None:
    def work() -> dict[str, Any]:
        os.closerange(3, 256)
        time.sleep(0.2)
        os._exit(3)

    outcome = run_isolated(work, LIMITS)
    assert outcome.failure is not None
    assert outcome.failure.text == "exited with status 3 and no answer"
    assert outcome.wall_s > 0.2


def children() -> set[str]:
    """The processes this one has started and not yet waited for, whichever thread started them."""
    return {
        pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()
    }


def test_the_deadline() -> None:
    before = children()
    outcome = run_isolated(for_ever, Limits(0.2, 1 << 28))
    assert outcome.failure is not None
    assert outcome.failure.kind == "timeout"
    assert outcome.wall_s >= 0.2
    assert children() <= before


def test_processor_time_runs_out_long_before_the_deadline() -> None:
    def work() -> dict[str, Any]:
        while True:
            pass

    outcome = run_isolated(work, Limits(60.0, 1 << 28, cpu_s=1))
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.signal) == ("crash", signal.SIGXCPU)


def test_memory() -> None:
    def work() -> dict[str, Any]:
        kept = []
        while True:
            kept.append(bytearray(os.urandom(1)) * (4 << 20))

    outcome = run_isolated(work, Limits(30.0, 64 << 20))
    assert outcome.failure is not None
    assert outcome.failure.kind == "out_of_memory"


def test_a_signal_is_named() -> None:
    outcome = run_isolated(lambda: os.kill(os.getpid(), signal.SIGILL) or {}, LIMITS)
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.signal) == ("crash", signal.SIGILL)
    assert outcome.failure.text == "killed by SIGILL"


def test_a_signal_that_a_library_catches_kills_the_child_all_the_same() -> None:
    before = signal.signal(signal.SIGILL, lambda *_: None)
    try:
        outcome = run_isolated(lambda: os.kill(os.getpid(), signal.SIGILL) or {}, LIMITS)
    finally:
        signal.signal(signal.SIGILL, before)
    assert outcome.failure is not None
    assert outcome.failure.signal == signal.SIGILL


def test_the_host_hangs_up() -> None:
    read_fd, write_fd = os.pipe()
    os.close(write_fd)
    try:
        with pytest.raises(PeerGone):
            run_isolated(for_ever, LIMITS, watch_fd=read_fd)
    finally:
        os.close(read_fd)


ENDS_LATE = """
import os
from device_runtime.sandbox.confinement import has_namespaces
from device_runtime.sandbox.isolation import Limits, run_isolated, wait_until_gone

def left():
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True

limits = Limits(timeout_s=10.0, memory_bytes=1 << 28)
print(has_namespaces())
for _ in range(3):
    assert run_isolated(lambda: {"pid": os.getpid()}, limits, until_gone=False).answer
    print(left())
wait_until_gone()
print(left())
assert run_isolated(lambda: os._exit(3), limits, until_gone=False).failure
print(left())
"""


def test_a_child_that_answered_may_end_while_the_next_one_is_forked() -> None:
    """Where its namespace ends with it; not one that failed; in the end none is left."""
    ran = subprocess.run([sys.executable, "-c", ENDS_LATE], capture_output=True, text=True, timeout=20)
    has, *left = (word == "True" for word in ran.stdout.split())
    assert left == [has, has, has, False, False], ran.stderr


def test_no_descriptor_is_left_behind() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        run_isolated(dict, LIMITS)
    assert len(os.listdir("/proc/self/fd")) == before


FORKS_APART = """
import os, select, signal, sys, threading
from device_runtime.sandbox.confinement import fork_apart, has_namespaces
if "threads" in sys.argv:
    threading.Thread(target=signal.pause, daemon=True).start()
read_fd, write_fd = os.pipe()
pid, apart = fork_apart()
if pid == 0:
    if os.fork() == 0:  # keeps the pipe open for as long as it lives
        signal.pause()
    os.write(write_fd, b"%d" % os.getpid())
    signal.pause()
os.close(write_fd)
own = int(os.read(read_fd, 20))
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
all_ended = bool(select.select([read_fd], [], [], 0)[0])
print(has_namespaces(), apart, own == pid, own == 1, all_ended)
sys.stdout.flush()
if not all_ended:
    os.killpg(0, signal.SIGKILL)
os._exit(0)
"""


@pytest.mark.parametrize("threads", [(), ("threads",)])
def test_a_process_is_forked_into_namespaces_where_no_thread_is_left_behind(threads: tuple[str, ...]) -> None:
    """In one with threads only the C library's fork knows how; its caller enters namespaces then."""
    command = [sys.executable, "-c", FORKS_APART, *threads]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=20, start_new_session=True)
    has, apart, as_outside, first, all_ended = (word == "True" for word in ran.stdout.split())
    assert apart == (has and not threads)
    assert (first, as_outside, all_ended) == (apart, not apart, apart)
