"""PoCL, OpenCL on the CPU: its threads and files bounded, and its device made usable on new CPUs.

PoCL up to version 3 calls a CPU that its LLVM does not know "generic" and then refuses to compile for it
(github.com/pocl/pocl/issues/1049), or calls it as an older one of its family: Zen 4 is "znver3", which has no
AVX-512, and PoCL's functions for AVX-512 then abort the compiler. `name_cpu` gives such a device the name of
the nearest CPU that LLVM knows.
"""

from __future__ import annotations

import ctypes
import os
import struct
import tempfile
from typing import Dict, List, Set, Tuple

PLATFORM = "Portable Computing Language"
UNKNOWN_CPUS = (b"generic", b"znver3")  # the second only where the CPU has AVX-512, as Zen 4 and 5 have
LONGEST_NAME = 16
DEVICE_STRUCT_BYTES = 4096  # more than PoCL's struct _cl_device_id has
POINTER = struct.Struct("=Q")

# The first whose features the CPU has: /proc/cpuinfo's flags, LLVM's name
_KNOWN_CPUS: Tuple[Tuple[Set[str], bytes], ...] = (
    ({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "clwb"}, b"skylake-avx512\0"),
    ({"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe"}, b"haswell\0"),
    ({"sse4_2", "popcnt"}, b"nehalem\0"),
    (set(), b"x86-64\0"),
)
_names: List[ctypes.Array] = []  # type: ignore[type-arg]  # PoCL's struct points at them


def settle(scratch: str, threads: int) -> None:
    """Before any OpenCL call of this process: all of PoCL's and LLVM's files go into the folder `scratch`,
    and kernels run on at most `threads` threads. Harmless for other drivers."""
    settings: Dict[str, str] = {
        "POCL_CACHE_DIR": scratch,
        "POCL_MAX_PTHREAD_COUNT": str(threads),
        "POCL_CPU_MAX_CU_COUNT": str(threads),  # since PoCL 4
        "TMPDIR": scratch,
        "XDG_CACHE_HOME": scratch,
        "PYOPENCL_NO_CACHE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    os.environ.update(settings)
    tempfile.tempdir = None  # look at TMPDIR again


def name_cpu(device: int) -> bool:
    """Name the CPU of the PoCL device at this address; whether it had to be. Other drivers' are not for this.

    The struct's layout differs from version to version: it is searched for the pointer to the wrong name.
    """
    flags = _flags()
    wrong = UNKNOWN_CPUS if "avx512f" in flags else UNKNOWN_CPUS[:1]
    memory = os.open("/proc/self/mem", os.O_RDWR)  # reads of unmapped addresses fail instead of crashing
    try:
        words = os.pread(memory, DEVICE_STRUCT_BYTES, device)
        for offset in range(0, len(words) - POINTER.size + 1, POINTER.size):
            (address,) = POINTER.unpack_from(words, offset)
            if _text_at(memory, address) in wrong:
                nearest = next(name for wanted, name in _KNOWN_CPUS if wanted <= flags)
                _names.append(ctypes.create_string_buffer(nearest))
                os.pwrite(memory, POINTER.pack(ctypes.addressof(_names[-1])), device + offset)
                return True
        return False
    finally:
        os.close(memory)


def _text_at(memory: int, address: int) -> bytes:
    if not 1 << 12 <= address < 1 << 47:
        return b""
    try:
        return os.pread(memory, LONGEST_NAME, address).partition(b"\0")[0]
    except OSError:
        return b""


def _flags() -> Set[str]:
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        lines = [line.partition(":")[2] for line in file if line.startswith("flags")]
    return set(lines[0].split()) if lines else set()
