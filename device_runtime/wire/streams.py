"""The runtime's end of a connection: file descriptors (pipes, an SSH channel's, a socket's)."""

from __future__ import annotations

import os
import select
from typing import Optional

from device_runtime.wire.frames import Stream

READ_BYTES = 1 << 18


class DescriptorStream(Stream):
    """Reads one descriptor and writes another (for a socket, the same)."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.read_fd = read_fd
        self.write_fd = write_fd
        self._readable = select.poll()
        self._readable.register(read_fd, select.POLLIN)

    def read(self, timeout_s: Optional[float]) -> bytes:
        """Some bytes; b"" when the other side has closed; TimeoutError."""
        if not self._readable.poll(None if timeout_s is None else timeout_s * 1e3):
            raise TimeoutError(f"nothing arrived within {timeout_s:g} s")
        try:
            return os.read(self.read_fd, READ_BYTES)
        except ConnectionResetError:
            return b""

    def write(self, data: bytes) -> None:
        """Write all of it; OSError when the other side has gone."""
        view = memoryview(data)
        while view:
            view = view[os.write(self.write_fd, view) :]
