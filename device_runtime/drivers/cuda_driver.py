"""The CUDA driver, with pycuda: cubins, timed by events of the stream they run in.

Everything runs in the child of one measurement. The time of a call is what passes between two events around
it, or around all calls of a repeat when nothing else runs between them: launches queue up behind each other,
so that this loop is in the figure only of kernels that are shorter than a launch from Python (about 5 us).

Written against pycuda's documented interface (documen.tician.de/pycuda/driver.html).
"""

from __future__ import annotations

import importlib
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from device_runtime.drivers.device import Device, KernelCall
from device_runtime.protocol import GpuKernel
from device_runtime.sandbox.guarded_memory import Region
from device_runtime.sandbox.isolation import Fault

ERROR_CHARACTERS = 1000


def open_cuda(wanted: str) -> "CudaDevice":
    """A context on the first device whose name holds `wanted`. Raises Fault("link") when there is none."""
    driver = load_pycuda()
    device = _pick(driver, wanted)
    with typed(driver, "opening the device", "link"):
        return CudaDevice(driver, device.make_context())


def find_cuda(wanted: str) -> Tuple[str, Tuple[int, int], int]:
    """The device that `open_cuda` would open: name, compute capability, most threads of a block.

    Raises Fault("link").
    """
    driver = load_pycuda()
    device = _pick(driver, wanted)
    limit = driver.device_attribute.MAX_THREADS_PER_BLOCK
    return device.name(), device.compute_capability(), device.get_attribute(limit)


def find_capable(wanted: str, architecture: str) -> Tuple[str, int]:
    """Name and most threads of a block of the device that `open_cuda` would open, which runs cubins for
    `architecture`, such as "sm_53". Raises Fault("link")."""
    name, capability, threads = find_cuda(wanted)
    check_capability(name, capability, architecture)
    return name, threads


def check_capability(name: str, found: Tuple[int, int], wanted: str) -> None:
    """A cubin runs on its own compute capability, and on later minor ones of the same major one."""
    digits = wanted.rpartition("_")[2]
    major, minor = int(digits[:-1]), int(digits[-1])
    if found[0] != major or found[1] < minor:
        raise Fault("link", f"it is for {wanted}, {name} is sm_{found[0]}{found[1]}")


def _pick(driver: Any, wanted: str) -> Any:
    with typed(driver, "looking for devices", "link"):
        driver.init()
        devices = [driver.Device(index) for index in range(driver.Device.count())]
        fitting = [device for device in devices if wanted.lower() in device.name().lower()]
        if not fitting:
            known = "; ".join(device.name() for device in devices) or "none"
            raise Fault("link", f"no CUDA device {wanted!r}; there is: {known}")
        return fitting[0]


def cuda_devices() -> List[Dict[str, Any]]:
    """What every CUDA device of this board can do; none without pycuda. Sizes in bytes, clock in Hz.

    Raises Fault("link") where NVIDIA's driver does not begin.
    """
    try:
        driver = importlib.import_module("pycuda.driver")
    except ImportError:
        return []
    with typed(driver, "looking for devices", "link"):
        driver.init()
        return [_described(driver, driver.Device(index)) for index in range(driver.Device.count())]


def _described(driver: Any, device: Any) -> Dict[str, Any]:
    name = driver.device_attribute
    return {
        "name": device.name(),
        "compute_capability": ".".join(map(str, device.compute_capability())),
        "driver": driver.get_driver_version(),
        "compute_units": device.get_attribute(name.MULTIPROCESSOR_COUNT),
        "clock_hz": device.get_attribute(name.CLOCK_RATE) * 1000,
        "memory_bytes": device.total_memory(),
        "max_threads_per_block": device.get_attribute(name.MAX_THREADS_PER_BLOCK),
        "max_block_dims": [
            device.get_attribute(limit)
            for limit in (name.MAX_BLOCK_DIM_X, name.MAX_BLOCK_DIM_Y, name.MAX_BLOCK_DIM_Z)
        ],
        "cache_bytes": device.get_attribute(name.L2_CACHE_SIZE),
        "shared_memory_bytes": device.get_attribute(name.MAX_SHARED_MEMORY_PER_BLOCK),
        "registers_per_block": device.get_attribute(name.MAX_REGISTERS_PER_BLOCK),
        "warp_size": device.get_attribute(name.WARP_SIZE),
        "float16": True,  # storage on every device; arithmetic from 5.3 on
    }


def load_pycuda() -> Any:
    """The module pycuda.driver. Raises Fault("link") when it, or NVIDIA's driver, is missing."""
    try:
        return importlib.import_module("pycuda.driver")
    except ImportError as error:
        text = f"pycuda cannot be loaded ({error}); on the board: python3 -m pip install pycuda"
        raise Fault("link", text) from None


class CudaDevice(Device):
    """Handles are pycuda.driver.DeviceAllocation, aligned to 256 bytes by CUDA."""

    def __init__(self, driver: Any, context: Any) -> None:
        self.driver = driver
        self._modules: Dict[bytes, Any] = {}  # a module is unloaded with the last reference to it
        self._context = context  # never popped: the process of one measurement ends without cleaning up

    def allocate(self, size_bytes: int) -> Any:
        with typed(self.driver, f"a buffer of {size_bytes} bytes", "out_of_memory"):
            return self.driver.mem_alloc(size_bytes)

    def write(self, handle: Any, region: Region) -> None:
        with typed(self.driver, "filling a buffer"):
            self.driver.memcpy_htod(handle, region.memory)

    def part(self, handle: Any, offset_bytes: int, size_bytes: int) -> Any:
        return int(handle) + offset_bytes

    def wait(self) -> None:
        with typed(self.driver, "the kernel"):
            self.driver.Context.synchronize()

    def fill(self, handle: Any, size_bytes: int, byte: int) -> None:
        with typed(self.driver, "filling a buffer"):
            self.driver.memset_d8(handle, byte, size_bytes)

    def download(self, handle: Any, region: Region) -> None:
        with typed(self.driver, "reading an output"):
            self.driver.memcpy_dtoh(region.memory, handle)

    def copy(self, source: Any, source_byte: int, target: Any, target_byte: int, size_bytes: int) -> None:
        with typed(self.driver, "a copy"):
            self.driver.memcpy_dtod_async(int(target) + target_byte, int(source) + source_byte, size_bytes)

    def prepare(self, kernel: GpuKernel, arguments: Sequence[Sequence[Any]]) -> KernelCall:
        """A cubin for another architecture is a Fault("build")."""
        assert isinstance(kernel.code, bytes)
        with typed(self.driver, "the cubin", "build"):
            if kernel.code not in self._modules:
                self._modules[kernel.code] = self.driver.module_from_buffer(kernel.code)
            module = self._modules[kernel.code]
            functions = [module.get_function(launch.name) for launch in kernel.launches]
        launches = []
        for launch, function, handles in zip(kernel.launches, functions, arguments):
            function.prepare("P" * len(handles))
            launches.append((function, launch.blocks, launch.threads))
        call = _CudaCall(self, launches)
        call.place(arguments)
        return call

    def built(self) -> None:
        """A cubin is a binary already."""


def pointers(handles: Sequence[Any]) -> List[int]:
    """Device addresses, as a prepared call takes them for its "P" arguments."""
    return [int(handle) for handle in handles]


class _CudaCall(KernelCall):
    def __init__(self, device: CudaDevice, launches: Sequence[Tuple[Any, Any, Any]]) -> None:
        self.device = device
        self._arguments: Sequence[Sequence[Any]] = ()
        self._pointers: List[List[int]] = []
        self._driver = device.driver
        self._launches = launches
        self._flush: Any = None

    def place(self, arguments: Sequence[Sequence[Any]]) -> None:
        self._arguments = arguments  # freed with the last reference to them
        self._pointers = [pointers(handles) for handles in arguments]

    def start(self) -> None:
        with typed(self._driver, "a launch", "launch"):
            self._enqueue()

    def seconds(self, number: int, flush_bytes: int) -> float:
        if not flush_bytes:
            return self._between_events(number)
        with typed(self._driver, "the cache flush", "out_of_memory"):
            self._flush = self._flush or self._driver.mem_alloc(flush_bytes)
        total_s = 0.0
        for call in range(number):
            self._driver.memset_d8(self._flush, call % 256, flush_bytes)
            total_s += self._between_events(1)
        return total_s

    def _between_events(self, number: int) -> float:
        start, end = self._driver.Event(), self._driver.Event()
        with typed(self._driver, "a launch", "launch"):
            start.record()
            for _ in range(number):
                self._enqueue()
            end.record()
        with typed(self._driver, "the kernel"):
            end.synchronize()
            milliseconds: float = end.time_since(start)
        return 1e-3 * milliseconds

    def _enqueue(self) -> None:
        for (function, blocks, threads), arguments in zip(self._launches, self._pointers):
            function.prepared_async_call(blocks, threads, None, *arguments)


@contextmanager
def typed(driver: Any, doing: str, kind: str = "crash") -> Iterator[None]:
    """pycuda's errors as Faults of this kind; out of memory is always that."""
    try:
        yield
    except driver.MemoryError as error:
        raise Fault("out_of_memory", f"{doing}: {error}") from None
    except driver.Error as error:
        raise Fault(kind, f"{doing}: {str(error)[:ERROR_CHARACTERS]}") from None
