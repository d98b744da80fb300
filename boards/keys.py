"""What every key of a board file means: docs/boards.md and the files that `boards new` writes say it so.

The keys, their types and their defaults are those of the structs in `TABLES`; a test compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from boards.description import LINK_KINDS, Board, Link, MeasureDefaults
from boards.target import GpuLimits, Target

TABLES: Final[dict[str, type[msgspec.Struct]]] = {
    "": Board,
    "link": Link,
    "measure": MeasureDefaults,
    "targets[]": Target,
    "targets[].gpu": GpuLimits,
}
"""The type of each table of a board file, by its key without the numbers of list entries."""

OF_CPUS: Final = frozenset({
    "triple", "cpu", "features", "cores", "vector_bytes", "vector_registers", "l1d_bytes", "l1i_bytes",
    "l3_bytes", "cache_line_bytes",
})  # fmt: skip
OF_GPUS: Final = frozenset({"device", "storage", "gpu"})


class Key(NamedTuple):
    """What a key means, its unit ("" for none), who uses it, and how its value is found out."""

    meaning: str
    unit: str
    used_by: str
    source: str


_PROBED = "`boards new` probes it"
_TUNER = "the timing of trials"
_SPACE = "the space of schedules"
_TABLE = "a table of its own"

KEYS: Final[dict[str, dict[str, Key]]] = {
    "": {
        "name": Key("what the board is called", "", "records, bundles, the board itself", "choose one"),
        "title": Key("the board in a few words", "", "`boards list`", "its device tree, or choose one"),
        "description": Key("the board in a sentence", "", "`boards show`", "write one"),
        "sources": Key("where the figures come from", "", "`boards show`", "addresses of data sheets"),
        "memory_bytes": Key(
            "main memory", "bytes", "`boards show`, the limits of measurements", "`free -b`; " + _PROBED
        ),
        "emulated": Key(
            "its times say nothing about a chip",
            "",
            "every table, which marks them",
            "true for link.kind emulator",
        ),
        "probed": Key(
            "targets and memory are read from this machine when the file is loaded",
            "",
            "the boards host and pocl",
            "true for this machine alone",
        ),
        "link": Key(_TABLE + ": how the board is reached", "", "", ""),
        "targets": Key(_TABLE + " for each cluster of cores and each GPU", "", "", ""),
        "measure": Key(_TABLE + ": how kernels are timed", "", "", ""),
    },
    "link": {
        "kind": Key(
            "local: this machine; ssh; tcp: a runtime that was started by hand; emulator",
            "",
            "every connection",
            "how you reach it",
        ),
        "host": Key("host name or address", "", "ssh, tcp", "`ip address` on the board"),
        "port": Key("port", "", "ssh, tcp", "22 over SSH; what the runtime listens on"),
        "user": Key("who logs in; empty: as ssh would", "", "ssh", "`id -un` on the board"),
        "python": Key(
            "how the board's Python (3.8 or newer) is called; empty: python3, or the tool's own if local",
            "",
            "local, ssh",
            "`command -v python3` on the board",
        ),
        "identity_file": Key(
            "private key to log in with; empty: the agent's and ssh's usual ones",
            "",
            "ssh",
            "`ssh -v` says which one works",
        ),
        "known_hosts_file": Key(
            "where the board's host key stands; empty: ~/.ssh/known_hosts",
            "",
            "ssh",
            "`ssh-keyscan`, compared with the board's own",
        ),
        "tls_file": Key(
            "this machine's credentials, NAME.host.pem", "", "tcp", "`toolkit runtime archive` makes it"
        ),
        "command": Key(
            "argument list before the runtime; {qemu}, {sysroot}, {python} are filled in",
            "",
            "emulator",
            "as in emulated-a53.toml",
        ),
        "device_dir": Key(
            "folder on the board for uploads and installed bundles",
            "",
            "every connection",
            "one with some hundred MB free (`df`)",
        ),
        "connect_timeout_s": Key(
            "longest wait for an answer to a connection", "seconds", "ssh, tcp", "more for a slow network"
        ),
    },
    "measure": {
        "number": Key("calls of a kernel in a repeat, to begin with", "", _TUNER, "1; it grows by itself"),
        "repeat": Key("repeats, of which the fastest counts", "", _TUNER, "more where times scatter"),
        "min_repeat_ms": Key(
            "a repeat lasts at least so long",
            "milliseconds",
            _TUNER,
            "more where the clock is coarse or the load changes",
        ),
        "cooldown_s": Key("rest between repeats", "seconds", _TUNER, "above 0 where `doctor` finds it hot"),
        "timeout_s": Key(
            "longest that one kernel may take, all repeats",
            "seconds",
            _TUNER,
            "more for slow boards and compilers",
        ),
    },
    "targets[]": {
        "name": Key("what --target calls it", "", "commands, records, bundles", "choose one"),
        "kind": Key("cpu, opencl or cuda", "", "which code is generated, which driver runs it", _PROBED),
        "triple": Key("LLVM's triple", "", "the compiler of CPU code", "`uname -m`; " + _PROBED),
        "cpu": Key(
            "LLVM's name of the core; native: the machine that compiles",
            "",
            "the compiler of CPU code",
            "`lscpu`; " + _PROBED,
        ),
        "features": Key(
            "LLVM's names of further features, with + or -",
            "",
            "the compiler of CPU code",
            "Features or flags in /proc/cpuinfo; " + _PROBED,
        ),
        "machine": Key("which CPU model native was", "", "the records' key", "filled in where `probed`"),
        "device": Key(
            "a part of the device's or its platform's name; empty: the first GPU",
            "",
            "the OpenCL or CUDA driver",
            "`clinfo -l`, `nvidia-smi -L`; " + _PROBED,
        ),
        "cores": Key(
            "core ids that kernels run on, one thread each",
            "",
            "timing, bundles, doctor",
            "`lscpu -e`; " + _PROBED,
        ),
        "vector_bytes": Key(
            "widest vector worth using", "bytes", _SPACE, "16 for NEON and SSE, 32 for AVX, 64 for AVX-512"
        ),
        "vector_registers": Key("vector registers", "", _SPACE, "32 on aarch64 and with AVX-512, else 16"),
        "cache_line_bytes": Key(
            "line of the caches", "bytes", "the predicted traffic", "`getconf -a`; " + _PROBED
        ),
        "l1d_bytes": Key(
            "level 1 data cache of a core", "bytes", _SPACE + ", cost models", "`lscpu -C`; " + _PROBED
        ),
        "l1i_bytes": Key(
            "level 1 instruction cache of a core", "bytes", _SPACE + ", cost models", "`lscpu -C`; " + _PROBED
        ),
        "l2_bytes": Key(
            "level 2 cache as one core, or the GPU, sees it",
            "bytes",
            _SPACE + ", cost models",
            "`lscpu -C`, `clinfo`, the data sheet; " + _PROBED,
        ),
        "l3_bytes": Key("level 3 cache; 0: none", "bytes", "cost models", "`lscpu -C`; " + _PROBED),
        "clock_hz": Key(
            "highest clock",
            "Hz",
            "the estimated peak",
            "cpuinfo_max_freq in /sys, the data sheet; " + _PROBED,
        ),
        "flops_per_cycle": Key(
            "float32 operations of a core or compute unit in a cycle, a multiply-add being two",
            "",
            "the estimated peak",
            "lanes x pipes x 2 by the core's optimization guide",
        ),
        "peak_gflops": Key(
            "measured float32 peak of all cores",
            "GFLOP/s",
            "tables, pages, the choice of a target",
            "`toolkit boards probe` measures and keeps it",
        ),
        "bandwidth_gbs": Key(
            "bandwidth of main memory by specification", "GB/s", "roofs", "bus width x transfers a second"
        ),
        "measured_bandwidth_gbs": Key(
            "the same as measured, all cores", "GB/s", "roofs", "`toolkit boards probe` measures and keeps it"
        ),
        "storage": Key(
            "float32 or float16: of weights and results between operators",
            "",
            "models for GPUs",
            "[half floats](gpu.md#half-floats-in-memory)",
        ),
        "gpu": Key(_TABLE + ": the limits of a launch", "", "", ""),
    },
    "targets[].gpu": {
        "max_threads_per_block": Key("threads of a block (work-group)", "", _SPACE, _PROBED),
        "max_block_dims": Key("the same in each of three dimensions", "", _SPACE, _PROBED),
        "shared_memory_bytes": Key("shared (local) memory of a block", "bytes", _SPACE, _PROBED),
        "shared_memory_on_chip": Key("false: it is main memory, and not used", "", _SPACE, _PROBED),
        "registers_per_block": Key(
            "32-bit registers that a block's threads share; 0: unknown",
            "",
            _SPACE,
            "the architecture's guide; CUDA: " + _PROBED,
        ),
        "registers_per_thread": Key(
            "32-bit registers beyond which a thread spills; 0: unknown",
            "",
            _SPACE,
            "the architecture's guide",
        ),
        "warp_size": Key(
            "threads in lockstep (warp, wave, quad); 1: independent",
            "",
            _SPACE,
            "preferred work-group multiple of `clinfo`; CUDA: " + _PROBED,
        ),
        "compute_units": Key("multiprocessors, shader cores", "", "the estimated peak, " + _SPACE, _PROBED),
        "vector_float_lanes": Key("float32 lanes that the device prefers in a load", "", _SPACE, _PROBED),
        "widest_vector_lanes": Key(
            "float32 lanes of the widest vectors worth a trial; 0: vector_float_lanes",
            "",
            _SPACE,
            "16 on a Mali",
        ),
        "longest_vector": Key(
            "lanes beyond which the device's compiler fails", "", _SPACE, "probed whenever a job begins"
        ),
        "compute_capability": Key(
            "sm_ and the number, such as sm_87", "", "the compiler of CUDA code", "`nvidia-smi`; " + _PROBED
        ),
    },
}


def unused(table: str, given: Mapping[str, Any]) -> frozenset[str]:
    """Keys of a table that have no use beside what it has: those of other kinds of links or targets."""
    kind = given.get("kind")
    if table == "link" and kind in LINK_KINDS:
        return frozenset().union(*(keys.all for keys in LINK_KINDS.values())) - LINK_KINDS[kind].all
    if table == "targets[]":
        return frozenset({"machine"}) | (OF_GPUS if kind == "cpu" else OF_CPUS)
    return frozenset({"compute_capability"}) if table == "targets[].gpu" else frozenset()


def default_text(table: str, key: str) -> str:
    """A key's default as TOML; "" where there is none: it is required, or its absence means something."""
    field = next(field for field in msgspec.structs.fields(TABLES[table]) if field.name == key)
    value = field.default
    return (
        "" if value in (msgspec.NODEFAULT, None) or isinstance(value, msgspec.Struct) else toml_value(value)
    )


def required(table: str, key: str) -> bool:
    """Whether the key must be there."""
    return any(field.required and field.name == key for field in msgspec.structs.fields(TABLES[table]))


def toml_value(value: object) -> str:
    """A text, number, truth value or list of these as TOML."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return msgspec.json.encode(value).decode()
