"""What this machine is, read from /proc and /sys: cores this process may use, caches, vectors, clock, memory.

Start at `read_host_facts`; `host_target` makes the compiler's `Target` of it. All is read below `root`, so
that other machines' files can be read too. What a file does not say falls back to a small, safe figure.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from boards.errors import UnknownLevel, UnsupportedHost
from boards.features import LEVELS, flag_of, missing_flags
from boards.target import TILE_FEATURES, Target

NATIVE = "native"
_FALLBACK_CLOCK_HZ = 1e9
_FALLBACK_MEMORY_BYTES = 1 << 30
_ARM = "0x41"  # CPU implementer
_ARM_ONE_PIPE = frozenset({  # one 128-bit multiply-add a cycle: A34, A53, A35, A55, A57, A72, A73, A75
    "0xd02", "0xd03", "0xd04", "0xd05", "0xd07", "0xd08", "0xd09", "0xd0a",
})  # fmt: skip


ARM_CORES: Mapping[str, str] = {  # "CPU part" to LLVM's name (llvm/lib/TargetParser/Host.cpp)
    "0xd02": "cortex-a34", "0xd03": "cortex-a53", "0xd04": "cortex-a35",
    "0xd05": "cortex-a55", "0xd06": "cortex-a65", "0xd07": "cortex-a57", "0xd08": "cortex-a72",
    "0xd09": "cortex-a73", "0xd0a": "cortex-a75", "0xd0b": "cortex-a76", "0xd0c": "neoverse-n1",
    "0xd0d": "cortex-a77", "0xd0e": "cortex-a76ae", "0xd40": "neoverse-v1", "0xd41": "cortex-a78",
    "0xd42": "cortex-a78ae", "0xd44": "cortex-x1", "0xd46": "cortex-a510", "0xd47": "cortex-a710",
    "0xd48": "cortex-x2", "0xd49": "neoverse-n2", "0xd4a": "neoverse-e1", "0xd4b": "cortex-a78c",
    "0xd4d": "cortex-a715", "0xd4e": "cortex-x3", "0xd4f": "neoverse-v2",
}  # fmt: skip
ARM_FEATURES = ("dotprod", "i8mm")  # products of bytes; named in targets, as kernels use them


class Vectors(msgspec.Struct, frozen=True):
    """Widest vectors that are worth using, and float32 operations a core does with them in a cycle."""

    bytes: int
    registers: int
    flops_per_cycle: float


class Caches(msgspec.Struct, frozen=True):
    """Sizes in bytes as one core sees them; 0: there is none."""

    line_bytes: int = 64
    l1d_bytes: int = 32768
    l1i_bytes: int = 32768
    l2_bytes: int = 262144
    l3_bytes: int = 0


class HostFacts(msgspec.Struct, frozen=True):
    """What was read; `model` is for people, `machine` tells one CPU model from another.

    `flags` are those of /proc/cpuinfo. Code is for the CPU as it is, or for LLVM's `cpu` with `features`.
    """

    architecture: str
    model: str
    machine: str
    cores: tuple[int, ...]
    vectors: Vectors
    caches: Caches
    clock_hz: float
    memory_bytes: int
    flags: frozenset[str] = frozenset()
    cpu: str = NATIVE
    features: tuple[str, ...] = ()


def read_host_facts(
    root: Path = Path("/"), *, architecture: str | None = None, allowed: Sequence[int] | None = None
) -> HostFacts:
    """Facts of the machine whose /proc and /sys lie below `root`.

    `architecture` and `allowed` (core ids) default to this process's. Raises UnsupportedHost.
    """
    architecture = {"amd64": "x86_64", "arm64": "aarch64"}.get(
        name := (architecture or platform.machine()).lower(), name
    )
    if architecture not in _VECTORS:
        raise UnsupportedHost(architecture)
    cores = usable_cores(root, sorted(os.sched_getaffinity(0)) if allowed is None else allowed)
    cpu = _cpu_entry(root, cores[0])
    flags = frozenset((cpu.get("flags") or cpu.get("Features") or "").split())
    facts = cpu_facts(architecture, cpu, flags, cores)
    return replace(
        facts,
        caches=_caches(root, cores[0]),
        clock_hz=_clock_hz(root, cores[0]) or facts.clock_hz or _FALLBACK_CLOCK_HZ,
        memory_bytes=_memory_bytes(root),
    )


def cpu_facts(
    architecture: str, cpu: Mapping[str, str], flags: frozenset[str], cores: Sequence[int]
) -> HostFacts:
    """What `cpu`, their block of /proc/cpuinfo, and its flags say of some cores; clock 0: not said.

    `architecture` is x86_64 or aarch64; caches and memory are left at their defaults. Raises UnsupportedHost.
    """
    if architecture not in _VECTORS:
        raise UnsupportedHost(architecture)
    vectors = _VECTORS[architecture]({**cpu, "flags": " ".join(flags)})
    return HostFacts(
        architecture=architecture,
        model=_model(cpu),
        machine=_machine(cpu),
        cores=tuple(cores),
        vectors=vectors,
        caches=Caches(),
        clock_hz=float(cpu.get("cpu MHz", "0") or 0) * 1e6,
        memory_bytes=_FALLBACK_MEMORY_BYTES,
        flags=flags,
        features=_named(flags, vectors),
    )


def compiled_for(facts: HostFacts) -> HostFacts:
    """The cores as another machine compiles for them: by LLVM's name of a core, or its level of x86-64."""
    if facts.architecture == "x86_64":
        fitting = [level for level in LEVELS if not missing_flags(LEVELS[level], facts.flags)]
        if fitting:
            return narrowed(facts, "", fitting[-1])
        return replace(facts, cpu="x86-64", features=(), vectors=_LEVEL_VECTORS["x86-64-v2"])
    features = ("neon", *(name for name in ARM_FEATURES if flag_of(name) in facts.flags))
    implementer, _, rest = facts.machine.partition("-")
    cpu = ARM_CORES.get(rest.partition("-")[0]) if implementer == _ARM else None
    return replace(facts, cpu=cpu or "generic", features=tuple(f"+{name}" for name in features))


def narrowed(facts: HostFacts, board: str, level: str) -> HostFacts:
    """The machine as if its CPU had no more than a level of x86-64 and named features: "x86-64-v3+avxvnni".

    Raises UnknownLevel with what is not one, or what the machine lacks.
    """
    name, *features = level.split("+")
    if facts.architecture != "x86_64" or name not in LEVELS:
        known = ", ".join(LEVELS)
        raise UnknownLevel(board, level, f"levels are {known}, of a machine that is x86_64")
    missing = missing_flags(LEVELS[name].union(map(flag_of, features)), facts.flags)
    if missing:
        raise UnknownLevel(board, level, f"this machine's CPU has no {', '.join(missing)}")
    return replace(
        facts,
        cpu=name,
        features=tuple(f"+{feature}" for feature in features),
        vectors=_LEVEL_VECTORS.get(name, facts.vectors),
    )


def host_target(facts: HostFacts) -> Target:
    """The one CPU target of the machine; `cpu` "native" is what the compiler resolves to LLVM's name."""
    return Target(
        name="cpu",
        kind="cpu",
        triple=f"{facts.architecture}-unknown-linux-gnu",
        cpu=facts.cpu,
        features=facts.features,
        vector_bytes=facts.vectors.bytes,
        vector_registers=facts.vectors.registers,
        **_of_this_machine(facts),
    )


def pocl_target(target: Target, facts: HostFacts) -> Target:
    """An OpenCL target that is this machine's CPU: its cores, vectors, clock and caches.

    The limits of a launch stay as they are: those of the board file are a floor that every PoCL reaches.
    """
    assert target.gpu is not None
    limits = replace(
        target.gpu, compute_units=len(facts.cores), vector_float_lanes=min(16, facts.vectors.bytes // 4)
    )
    filled: Target = replace(target, gpu=limits, **_of_this_machine(facts))
    return filled


def _of_this_machine(facts: HostFacts) -> dict[str, Any]:
    """What every target that runs on this machine's cores has in common."""
    caches = asdict(facts.caches)
    return {
        "machine": facts.machine,
        "cores": facts.cores,
        "clock_hz": facts.clock_hz,
        "flops_per_cycle": facts.vectors.flops_per_cycle,
        "cache_line_bytes": caches.pop("line_bytes"),
        **caches,
    }


def usable_cores(root: Path, allowed: Sequence[int]) -> tuple[int, ...]:
    """The cores of the affinity mask, as many as the control group's time quota pays for."""
    quota = _cpu_quota(root)
    count = len(allowed) if quota is None else max(1, min(len(allowed), int(quota)))
    return tuple(allowed[:count])


def _cpu_quota(root: Path) -> float | None:
    """CPUs' worth of time that the control group grants (version 2, then 1); None: no limit."""
    limit = _text(root / "sys/fs/cgroup/cpu.max").split()
    if len(limit) == 2 and limit[0].isdigit():
        return int(limit[0]) / int(limit[1])
    quota = _text(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    period = _text(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if quota.isdigit() and period.isdigit():
        return int(quota) / int(period)
    return None


def _cpu_entry(root: Path, core: int) -> dict[str, str]:
    """The block of /proc/cpuinfo for one core (the first block where the core has none), keys to values."""
    blocks = [
        {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in block.splitlines())}
        for block in _text(root / "proc/cpuinfo").split("\n\n")
    ]
    return next((block for block in blocks if block.get("processor") == str(core)), blocks[0])


def _model(cpu: Mapping[str, str]) -> str:
    part = f"implementer {cpu.get('CPU implementer', 'unknown')}, part {cpu.get('CPU part', 'unknown')}"
    return cpu.get("model name", part)


def _machine(cpu: Mapping[str, str]) -> str:
    """Which CPU model it is: maker, family, model and stepping, or Arm's implementer, part and variant."""
    x86 = [cpu.get(key, "") for key in ("vendor_id", "cpu family", "model", "stepping")]
    arm = [cpu.get(key, "") for key in ("CPU implementer", "CPU part", "CPU variant")]
    return "-".join(part for part in (x86 if x86[0] else arm) if part) or "unknown"


def _named(flags: frozenset[str], vectors: Vectors) -> tuple[str, ...]:
    """Features that a target names although "native" has them anyhow: schedules see the target alone.

    With AVX-VNNI they take larger tiles of bytes; they ask for no name on CPUs with AVX-512 (32 vector
    registers). With AMX they take tile registers.
    """
    vnni = ("+avxvnni",) if "avx_vnni" in flags and vectors.registers == 16 else ()
    return (*vnni, *(TILE_FEATURES if flags >= {"amx_tile", "amx_int8"} else ()))


def _x86_vectors(cpu: Mapping[str, str]) -> Vectors:
    flags = set(cpu.get("flags", "").split())
    family = int(cpu.get("cpu family", "0"))
    if {"avx512f", "avx512vl", "avx512dq"} <= flags:
        # AMD before family 26 (Zen 5) does a 512-bit multiply-add in two cycles of its 256-bit pipes
        halved = cpu.get("vendor_id") == "AuthenticAMD" and family < 26
        return Vectors(64, 32, 32.0 if halved else 64.0)
    if {"avx2", "fma"} <= flags:
        return Vectors(32, 16, 32.0)
    if "avx" in flags:
        return Vectors(32, 16, 16.0)
    return Vectors(16, 16, 8.0)


def _arm_vectors(cpu: Mapping[str, str]) -> Vectors:
    one_pipe = cpu.get("CPU implementer") == _ARM and cpu.get("CPU part") in _ARM_ONE_PIPE
    return Vectors(16, 32, 8.0 if one_pipe else 16.0)


_LEVEL_VECTORS: Mapping[str, Vectors] = {  # of v4: those of the CPU
    "x86-64-v2": Vectors(16, 16, 8.0),
    "x86-64-v3": Vectors(32, 16, 32.0),
}

_VECTORS: dict[str, Callable[[Mapping[str, str]], Vectors]] = {
    "x86_64": _x86_vectors,
    "aarch64": _arm_vectors,
}


def _caches(root: Path, core: int) -> Caches:
    """Caches of one core from /sys; what /sys does not list keeps the fallback of `Caches`."""
    sizes: dict[tuple[str, str], int] = {}
    default = Caches()
    line_bytes = default.line_bytes
    for index in sorted((root / f"sys/devices/system/cpu/cpu{core}/cache").glob("index*")):
        sizes[_text(index / "level"), _text(index / "type")] = _size_bytes(_text(index / "size"))
        line_bytes = int(_text(index / "coherency_line_size") or line_bytes)
    l1d_bytes = sizes.get(("1", "Data"), 0) or default.l1d_bytes
    return Caches(
        line_bytes=line_bytes,
        l1d_bytes=l1d_bytes,
        l1i_bytes=sizes.get(("1", "Instruction"), 0) or default.l1i_bytes,
        l2_bytes=max(sizes.get(("2", "Unified"), 0) or default.l2_bytes, l1d_bytes),
        l3_bytes=sizes.get(("3", "Unified"), 0),
    )


def _clock_hz(root: Path, core: int) -> float:
    """The highest clock that cpufreq allows; 0 where there is none."""
    khz = _text(root / f"sys/devices/system/cpu/cpu{core}/cpufreq/cpuinfo_max_freq")
    return int(khz) * 1e3 if khz.isdigit() else 0.0


def _memory_bytes(root: Path) -> int:
    found = re.search(r"^MemTotal:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else _FALLBACK_MEMORY_BYTES


def _size_bytes(text: str) -> int:
    """Bytes of "48K" or "32M"; 0 for anything else."""
    found = re.fullmatch(r"(\d+)([KMG]?)", text)
    return int(found.group(1)) << {"": 0, "K": 10, "M": 20, "G": 30}[found.group(2)] if found else 0


def _text(path: Path) -> str:
    """A small file's text without surrounding space; empty where it is missing or not readable."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
