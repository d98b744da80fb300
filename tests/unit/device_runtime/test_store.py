"""The content store: whole or not at all, resumable, and never over its cap."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from device_runtime.protocol import BAD_HASH, NO_SPACE, NOT_FOUND, REFUSED, ProtocolError
from device_runtime.store import Store, status, write_atomically


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
