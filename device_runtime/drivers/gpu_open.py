"""Open a GPU in a child process, with folders for what its driver writes."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from typing import Iterator, Tuple

from device_runtime.drivers.cuda_driver import open_cuda
from device_runtime.drivers.device import Device
from device_runtime.drivers.opencl_driver import open_opencl

GPU_HEADROOM_BYTES = 1 << 30  # the driver and its compiler
SCRATCH = "scratch-"
GPU_FILE_BYTES = 64 << 20  # of a file that a driver's compiler writes

Folders = Tuple[str, str]

DRIVERS_WRITE = (
    "/dev",
    "/proc",
)  # what a driver opens for writing beside its folder: devices, its own memory


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


def open_gpu(driver: str, wanted: str, folders: Folders, threads: int) -> Device:
    """The device whose name holds `wanted`, for "opencl" or "cuda". Raises Fault("link") without one."""
    if driver == "opencl":
        return open_opencl(wanted, *folders, threads)
    return open_cuda(wanted)
