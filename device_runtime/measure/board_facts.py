"""What this board is and how it is doing, read from /proc and /sys; what is not exposed is left out."""

from __future__ import annotations

import functools
import glob
import os
import platform
import shutil
import tempfile
from typing import Any, Dict, List, Optional, Sequence

from device_runtime.drivers.gpu_open import GPU_DRIVERS, Driver, gpu_folders, run_with_driver
from device_runtime.drivers.opencl_lanes import vector_lanes
from device_runtime.protocol import PROTOCOL_VERSION, RUNTIME_VERSION
from device_runtime.sandbox.confinement import protection
from device_runtime.sandbox.isolation import Limits

CPU_DIR = "/sys/devices/system/cpu"
CLOCK = "cpu MHz"
IDENTITY = (  # entries of /proc/cpuinfo that say which core it is
    "vendor_id", "cpu family", "model", "stepping", "model name", CLOCK,
    "CPU implementer", "CPU part", "CPU variant",
)  # fmt: skip
NO_GPUS: Dict[str, List[Any]] = {**{name: [] for name in GPU_DRIVERS}, "gpu_errors": []}
GPU_LIMITS = Limits(timeout_s=30.0, memory_bytes=2 << 30)


def probe(device_dir: str, gpus: bool = True) -> Dict[str, Any]:
    """What `boards probe` and `doctor` show; sizes in bytes, clocks in Hz, temperatures in Celsius.

    Without `gpus` none is looked for: their drivers take seconds.
    """
    disk = shutil.disk_usage(device_dir)
    return {
        "runtime": RUNTIME_VERSION,
        "protocol": PROTOCOL_VERSION,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "libc": " ".join(platform.libc_ver()),
        "cpu": _cpu_info(),
        "clusters": _clusters(),
        "cores": [_core(core) for core in sorted(os.sched_getaffinity(0))],
        "caches": _caches(min(os.sched_getaffinity(0))),
        "thermal": _thermal(),
        "memory": _memory(),
        "load": list(os.getloadavg()),
        "storage": {"device_dir": device_dir, "total_bytes": disk.total, "free_bytes": disk.free},
        "protection": protection(),
        **(_gpus(device_dir) if gpus else NO_GPUS),
    }


def facts(cores: Sequence[int]) -> Dict[str, Any]:
    """The state that a measurement ran in: clock and governor of its first core, the highest temperature."""
    first = _core(cores[0] if cores else min(os.sched_getaffinity(0)))
    found: Dict[str, Any] = {"cores": list(cores)}
    if "now_hz" in first:
        found["clock_hz"] = first["now_hz"]
    if "governor" in first:
        found["governor"] = first["governor"]
    temperatures = [zone["celsius"] for zone in _thermal()]
    if temperatures:
        found["temperature_c"] = max(temperatures)
    return found


def _text(*path: str) -> Optional[str]:
    try:
        with open(os.path.join(*path), encoding="utf-8", errors="replace") as file:
            return file.read().strip().strip("\0")
    except OSError:
        return None


def _number(*path: str) -> Optional[int]:
    text = _text(*path)
    return int(text) if text and text.lstrip("-").isdigit() else None


def _cpu_entries() -> List[Dict[str, str]]:
    """The blocks of /proc/cpuinfo, keys to values."""
    entries = []
    for block in (_text("/proc/cpuinfo") or "").split("\n\n"):
        lines = (line.partition(":") for line in block.splitlines())
        entries.append({key.strip(): value.strip() for key, _, value in lines})
    return entries


def _cpu_info() -> Dict[str, Any]:
    info: Dict[str, str] = {}
    for entry in _cpu_entries():
        info = {**entry, **info}
    board = _text("/proc/device-tree/model")
    return {
        "model": info.get("model name") or info.get("Hardware") or "",
        "board": board or "",
        "implementer": info.get("CPU implementer", ""),
        "part": info.get("CPU part", ""),
        "features": (info.get("flags") or info.get("Features") or "").split(),
        "governors": (_text(CPU_DIR, "cpu0/cpufreq/scaling_available_governors") or "").split(),
    }


def _core(core: int) -> Dict[str, Any]:
    folder = os.path.join(CPU_DIR, f"cpu{core}", "cpufreq")
    found: Dict[str, Any] = {"id": core}
    for name, file in (("now", "scaling_cur_freq"), ("min", "scaling_min_freq"), ("max", "scaling_max_freq")):
        kilohertz = _number(folder, file)
        if kilohertz is not None:
            found[f"{name}_hz"] = kilohertz * 1000
    governor = _text(folder, "scaling_governor")
    if governor:
        found["governor"] = governor
    return found


def _clusters() -> List[Dict[str, Any]]:
    """The cores by what they are: those of one entry have the same model, caches and, on Arm, highest clock
    (on x86 cores of one kind differ a little in it)."""
    entries = _cpu_entries()
    of_cores = {entry["processor"]: entry for entry in entries if "processor" in entry}
    found: Dict[Any, Dict[str, Any]] = {}
    for core in sorted(os.sched_getaffinity(0)):
        entry = of_cores.get(str(core), entries[0])
        identity = {key: entry[key] for key in IDENTITY if key in entry}
        caches, max_hz = _caches(core), _core(core).get("max_hz", 0)
        kind = (
            tuple(identity.get(key) for key in IDENTITY if key != CLOCK),
            tuple((cache["level"], cache["type"], cache["size_bytes"]) for cache in caches),
            max_hz if "CPU part" in entry else 0,
        )
        cluster = found.setdefault(
            kind, {"cores": [], "identity": identity, "max_hz": max_hz, "caches": caches}
        )
        cluster["cores"].append(core)
    return list(found.values())


def _caches(core: int) -> List[Dict[str, Any]]:
    found = []
    for folder in sorted(glob.glob(os.path.join(CPU_DIR, f"cpu{core}", "cache", "index*"))):
        size = _text(folder, "size") or ""
        if size.endswith("K") and size[:-1].isdigit():
            found.append(
                {
                    "level": _number(folder, "level") or 0,
                    "type": _text(folder, "type") or "",
                    "size_bytes": int(size[:-1]) << 10,
                    "line_bytes": _number(folder, "coherency_line_size") or 0,
                    "shared_by": _text(folder, "shared_cpu_list") or "",
                }
            )
    return found


def _thermal() -> List[Dict[str, Any]]:
    found = []
    for folder in sorted(glob.glob("/sys/class/thermal/thermal_zone*")):
        millicelsius = _number(folder, "temp")
        if millicelsius is not None:
            found.append({"name": _text(folder, "type") or "", "celsius": millicelsius / 1000})
    return found


def _memory() -> Dict[str, int]:
    found = {}
    for line in (_text("/proc/meminfo") or "").splitlines():
        words = line.split()
        if words[0] in ("MemTotal:", "MemAvailable:"):
            found["total_bytes" if words[0] == "MemTotal:" else "available_bytes"] = int(words[1]) << 10
    return found


def _devices(driver: Driver, scratch: str) -> Dict[str, Any]:
    return {"devices": driver.devices(scratch)}


def _gpus(device_dir: str) -> Dict[str, Any]:
    """In a child: a GPU driver starts threads, and the server must stay free to fork."""
    found: Dict[str, Any] = {name: list(none) for name, none in NO_GPUS.items()}
    scratch = tempfile.mkdtemp(prefix="probe-", dir=device_dir)
    try:
        for name, driver in GPU_DRIVERS.items():
            work = functools.partial(_devices, driver, scratch)
            outcome = run_with_driver(name, work, GPU_LIMITS, [scratch])
            if outcome.answer is not None:
                found[name] = outcome.answer.get("devices", [])
            if outcome.failure is not None:
                found["gpu_errors"].append(f"{name}: {outcome.failure.text}")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    for device in found["opencl"]:
        with gpu_folders(device_dir, "opencl") as folders:
            device["vector_lanes"] = vector_lanes(device, folders)
    return found
