"""An end of a connection that is file descriptors: pipes, an SSH channel's, a socket's."""

from __future__ import annotations

import os
import select
import time
from typing import Optional

from device_runtime.wire.frames import Stream

READ_BYTES = 1 << 18


class DescriptorStream(Stream):
    """Reads one descriptor and writes another (for a socket, the same), on either side of a connection.

    `write_s`: how long all of a frame may take to go out; None: for ever. With it, `write_fd` does not block.
    """

    where = "the other side"

    def __init__(self, read_fd: int, write_fd: int, write_s: Optional[float] = None) -> None:
        self.read_fd, self.write_fd, self._write_s = read_fd, write_fd, write_s
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(read_fd, select.POLLIN)
        self._writable.register(write_fd, select.POLLOUT)
        if write_s is not None:
            os.set_blocking(write_fd, False)

    def read(self, timeout_s: Optional[float]) -> bytes:
        """Some bytes; b"" when the other side has closed; TimeoutError."""
        if not self._readable.poll(None if timeout_s is None else timeout_s * 1e3):
            raise TimeoutError(f"{self.where} did not answer within {timeout_s:g} s")
        try:
            return os.read(self.read_fd, READ_BYTES)
        except ConnectionResetError:
            return b""

    def write(self, data: bytes) -> None:
        """Write all of it; TimeoutError; OSError when the other side has gone."""
        view, started_s = memoryview(data), time.monotonic()
        while view:
            left_s = None if self._write_s is None else self._write_s + started_s - time.monotonic()
            if not self._writable.poll(None if left_s is None else max(0.0, left_s) * 1e3):
                raise TimeoutError(f"{self.where} took no request within {self._write_s:g} s")
            view = view[os.write(self.write_fd, view) :]
