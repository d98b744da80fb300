"""Content store: files named by the SHA-256 of what they hold.

    DEVICE_DIR/objects/<sha256>         whole and verified; appears by rename, after fsync
    DEVICE_DIR/incoming/<sha256>.part   what has arrived of it; an upload goes on from its length

Files rot, and disks lie: an object is hashed the first time that a connection looks at it, and one that is no
longer what its name says counts as missing, so that the host puts it again. What is asked for least recently
goes first when the total would pass the cap.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import time
from typing import Dict, Optional, Tuple, Union

from device_runtime.protocol import BAD_HASH, NO_SPACE, NOT_FOUND, REFUSED, ProtocolError

DEFAULT_CAP_BYTES = 4 << 30
SPARE_BYTES = 64 << 20  # always left free on the file system
UNFINISHED_KEPT_S = 86_400.0  # how long an upload that was broken off can be gone on with
HASH_BYTES = 1 << 20
SLACK = 16  # where room is made, at least this part of the cap: a look at thousands of objects takes long
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Store:
    """One store per device directory; only the holder of the lease writes to it."""

    def __init__(self, device_dir: str, cap_bytes: int = DEFAULT_CAP_BYTES) -> None:
        self.cap_bytes = cap_bytes
        self.objects_dir = os.path.join(device_dir, "objects")
        self.incoming_dir = os.path.join(device_dir, "incoming")
        self._whole: Dict[str, Tuple[int, int, int]] = {}  # what was hashed: inode, size, time of writing
        self._used_bytes: Optional[int] = None  # at most; known while nobody else writes
        for path in (self.objects_dir, self.incoming_dir):
            os.makedirs(path, mode=0o700, exist_ok=True)

    def has(self, sha: str) -> bool:
        """Whether the whole object is here; one that is damaged or cannot be read is not."""
        path = os.path.join(self.objects_dir, sha)
        try:
            facts = os.stat(path)
            seen = (facts.st_ino, facts.st_size, facts.st_mtime_ns)
            if self._whole.get(sha) != seen and file_sha256(path) == sha:
                self._whole[sha] = seen
        except OSError:
            return False
        return self._whole.get(sha) == seen

    def path(self, sha: str) -> str:
        """Path of a whole object, noting that it was asked for; ProtocolError(NOT_FOUND)."""
        path = os.path.join(self.objects_dir, sha)
        if not self.has(sha):
            raise ProtocolError(NOT_FOUND, f"no object {sha} on the board; put it first", {"sha": sha})
        with contextlib.suppress(OSError):  # where nothing can be written, nothing has to make room either
            os.utime(path, ns=(time.time_ns(), os.stat(path).st_mtime_ns))
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
        _unlink(os.path.join(self.objects_dir, sha))  # damaged
        received = self.received_bytes(sha)
        if offset != received or received + len(data) > total_bytes:
            text = f"object {sha}: {received} of {total_bytes} bytes are here, not {offset}"
            raise ProtocolError(REFUSED, text, {"offset": received})
        if offset == 0:
            self._make_room(total_bytes)
        try:
            with open(self._part(sha), "ab") as file:
                file.write(data)
                if received + len(data) == total_bytes:
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            if error.errno in DISK_FULL:
                self.discard(sha)  # half of what does not fit must not fill the disk
            raise
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
        _unlink(self._part(sha))

    def forget_unfinished(self, older_than_s: float = UNFINISHED_KEPT_S) -> None:
        """Remove, as far as possible, uploads that got nothing for so long, or of what is here by now.

        Whoever had the lease before may have put more."""
        self._used_bytes = None
        with contextlib.suppress(OSError):
            for entry in list(os.scandir(self.incoming_dir)):
                done = is_there(os.path.join(self.objects_dir, entry.name[: -len(".part")]))
                if done or time.time() - entry.stat().st_mtime >= older_than_s:
                    _unlink(entry.path)

    def _part(self, sha: str) -> str:
        return os.path.join(self.incoming_dir, f"{sha}.part")

    def _finish(self, sha: str) -> None:
        found = file_sha256(self._part(sha))
        if found != sha:
            self.discard(sha)
            raise ProtocolError(BAD_HASH, f"object {sha}: what arrived has SHA-256 {found}; send it again")
        path = os.path.join(self.objects_dir, sha)
        os.replace(self._part(sha), path)
        facts = os.stat(path)
        self._whole[sha] = (facts.st_ino, facts.st_size, facts.st_mtime_ns)
        sync_directory(self.objects_dir)

    def _make_room(self, wanted_bytes: int) -> None:
        free_bytes = shutil.disk_usage(self.objects_dir).free
        used_bytes = self._used_bytes
        if used_bytes is None or used_bytes + wanted_bytes > self._may_hold(used_bytes, free_bytes):
            used_bytes = self._with_room(wanted_bytes, free_bytes)
        self._used_bytes = used_bytes + wanted_bytes

    def _may_hold(self, used_bytes: int, free_bytes: int) -> int:
        return min(self.cap_bytes, max(0, used_bytes + free_bytes - SPARE_BYTES))

    def _with_room(self, wanted_bytes: int, free_bytes: int) -> int:
        """The bytes in use, after the oldest objects went where they leave no room."""
        entries = sorted(
            (max(entry.stat().st_atime_ns, entry.stat().st_mtime_ns), entry.stat().st_size, entry.path)
            for folder in (self.objects_dir, self.incoming_dir)
            for entry in os.scandir(folder)
        )
        used_bytes = sum(size for _, size, _ in entries)
        cap_bytes = self._may_hold(used_bytes, free_bytes)
        if wanted_bytes > cap_bytes:
            text = (
                f"{wanted_bytes} bytes do not fit: {self.objects_dir} may hold {cap_bytes}; its disk has "
                f"{free_bytes} free and keeps {SPARE_BYTES} of them; free space on the board and try again"
            )
            raise ProtocolError(NO_SPACE, text, {"cap_bytes": cap_bytes, "free_bytes": free_bytes})
        if used_bytes + wanted_bytes <= cap_bytes:
            return used_bytes
        for _, size, path in entries:
            if used_bytes + wanted_bytes <= cap_bytes - cap_bytes // SLACK:
                break
            os.unlink(path)
            used_bytes -= size
        return used_bytes


def file_sha256(path: Union[str, int]) -> str:
    """SHA-256 in hex of a file's bytes; of an open one, which stays open, from its offset on."""
    digest = hashlib.sha256()
    with open(path, "rb", closefd=isinstance(path, str)) as file:
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


def _unlink(path: str) -> None:
    """Remove a file if there is one."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def is_there(path: str) -> bool:
    """Whether a name exists. OSError when the disk cannot say, where os.path.lexists would say no."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True


def part_of(path: str) -> str:
    """Where `write_atomically` writes before it renames."""
    return f"{path}.part"


def write_atomically(path: str, data: bytes) -> None:
    """Replace a file's content: readers see the old or the new one, also after a power cut."""
    part = part_of(path)
    try:
        with open(part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
    sync_directory(os.path.dirname(path))


def status(store: Store, sha: str) -> Dict[str, Optional[int]]:
    """What `put` needs to know first: {"size_bytes": of the whole object or None, "received_bytes": int}."""
    if store.has(sha):
        return {"size_bytes": os.stat(store.path(sha)).st_size, "received_bytes": 0}
    return {"size_bytes": None, "received_bytes": store.received_bytes(sha)}
