"""A board on a file system in memory whose runtime, and a host whose flash, can be struck at any I/O call.

Bench() builds io_shim.c and connector.c, starts the runtimes' server and prepares two boards: one that was
never flashed, and one on which bundle 1 is committed and bundle 0 was before it. Flashing bundle 2 to either
is what is attacked; `judge` says what is wrong afterwards.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from boards.board import load
from device_runtime.installed.bundle_slots import Slots
from tests.compilers import host_compiler
from tests.loopback.conftest import in_folder
from tests.loopback.flashing import Flasher
from toolkit.bundle import verify
from toolkit.errors import ToolkitError
from toolkit.flash.values import FlashProgress, FlashReport
from toolkit.measure.archive import archive_name, runtime_archive

HERE: Final = Path(__file__).parent
OFF, COUNT, KILL, FAIL, RECORD = range(5)
CHANGING, READING, PIPES = 1, 2, 4
LAYOUT: Final = struct.Struct("<iiiiqq512s512s512s512s512s512s")  # struct control of io_shim.c
SETTLED_S: Final = 30.0  # a runtime that lost its host is gone by then, however busy the machine
STARTS: Final = ("never flashed", "flashed twice")


class Control:
    """The shared memory that tells a preloaded process what to do at which call."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(LAYOUT.size))
        self.path = path
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    def arm(
        self,
        mode: int,
        prefixes: Sequence[Path],
        at: int = 0,
        *,
        classes: int = CHANGING | READING | PIPES,
        error: int = 0,
        log: Path | None = None,
    ) -> None:
        """From now on, do `mode` at call number `at` below `prefixes`."""
        paths = [str(path).encode() for path in (log or "", *prefixes)]
        paths += [b""] * (5 - len(paths))
        LAYOUT.pack_into(self._memory, 0, OFF, classes, error, 0, at, 0, b"", *paths)
        LAYOUT.pack_into(self._memory, 0, mode, classes, error, 0, at, 0, b"", *paths)

    def disarm(self) -> tuple[int, str]:
        """How many calls there were, and which one was struck ("": none)."""
        count = self.entries()[5]
        struct.pack_into("<i", self._memory, 0, OFF)
        return count, self.entries()[6].rstrip(b"\0").decode()

    @property
    def pid(self) -> int:
        """The process that a call strikes."""
        return int(self.entries()[3])

    def entries(self) -> tuple[int, int, int, int, int, int, bytes]:
        """Mode, classes, error, pid, at, count and hit."""
        found: tuple[int, int, int, int, int, int, bytes] = LAYOUT.unpack_from(self._memory, 0)[:7]
        return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a flash ended: its exit code (None: killed), what it said, and the call that was struck."""

    code: int | None
    text: str
    struck: str


class Bench:
    """Use as a context manager; everything lies in a folder in memory where there is one."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(self._open.enter_context(tempfile.TemporaryDirectory(prefix="tfb-", dir=memory)))
        self.disk = self.folder / "disk"  # of the board, with its device directory
        self._seen: set[str] = set()

    def __enter__(self) -> Bench:
        shim, connector = self._compile("io_shim.c", "-shared", "-fPIC"), self._compile("connector.c")
        self.shim = shim
        self.board_control = Control(self.folder / "board.control")
        self.host_control = Control(self.folder / "host.control")
        archive = self.folder / "cache" / archive_name()
        archive.parent.mkdir()
        archive.write_bytes(runtime_archive())
        self._serve(archive)
        self.disk.mkdir()
        board = in_folder(load("host"), self.disk / "device")
        link = msgspec.structs.replace(board.link, python=str(connector))
        self.flasher = Flasher(msgspec.structs.replace(board, link=link), self.folder)
        self.device_dir = self.flasher.device_dir
        for start in STARTS:
            for number in (0, 1) if start == "flashed twice" else ():
                self.flasher.flash(number)
            shutil.copytree(self.disk, self.folder / start, symlinks=True)
        prepared = self.folder / STARTS[1] / "device"
        with (prepared / "allowed_signers").open("a") as signers:
            signers.write("# nobody else\n")  # so that it is seen when somebody writes it anew
        self._facts = {name: (prepared / name).read_bytes() for name in ("allowed_signers", "board_name")}
        trusted = [self.flasher.key.public]
        self.ids = {number: verify.open_bundle(self.flasher.bundle(number), trusted).id for number in (1, 2)}
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _compile(self, name: str, *options: str) -> Path:
        output = self.folder / name.removesuffix(".c")
        command = [*host_compiler(), "-O1", *options]
        subprocess.run(
            [*command, str(HERE / name), "-o", str(output), "-ldl"], check=True, capture_output=True
        )
        return output

    def _preloaded(self, control: Control) -> dict[str, str]:
        return {**os.environ, "LD_PRELOAD": str(self.shim), "TFB_IO_CONTROL": str(control.path)}

    def _started(self, command: Sequence[str], control: Control) -> subprocess.Popen[str]:
        """A helper process that has said that it is ready; it ends with its input."""
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self._preloaded(control)
        )
        self._open.callback(process.wait)
        assert process.stdin is not None and process.stdout is not None
        self._open.callback(process.stdin.close)
        assert process.stdout.readline(), "it has not started"
        return process

    def _serve(self, archive: Path) -> None:
        path = self.folder / "runtimes"
        os.environ["TFB_RUNTIME_SERVER"] = str(
            path
        )  # the connector's; runtimes are given the rest as arguments
        script = str(HERE / "runtime_server.py")
        words = [script, str(path), str(archive), str(self.board_control.path)]
        self._started([sys.executable, "-I", *words], self.board_control)

    # -------------------------------------------------------------------------------------------- one flash

    def reset(self, start: str) -> None:
        """The board as it was prepared.

        The runtime of a host that was killed may be about to make its folder: it is waited for.
        """
        deadline_s = time.monotonic() + SETTLED_S
        while True:
            shutil.rmtree(self.disk, ignore_errors=True)
            try:
                shutil.copytree(self.folder / start, self.disk, symlinks=True)
                return
            except (FileExistsError, shutil.Error):  # the disk's folder, or one in it
                if time.monotonic() > deadline_s:
                    raise
            time.sleep(0.01)

    def flash(self, progress: FlashProgress = lambda _: None) -> Outcome:
        """Flash bundle 2 from this process; the exit code is what the command's would be."""
        try:
            self.flasher.flash(2, progress)
        except ToolkitError as error:
            return Outcome(error.exit_code, str(error), self.board_control.disarm()[1])
        return Outcome(0, "", self.board_control.disarm()[1])

    def start_host(self) -> subprocess.Popen[str]:
        """The process that flashes on demand, every one of its I/O calls under `host_control`."""
        board_file = self.folder / "board.json"
        board_file.write_bytes(msgspec.json.encode(self.flasher.board))
        words = [str(self.flasher.bundle(2)), str(board_file), str(self.folder)]
        return self._started([sys.executable, "-m", "tests.torture.flash_host", *words], self.host_control)

    def settle(self) -> None:
        """Wait until no runtime holds the lease."""
        deadline_s = time.monotonic() + SETTLED_S
        with contextlib.suppress(FileNotFoundError), (self.device_dir / "lease.lock").open() as lock:
            while time.monotonic() < deadline_s:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                time.sleep(0.002)
            raise AssertionError(f"the lease is still held after {SETTLED_S:g} s")

    # ---------------------------------------------------------------------------------------------- judging

    def forget(self) -> None:
        """Recover from the next state of the disk even if it was seen before: the disk is another one."""
        self._seen.clear()

    def judge(self, start: str, outcome: Outcome) -> str:
        """What is wrong with the board after an attacked flash of bundle 2, "" when nothing is.

        What is current is whole, old or new, and as the exit code says. From the same disk the same follows:
        that it runs and that the next flash succeeds is tried once for every state of the disk.
        """
        old = self.ids[1] if start == "flashed twice" else ""
        new = self.ids[2]
        allowed = {0: {new}, 2: {old}, 3: {old}, 6: {old}, 7: {old}, 8: {old, new}, None: {old, new}}
        if outcome.code not in allowed:
            return f"exit code {outcome.code}: {outcome.text}"
        slots = Slots(str(self.device_dir))
        linked = os.path.basename(os.readlink(slots.link_path)) if os.path.islink(slots.link_path) else ""
        current = slots.state()["current"]
        if current not in allowed[outcome.code]:
            return f"{current or 'nothing'} is current after exit code {outcome.code}: {outcome.text}"
        for name in {current, linked} - {""}:
            if name not in (old, new) or not slots.is_whole(name):
                return f"{name} is current and not whole"
        if old and self._facts != {name: (self.device_dir / name).read_bytes() for name in self._facts}:
            return "whom the board trusts, or what it is called, is not what it was"
        if not self.is_new():
            return ""
        self._seen.add(self.digest())
        return self.recover(old, new)

    def is_new(self) -> bool:
        """Whether this state of the disk was not judged yet."""
        return self.digest() not in self._seen

    def recover(self, old: str, new: str) -> str:
        """Run what is current and flash again; what is wrong then."""
        try:
            status = self.flasher.status()
            if status.current:
                version = self.flasher.running_version()
                if version != {old: 1, new: 2}[self.flasher.status().current]:
                    return f"the board computes what version {version} would"
            report: FlashReport = self.flasher.flash(2)
            self.flasher.assert_runs(2)
            status = self.flasher.status()
        except (ToolkitError, AssertionError) as error:
            return f"{type(error).__name__} afterwards: {error}"
        if not (report.bundle_id == status.current == status.committed == new):
            return f"after the next flash {status.current} is current and {status.committed} committed"
        return self.leftovers()

    def leftovers(self) -> str:
        """What is left on the board of attempts that were broken off."""
        patterns = ("incoming/*", "slots/.installing-*", "slots/.removing-*", "**/*.part", ".*.part")
        found = sorted({str(path) for pattern in patterns for path in self.device_dir.glob(pattern)})
        return f"left behind: {', '.join(found)}" if found else ""

    def digest(self) -> str:
        """Of all names and contents on the board, but not of who held the lease when."""
        digest = hashlib.sha256()
        for path in sorted(self.disk.rglob("*")):
            content = b""
            if path.is_symlink():
                content = os.readlink(path).encode()
            elif path.is_file() and not path.name.startswith("lease.json"):
                content = hashlib.sha256(path.read_bytes()).digest()
            digest.update(f"{path} {path.is_dir()} ".encode() + content)
        return digest.hexdigest()
