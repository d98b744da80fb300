"""Memory for kernels: private mappings (page-aligned, so 64-byte aligned too) outside Python's heap.

Inputs and expected outputs are loaded once, by the server, and made read-only; children inherit them
copy-on-write. Outputs and workspace are made by each child for itself.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Dict, Iterable, Optional, Tuple

from device_runtime.isolation import LIBC
from device_runtime.protocol import BAD_REQUEST, ProtocolError
from device_runtime.store import Store

MOST_KEPT_BYTES = 256 << 20
KEPT_SHARE = 16  # a board of 512 MiB keeps 32 MiB: every candidate packs its weights in a way of its own
PROT_READ = 1


class Region:
    """`size_bytes` of zeroed private memory at `address`; freed when no longer referenced. MemoryError."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        try:
            self.memory = mmap.mmap(-1, max(size_bytes, 1), flags=flags)
        except OSError as error:
            raise MemoryError(f"no memory for a buffer of {size_bytes} bytes: {error}") from None
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def fill(self, byte: int) -> None:
        """Set every byte."""
        ctypes.memset(self.address, byte, self.size_bytes)

    def protect(self) -> None:
        """Make it read-only: a kernel that writes here is killed by SIGSEGV."""
        size = ctypes.c_size_t(max(self.size_bytes, 1))
        if LIBC.mprotect(ctypes.c_void_p(self.address), size, PROT_READ) != 0:
            raise OSError(ctypes.get_errno(), "mprotect of an input buffer")


def kept_bytes(memory_bytes: int) -> int:
    """How much of a device's memory its server may fill with what was measured before."""
    return min(MOST_KEPT_BYTES, memory_bytes // KEPT_SHARE)


def memory_bytes() -> int:
    """Physical memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class Inputs:
    """Objects of the store as read-only regions, kept while they fit in `cap_bytes`; the oldest go first."""

    def __init__(self, store: Store, cap_bytes: int) -> None:
        self._store = store
        self._cap_bytes = cap_bytes
        self._regions: Dict[str, Region] = {}

    def load(self, wanted: Iterable[Tuple[str, int]]) -> Dict[str, Region]:
        """Regions of all (sha, size in bytes); ProtocolError NOT_FOUND or BAD_REQUEST, MemoryError."""
        loaded = {}
        for sha, size_bytes in wanted:
            region: Optional[Region] = self._regions.pop(sha, None)
            if region is None:
                region = self._read(sha)
            self._regions[sha] = region  # the newest now
            loaded[sha] = region
            if region.size_bytes != size_bytes:
                text = f"object {sha} has {region.size_bytes} bytes, the buffer it is for {size_bytes}"
                raise ProtocolError(BAD_REQUEST, text)
        self._forget(loaded)
        return loaded

    def _read(self, sha: str) -> Region:
        with open(self._store.path(sha), "rb") as file:
            region = Region(os.fstat(file.fileno()).st_size)
            view = memoryview(region.memory)
            done = 0
            while done < region.size_bytes:
                count = file.readinto(view[done : region.size_bytes])
                if not count:
                    raise OSError(f"object {sha} became shorter while it was read")
                done += count
        region.protect()
        return region

    def _forget(self, kept: Dict[str, Region]) -> None:
        total_bytes = sum(region.size_bytes for region in self._regions.values())
        for sha in list(self._regions):
            if total_bytes <= self._cap_bytes:
                return
            if sha not in kept:
                total_bytes -= self._regions.pop(sha).size_bytes
