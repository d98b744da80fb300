"""A bundle's files as the board sees them: manifest and parts, none of them believed before it is checked."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
from typing import Any, Dict

from device_runtime.protocol import BAD_HASH, REFUSED, ProtocolError

BUNDLE_FORMATS = (1, 2)  # 2: with variants for GPUs
MAX_MANIFEST_BYTES = 1 << 24
COPY_BYTES = 1 << 20
PART_PATH = re.compile(r"[a-z0-9][a-z0-9_.-]*(/[a-z0-9][a-z0-9_.-]*)*")

Plain = Dict[str, Any]


def bundle_id_of(manifest: bytes) -> str:
    """The id of the bundle with this manifest."""
    return hashlib.sha256(manifest).hexdigest()[:32]


def parse_manifest(data: bytes) -> Plain:
    """A manifest whose signature or hash holds; ProtocolError(REFUSED) when this runtime cannot use it."""
    manifest: Plain = json.loads(data.decode("utf-8"))
    if manifest.get("format") not in BUNDLE_FORMATS:
        known = ", ".join(map(str, BUNDLE_FORMATS))
        raise ProtocolError(
            REFUSED,
            f"the bundle has format {manifest.get('format')!r}, this runtime reads {known}; pack it again "
            "with a matching version of the tool",
        )
    for part in manifest["parts"]:
        if not PART_PATH.fullmatch(part["path"]):
            raise ProtocolError(
                REFUSED, f"the bundle names the part {part['path']!r:.80}, which is no plain path"
            )
    return manifest


def check_machine(manifest: Plain) -> None:
    """ProtocolError(REFUSED) when the bundle has code for another kind of machine."""
    machine, machines = platform.machine(), manifest["compatibility"]["machines"]
    if machines and machine not in machines:  # without CPU code it runs on any
        raise ProtocolError(
            REFUSED,
            f"the bundle has code for {', '.join(machines)}, this board is {machine}; tune for this board",
        )


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
    digest = hashlib.sha256()
    os.lseek(fd, 0, os.SEEK_SET)
    size_bytes = 0
    for block in iter(lambda: os.read(fd, COPY_BYTES), b""):
        digest.update(block)
        size_bytes += len(block)
    if size_bytes != part["size_bytes"] or digest.hexdigest() != part["sha256"]:
        raise ProtocolError(
            BAD_HASH,
            f"part {part['path']}: expected {part['size_bytes']} bytes with SHA-256 {part['sha256']}, found "
            f"{size_bytes} with {digest.hexdigest()}; flash the bundle again",
        )
