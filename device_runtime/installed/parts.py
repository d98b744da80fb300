"""A bundle's files as the board sees them, none of them believed before it is checked."""

from __future__ import annotations

import hashlib
import os
import shutil
from typing import Any, Dict

from device_runtime.content_store import file_sha256
from device_runtime.installed.checked_manifest import MAX_MANIFEST_BYTES
from device_runtime.protocol import BAD_HASH, REFUSED, ProtocolError

COPY_BYTES = 1 << 20

Plain = Dict[str, Any]


def bundle_id_of(manifest: bytes) -> str:
    """The id of the bundle with this manifest."""
    return hashlib.sha256(manifest).hexdigest()[:32]


def read_whole(path: str) -> bytes:
    """A small file's bytes; ProtocolError(REFUSED) when it is not small."""
    with open(path, "rb") as file:
        data = file.read(MAX_MANIFEST_BYTES + 1)
    if len(data) > MAX_MANIFEST_BYTES:
        raise ProtocolError(REFUSED, f"a manifest of more than {MAX_MANIFEST_BYTES} bytes is not read")
    return data


def copy_part(source: str, path: str, part: Plain) -> None:
    """Copy a stored object into a slot; what was written is read back and hashed before it counts."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
    try:
        with open(source, "rb") as file, open(fd, "wb", closefd=False) as copy:
            shutil.copyfileobj(file, copy, COPY_BYTES)
        os.fsync(fd)
        check_hash(fd, part)
    finally:
        os.close(fd)


def check_hash(fd: int, part: Plain) -> None:
    """ProtocolError(BAD_HASH) unless the open file is the part; leaves the offset at the end."""
    os.lseek(fd, 0, os.SEEK_SET)
    sha256, size_bytes = file_sha256(fd), os.fstat(fd).st_size
    if size_bytes != part["size_bytes"] or sha256 != part["sha256"]:
        raise ProtocolError(
            BAD_HASH,
            f"part {part['path']}: expected {part['size_bytes']} bytes with SHA-256 {part['sha256']}, found "
            f"{size_bytes} with {sha256}; flash the bundle again",
        )
