"""The OpenCL driver, with pyopencl: programs from source or from a kept binary, timed by their events.

Everything runs in the child of one measurement; open_opencl() is called there, before any other OpenCL call.
The time of a call is the sum over its launches of what each event says the device took, so that neither this
loop nor the queue is in the figure.
"""

from __future__ import annotations

import importlib
import os
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from device_runtime.drivers.binaries import Binaries, key_of
from device_runtime.drivers.device import Device, KernelCall
from device_runtime.drivers.pocl import PLATFORM, name_cpu, settle
from device_runtime.protocol import GpuKernel
from device_runtime.sandbox.guarded_memory import Region
from device_runtime.sandbox.isolation import Fault

OPTIONS = ["-cl-std=CL1.2"]
LOG_CHARACTERS = 1500
QUEUED_CALLS = 128  # before the queue is waited for; each holds its events

KINDS = {
    "BUILD_PROGRAM_FAILURE": "build",
    "COMPILE_PROGRAM_FAILURE": "build",
    "COMPILER_NOT_AVAILABLE": "build",
    "LINK_PROGRAM_FAILURE": "build",
    "INVALID_BINARY": "build",
    "INVALID_BUILD_OPTIONS": "build",
    "INVALID_KERNEL_DEFINITION": "build",
    "INVALID_KERNEL_NAME": "build",
    "INVALID_PROGRAM": "build",
    "INVALID_PROGRAM_EXECUTABLE": "build",
    "INVALID_BUFFER_SIZE": "out_of_memory",
    "MEM_OBJECT_ALLOCATION_FAILURE": "out_of_memory",
    "OUT_OF_HOST_MEMORY": "out_of_memory",
    "INVALID_ARG_INDEX": "launch",
    "INVALID_GLOBAL_WORK_SIZE": "launch",
    "INVALID_KERNEL_ARGS": "launch",
    "INVALID_WORK_DIMENSION": "launch",
    "INVALID_WORK_GROUP_SIZE": "launch",
    "INVALID_WORK_ITEM_SIZE": "launch",
    "OUT_OF_RESOURCES": "launch",
}


def open_opencl(wanted: str, folder: str, scratch: str, threads: int) -> "OpenClDevice":
    """A context on the device whose name or platform holds `wanted` ("": the first GPU, else the first).

    `folder` keeps binaries from one process to the next, `scratch` is thrown away after this one. PoCL runs
    on `threads` threads. Raises Fault("link") when pyopencl or the device is missing.
    """
    settle(scratch, threads)
    cl = load_pyopencl()
    device = pick(cl, wanted)
    if PLATFORM in device.platform.name:
        name_cpu(device.int_ptr)
    with _typed(cl, "opening the device"):
        return OpenClDevice(cl, device, binaries_in(folder))


def binaries_in(folder: str) -> Binaries:
    """What was kept in a folder of `open_opencl`."""
    return Binaries(os.path.join(folder, "binaries"))


def find_opencl(wanted: str, scratch: str) -> Tuple[str, int]:
    """The device that `open_opencl` would open: name, most threads of a block. Raises Fault("link")."""
    settle(scratch, 1)
    cl = load_pyopencl()
    device = pick(cl, wanted)
    return full_name(device), device.max_work_group_size


def opencl_devices(scratch: str) -> List[Dict[str, Any]]:
    """What every OpenCL device of this board can do; none without pyopencl. Sizes in bytes, clock in Hz."""
    settle(scratch, len(os.sched_getaffinity(0)))
    try:
        cl = importlib.import_module("pyopencl")
    except ImportError:
        return []
    return [
        {
            "platform": device.platform.name.strip(),
            "name": device.name.strip(),
            "driver": device.driver_version,
            "version": device.version.strip(),
            "compute_units": device.max_compute_units,
            "clock_hz": device.max_clock_frequency * 1_000_000,
            "memory_bytes": device.global_mem_size,
            "max_threads_per_block": device.max_work_group_size,
            "max_block_dims": list(device.max_work_item_sizes),
            "cache_bytes": device.global_mem_cache_size,
            "shared_memory_bytes": device.local_mem_size,
            "shared_memory_on_chip": device.local_mem_type == cl.device_local_mem_type.LOCAL,
            "vector_float_lanes": device.preferred_vector_width_float,
            "float16": "cl_khr_fp16" in device.extensions.split(),
        }
        for device in all_devices(cl)
    ]


def load_pyopencl() -> Any:
    """The module. Raises Fault("link") when it, or what it needs, is missing."""
    try:
        return importlib.import_module("pyopencl")
    except ImportError as error:
        text = f"pyopencl cannot be loaded ({error}); on the board: python3 -m pip install pyopencl"
        raise Fault("link", text) from None


def all_devices(cl: Any) -> List[Any]:
    """Every device of every platform; none where no platform is installed."""
    try:
        return [device for platform in cl.get_platforms() for device in platform.get_devices()]
    except cl.Error as error:
        if cl.status_code.to_string(error.code) == "PLATFORM_NOT_FOUND_KHR":
            return []
        raise Fault("link", f"the OpenCL driver does not answer: {error}") from None


def pick(cl: Any, wanted: str) -> Any:
    """The device to use: GPUs first, CPUs last. Raises Fault("link")."""
    devices = all_devices(cl)
    fitting = [device for device in devices if wanted.lower() in full_name(device).lower()]
    if not fitting:
        known = "; ".join(full_name(device) for device in devices) or "none"
        raise Fault("link", f"no OpenCL device {wanted!r}; there is: {known}; install its OpenCL driver")
    kinds = (cl.device_type.GPU, cl.device_type.ACCELERATOR)
    return min(fitting, key=lambda device: [not device.type & kind for kind in kinds])


def full_name(device: Any) -> str:
    """The platform's name and the device's."""
    return f"{device.platform.name.strip()}: {device.name.strip()}"


class OpenClDevice(Device):
    """Handles are pyopencl.Buffer."""

    def __init__(self, cl: Any, device: Any, binaries: Binaries) -> None:
        self._cl = cl
        self._device = device
        self._context = cl.Context([device])
        profiling = cl.command_queue_properties.PROFILING_ENABLE
        self._queue = cl.CommandQueue(self._context, device, properties=profiling)
        self._binaries = binaries
        self._slow_binaries = PLATFORM in device.platform.name
        self._unkept: Dict[str, Any] = {}
        self._programs: Dict[str, Any] = {}

    def allocate(self, size_bytes: int) -> Any:
        with _typed(self._cl, f"a buffer of {size_bytes} bytes"):
            return self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE, size_bytes)

    def upload(self, region: Region) -> Any:
        flags = self._cl.mem_flags.READ_ONLY | self._cl.mem_flags.COPY_HOST_PTR
        host = region.memory
        with _typed(self._cl, f"a buffer of {region.size_bytes} bytes"):
            return self._cl.Buffer(self._context, flags, hostbuf=host)

    def write(self, handle: Any, region: Region) -> None:
        host = region.memory
        with _typed(self._cl, "writing an input"):
            self._cl.enqueue_copy(self._queue, handle, host)

    def part(self, handle: Any, offset_bytes: int, size_bytes: int) -> Any:
        with _typed(self._cl, f"byte {offset_bytes} of a buffer"):
            return handle.get_sub_region(offset_bytes, size_bytes)

    def wait(self) -> None:
        with _typed(self._cl, "a launch"):
            self._queue.finish()

    def fill(self, handle: Any, size_bytes: int, byte: int) -> None:
        with _typed(self._cl, "filling a buffer"):
            self.enqueue_fill(handle, size_bytes, byte)
            self._queue.finish()

    def download(self, handle: Any, region: Region) -> None:
        host = region.memory
        with _typed(self._cl, "reading an output"):
            self._cl.enqueue_copy(self._queue, host, handle)

    def copy(self, source: Any, source_byte: int, target: Any, target_byte: int, size_bytes: int) -> None:
        places = {"src_offset": source_byte, "dst_offset": target_byte, "byte_count": size_bytes}
        with _typed(self._cl, "a copy"):
            self._cl.enqueue_copy(self._queue, target, source, **places)

    def prepare(self, kernel: GpuKernel, arguments: Sequence[Sequence[Any]]) -> KernelCall:
        assert isinstance(kernel.code, str)
        if kernel.code not in self._programs:
            self._programs[kernel.code] = self._built_program(kernel.code)
        program = self._programs[kernel.code]
        launches = []
        for launch, handles in zip(kernel.launches, arguments):
            with _typed(self._cl, f"kernel {launch.name}"):
                function = self._cl.Kernel(program, launch.name)
                if function.num_args != len(handles):
                    text = (
                        f"{launch.name} takes {function.num_args} arguments, the launch gives {len(handles)}"
                    )
                    raise Fault("link", text)
            launches.append((function, launch.global_size, launch.threads))
        call = _OpenClCall(self, launches)
        call.place(arguments)
        return call

    def built(self) -> None:
        """Keep the binaries of what was built from source: now they hold all that PoCL compiled, too.

        PoCL compiles each kernel once more for its binary, which takes longer than running it did: it is
        asked for one when a program is built a second time.
        """
        for key, program in self._unkept.items():
            if self._slow_binaries and self._binaries.first_time(key):
                continue
            with _typed(self._cl, "reading a binary"):
                binaries = program.get_info(self._cl.program_info.BINARIES)
            self._binaries.put(key, bytes(binaries[0]))
        self._unkept.clear()

    def enqueue(self, launches: Sequence[Tuple[Any, Any, Any]]) -> List[Any]:
        """Put one call into the queue; the events of its launches."""
        return [
            self._cl.enqueue_nd_range_kernel(self._queue, function, global_size, local_size)
            for function, global_size, local_size in launches
        ]

    def finish(self, events: Sequence[Any], doing: str) -> float:
        """Wait for the queue; device seconds of the events. Raises Fault."""
        with _typed(self._cl, doing):
            self._queue.finish()
            return 1e-9 * float(sum(event.profile.end - event.profile.start for event in events))

    def typed(self, doing: str) -> Any:
        """A context in which pyopencl's errors are Faults."""
        return _typed(self._cl, doing)

    def enqueue_fill(self, handle: Any, size_bytes: int, byte: int) -> None:
        """Put a write of every byte of a buffer into the queue."""
        self._cl.enqueue_fill_buffer(self._queue, handle, bytes([byte]), 0, size_bytes)

    def _built_program(self, source: str) -> Any:
        platform = self._device.platform
        key = key_of([
            platform.name, platform.version, self._device.name, self._device.driver_version,
            " ".join(OPTIONS), source,
        ])  # fmt: skip
        binary = self._binaries.get(key)
        if binary is not None:
            program = self._from_binary(binary)
            if program is not None:
                return program
            self._binaries.drop(key)
        with _typed(self._cl, "the program"):
            program = self._cl.Program(self._context, source).build(OPTIONS, devices=[self._device])
        self._unkept[key] = program
        return program

    def _from_binary(self, binary: bytes) -> Optional[Any]:
        """None when the driver refuses what it once made: it is not quite the same driver."""
        try:
            return self._cl.Program(self._context, [self._device], [binary]).build(devices=[self._device])
        except self._cl.Error:
            return None


class _OpenClCall(KernelCall):
    device: OpenClDevice

    def __init__(self, device: OpenClDevice, launches: Sequence[Tuple[Any, Any, Any]]) -> None:
        self.device = device
        self._arguments: Sequence[Sequence[Any]] = ()
        self._launches = launches
        self._flush: Any = None

    def place(self, arguments: Sequence[Sequence[Any]]) -> None:
        self._arguments = arguments  # a kernel does not keep its buffers
        with self.device.typed("the arguments of a kernel"):
            for (function, _, _), handles in zip(self._launches, arguments):
                for position, handle in enumerate(handles):
                    function.set_arg(position, handle)

    def start(self) -> None:
        with self.device.typed("a launch"):
            self.device.enqueue(self._launches)

    def seconds(self, number: int, flush_bytes: int) -> float:
        if flush_bytes and self._flush is None:
            self._flush = self.device.allocate(flush_bytes)
        total_s = 0.0
        for start in range(0, number, QUEUED_CALLS):
            events: List[Any] = []
            with self.device.typed("a launch"):
                for call in range(start, min(number, start + QUEUED_CALLS)):
                    if flush_bytes:
                        self.device.enqueue_fill(self._flush, flush_bytes, call % 256)
                    events += self.device.enqueue(self._launches)
            total_s += self.device.finish(events, "a launch")
        return total_s


@contextmanager
def _typed(cl: Any, doing: str) -> Iterator[None]:
    """pyopencl's errors as Faults, with the name of OpenCL's error code."""
    try:
        yield
    except cl.Error as error:
        name = cl.status_code.to_string(error.code, "error %d")
        text = str(error).strip()
        found = text if len(text) <= LOG_CHARACTERS else f"{text[:LOG_CHARACTERS]} ..."
        raise Fault(KINDS.get(name, "crash"), f"{doing}: {name}: {found}") from None
