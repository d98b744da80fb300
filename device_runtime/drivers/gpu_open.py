"""The drivers by kind of target, and the child processes and folders that they run in."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from device_runtime.drivers.cuda_driver import cuda_devices, find_capable, open_cuda
from device_runtime.drivers.device import Device
from device_runtime.drivers.opencl_driver import find_opencl, open_opencl, opencl_devices
from device_runtime.sandbox.isolation import Limits, Outcome, run_isolated

GPU_HEADROOM_BYTES = 1 << 30  # the driver and its compiler
SCRATCH = "scratch-"
GPU_FILE_BYTES = 64 << 20  # of a file that a driver's compiler writes

DRIVERS_WRITE = ("/dev", "/proc")  # what a driver opens for writing beside its folders: devices, its memory

Folders = Tuple[str, str]
Plain = Dict[str, Any]


class Driver(NamedTuple):
    """One way of driving GPUs; the functions are called in a child process.

    `open(wanted, folders, threads)`: the device whose name holds `wanted`, threads for one that is the CPU.
    `find(variant, scratch)`: name and most threads of a block of the device that a bundle's variant would
    run on. Both raise Fault("link"). `devices(scratch)`: what every device can do.
    `modules`: what the server imports before it forks the children of measurements, so that not each does.
    `namespaces`: whether the driver works in namespaces of its own.
    """

    open: Callable[[str, Folders, int], Device]
    find: Callable[[Plain, str], Tuple[str, int]]
    devices: Callable[[str], List[Plain]]
    modules: Tuple[str, ...]
    namespaces: bool


GPU_DRIVERS = {
    "opencl": Driver(
        lambda wanted, folders, threads: open_opencl(wanted, *folders, threads),
        lambda variant, scratch: find_opencl(variant["device"], scratch),
        opencl_devices,
        modules=("numpy",),  # OpenCL's loader loads drivers, which may start threads
        namespaces=True,
    ),
    "cuda": Driver(
        lambda wanted, folders, threads: open_cuda(wanted),
        lambda variant, scratch: find_capable(variant["device"], variant["compute_capability"]),
        lambda scratch: cuda_devices(),
        modules=("numpy", "pycuda.driver"),
        # cuInit fails ("OS call failed") where /proc is of other namespaces. A cubin runs on the GPU alone:
        # all that such a child runs on the CPU is the runtime and the driver.
        namespaces=False,
    ),
}


@contextmanager
def gpu_folders(device_dir: str, name: str) -> Iterator[Folders]:
    """Folder `name` of the device directory, which stays, and one in it for what a child's driver writes,
    which is removed however the child ends, or by the next call after a kill. Needs the lease."""
    folder = os.path.join(device_dir, name)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    for left in os.listdir(folder):
        if left.startswith(SCRATCH):
            shutil.rmtree(os.path.join(folder, left), ignore_errors=True)
    scratch = tempfile.mkdtemp(prefix=SCRATCH, dir=folder)
    try:
        yield folder, scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def run_with_driver(
    kind: str,
    work: Callable[[], Plain],
    limits: Limits,
    writable: Sequence[str],
    watch_fd: Optional[int] = None,
) -> Outcome:
    """`work` in a child process that drives GPUs of this kind and writes files in these folders only. Raises
    PeerGone.

    Drivers start threads, may crash, and reserve far more address space than they use.
    """
    bounds = dataclasses.replace(
        limits,
        limit_address_space=False,
        file_bytes=GPU_FILE_BYTES,
        writable=(*writable, *DRIVERS_WRITE),
        namespaces=GPU_DRIVERS[kind].namespaces,
    )
    return run_isolated(work, bounds, watch_fd)


def _imported(modules: Sequence[str]) -> None:
    """Import what is there; what is not the child will miss. numpy starts no threads: the server forks."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in modules:
        with suppress(ImportError):
            importlib.import_module(name)


def run_on_gpu(
    kind: str,
    work: Callable[[Folders], Plain],
    limits: Limits,
    device_dir: str,
    watch_fd: Optional[int] = None,
    *,
    folder: str = "",
    keeps: bool = True,
) -> Outcome:
    """`work` on a folder of the device directory, called as the kind is unless it is named, by
    `run_with_driver`. Without `keeps` it writes only in what is removed afterwards. Needs the lease. Raises
    PeerGone.
    """
    _imported(GPU_DRIVERS[kind].modules)
    with gpu_folders(device_dir, folder or kind) as folders:
        written = folders if keeps else folders[1:]
        return run_with_driver(kind, functools.partial(work, folders), limits, written, watch_fd)
