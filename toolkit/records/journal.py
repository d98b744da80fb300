"""SQLite's write-ahead log, read from outside: does it hold transactions that SQLite can no longer reach?

SQLite believes a log up to the first frame whose checksum is wrong, silently: what a crash leaves half
written ends there. Damage in the middle looks the same to it, and every record after it is gone. Here whole
frames of finished transactions after a bad frame tell the two apart. The format:
https://sqlite.org/fileformat2.html#walformat
"""

from __future__ import annotations

import functools
import struct
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_HEADER: Final = struct.Struct(">IIII8sII")  # magic, version, page size, sequence, salts, checksums
_FRAME_BYTES: Final = 24  # page number, pages after a commit (else 0), salts, checksums
_MAGIC: Final = 0x377F0682  # and 1 more where checksums are of big endian words

Words = NDArray[np.uint32]


def journal_damage(path: Path) -> str:
    """What is damaged in the log at `path`, which may be missing; empty: nothing, or what a crash leaves."""
    while True:
        try:
            data = path.read_bytes()
            with path.open("rb") as again:
                settled = again.read(_HEADER.size) == data[: _HEADER.size]
        except FileNotFoundError:
            return ""
        if settled:  # else it was begun anew meanwhile
            return _damage_in(data)


def _damage_in(data: bytes) -> str:
    if len(data) <= _HEADER.size + _FRAME_BYTES:
        return ""
    magic, _, page_bytes, _, salts, *stored = _HEADER.unpack_from(data)
    known = magic & ~1 == _MAGIC and page_bytes in [1 << power for power in range(9, 17)]
    words = ">u4" if magic & 1 else "<u4"
    if not known or _sums(np.frombuffer(data, words, 6)[None], np.zeros((1, 2))).tolist() != [stored]:
        return "the header of its journal is damaged: what the journal holds cannot be read"
    frame_bytes = _FRAME_BYTES + page_bytes
    count = (len(data) - _HEADER.size) // frame_bytes
    frames = np.frombuffer(data, np.uint8, count * frame_bytes, _HEADER.size).reshape(count, frame_bytes)
    heads = frames[:, :_FRAME_BYTES].copy().view(">u4").astype(np.uint32)
    checked = np.concatenate([frames[:, :8], frames[:, _FRAME_BYTES:]], axis=1).view(words)
    before = np.concatenate([np.array([stored], np.uint32), heads[:-1, 4:]])
    ours = (heads[:, 2:4] == np.frombuffer(salts, ">u4")).all(axis=1)
    whole = ours & (_sums(checked, before) == heads[:, 4:]).all(axis=1)
    if whole.all():
        return ""
    first = int(np.argmin(whole))
    lost = int((whole & (heads[:, 1] > 0))[first:].sum())
    return f"its journal is damaged at frame {first + 1}: {lost} transactions after it" if lost else ""


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
