"""What keeps a measurement's processes from everybody else's, as far as this system allows it.

Namespaces of their own for users and processes: nobody outside can be signalled or traced, no privilege is
left outside, and all of them end with the first one. Landlock: no file can be written or removed but in named
folders, no TCP port opened, nothing outside signalled. Where neither is there (old kernels, emulators, some
containers), processes are found by their parents only (process_tree.py); under qemu, which refuses subreapers
too, one that was forked twice lives as long as its session (subreaper.py).
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import signal
import sys
from typing import Dict, Sequence, Tuple

CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220}  # the number of clone(), for programs of 64 bits

PR_SET_NO_NEW_PRIVS = 38
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # on every machine
_ABI_VERSION = 1
_PATH_BENEATH = 1
# linux/landlock.h: write a file; remove or make one of any kind; move between folders; truncate
_WRITES = {1: 0x1FF2, 2: 0x3FF2, 3: 0x7FF2}
_TCP = 0x3  # bind and connect
_SCOPES = 0x3  # abstract sockets and signals
_SIZES = {1: 8, 2: 8, 3: 8, 4: 16, 5: 16}  # of the attributes, by version

LIBC = ctypes.CDLL(None, use_errno=True)
_HOLDING = ctypes.PyDLL(None)  # keeps the interpreter's lock during a call, as PyOS_BeforeFork wants it


class _Attributes(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Rule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("files", ctypes.c_uint64), ("folder_fd", ctypes.c_int32))


def protection() -> Dict[str, bool]:
    """Which of the two protections this system has."""
    return {"namespaces": has_namespaces(), "landlock": _landlock_version() > 0}


@functools.lru_cache(maxsize=None)
def has_namespaces() -> bool:
    """Whether a process can enter namespaces of its own here, found by letting one try."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if enter_namespaces() else 1)
    return os.waitpid(pid, 0)[1] == 0


def enter_namespaces() -> bool:
    """Put this process, which must have one thread, into a user namespace of its own, where it has all rights
    and outside of which it has none, and what it forks from now on into a namespace of processes. Its first
    child is the first process in there: signals from inside do not reach it, all others end with it. False
    where the system refuses."""
    user, group = os.geteuid(), os.getegid()
    if LIBC.unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0:
        return False
    _keep_names(user, group)
    return True


def _keep_names(user: int, group: int) -> None:
    """Have this process's user and group be called as outside of its user namespace."""
    try:
        for name, text in (
            ("uid_map", f"{user} {user} 1"),
            ("setgroups", "deny"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    except OSError:
        return  # its user has no name in there, which nothing here asks for


def fork_apart() -> Tuple[int, bool]:
    """As os.fork, and whether the child is in namespaces of its own as the first child of a process that
    entered them is: one system call, where to fork twice takes milliseconds longer.

    Only where this process has one thread: the C library's fork alone looks after the locks of others, and
    calls what libraries want to do before.
    """
    number = CLONE.get(platform.machine()) if sys.maxsize > 1 << 32 else None
    if number is None or len(os.listdir("/proc/self/task")) != 1:
        return os.fork(), False
    user, group = os.geteuid(), os.getegid()
    flags = CLONE_NEWUSER | CLONE_NEWPID | signal.SIGCHLD
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = int(_HOLDING.syscall(ctypes.c_long(number), ctypes.c_ulong(flags), *[ctypes.c_void_p()] * 4))
    (ctypes.pythonapi.PyOS_AfterFork_Parent if pid else ctypes.pythonapi.PyOS_AfterFork_Child)()
    if pid < 0:
        return os.fork(), False
    if pid == 0:
        _keep_names(user, group)
    return pid, True


def confine_files(writable: Sequence[str]) -> bool:
    """From now on this process writes files in these folders only; whether the system can do that."""
    version = _landlock_version()
    if version < 1:
        return False
    files = _WRITES[min(version, 3)]
    attributes = _Attributes(files, _TCP, _SCOPES)
    size = _SIZES.get(version, ctypes.sizeof(attributes))
    rules = LIBC.syscall(_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), 0)
    if rules < 0:
        return False
    for folder in writable:
        folder_fd = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        rule = _Rule(files, folder_fd)
        LIBC.syscall(_ADD_RULE, rules, _PATH_BENEATH, ctypes.byref(rule), 0)
        os.close(folder_fd)
    LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    refused = LIBC.syscall(_RESTRICT_SELF, rules, 0)
    os.close(rules)
    return bool(refused == 0)


@functools.lru_cache(maxsize=None)
def _landlock_version() -> int:
    return int(LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _ABI_VERSION))
