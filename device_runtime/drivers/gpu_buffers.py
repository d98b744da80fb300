"""Buffers on a device between canary bytes, so that a kernel that writes beside them is found."""

from __future__ import annotations

from typing import Any

from device_runtime.drivers.device import SMALLEST_BUFFER_BYTES, Device
from device_runtime.protocol import GPU_ALIGNMENT
from device_runtime.sandbox.guarded_memory import Region, new_canary, overwritten, repeated


class GuardedBuffer:
    """`size_bytes` on the device at `handle`, with GPU_ALIGNMENT or more canary bytes on each side.

    Read as floats these are NaN, so that what is computed of them is no number. Raises Fault.
    """

    def __init__(self, device: Device, size_bytes: int) -> None:
        self._device = device
        self._canary = new_canary()
        self.size_bytes = size_bytes
        self._used_bytes = size_bytes % GPU_ALIGNMENT  # of the part after it
        full_bytes = size_bytes - self._used_bytes
        self._whole = device.allocate(full_bytes + 3 * GPU_ALIGNMENT)  # CUDA's parts are addresses only
        self._before = device.part(self._whole, 0, GPU_ALIGNMENT)
        self._after = device.part(self._whole, GPU_ALIGNMENT + full_bytes, 2 * GPU_ALIGNMENT)
        self.handle = device.part(self._whole, GPU_ALIGNMENT, max(SMALLEST_BUFFER_BYTES, size_bytes))
        for part, part_bytes in ((self._before, GPU_ALIGNMENT), (self._after, 2 * GPU_ALIGNMENT)):
            region = Region(part_bytes)
            region.memory[:] = repeated(self._canary, part_bytes)
            device.write(part, region)

    def part(self, offset_bytes: int, size_bytes: int) -> Any:
        """A part of the buffer; see Device.part."""
        return self._device.part(self._whole, GPU_ALIGNMENT + offset_bytes, size_bytes)

    def fill(self, byte: int) -> None:
        """Set every byte."""
        if self.size_bytes:
            self._device.fill(self.handle, self.size_bytes, byte)

    def content(self) -> Region:
        """A copy of the buffer."""
        region = Region(self.size_bytes)
        if self.size_bytes:
            self._device.download(self.handle, region)
        return region

    def strayed(self) -> str:
        """Where somebody wrote beside the buffer, for people; "" for nowhere."""
        for part, part_bytes, first, place in (
            (self._before, GPU_ALIGNMENT, 0, "before the start"),
            (self._after, 2 * GPU_ALIGNMENT, self._used_bytes, "after the end"),
        ):
            region = Region(part_bytes)
            self._device.download(part, region)
            count = overwritten(self._canary, repeated(self._canary, first) + bytes(region.memory[first:]))
            if count:
                return f"{count} bytes {place}"
        return ""
