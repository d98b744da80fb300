"""Content store: files named by the SHA-256 of what they hold.

    DEVICE_DIR/objects/<sha256>         whole and verified; appears by rename, after fsync
    DEVICE_DIR/incoming/<sha256>.part   what has arrived of it; an upload goes on from its length

What is asked for least recently goes first when the total would pass the cap.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from typing import Dict, Optional

from device_runtime.protocol import BAD_HASH, NO_SPACE, NOT_FOUND, REFUSED, ProtocolError

DEFAULT_CAP_BYTES = 4 << 30
SPARE_BYTES = 64 << 20  # always left free on the file system
HASH_BYTES = 1 << 20


class Store:
    """One store per device directory; only the holder of the lease writes to it."""

    def __init__(self, device_dir: str, cap_bytes: int = DEFAULT_CAP_BYTES) -> None:
        self.cap_bytes = cap_bytes
        self.objects_dir = os.path.join(device_dir, "objects")
        self.incoming_dir = os.path.join(device_dir, "incoming")
        for path in (self.objects_dir, self.incoming_dir):
            os.makedirs(path, mode=0o700, exist_ok=True)

    def has(self, sha: str) -> bool:
        """Whether the whole object is here."""
        return os.path.isfile(os.path.join(self.objects_dir, sha))

    def path(self, sha: str) -> str:
        """Path of an object, noting that it was asked for; ProtocolError(NOT_FOUND)."""
        path = os.path.join(self.objects_dir, sha)
        try:
            os.utime(path)
        except FileNotFoundError:
            raise ProtocolError(
                NOT_FOUND, f"no object {sha} on the board; put it first", {"sha": sha}
            ) from None
        return path

    def received_bytes(self, sha: str) -> int:
        """How much of an unfinished upload is here."""
        try:
            return os.stat(self._part(sha)).st_size
        except FileNotFoundError:
            return 0

    def write(self, sha: str, total_bytes: int, offset: int, data: bytes) -> int:
        """Append a chunk; the last one verifies the hash and makes the object appear. Returns bytes here now.

        ProtocolError: REFUSED (wrong offset; details: the right one), NO_SPACE, BAD_HASH (starts over).
        """
        if self.has(sha):
            return total_bytes
        received = self.received_bytes(sha)
        if offset != received or received + len(data) > total_bytes:
            text = f"object {sha}: {received} of {total_bytes} bytes are here, not {offset}"
            raise ProtocolError(REFUSED, text, {"offset": received})
        if offset == 0:
            self._make_room(total_bytes)
        with open(self._part(sha), "ab") as file:
            file.write(data)
            if received + len(data) == total_bytes:
                file.flush()
                os.fsync(file.fileno())
        if received + len(data) == total_bytes:
            self._finish(sha)
        return received + len(data)

    def read(self, sha: str, offset: int, size_bytes: int) -> bytes:
        """Part of an object; shorter at its end."""
        with open(self.path(sha), "rb") as file:
            file.seek(offset)
            return file.read(size_bytes)

    def add(self, data: bytes) -> str:
        """Store something made on the board (an output, a log); its SHA-256."""
        sha = hashlib.sha256(data).hexdigest()
        if not self.has(sha):
            self.discard(sha)
            self.write(sha, len(data), 0, data)
        return sha

    def discard(self, sha: str) -> None:
        """Forget what has arrived of an unfinished upload."""
        if os.path.exists(self._part(sha)):
            os.unlink(self._part(sha))

    def _part(self, sha: str) -> str:
        return os.path.join(self.incoming_dir, f"{sha}.part")

    def _finish(self, sha: str) -> None:
        found = file_sha256(self._part(sha))
        if found != sha:
            self.discard(sha)
            raise ProtocolError(BAD_HASH, f"object {sha}: what arrived has SHA-256 {found}; send it again")
        os.replace(self._part(sha), os.path.join(self.objects_dir, sha))
        sync_directory(self.objects_dir)

    def _make_room(self, wanted_bytes: int) -> None:
        entries = sorted(
            (entry.stat().st_mtime_ns, entry.stat().st_size, entry.path)
            for folder in (self.objects_dir, self.incoming_dir)
            for entry in os.scandir(folder)
        )
        used_bytes = sum(size for _, size, _ in entries)
        free_bytes = shutil.disk_usage(self.objects_dir).free - SPARE_BYTES
        cap_bytes = min(self.cap_bytes, used_bytes + free_bytes)
        if wanted_bytes > cap_bytes:
            text = f"{wanted_bytes} bytes do not fit: the store may hold {cap_bytes}, {free_bytes} are free"
            raise ProtocolError(NO_SPACE, text, {"cap_bytes": cap_bytes, "free_bytes": free_bytes})
        for _, size, path in entries:
            if used_bytes + wanted_bytes <= cap_bytes:
                return
            os.unlink(path)
            used_bytes -= size


def file_sha256(path: str) -> str:
    """SHA-256 of a file's bytes, in hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(HASH_BYTES), b""):
            digest.update(block)
    return digest.hexdigest()


def sync_directory(path: str) -> None:
    """Make renames and new names in a directory survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomically(path: str, data: bytes) -> None:
    """Replace a file's content: readers see the old or the new one, also after a power cut."""
    part = f"{path}.part"
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    sync_directory(os.path.dirname(path))


def status(store: Store, sha: str) -> Dict[str, Optional[int]]:
    """What `put` needs to know first: {"size_bytes": of the whole object or None, "received_bytes": int}."""
    if store.has(sha):
        return {"size_bytes": os.stat(store.path(sha)).st_size, "received_bytes": 0}
    return {"size_bytes": None, "received_bytes": store.received_bytes(sha)}
