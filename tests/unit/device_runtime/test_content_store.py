"""The content store: whole or not at all, resumable, and never over its cap."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from device_runtime.content_store import Store, status, write_atomically
from device_runtime.protocol import BAD_HASH, NO_SPACE, NOT_FOUND, REFUSED, ProtocolError


def sha_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_chunks_become_an_object(tmp_path: Path) -> None:
    store, data = Store(str(tmp_path)), b"abcdefghij"
    sha = sha_of(data)
    assert store.write(sha, 10, 0, data[:4]) == 4
    assert status(store, sha) == {"size_bytes": None, "received_bytes": 4}
    assert not store.has(sha)
    again = Store(str(tmp_path))  # the next process goes on
    assert again.write(sha, 10, 4, data[4:]) == 10
    assert status(again, sha) == {"size_bytes": 10, "received_bytes": 0}
    assert again.read(sha, 3, 4) == b"defg"
    assert again.write(sha, 10, 0, b"") == 10  # nothing to do
    assert os.listdir(tmp_path / "incoming") == []


def test_a_wrong_offset_says_the_right_one(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    sha = sha_of(b"abc")
    store.write(sha, 3, 0, b"a")
    for offset, data in ((0, b"a"), (2, b"c"), (1, b"bcd")):
        with pytest.raises(ProtocolError) as refused:
            store.write(sha, 3, offset, data)
        assert (refused.value.code, refused.value.details) == (REFUSED, {"offset": 1})


def test_wrong_bytes_are_dropped(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    with pytest.raises(ProtocolError) as bad:
        store.write(sha_of(b"abc"), 3, 0, b"abd")
    assert bad.value.code == BAD_HASH
    assert status(store, sha_of(b"abc")) == {"size_bytes": None, "received_bytes": 0}


def test_what_is_not_here(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError) as missing:
        Store(str(tmp_path)).path("0" * 64)
    assert missing.value.code == NOT_FOUND


def test_the_least_recently_wanted_goes_first(tmp_path: Path) -> None:
    store = Store(str(tmp_path), cap_bytes=100)
    objects = [bytes([i]) * 40 for i in range(3)]
    first, second = (store.add(data) for data in objects[:2])
    for age, sha in ((20, first), (10, second)):
        path = tmp_path / "objects" / sha
        os.utime(path, (path.stat().st_mtime - age,) * 2)
    store.path(first)  # wanted again: now the second is the oldest
    third = store.add(objects[2])
    assert [store.has(sha) for sha in (first, second, third)] == [True, False, True]


def test_all_objects_are_looked_at_once_and_then_only_to_make_room_for_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, scan = [], os.scandir

    def noted(path: str) -> object:
        looks.append(path)
        return scan(path)

    monkeypatch.setattr("os.scandir", noted)
    store = Store(str(tmp_path), cap_bytes=3200)
    for number in range(32):
        store.add(bytes([number]) * 100)
    assert len(looks) == 2  # objects, and unfinished uploads
    for number in range(32, 35):
        store.add(bytes([number]) * 100)
    assert len(looks) == 4
    assert len(os.listdir(tmp_path / "objects")) == 32
    store.forget_unfinished()  # somebody else may have written
    looks.clear()
    Store(str(tmp_path)).add(b"x" * 100)
    store.add(b"y" * 100)
    assert len(looks) == 4
    assert len(os.listdir(tmp_path / "objects")) <= 32


def test_what_can_never_fit_is_refused(tmp_path: Path) -> None:
    store = Store(str(tmp_path), cap_bytes=100)
    kept = store.add(b"x" * 50)
    with pytest.raises(ProtocolError) as full:
        store.write("0" * 64, 101, 0, b"")
    assert full.value.code == NO_SPACE
    assert store.has(kept)


def test_add_twice(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    assert store.add(b"data") == store.add(b"data") == sha_of(b"data")
    assert store.add(b"") == sha_of(b"")


def test_write_atomically_replaces(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (b"old", b"new"):
        write_atomically(str(path), data)
        assert path.read_bytes() == data
    assert os.listdir(tmp_path) == ["file"]


def _damaged(path: Path) -> None:
    """One bit flips, and nothing else about the file changes."""
    facts, data = path.stat(), bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def test_a_damaged_object_counts_as_missing_and_is_replaced(tmp_path: Path) -> None:
    data = b"abcdefghij"
    sha = Store(str(tmp_path)).add(data)
    _damaged(tmp_path / "objects" / sha)
    store = Store(str(tmp_path))
    assert not store.has(sha)
    assert status(store, sha) == {"size_bytes": None, "received_bytes": 0}
    with pytest.raises(ProtocolError) as missing:
        store.path(sha)
    assert (missing.value.code, missing.value.details) == (NOT_FOUND, {"sha": sha})
    assert store.write(sha, 10, 0, data) == 10
    assert store.read(sha, 0, 10) == data


def test_an_object_is_hashed_once_until_its_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []

    def counted(path: str) -> str:
        hashed.append(path)
        return sha_of(Path(path).read_bytes())

    sha = Store(str(tmp_path)).add(b"data")
    monkeypatch.setattr("device_runtime.content_store.file_sha256", counted)
    store = Store(str(tmp_path))
    for _ in range(3):
        store.path(sha)
        assert store.has(sha)
    assert len(hashed) == 1
    os.truncate(tmp_path / "objects" / sha, 3)
    assert not store.has(sha)


def test_a_full_disk_is_said_without_negative_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: shutil._ntuple_diskusage(1 << 30, (1 << 30) - 7, 7))
    with pytest.raises(ProtocolError, match="may hold 0; its disk has 7 free and keeps 67108864") as full:
        Store(str(tmp_path)).write("0" * 64, 101, 0, b"")
    assert full.value.details == {"cap_bytes": 0, "free_bytes": 7}


def test_what_does_not_fit_does_not_stay_and_fill_the_disk(tmp_path: Path) -> None:
    store, sha = Store(str(tmp_path)), sha_of(b"abc")
    (tmp_path / "incoming" / f"{sha}.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        store.write(sha, 3, 0, b"abc")
    assert os.listdir(tmp_path / "incoming") == []


def test_old_unfinished_uploads_go(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    for text in ("old", "new"):
        store.write(sha_of(text.encode()), 10, 0, text.encode())
    os.utime(tmp_path / "incoming" / f"{sha_of(b'old')}.part", (0, 0))
    (tmp_path / "incoming" / f"{store.add(b'here')}.part").write_bytes(b"here")  # a power cut brings it back
    store.forget_unfinished()
    assert os.listdir(tmp_path / "incoming") == [f"{sha_of(b'new')}.part"]
    store.forget_unfinished(0.0)
    assert os.listdir(tmp_path / "incoming") == []
