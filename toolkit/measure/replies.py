"""What the runtime's own methods answer, as types (those for bundles: toolkit/flash/replies.py).

A board may say anything: `reply_of` makes one of these of what it said, or refuses it. Texts in it are
printable and short by then (session.py sees to that as they arrive), lists are bounded by a header's size.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec

from device_runtime.protocol import BAD_FRAME, MAX_BUFFER_BYTES, ProtocolError

MOST_CORES = 4096

Count = Annotated[int, msgspec.Meta(ge=0)]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=MAX_BUFFER_BYTES)]
Finite = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
R = TypeVar("R")


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of which nothing is used. Entries that a type does not name are passed over."""


class Lease(Reply, frozen=True, kw_only=True):
    token: Count


class StoredObject(Reply, frozen=True, kw_only=True):
    """`size_bytes` None: not whole yet, and `received_bytes` of it are there."""

    size_bytes: Bytes | None
    received_bytes: Bytes


class Received(Reply, frozen=True, kw_only=True):
    """After a `put`: so much of the object is there."""

    received_bytes: Bytes


class Core(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """One core that the runtime may use; 0 and "": the board does not expose it."""

    id: Count
    now_hz: Count = 0
    min_hz: Count = 0
    max_hz: Count = 0
    governor: str = ""


class Cache(Reply, frozen=True, kw_only=True):
    level: Count
    type: str
    size_bytes: Count
    line_bytes: Count
    shared_by: str


class ThermalZone(Reply, frozen=True, kw_only=True):
    name: str
    celsius: Finite


class Cpu(Reply, frozen=True, kw_only=True):
    model: str
    board: str
    implementer: str
    part: str
    features: tuple[str, ...]
    governors: tuple[str, ...]


class Cluster(Reply, frozen=True, kw_only=True):
    """Cores of one kind; `identity` has the entries of /proc/cpuinfo that say which, `caches` are one's."""

    cores: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1, max_length=MOST_CORES)]
    identity: dict[str, str]
    max_hz: Count
    caches: tuple[Cache, ...]


class Memory(Reply, frozen=True, kw_only=True):
    total_bytes: Count = 0
    available_bytes: Count = 0


class Storage(Reply, frozen=True, kw_only=True):
    device_dir: str
    total_bytes: Count
    free_bytes: Count


class Protection(Reply, frozen=True, kw_only=True):
    """What keeps kernels from everything else on a board: device_runtime/sandbox/confinement.py."""

    namespaces: bool
    landlock: bool


class GpuDevice(Reply, frozen=True, kw_only=True):
    """What OpenCL and CUDA devices have in common."""

    name: str
    compute_units: Count
    clock_hz: Count
    memory_bytes: Count
    max_threads_per_block: Count
    max_block_dims: tuple[Count, ...]
    cache_bytes: Count = 0  # of what all compute units share; 0: unknown
    shared_memory_bytes: Count
    float16: bool

    @property
    def full_name(self) -> str:
        """The name that the device runtime's driver compares with a target's `device`."""
        return self.name

    @property
    def text(self) -> str:
        """The device in one line for the user."""
        return self.name


class OpenClDevice(GpuDevice, frozen=True, kw_only=True):
    platform: str
    driver: str
    version: str
    vector_float_lanes: Count
    shared_memory_on_chip: bool = True
    vector_lanes: Count = 0  # of the longest vectors that its compiler compiles; 0: unknown

    @property
    def full_name(self) -> str:
        return f"{self.platform}: {self.name}"

    @property
    def text(self) -> str:
        lanes = f", vectors of up to {self.vector_lanes} lanes" if self.vector_lanes else ""
        return f"{self.name}, {self.driver}{lanes}"


class CudaDevice(GpuDevice, frozen=True, kw_only=True):
    compute_capability: str
    driver: Count
    registers_per_block: Count
    warp_size: Count

    @property
    def text(self) -> str:
        return f"{self.name}, sm {self.compute_capability}"


GPU_DRIVERS: Final = {
    "opencl": "the GPU's OpenCL driver and `python3 -m pip install pyopencl`",
    "cuda": "the NVIDIA driver and `python3 -m pip install pycuda`",
}
"""By kind of target: what a board without such a device lacks. Probe has an entry of each name."""


class Probe(Reply, frozen=True, kw_only=True):
    """What a board is and how it is doing: device_runtime/measure/board_facts.py."""

    runtime: str
    protocol: Count
    python: str
    machine: str
    system: str
    libc: str
    cpu: Cpu
    cores: Annotated[tuple[Core, ...], msgspec.Meta(min_length=1, max_length=MOST_CORES)]
    clusters: tuple[Cluster, ...] = ()
    caches: tuple[Cache, ...]
    thermal: tuple[ThermalZone, ...]
    memory: Memory
    load: tuple[Finite, Finite, Finite]
    storage: Storage
    protection: Protection
    opencl: tuple[OpenClDevice, ...]
    cuda: tuple[CudaDevice, ...]
    gpu_errors: tuple[str, ...]

    @property
    def gpus(self) -> dict[str, tuple[GpuDevice, ...]]:
        """The devices by kind of target."""
        return {kind: getattr(self, kind) for kind in GPU_DRIVERS}


def reply_of(kind: type[R], answer: object) -> R:
    """What a board answered as `kind`. ProtocolError names the first entry that is not as it must be."""
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise ProtocolError(BAD_FRAME, str(error)) from error
