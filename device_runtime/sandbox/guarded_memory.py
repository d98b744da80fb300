"""Memory for kernels: private mappings outside Python's heap, each between two pages that nobody may touch.

A buffer ends at the upper of these guard pages, or begins at the lower one. Between it and the guards lie
canary bytes, so that a kernel that leaves its buffer is killed by SIGSEGV or found by Region.strayed().

Inputs and expected outputs are loaded once, by the server, and made read-only; children inherit them
copy-on-write. Outputs and workspace are made by each child for itself.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Dict, Iterable, Optional, Set, Tuple

from device_runtime.content_store import Store
from device_runtime.protocol import BAD_REQUEST, MAX_DATA_SETS, ProtocolError
from device_runtime.sandbox.isolation import LIBC

MOST_KEPT_BYTES = 256 << 20
KEPT_SHARE = 16  # a board of 512 MiB keeps 32 MiB: every candidate packs its weights in a way of its own
MOST_KEPT_REGIONS = 8192  # of two or three mappings each: Linux allows 65,530 (sysctl vm.max_map_count)
PROT_NONE = 0
PROT_READ = 1
MAP_POPULATE = 0x8000  # all pages at once, which takes half the time: every byte is written anyway
MREMAP_MAYMOVE = 1
MREMAP_FIXED = 2
ALIGNMENT_BYTES = 64  # of every buffer of a kernel (cross/native/tfb.h)
Place = Tuple[str, int]  # the SHA-256 of an object, and the size of the buffers that it holds

LIBC.mremap.restype = ctypes.c_void_p
LIBC.mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)


class Region:
    """`size_bytes` of zeroed private memory at `address`, also as the memoryview `memory`.

    The upper guard page follows as closely as alignment allows; with `at_start` the lower one comes directly
    before. Freed when no longer referenced. MemoryError.
    """

    def __init__(self, size_bytes: int, at_start: bool = False) -> None:
        self.size_bytes = size_bytes
        room = _rounded(max(size_bytes, 1), mmap.PAGESIZE)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_POPULATE
        try:
            mapping = mmap.mmap(-1, room + 2 * mmap.PAGESIZE, flags=flags)
        except OSError as error:
            raise MemoryError(f"no memory for a buffer of {size_bytes} bytes: {error}") from None
        end = mmap.PAGESIZE + room
        start = mmap.PAGESIZE if at_start else end - _rounded(size_bytes, ALIGNMENT_BYTES)
        self._mapping = mapping
        whole = memoryview(mapping)
        self.memory = whole[start : start + size_bytes]
        self._slack = (whole[mmap.PAGESIZE : start], whole[start + size_bytes : end])
        self._before, self._room_bytes = start - mmap.PAGESIZE, room  # of it, and between the guards
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(mapping)) + start
        self._canary = new_canary()
        self._untouched = [repeated(self._canary, len(slack)) for slack in self._slack]
        for slack, untouched in zip(self._slack, self._untouched):
            slack[:] = untouched
        self._protect(-start, mmap.PAGESIZE, PROT_NONE)
        self._protect(end - start, mmap.PAGESIZE, PROT_NONE)

    def fill(self, byte: int) -> None:
        """Set every byte."""
        ctypes.memset(self.address, byte, self.size_bytes)

    def protect(self) -> None:
        """Make it read-only: a kernel that writes here is killed by SIGSEGV."""
        self._protect(-self._before, self._room_bytes, PROT_READ)

    def inherit(self, by_children: bool) -> None:
        """Whether processes that are forked from now on have it, too. OSError."""
        self._mapping.madvise(mmap.MADV_DOFORK if by_children else mmap.MADV_DONTFORK)

    def strayed(self) -> str:
        """Where somebody wrote between the buffer and its guard pages, for people; "" for nowhere."""
        found = [bytes(slack) for slack in self._slack]
        if found == self._untouched:
            return ""
        counts = [overwritten(self._canary, slack) for slack in found]
        return f"{counts[0]} bytes before the start" if counts[0] else f"{counts[1]} bytes after the end"

    def fits(self, other: "Region") -> bool:
        """Whether `move_to` can put this one in the place of the other."""
        return (self.size_bytes, self._before) == (other.size_bytes, other._before)

    def move_to(self, other: "Region") -> None:
        """Put this region's memory at the address of `other`, which it fits; from now on only `other` may be
        used. In a child process this leaves its parent's regions unchanged."""
        size, (old, new) = self._room_bytes, (region.address - region._before for region in (self, other))
        if LIBC.mremap(old, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, new) != new:
            raise OSError(ctypes.get_errno(), "mremap of an input buffer")
        other._canary, other._untouched = self._canary, self._untouched

    def _protect(self, distance_bytes: int, size_bytes: int, protection: int) -> None:
        address = ctypes.c_void_p(self.address + distance_bytes)
        if LIBC.mprotect(address, ctypes.c_size_t(size_bytes), protection) != 0:
            raise MemoryError(f"no memory for a buffer's guard pages: {os.strerror(ctypes.get_errno())}")


def _rounded(size_bytes: int, multiple: int) -> int:
    return -(-size_bytes // multiple) * multiple


def new_canary() -> bytes:
    """Four bytes to fill the space beside a buffer with; read as float32 or float64 they are NaN.

    Each buffer gets other ones, so that a kernel that copies the bytes beyond one buffer to the bytes beyond
    another is found. No byte is below 0x80, so that a small number written there is found, too."""
    return bytes(byte | 0x80 for byte in os.urandom(2)) + b"\xff\xff"


def repeated(canary: bytes, size_bytes: int) -> bytes:
    """The canary repeated to fill `size_bytes`."""
    return (canary * (size_bytes // len(canary) + 1))[:size_bytes]


def overwritten(canary: bytes, found: bytes) -> int:
    """How many of these bytes are no longer those of the canaries that were put there."""
    wanted = repeated(canary, len(found))
    return 0 if found == wanted else sum(ours != theirs for ours, theirs in zip(found, wanted))


def kept_bytes(memory_bytes: int) -> int:
    """How much of a device's memory its server may fill with what was measured before."""
    return min(MOST_KEPT_BYTES, memory_bytes // KEPT_SHARE)


def memory_bytes() -> int:
    """Physical memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class Inputs:
    """Objects of the store as read-only regions, kept while they fit in `cap_bytes` and are at most
    MOST_KEPT_REGIONS; the oldest go first. Children have those that were loaded last: a fork copies the
    page tables of what it hands on, and those of 256 MiB take it longer than a quick kernel is timed."""

    def __init__(self, store: Store, cap_bytes: int) -> None:
        self._store = store
        self._cap_bytes = cap_bytes
        self._regions: Dict[Place, Tuple[Region, ...]] = {}
        self._inherited: Set[Place] = set()

    def load(self, wanted: Iterable[Tuple[str, int, bool]]) -> Dict[Place, Tuple[Region, ...]]:
        """Regions of all (sha, size of the buffer in bytes, at_start): as many as the object holds buffers.
        The last is how they are made, those that are there stay what they are. ProtocolError NOT_FOUND or
        BAD_REQUEST, MemoryError."""
        loaded = {}
        for sha, size_bytes, at_start in wanted:
            place = sha, size_bytes
            regions: Optional[Tuple[Region, ...]] = self._regions.pop(place, None)
            if regions is None:
                regions = self._read(sha, size_bytes, at_start)
            self._regions[place] = regions  # the newest now
            loaded[place] = regions
        self._forget(loaded)
        self._hand_on(loaded)
        return loaded

    def _hand_on(self, loaded: Dict[Place, Tuple[Region, ...]]) -> None:
        for place in loaded.keys() ^ self._inherited:
            for region in self._regions.get(place, ()):
                region.inherit(place in loaded)
        self._inherited = set(loaded)

    def _read(self, sha: str, size_bytes: int, at_start: bool) -> Tuple[Region, ...]:
        with open(self._store.path(sha), "rb") as file:
            found_bytes = os.fstat(file.fileno()).st_size
            count = found_bytes // size_bytes if size_bytes else 1
            if not 1 <= count <= MAX_DATA_SETS or count * size_bytes != found_bytes:
                text = f"object {sha} has {found_bytes} bytes, the buffer it is for {size_bytes}"
                raise ProtocolError(BAD_REQUEST, text)
            regions = tuple(Region(size_bytes, at_start) for _ in range(count))
            for region in regions:
                done = 0
                while done < size_bytes:
                    read = file.readinto(region.memory[done:])
                    if not read:
                        raise OSError(f"object {sha} became shorter while it was read")
                    done += read
                region.protect()
                region.inherit(False)
        return regions

    def _forget(self, kept: Dict[Place, Tuple[Region, ...]]) -> None:
        counts = {place: len(regions) for place, regions in self._regions.items()}
        total_count = sum(counts.values())
        total_bytes = sum(place[1] * count for place, count in counts.items())
        for place, count in counts.items():
            if total_bytes <= self._cap_bytes and total_count <= MOST_KEPT_REGIONS:
                return
            if place not in kept:
                del self._regions[place]
                total_count -= count
                total_bytes -= place[1] * count
