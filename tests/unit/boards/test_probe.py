"""The probe reads other machines' files as well as this one's: the folders here hold what real ones show."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from boards.errors import UnsupportedHost
from boards.probe import Caches, Vectors, compiled_for, host_target, read_host_facts

CPU = "sys/devices/system/cpu"


def machine(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def cache(core: int, index: int, level: int, kind: str, size: str, line: int = 64) -> dict[str, str]:
    folder = f"{CPU}/cpu{core}/cache/index{index}"
    return {
        f"{folder}/level": str(level), f"{folder}/type": kind, f"{folder}/size": size,
        f"{folder}/coherency_line_size": str(line),
    }  # fmt: skip


def x86(flags: str, *, vendor: str = "GenuineIntel", family: int = 6, mhz: str = "2500.000") -> str:
    return (
        f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: 85\n"
        f"model name\t: A CPU @ 2.50GHz\nstepping\t: 7\ncpu MHz\t\t: {mhz}\nflags\t\t: fpu sse2 {flags}"
    )


AVX512 = "avx avx2 fma avx512f avx512dq avx512vl"


@pytest.mark.parametrize(
    ("cpuinfo", "vectors"),
    [
        (x86(AVX512), Vectors(64, 32, 64.0)),
        (x86(AVX512, vendor="AuthenticAMD", family=25), Vectors(64, 32, 32.0)),
        (x86(AVX512, vendor="AuthenticAMD", family=26), Vectors(64, 32, 64.0)),
        (x86("avx avx2 fma"), Vectors(32, 16, 32.0)),
        (x86("avx avx2 fma avx512f"), Vectors(32, 16, 32.0)),
        (x86("avx"), Vectors(32, 16, 16.0)),
        (x86(""), Vectors(16, 16, 8.0)),
    ],
)
def test_x86_vectors(tmp_path: Path, cpuinfo: str, vectors: Vectors) -> None:
    root = machine(tmp_path, {"proc/cpuinfo": cpuinfo})
    assert read_host_facts(root, architecture="x86_64", allowed=[0]).vectors == vectors


@pytest.mark.parametrize(
    ("flags", "features"),
    [
        ("avx avx2 fma avx_vnni", ("+avxvnni",)),  # Alder Lake
        ("avx avx2 fma", ()),  # Zen 3
        (f"{AVX512} avx512_vnni avx_vnni", ()),  # Sapphire Rapids
    ],
)
def test_products_of_bytes_of_hosts_without_avx_512_are_named(
    tmp_path: Path, flags: str, features: tuple[str, ...]
) -> None:
    root = machine(tmp_path, {"proc/cpuinfo": x86(flags)})
    facts = read_host_facts(root, architecture="x86_64", allowed=[0])
    assert host_target(facts).features == features
    assert compiled_for(facts).features == ()


RK3399 = "\n\n".join(
    f"processor\t: {core}\nBogoMIPS\t: 48.00\nFeatures\t: fp asimd evtstrm aes crc32 cpuid\n"
    f"CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: {part}\nCPU revision\t: 4"
    for core, part in enumerate(["0xd03"] * 4 + ["0xd08"] * 2)
)


def test_an_arm_board_with_two_clusters(tmp_path: Path) -> None:
    files = {"proc/cpuinfo": RK3399, "proc/meminfo": "MemTotal:        3912252 kB\nMemFree: 1 kB"}
    files |= {f"{CPU}/cpu4/cpufreq/cpuinfo_max_freq": "1800000"}
    files |= (
        cache(4, 0, 1, "Data", "32K")
        | cache(4, 1, 1, "Instruction", "48K")
        | cache(4, 2, 2, "Unified", "1024K")
    )
    facts = read_host_facts(machine(tmp_path, files), architecture="aarch64", allowed=[4, 5])
    assert facts.machine == "0x41-0xd08-0x0"
    assert facts.caches == Caches(l1i_bytes=49152, l2_bytes=1 << 20)
    assert facts.memory_bytes == 3912252 * 1024
    target = host_target(facts)
    assert (target.triple, target.cores, target.vector_bytes) == ("aarch64-unknown-linux-gnu", (4, 5), 16)
    assert target.estimated_peak_gflops == pytest.approx(28.8)


def test_a_server_arm_core_has_two_pipes(tmp_path: Path) -> None:
    neoverse = RK3399.replace("0xd03", "0xd0c")
    facts = read_host_facts(machine(tmp_path, {"proc/cpuinfo": neoverse}), architecture="arm64", allowed=[0])
    assert facts.architecture == "aarch64"
    assert facts.vectors == Vectors(16, 32, 16.0)


def test_a_time_quota_leaves_fewer_cores(tmp_path: Path) -> None:
    files = {"proc/cpuinfo": x86(AVX512), "sys/fs/cgroup/cpu.max": "250000 100000"}
    root = machine(tmp_path, files)
    assert read_host_facts(root, architecture="x86_64", allowed=range(8, 72)).cores == (8, 9)
    machine(root, {"sys/fs/cgroup/cpu.max": "max 100000"})
    assert len(read_host_facts(root, architecture="x86_64", allowed=range(8, 72)).cores) == 64
    machine(root, {"sys/fs/cgroup/cpu.max": "10000 100000"})
    assert read_host_facts(root, architecture="x86_64", allowed=[3, 5]).cores == (3,)


def test_version_1_control_groups_have_quotas_too(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/cpu"
    files = {f"{group}/cpu.cfs_quota_us": "400000", f"{group}/cpu.cfs_period_us": "100000"}
    root = machine(tmp_path, {"proc/cpuinfo": x86(""), **files})
    assert len(read_host_facts(root, architecture="x86_64", allowed=range(16)).cores) == 4
    machine(root, {f"{group}/cpu.cfs_quota_us": "-1"})
    assert len(read_host_facts(root, architecture="x86_64", allowed=range(16)).cores) == 16


def test_a_machine_that_says_nothing_gets_small_safe_figures(tmp_path: Path) -> None:
    facts = read_host_facts(tmp_path, architecture="x86_64", allowed=[0])
    assert facts.caches == Caches()
    assert (facts.clock_hz, facts.memory_bytes, facts.machine) == (1e9, 1 << 30, "unknown")
    assert facts.vectors == Vectors(16, 16, 8.0)


def test_another_processor_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedHost, match="'riscv64'; the board `host` needs x86_64 or aarch64"):
        read_host_facts(tmp_path, architecture="riscv64")


def test_this_machine_answers() -> None:
    facts = read_host_facts()
    assert set(facts.cores) <= os.sched_getaffinity(0)
    assert facts.memory_bytes > 1 << 28
    assert facts.caches.l2_bytes >= facts.caches.l1d_bytes > 0
