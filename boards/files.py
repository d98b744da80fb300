"""Files that are written whole or not at all, and kept files that are verified when they are used.

A power cut, a full disk or a killed process may leave an empty or a half-written file behind, and storage may
lose a bit. What can be made again is therefore never believed because it exists: `kept_file` compares,
`kept_folder` and `read_sealed` hash, and what is not whole is made again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

SUMS = "SHA256SUMS"  # sealed lines as of sha256sum: `sha256sum -c` says what is damaged


def write_file(path: Path, data: bytes, mode: int = 0o644, *, new: bool = False) -> None:
    """Replace a file, durably: whoever reads sees the old or the new content. Raises OSError.

    A `new` one is made whole or not at all; FileExistsError where there is one of that name.
    """
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as out:
        try:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
            os.fchmod(out.fileno(), mode)
            if new:
                os.link(out.name, path)
                os.unlink(out.name)
            else:
                os.replace(out.name, path)
        except BaseException:
            os.unlink(out.name)
            raise
    sync(path.parent)


def kept_file(path: Path, data: bytes) -> Path:
    """The file with this content, written unless it is there byte for byte. Raises OSError."""
    try:
        whole = path.read_bytes() == data
    except OSError:
        whole = False
    if not whole:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, data)
    return path


def write_sealed(path: Path, data: bytes) -> None:
    """Replace a file by this content and its SHA-256 in hex on a last line of its own. Raises OSError."""
    write_file(path, _sealed(data))


def read_sealed(path: Path) -> bytes | None:
    """What `write_sealed` wrote; None where that is not there, or damaged."""
    try:
        found = path.read_bytes()
    except OSError:
        return None
    data = found.removesuffix(b"\n").rpartition(b"\n")[0]
    return data if found == _sealed(data) else None


def _sealed(data: bytes) -> bytes:
    return data + b"\n" + hashlib.sha256(data).hexdigest().encode() + b"\n"


def kept_folder(folder: Path, make: Callable[[Path], None]) -> Path:
    """The folder, if every file that `make` made in it is whole; otherwise made again.

    `make` fills an empty folder beside it; same inputs must give the same files. Several processes may do so
    at once: each file is replaced by itself, so that none is ever missing. Raises OSError, and what `make`
    raises.
    """
    if is_whole(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix="building-", dir=folder.parent))
    try:
        make(building)
        seal(building)
        folder.mkdir(exist_ok=True)
        for path in sorted(building.iterdir(), key=lambda path: path.name == SUMS):
            path.replace(folder / path.name)
        sync(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def seal(folder: Path) -> None:
    """Write down the SHA-256 of every file below a folder, once all of them are on the disk."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    sums = [f"{_sha256(path)}  {path.relative_to(folder)}\n" for path in paths if path.name != SUMS]
    for path in [*paths, *(path for path in folder.rglob("*") if path.is_dir() and not path.is_symlink())]:
        sync(path)
    write_sealed(folder / SUMS, "".join(sums).encode())


def is_whole(folder: Path) -> bool:
    """Whether every file of a sealed folder is as it was when it was sealed."""
    sums = read_sealed(folder / SUMS)
    lines = [] if sums is None else [line.partition("  ") for line in sums.decode().splitlines()]
    try:
        return sums is not None and all(_sha256(folder / name) == digest for digest, _, name in lines)
    except OSError:
        return False


def sync(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, are on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
