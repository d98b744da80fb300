"""The processes below one, by /proc: how much memory they take, and how to end them all."""

from __future__ import annotations

import os
import resource
import signal
import time
from typing import Iterable, List, Optional, Set, Tuple

ENDING_S = 5.0  # for killed processes to be gone
LOOK_S = 0.0002


def descendants(pid: int, most: int = 1 << 22) -> List[int]:
    """The processes below `pid` that have not ended, as long as those below it become its children when their
    parents end. The search ends soon after `most` of them, so that it does not last as one starts others."""
    found: List[int] = []
    waiting = children(pid)
    while waiting and len(found) <= most:
        child = waiting.pop()
        if state_and_parent(child)[0] not in "XZ":
            found.append(child)
            waiting += children(child)
    return found


def children(pid: int) -> List[int]:
    """The children of a process; none when it has gone."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        return [int(child) for task in tasks for child in _read(f"/proc/{pid}/task/{task}/children").split()]
    except FileNotFoundError:
        if os.path.exists("/proc/self/task/{0}/children".format(os.getpid())):
            return []  # it has gone
    except OSError:
        return []
    parents = ((int(name), state_and_parent(int(name))[1]) for name in os.listdir("/proc") if name.isdigit())
    return [child for child, parent in parents if parent == pid]


def state_and_parent(pid: int) -> Tuple[str, int]:
    """As in /proc; ("X", 0) for one that has gone."""
    try:
        words = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    except OSError:
        return "X", 0
    return words[0], int(words[1])


def memory_of(pid: object) -> Tuple[int, int]:
    """Address space and resident bytes of a process; (0, 0) when it has gone."""
    try:
        words = _read(f"/proc/{pid}/statm").split()
    except OSError:
        return 0, 0
    page_bytes = resource.getpagesize()
    return int(words[0]) * page_bytes, int(words[1]) * page_bytes


def take_more_than(pids: Iterable[int], bytes_: int) -> bool:
    """Whether processes together have more memory; pages that they share count once, where that is needed."""
    known = list(pids)
    if sum(memory_of(pid)[1] for pid in known) <= bytes_:
        return False
    return sum(_share_of(pid) for pid in known) > bytes_


def _share_of(pid: int) -> int:
    try:
        lines = _read(f"/proc/{pid}/smaps_rollup").splitlines()
    except OSError:
        return memory_of(pid)[1]
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def kill_below(pid: int) -> None:
    """End every process below a stopped one. All are stopped first, so that none starts another meanwhile."""
    stopped: Set[int] = set()
    end_s = time.monotonic() + ENDING_S
    found = descendants(pid)
    while set(found) - stopped and time.monotonic() < end_s:
        for child in found:
            send(child, signal.SIGSTOP)
        stopped.update(found)
        found = descendants(pid)
    end_s = time.monotonic() + ENDING_S  # however long that took, none is left stopped
    while found:
        for child in found:
            send(child, signal.SIGKILL)
        if time.monotonic() >= end_s:
            return
        time.sleep(LOOK_S)
        found = descendants(pid)


def send(pid: int, number: int) -> None:
    """A signal, to one that may have gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def out_of_memory_kills() -> Optional[int]:
    """How many processes this system has killed for want of memory; None where it does not tell."""
    try:
        lines = _read("/proc/vmstat").splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) for line in lines if line.startswith("oom_kill ")]
    return found[0] if found else None


def _read(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read()
