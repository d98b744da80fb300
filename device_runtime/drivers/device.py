"""What the drivers of GPUs have in common: a Device, and the Calls that it prepares.

opencl_driver.py and cuda_driver.py are the two; measure/gpu_kernel.py and loaded_model.py work with either.
What is wrong with a launch or a device is a Fault.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, List, Sequence

from device_runtime.protocol import WORKSPACE, GpuKernel
from device_runtime.sandbox.guarded_memory import Region
from device_runtime.sandbox.isolation import Fault

SMALLEST_BUFFER_BYTES = 4  # drivers refuse empty ones


class Call(ABC):
    """One kernel, or all of a model, with its arguments, ready to run on a device."""

    device: "Device"

    @abstractmethod
    def start(self) -> None:
        """Put all its launches into the device's queue. Raises Fault."""

    def run(self) -> None:
        """Run all its launches once, and wait for them. Raises Fault."""
        self.start()
        self.device.wait()

    @abstractmethod
    def seconds(self, number: int, flush_bytes: int) -> float:
        """Seconds that `number` calls took on the device, by its own clock; between the calls, `flush_bytes`
        of other memory are written. Raises Fault."""


class KernelCall(Call):
    """One kernel, whose buffers may be others in the next run."""

    @abstractmethod
    def place(self, arguments: Sequence[Sequence[Any]]) -> None:
        """Take these handles for the runs that are started from now on. Raises Fault."""


class Device(ABC):
    """A context on one device. Handles are its driver's; they live as long as the process."""

    @abstractmethod
    def allocate(self, size_bytes: int) -> Any:
        """A buffer on the device, aligned to 256 bytes at least. Raises Fault("out_of_memory")."""

    def upload(self, region: Region) -> Any:
        """A buffer with the region's content, which no kernel writes. Raises Fault("out_of_memory")."""
        handle = self.allocate(region.size_bytes)
        self.write(handle, region)
        return handle

    @abstractmethod
    def write(self, handle: Any, region: Region) -> None:
        """Copy the region into a buffer. Raises Fault."""

    @abstractmethod
    def part(self, handle: Any, offset_bytes: int, size_bytes: int) -> Any:
        """A part of a buffer, from a multiple of GPU_ALIGNMENT on. Parts may overlap, as long as no launch
        writes what another argument of it covers and touches."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until all that was started has ended. Raises Fault."""

    @abstractmethod
    def fill(self, handle: Any, size_bytes: int, byte: int) -> None:
        """Set every byte of a buffer."""

    @abstractmethod
    def download(self, handle: Any, region: Region) -> None:
        """Copy a buffer into the region, waiting for what runs. Raises Fault."""

    @abstractmethod
    def copy(self, source: Any, source_byte: int, target: Any, target_byte: int, size_bytes: int) -> None:
        """Put a copy from one buffer to another, or to another place of it, into the queue. Raises Fault."""

    @abstractmethod
    def prepare(self, kernel: GpuKernel, arguments: Sequence[Sequence[Any]]) -> KernelCall:
        """Build or load the kernel's code; `arguments` are the handles of each launch. Raises Fault."""

    @abstractmethod
    def built(self) -> None:
        """Called once what was prepared has run: a driver may keep its binaries now."""


def launch_arguments(kernel: GpuKernel, handles: Sequence[Any], workspace: Any) -> List[List[Any]]:
    """The handles that each launch of the kernel takes. Raises Fault("link") where one is not there."""
    found = []
    for launch in kernel.launches:
        wrong = [index for index in launch.buffers if index >= len(handles)]
        if wrong:
            text = f"launch {launch.name} takes argument {wrong[0]}, the kernel has {len(handles)}"
            raise Fault("link", text)
        found.append([workspace if index == WORKSPACE else handles[index] for index in launch.buffers])
    return found
