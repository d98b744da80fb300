"""Each check of the doctor, on probes of boards that are fit and unfit; every bad answer has its remedy."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from boards.board import load
from boards.description import Board
from toolkit.measure.fit import Check
from toolkit.measure.replies import Probe, reply_of
from toolkit.report.health import check_board, probe_checks

GOOD: dict[str, Any] = {
    "runtime": "0.1.0", "protocol": 1, "python": "3.8.10", "machine": "aarch64", "system": "Linux 5.10",
    "libc": "glibc 2.31", "caches": [], "memory": {},
    "cpu": {
        "model": "", "board": "", "implementer": "", "part": "", "features": ["fp", "asimd"], "governors": [],
    },
    "storage": {"device_dir": "/home/pi/tfb", "total_bytes": 16 << 30, "free_bytes": 8 << 30},
    "cores": [{"id": core, "now_hz": 1_400_000_000, "max_hz": 1_400_000_000, "governor": "performance"}
              for core in range(6)],
    "protection": {"namespaces": True, "landlock": True},
    "thermal": [{"name": "cpu", "celsius": 51.0}],
    "load": [0.1, 0.1, 0.1],
    "opencl": [{
        "platform": "ARM Platform", "name": "Mali-T860", "driver": "1.2", "version": "OpenCL 1.2",
        "compute_units": 4, "clock_hz": 800_000_000, "memory_bytes": 2 << 30, "max_threads_per_block": 256,
        "max_block_dims": [256, 256, 256], "shared_memory_bytes": 32 << 10, "vector_float_lanes": 4,
        "float16": True,
    }],
    "cuda": [],
    "gpu_errors": [],
}  # fmt: skip

WITHOUT_NAMESPACES = {"namespaces": False, "landlock": True}
WITHOUT_LANDLOCK = {"namespaces": True, "landlock": False}
FULL = {"device_dir": "/d", "total_bytes": 1 << 30, "free_bytes": 1 << 20}


def checks(board: Board, **changes: Any) -> dict[str, Check]:
    return {check.name: check for check in probe_checks(board, reply_of(Probe, GOOD | changes))}


def core(**changes: Any) -> list[dict[str, Any]]:
    return [entry | changes for entry in GOOD["cores"]]


def test_a_fit_board_has_no_remedies() -> None:
    found = checks(load("rock960"))
    assert {check.state for check in found.values()} == {"ok"}
    assert not any(check.remedy for check in found.values())


@pytest.mark.parametrize(
    ("name", "changes", "state", "remedy"),
    [
        ("machine", {"machine": "armv7l"}, "failure", "correct the address, or choose a board with armv7l"),
        ("free space", {"storage": FULL}, "failure", "at least 256 MiB"),
        ("cores", {"cores": core()[:4]}, "failure", "echo 1 | sudo tee /sys/devices/system/cpu/cpu4/online"),
        ("features", {"cpu": GOOD["cpu"] | {"features": ["fp"]}}, "failure", "correct cpu, features and"),
        ("confinement", {"protection": WITHOUT_NAMESPACES}, "warning", "user.max_user_namespaces"),
        ("confinement", {"protection": WITHOUT_LANDLOCK}, "warning", "boot Linux 5.13"),
        ("clock", {"cores": core(now_hz=600_000_000)}, "warning", "set the governor to performance"),
        ("governor", {"cores": core(governor="ondemand")}, "warning", "echo performance | sudo tee"),
        ("temperature", {"thermal": [{"name": "cpu", "celsius": 82.0}]}, "warning", "add a fan"),
        ("load", {"load": [5.0, 1.0, 1.0]}, "warning", "stop what else runs there"),
        ("opencl", {"opencl": []}, "failure", "`python3 -m pip install pyopencl`; target mali needs them"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_is_wrong_and_what_to_do(name: str, changes: dict[str, Any], state: str, remedy: str) -> None:
    found = checks(load("rock960"), **changes)
    assert found[name].state == state
    assert remedy in found[name].remedy
    assert all(check.state == "ok" for other, check in found.items() if other != name)


def test_what_a_board_does_not_expose_is_unknown() -> None:
    found = checks(load("rock960"), cores=[{"id": number} for number in range(6)], thermal=[])
    assert {name for name, check in found.items() if check.state == "unknown"} == {
        "clock",
        "governor",
        "temperature",
    }


def test_a_missing_cuda_device_shows_the_drivers_own_words() -> None:
    found = checks(load("jetson-nano"), opencl=[], gpu_errors=["cuda: no driver"])
    assert found["cuda"].state == "failure"
    assert found["cuda"].found == "cuda: no driver"
    assert "pycuda" in found["cuda"].remedy


def test_an_unreachable_board_has_one_check_with_a_remedy() -> None:
    board = load("rpi3b@127.0.0.1:1")
    link = msgspec.structs.replace(board.link, connect_timeout_s=2.0)
    health = check_board(msgspec.structs.replace(board, link=link))
    assert not health.reachable
    assert not health.fit
    (check,) = health.checks
    assert check.name == "link"
    assert "ssh -p 1 " in check.remedy
    assert "127.0.0.1" in check.found
