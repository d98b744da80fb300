"""Files that are whole or not there, and kept files that are not believed because they exist."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from boards.files import is_whole, kept_file, kept_folder, read_sealed, seal, write_file, write_sealed

DAMAGES: tuple[Callable[[bytes], bytes], ...] = (
    lambda data: b"",
    lambda data: data[: len(data) // 2],
    lambda data: bytes([data[0] ^ 1]) + data[1:],
    lambda data: data[:-3] + b"x" + data[-2:],
    lambda data: data + b"more",
    lambda data: b"\0" * len(data),
)


def test_a_file_is_replaced_or_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_file(path, b"old", 0o600)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"old", 0o600)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_file(path, b"new")
    assert [entry.read_bytes() for entry in tmp_path.iterdir()] == [b"old"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_written_again_or_nothing(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    kept, sealed = tmp_path / "below" / "kept", tmp_path / "sealed"
    kept_file(kept, b"content\n")
    kept.write_bytes(damage(b"content\n"))
    assert kept_file(kept, b"content\n").read_bytes() == b"content\n"
    write_sealed(sealed, b"line\nline\n")
    assert read_sealed(sealed) == b"line\nline\n"
    sealed.write_bytes(damage(sealed.read_bytes()))
    assert read_sealed(sealed) is None
    write_sealed(sealed, b"line\n")
    sealed.write_bytes(sealed.read_bytes()[:-1])
    assert read_sealed(sealed) is None
    assert read_sealed(tmp_path / "none") is None


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_made_again(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    made: list[Path] = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "one").write_bytes(b"first")
        (folder / "two").write_bytes(b"second")

    folder = kept_folder(tmp_path / "folder", make)
    assert kept_folder(folder, make) == folder
    assert len(made) == 1
    for name in ("one", "two", "SHA256SUMS"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(damage(whole))
        assert not is_whole(folder)
        kept_folder(folder, make)
        assert (folder / name).read_bytes() == whole
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_the_seal_is_what_sha256sum_checks(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a file").write_bytes(b"content")
    seal(tmp_path)
    assert is_whole(tmp_path)
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=tmp_path, check=True)
    (tmp_path / "below" / "a file").unlink()
    assert not is_whole(tmp_path)
