"""A runtime that is a process of this machine: as it is, or under an emulator."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from boards.description import Link
from boards.files import kept_file
from device_runtime.protocol import FRAME_DEADLINE_S, DescriptorStream
from toolkit.errors import BoardUnreachable
from toolkit.measure import emulation
from toolkit.measure.archive import archive_name, runtime_archive
from toolkit.measure.links.transport import WORDS_BYTES, Transport

END_S = 5.0  # how long a runtime may take to end once its input is closed
SUBREAPER = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from device_runtime.sandbox.subreaper import main; sys.exit(main(sys.argv[2:]))"
)  # of the runtime's archive, run by the host's Python


class LocalTransport(DescriptorStream, Transport):
    """Pipes to a subprocess in a session of its own, so that Ctrl-C reaches only the host's side."""

    def __init__(self, command: Sequence[str], where: str) -> None:
        self.where = where
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the transport
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            start_new_session=True,
            bufsize=0,
            env=environment,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        super().__init__(self._output.fileno(), self._input.fileno(), FRAME_DEADLINE_S)

    @classmethod
    def open(cls, link: Link, cache_dir: Path) -> Self:
        return cls.started([link.python or sys.executable], link, cache_dir, "this machine")

    @classmethod
    def started(cls, command: Sequence[str], link: Link, cache_dir: Path, where: str) -> Self:
        """A runtime that `command`, a Python with its arguments, runs."""
        archive = cache_dir / archive_name()
        device_dir = Path(link.device_dir).expanduser()
        try:
            kept_file(archive, runtime_archive())
            return cls([*command, str(archive), "--device-dir", str(device_dir)], where)
        except OSError as error:
            raise BoardUnreachable(f"The runtime on {where} does not start: {error}") from error

    @staticmethod
    def remedy(link: Link) -> str:
        folder = link.device_dir
        return f"`python3 --version` must say 3.8 or newer here, and {folder} must be a folder to write to"

    @property
    def pid(self) -> int:
        """Process id of the runtime."""
        return self._process.pid

    def read(self, timeout_s: float | None) -> bytes:
        return b"" if self._output.closed else super().read(timeout_s)

    def write(self, data: bytes) -> None:
        if self._input.closed:
            raise BrokenPipeError("the session is closed")
        super().write(data)

    def close(self) -> None:
        """The runtime ends when its input does; one that does not is terminated, and killed if need be."""
        if self._input.closed:
            return
        self._input.close()
        for stop in (self._process.terminate, self._process.kill):
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                stop()
        self._process.wait()
        self._output.close()
        self._printed.close()

    def last_words(self) -> str:
        """The last of the runtime's standard error."""
        if self._printed.closed:
            return ""
        size = self._printed.seek(0, os.SEEK_END)
        self._printed.seek(max(0, size - WORDS_BYTES))
        return self._printed.read().decode(errors="replace").strip()


class EmulatorTransport(LocalTransport):
    """A runtime for another machine, whose Python an emulator runs."""

    @classmethod
    def open(cls, link: Link, cache_dir: Path) -> Self:
        paths = emulation.required(cache_dir / "emulation")
        above = [sys.executable, "-I", "-c", SUBREAPER, str(cache_dir / archive_name())]
        return cls.started([*above, *paths.command(link.command)], link, cache_dir, "the emulator")

    @staticmethod
    def remedy(link: Link) -> str:
        return "run `toolkit runtime emulation`, which fetches qemu and an aarch64 Python"
