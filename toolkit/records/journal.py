"""SQLite's write-ahead log, read from outside: does it hold transactions that SQLite can no longer reach?

SQLite believes a log up to the first frame whose checksum is wrong, silently: what a crash leaves half
written ends there. Damage in the middle looks the same to it, and every record after it is gone. What tells
the two apart is that every transaction numbers itself: of those that were not finished there is one at most,
and none after it. The format: https://sqlite.org/fileformat2.html#walformat
"""

from __future__ import annotations

import functools
import re
import struct
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

_HEADER: Final = struct.Struct(">IIII8sII")  # magic, version, page size, sequence, salts, checksums
_FRAME_BYTES: Final = 24  # page number, pages after a commit (else 0), salts, checksums
_MAGIC: Final = 0x377F0682  # and 1 more where checksums are of big endian words
NUMBER_BYTES: Final = 8
FOREIGN: Final = "its journal is another store's"
SETTLE_S: Final = 0.01  # between two looks: much more than the write of a frame takes

Words = NDArray[np.uint32]


class Mark(msgspec.Struct, frozen=True):
    """A page that every transaction writes: the store's identity, then the transaction's number.

    `number` is that of the last one that the store holds without the log.
    """

    page: int
    identity: bytes
    number: int


def journal_damage(path: Path, mark: Mark | None = None) -> str:
    """What is damaged in the log at `path`, which may be missing; empty: nothing, or what a crash leaves.

    FOREIGN for the log of a store without this mark; where it is unknown (None), the header alone is checked.
    """
    before = -1
    while True:
        try:
            first, text = _damage_in(path.read_bytes(), mark)
        except FileNotFoundError:
            return ""
        if not text or first == before:
            return text
        # While another process writes, later frames are read newer than earlier ones: look again.
        before = first
        time.sleep(SETTLE_S)


def _damage_in(data: bytes, mark: Mark | None) -> tuple[int, str]:
    """The first frame, from 1, that SQLite cannot reach, and what is wrong if that was not written last."""
    if len(data) <= _HEADER.size + _FRAME_BYTES:
        return 1, ""
    magic, _, page_bytes, _, _, *stored = _HEADER.unpack_from(data)
    known = magic & ~1 == _MAGIC and page_bytes in [1 << power for power in range(9, 17)]
    words = ">u4" if magic & 1 else "<u4"
    if not known or _sums(np.frombuffer(data, words, 6)[None], np.zeros((1, 2))).tolist() != [stored]:
        return 0, "the header of its journal is damaged: what the journal holds cannot be read"
    return _damage_of_frames(data, mark, page_bytes, words) if mark else (1, "")


def _damage_of_frames(data: bytes, mark: Mark, page_bytes: int, words: str) -> tuple[int, str]:
    """What `_damage_in` returns, for a log whose header is sound; frames are found by the header's salts."""
    frame_bytes, salts = _FRAME_BYTES + page_bytes, data[16:24]
    found = [match.start() + 16 for match in re.finditer(re.escape(salts), data[24:])]
    places = [place for place in found if _HEADER.size <= place <= len(data) - frame_bytes]
    if not places:
        return 1, ""
    frames = np.array([np.frombuffer(data, np.uint8, frame_bytes, place) for place in places])
    heads = frames[:, :_FRAME_BYTES].copy().view(">u4").astype(np.uint32)
    numbers = np.zeros(len(places), np.int64)
    for row in np.flatnonzero(heads[:, 0] == mark.page):
        numbers[row] = _number(frames[row].tobytes(), mark.identity)
    ends = heads[:, 1] > 0
    if ends.any() and not numbers.any():
        return 0, FOREIGN
    checked = np.concatenate([frames[:, :8], frames[:, _FRAME_BYTES:]], axis=1).view(words)
    before = [max(_HEADER.size, place - page_bytes) for place in places]  # where the head before ends
    sums = np.array([np.frombuffer(data, ">u4", 2, end - 8) for end in before], np.uint32)
    whole = (_sums(checked, sums) == heads[:, 4:]).all(axis=1)
    due = _HEADER.size + frame_bytes * np.arange(len(places))
    reached = int(np.argmin(np.append(whole & (due == places), False)))
    finished = int(np.flatnonzero(np.append(True, ends[:reached]))[-1])
    last = max(mark.number, int(numbers[:finished].max(initial=0)))
    later = numbers[reached:][whole[reached:]]
    lost = int((later > last).sum()) if (later > last + 1).any() else 0
    text = f"its journal is damaged at frame {reached + 1}: {lost} transactions after it"
    return reached + 1, text if lost else ""


def _number(page: bytes, identity: bytes) -> int:
    """Of the transaction that wrote a page; 0 for another store's. Older ones may stand in free space."""
    found = [match.end() for match in re.finditer(re.escape(identity), page)]
    return max((number_in(page[end : end + NUMBER_BYTES]) for end in found), default=0)


def number_in(changes: bytes) -> int:
    """The number of a transaction, which fits int64 whatever the bytes are."""
    return int.from_bytes(changes[:NUMBER_BYTES], "big") & ((1 << 62) - 1)


def _sums(words: NDArray[Any], before: NDArray[Any]) -> Words:
    """The checksums [N, 2] after each row of words [N, 2P], begun with those `before` [N, 2].

    A pair of words (x, y) makes (s, t) into (s + t + x, s + 2 t + x + y) modulo 2^32. That is linear: each
    pair counts as often as the matrix [[1, 1], [1, 2]] to the power of the pairs after it says.
    """
    powers = _powers(words.shape[1] // 2)
    first, second = words[:, 0::2].astype(np.uint32), words[:, 1::2].astype(np.uint32)
    pairs = np.stack([first, first + second], axis=2)  # [N, P, 2]
    added: Words = np.einsum("npj,pij->ni", pairs, powers[:-1][::-1])
    begun: Words = np.einsum("nj,ij->ni", before.astype(np.uint32), powers[-1])
    return added + begun


@functools.cache
def _powers(count: int) -> Words:
    """The matrix to the powers 0 to `count`, uint32 [count + 1, 2, 2]."""
    step, found = np.array([[1, 1], [1, 2]], np.uint32), [np.eye(2, dtype=np.uint32)]
    for _ in range(count):
        found.append(step @ found[-1])
    return np.array(found)
