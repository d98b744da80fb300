"""Kept binaries: whole ones only, and not too many."""

from __future__ import annotations

import os
from pathlib import Path

from device_runtime.drivers.binaries import Binaries, key_of


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    binaries = Binaries(str(tmp_path / "kept"))
    key = key_of(["driver", "1.0", "source"])
    assert binaries.get(key) is None
    assert [binaries.first_time(key) for _ in range(2)] == [True, False]
    assert binaries.get(key) is None
    binaries.put(key, b"binary")
    assert not binaries.first_time(key)
    assert Binaries(str(tmp_path / "kept")).get(key) == b"binary"
    binaries.drop(key)
    assert binaries.get(key) is None


def test_keys_depend_on_every_part_and_its_place() -> None:
    keys = {key_of(parts) for parts in (["a", "b"], ["ab"], ["b", "a"], ["a", "b", ""])}
    assert len(keys) == 4


def test_a_damaged_binary_is_none(tmp_path: Path) -> None:
    binaries = Binaries(str(tmp_path))
    binaries.put("key", b"binary")
    (tmp_path / "key").write_bytes((tmp_path / "key").read_bytes()[:-1])
    assert binaries.get("key") is None


def test_the_one_used_longest_ago_goes_first(tmp_path: Path) -> None:
    binaries = Binaries(str(tmp_path), cap_bytes=300)
    for age_s, key in ((30, "old"), (20, "used"), (10, "new")):
        binaries.put(key, bytes(50))
        os.utime(tmp_path / key, (1e9 - age_s, 1e9 - age_s))
    assert binaries.get("used") == bytes(50)  # which makes it the newest
    binaries.put("next", bytes(50))
    assert binaries.get("old") is None
    assert binaries.get("used") == bytes(50)
    binaries.put("huge", bytes(1000))
    assert binaries.get("huge") is None


def test_there_are_not_too_many(tmp_path: Path) -> None:
    """Be they as small as the note that a program was built once."""
    binaries = Binaries(str(tmp_path), most_files=2)
    for age_s, key in ((20, "oldest"), (10, "older")):
        assert binaries.first_time(key)
        os.utime(tmp_path / key, (1e9 - age_s, 1e9 - age_s))
    assert binaries.first_time("new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "older"]
