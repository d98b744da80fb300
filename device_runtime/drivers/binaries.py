"""Programs as an OpenCL driver has built them, kept from one measurement to the next.

The key says all that a binary depends on; the file begins with the hash of the rest, so that what was only
half written, or scribbled over, is built again from the source.
"""

from __future__ import annotations

import hashlib
import os
from typing import List, Optional, Sequence, Tuple

CAP_BYTES = 64 << 20
MOST_FILES = 4096  # all are looked at when one is added, which takes some 10 ms
DIGEST_BYTES = 32


def key_of(parts: Sequence[str]) -> str:
    """SHA-256 in hex of the driver, its version, the device, the options and the source."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class Binaries:
    """Files in `folder`, at most `most_files` of `cap_bytes` together; those used longest ago go first."""

    def __init__(self, folder: str, cap_bytes: int = CAP_BYTES, most_files: int = MOST_FILES) -> None:
        self._folder = folder
        self._cap_bytes = cap_bytes
        self._most_files = most_files

    def get(self, key: str) -> Optional[bytes]:
        """The binary, or None when there is none that is whole; an empty one only says that it was built."""
        path = os.path.join(self._folder, key)
        try:
            with open(path, "rb") as file:
                data = file.read()
            os.utime(path)
        except OSError:
            return None
        digest, binary = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
        return binary if binary and hashlib.sha256(binary).digest() == digest else None

    def put(self, key: str, binary: bytes) -> None:
        """Keep it, if the disk has room; nothing depends on it."""
        if len(binary) > self._cap_bytes:
            return
        part = os.path.join(self._folder, f".{key}.{os.getpid()}")
        try:
            os.makedirs(self._folder, exist_ok=True)
            with open(part, "wb") as file:
                file.write(hashlib.sha256(binary).digest() + binary)
            os.replace(part, os.path.join(self._folder, key))
            self._forget()
        except OSError:
            return

    def first_time(self, key: str) -> bool:
        """Whether no program of this key is known to have been built; from now on one is."""
        if os.path.exists(os.path.join(self._folder, key)):
            return False
        self.put(key, b"")
        return True

    def drop(self, key: str) -> None:
        """Forget one that the driver refused."""
        try:
            os.unlink(os.path.join(self._folder, key))
        except OSError:
            return

    def _forget(self) -> None:
        files: List[Tuple[float, int, str]] = []
        for entry in os.scandir(self._folder):
            status = entry.stat()
            files.append((status.st_mtime, status.st_size, entry.path))
        total_bytes = sum(size for _, size, _ in files)
        for left, (_, size, path) in zip(range(len(files), 0, -1), sorted(files)):
            if total_bytes <= self._cap_bytes and left <= self._most_files:
                return
            os.unlink(path)
            total_bytes -= size
