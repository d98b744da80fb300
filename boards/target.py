"""What the compiler generates code for: one CPU cluster or one GPU of a board.

A `Target` is data. It comes out of a board file or out of `boards.probe`; nothing here looks at the machine.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["cpu", "opencl", "cuda"]
Storage = Literal["float32", "float16"]
LONGEST_VECTOR = 16  # lanes: OpenCL C has no longer type
TILE_FEATURES = ("+amx-tile", "+amx-int8")  # tile registers of x86-64, and products of bytes in them
POCL = "Portable Computing Language"  # what the platform calls itself: OpenCL on the CPU


class GpuLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one kernel launch may ask of a GPU."""

    max_threads_per_block: int
    max_block_dims: tuple[int, int, int]
    shared_memory_bytes: int  # per block, without opting in to more
    shared_memory_on_chip: bool = True  # false: it is main memory, and a fetch into it only a copy
    registers_per_block: int  # 32-bit registers that the threads of a block share; 0: unknown
    registers_per_thread: int = 0  # 32-bit registers, beyond which a thread spills; 0: unknown
    warp_size: int  # threads that run in lockstep; 1: threads are independent
    compute_units: int  # streaming multiprocessors, shader cores
    vector_float_lanes: int  # float32 lanes that the device prefers per load
    widest_vector_lanes: int = 0  # float32 lanes of the widest vectors worth a trial; 0: vector_float_lanes
    longest_vector: int = LONGEST_VECTOR  # lanes, of any dtype, beyond which the device's compiler fails
    compute_capability: str = ""  # cuda only: "sm_87"

    def vector_lanes(self, dtype_bytes: int = 4) -> int:
        """Lanes of the widest vectors of a space, of values of `dtype_bytes` bytes; at least one."""
        floats = min(self.widest_vector_lanes or self.vector_float_lanes, self.longest_vector)
        return min(max(floats * 4 // dtype_bytes, 1), self.longest_vector)

    def with_vectors_up_to(self, lanes: int) -> GpuLimits:
        """These limits for a device whose compiler fails on vectors of more than `lanes` lanes."""
        limited: GpuLimits = msgspec.structs.replace(
            self,
            longest_vector=min(lanes, self.longest_vector),
            vector_float_lanes=min(lanes, self.vector_float_lanes),
        )
        return limited

    @property
    def threads_of_a_launch(self) -> int:
        """The most threads of a block, whose numbers all lie along the first dimension."""
        return min(self.max_threads_per_block, self.max_block_dims[0])

    @property
    def registers_of_a_launch(self) -> int:
        """Registers beyond which a launch fails; 0: none does, or the number is unknown.

        An OpenCL compiler knows how many threads a block has, and spills what there are no registers for.
        """
        return self.registers_per_block if self.compute_capability else 0


IN_ORDER_CPUS = ("cortex-a53",)
"""CPUs for which the code generator orders inner loops itself and feeds multiply-adds by element."""


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One thing to generate code for. Sizes in bytes, clock in Hz; caches as one core sees them."""

    name: str
    kind: Kind
    triple: str = ""  # LLVM triple; cpu only
    cpu: str = ""  # LLVM's name of the CPU; "native": the machine that compiles; cpu only
    features: tuple[str, ...] = ()  # LLVM features, "+neon"
    machine: str = ""  # probed targets: which CPU model "native" was
    device: str = (
        ""  # a part of the device's or its platform's name; empty: the board's first GPU; GPU kinds only
    )
    cores: tuple[int, ...] = (0,)  # core ids that kernels run on
    vector_bytes: int = 16
    vector_registers: int = 32
    cache_line_bytes: int = 64
    l1d_bytes: int = 32768
    l1i_bytes: int = 32768
    l2_bytes: int
    l3_bytes: int = 0
    clock_hz: float
    flops_per_cycle: float  # float32, multiply and add counted apart; per core, per compute unit on a GPU
    peak_gflops: float | None = None  # measured, all cores
    bandwidth_gbs: float | None = None  # main memory, GB/s, by specification
    measured_bandwidth_gbs: float | None = None  # the same as measured, all cores
    gpu: GpuLimits | None = None
    storage: Storage = "float32"  # of weights and results between operators; GPU kinds only

    @property
    def threads(self) -> int:
        """Threads a kernel runs on: one a core."""
        return len(self.cores)

    def vector_lanes(self, dtype_bytes: int = 4) -> int:
        """How many values of `dtype_bytes` bytes one vector register holds, at least one."""
        return max(1, self.vector_bytes // dtype_bytes)

    @property
    def is_pocl(self) -> bool:
        """Whether this is OpenCL on the CPU, to check code on: its times say nothing about a GPU."""
        return self.device == POCL

    @property
    def masks_lanes(self) -> bool:
        """Whether loading or storing a part of a vector costs no more than all of it (AVX-512's masks)."""
        return self.kind == "cpu" and self.triple.startswith("x86_64") and self.vector_bytes == 64

    @property
    def vectors_per_cycle(self) -> float:
        """How many whole vectors of float32 a core multiplies and adds in a cycle."""
        return self.flops_per_cycle / (2 * self.vector_lanes())

    @property
    def has_tiles(self) -> bool:
        """Whether matrices of bytes are multiplied in tile registers (AMX)."""
        return self.kind == "cpu" and set(TILE_FEATURES) <= set(self.features)

    @property
    def estimated_peak_gflops(self) -> float:
        """The measured float32 peak where one is known, otherwise clock x operations per cycle x cores."""
        if self.peak_gflops is not None:
            return self.peak_gflops
        units = self.gpu.compute_units if self.gpu is not None else self.threads
        return self.clock_hz * self.flops_per_cycle * units / 1e9

    @property
    def memory_gbs(self) -> float | None:
        """The measured bandwidth of main memory where one is known, otherwise that of the specification."""
        return self.bandwidth_gbs if self.measured_bandwidth_gbs is None else self.measured_bandwidth_gbs

    @property
    def key(self) -> str:
        """A stable string of everything that changes the generated code; records are kept by it."""
        if self.gpu is not None:
            limits = self.gpu
            model = limits.compute_capability or self.machine or "any"
            shared = limits.shared_memory_bytes if limits.shared_memory_on_chip else 0
            registers = limits.registers_of_a_launch or limits.registers_per_thread
            return "/".join((
                self.kind, model, f"threads{limits.max_threads_per_block}", f"shared{shared}",
                f"registers{registers}", f"warp{limits.warp_size}", f"lanes{limits.vector_lanes()}",
            ))  # fmt: skip
        cpu = f"{self.cpu}({self.machine})" if self.machine else self.cpu
        features = ",".join(self.features) or "default"
        return "/".join((
            self.kind, self.triple, cpu, features, f"vector{self.vector_bytes}", f"threads{self.threads}"
        ))  # fmt: skip
