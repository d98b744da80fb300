"""Flashes that are killed, whose I/O calls fail, and whose disk is full: on the board and on the host."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.torture.attack import Attack, Run
from tests.torture.flash_bench import (
    CHANGING,
    COUNT,
    FAIL,
    KILL,
    OFF,
    PIPES,
    READING,
    STARTS,
    Bench,
    Outcome,
)
from toolkit.flash.values import FlashEvent

ALL = CHANGING | READING | PIPES
Case = tuple[str, int]  # which board, and the number of the call


class BoardSide:
    """Strikes at calls of the runtime."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.control = bench.board_control
        self.prefixes = (bench.disk,)

    def flash(self) -> Outcome:
        """Flash bundle 2 with whatever `control` says."""
        outcome = self.bench.flash()
        self.bench.settle()
        return outcome

    def target(self) -> int:
        """The process to kill."""
        return self.control.pid


class HostSide:
    """Strikes at calls of the process that flashes; its own exit status counts."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.control = bench.host_control
        self.prefixes = (bench.flasher.bundle(2), bench.folder / "config", bench.folder / "cache")
        self._process = bench.start_host()
        self._pid = 0

    def flash(self) -> Outcome:
        """Flash bundle 2 with whatever `control` says."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        self._pid = int(self._process.stdout.readline())
        status = int(self._process.stdout.readline())
        _, struck = self.control.disarm()
        self._pid = 0
        self.bench.settle()
        return Outcome(status if status >= 0 else None, "", struck)

    def target(self) -> int:
        """The process to kill."""
        return self._pid


Side = BoardSide | HostSide


def _at_every_call(
    run: Run, make: Callable[[Bench], Side], mode: int, most: int, errors: tuple[int, ...] = (0,)
) -> None:
    """Strike at each call of a flash, for each kind of board, if the run wants `most` cases; else at some."""
    with Bench() as bench:
        side = make(bench)
        classes = {error: CHANGING if error == errno.ENOSPC else ALL for error in errors}
        plan = []
        for start in STARTS:
            for error in errors:
                bench.reset(start)
                side.control.arm(COUNT, side.prefixes, classes=classes[error])
                _must_pass(run, bench, start, side.flash())
                plan += [(start, error, at) for at in range(side.control.entries()[5])]
        if run.cases < most:
            plan = sorted(run.rng.sample(plan, run.cases))
        for start, error, at in plan:
            bench.reset(start)
            side.control.arm(mode, side.prefixes, at, classes=classes[error], error=error)
            outcome = side.flash()
            wrong = bench.judge(start, outcome)
            run.check(not wrong, f"{start}, call {at} ({outcome.struck}), errno {error}: {wrong}")


def _must_pass(run: Run, bench: Bench, start: str, outcome: Outcome) -> None:
    wrong = bench.judge(start, outcome)
    if wrong or outcome.code != 0:
        run.fails(f"{start}: a flash that nothing happens to ends with {outcome}: {wrong}")


def _killed_at_random(run: Run) -> None:
    """The host's or the board's process, at a moment of the time that a flash takes."""
    with Bench() as bench:
        sides: tuple[Side, Side] = (BoardSide(bench), HostSide(bench))
        seconds = {}
        for side in sides:
            bench.reset(STARTS[1])
            side.control.arm(OFF, side.prefixes)
            begun_s = time.monotonic()
            _must_pass(run, bench, STARTS[1], side.flash())
            seconds[side] = time.monotonic() - begun_s
        for number in run:
            side, start = sides[number % 2], STARTS[number // 2 % 2]
            bench.reset(start)
            side.control.arm(OFF, side.prefixes)
            after_s = run.rng.uniform(0, 1.1 * seconds[side])
            timer = threading.Timer(after_s, _kill, [side])
            timer.start()
            outcome = side.flash()
            timer.cancel()
            timer.join()
            wrong = bench.judge(start, outcome)
            run.check(not wrong, f"{start}, {type(side).__name__} killed after {after_s:.4f} s: {wrong}")


def _kill(side: Side) -> None:
    pid = side.target()
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# ------------------------------------------------------------------------------------------------------ disks


@contextlib.contextmanager
def _mounted(folder: Path, options: str) -> Iterator[None]:
    """A file system of its own at `folder`, as small as `options` say."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _full_disks(run: Run) -> None:
    """From some step of the flash on, the board's disk has only a few pages or inodes left, or is read-only.
    Room comes back afterwards, as somebody would make it."""
    with Bench() as bench:
        for number in run:
            start = STARTS[number % 2]
            step, what, left = _DISKS[number // 2 % len(_DISKS)]
            with _mounted(bench.disk, _SIZE):
                shutil.copytree(bench.folder / start, bench.disk, symlinks=True, dirs_exist_ok=True)
                filler = bench.disk / "filler"

                def fill(event: FlashEvent, wanted: tuple[str, str] = (step, "begin")) -> None:
                    if (event.step, event.state) == wanted:
                        _take_room(bench.disk, what, left)  # noqa: B023 - called within this turn

                outcome = bench.flash(fill)
                _remount(bench.disk, f"rw,{_SIZE}")
                filler.unlink(missing_ok=True)
                wrong = bench.judge(start, outcome)
                run.check(not wrong, f"{start}, {left} {what} left at {step}: {wrong}")
            bench.forget()


def _take_room(folder: Path, what: str, left: int) -> None:
    """Leave so many pages or inodes on the disk, or none and let nothing be written."""
    facts = os.statvfs(folder)
    if what == "inodes":
        _remount(folder, f"nr_inodes={facts.f_files - facts.f_ffree + left}")
    elif what == "rights":
        _remount(folder, "ro")
    else:
        with (folder / "filler").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, facts.f_bfree * facts.f_bsize - left * _PAGE)


def _remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


_SIZE = "size=160m,nr_inodes=4096"
_PAGE = 4096
_STEPS = ("upload", "install", "activate", "health_check", "commit")
_DISKS = (
    *(("connect", "pages", left) for left in (0, 1, 2, 3)),
    *(("install", "pages", left) for left in (1, 2, 4, 8, 12, 16)),
    *((step, "pages", left) for step in ("activate", "health_check", "commit") for left in (0, 1)),
    *((step, "inodes", left) for step in _STEPS for left in (0, 1, 2)),
    ("connect", "rights", 0),
)


BOARD_CALLS, HOST_CALLS = 1700, 140  # at least so many there are, in both flashes together; all are tried

ATTACKS = (
    Attack(
        "flash-kill-board",
        "a flash whose board side is killed before one of its I/O calls, each in turn",
        BOARD_CALLS,
        8,
        lambda run: _at_every_call(run, BoardSide, KILL, BOARD_CALLS),
    ),
    Attack(
        "flash-kill-host",
        "a flash whose host side is killed before one of its I/O calls, each in turn",
        HOST_CALLS,
        8,
        lambda run: _at_every_call(run, HostSide, KILL, HOST_CALLS),
    ),
    Attack(
        "flash-kill-random",
        "a flash one of whose sides is killed at a random moment",
        500,
        8,
        _killed_at_random,
    ),
    Attack(
        "flash-errors-board",
        "a flash in which one I/O call of the board fails: an I/O error, a full disk",
        BOARD_CALLS,
        8,
        lambda run: _at_every_call(run, BoardSide, FAIL, BOARD_CALLS, (errno.EIO, errno.ENOSPC)),
    ),
    Attack(
        "flash-errors-host",
        "a flash in which one I/O call of the host fails",
        HOST_CALLS,
        8,
        lambda run: _at_every_call(run, HostSide, FAIL, HOST_CALLS, (errno.EIO,)),
    ),
    Attack(
        "flash-disk-full",
        "a flash to a disk that is full at one of 16 levels, has no inodes, or is read-only",
        2 * len(_DISKS),
        6,
        _full_disks,
        needs="mount",
    ),
)
