"""Which variant a board starts, without a GPU; tests/loopback/test_flash_gpu.py does it with PoCL."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import pytest

from device_runtime.drivers.cuda_driver import check_capability
from device_runtime.installed.bundle_trust import check_machine
from device_runtime.installed.variants import choose
from device_runtime.protocol import ProtocolError
from device_runtime.sandbox.isolation import Fault

HERE = {"target": "cpu", "kind": "cpu", "triple": f"{platform.machine()}-unknown-linux-gnu"}
ELSEWHERE = {"target": "a53", "kind": "cpu", "triple": "riscv64-unknown-linux-gnu"}
CUDA = {
    "target": "gpu",
    "kind": "cuda",
    "device": "no such device",
    "compute_capability": "sm_53",
    "threads_per_block": 64,
}


def manifest(*variants: dict[str, Any]) -> dict[str, Any]:
    return {"variants": list(variants)}


def test_the_first_that_fits_is_chosen(tmp_path: Path) -> None:
    choice = choose(manifest(HERE, {**HERE, "target": "other"}), "", str(tmp_path))
    assert choice.plain() == {"target": "cpu", "kind": "cpu", "device": platform.machine(), "reason": ""}
    assert choose(manifest(HERE, {**HERE, "target": "other"}), "other", str(tmp_path)).reason == ""


def test_the_reason_says_what_was_passed_over(tmp_path: Path) -> None:
    """Without pycuda, and with it but without such a device."""
    choice = choose(manifest(CUDA, ELSEWHERE, HERE), "", str(tmp_path))
    assert choice.variant is HERE
    first, second = choice.reason.split("; a53: ")
    assert first.startswith("gpu: ") and ("pycuda cannot be loaded" in first or "CUDA" in first)
    assert second == f"it is for riscv64, this board is {platform.machine()}"
    assert list(tmp_path.glob("cuda/scratch-*")) == []


def test_nothing_that_fits_is_a_refusal_with_every_reason(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="no variant for this board: a53: it is for riscv64") as caught:
        choose(manifest(ELSEWHERE, HERE), "a53", str(tmp_path))
    assert caught.value.code == "not_found"
    with pytest.raises(ProtocolError, match=r"no variant for target 'npu'; it has a53 \(cpu\), cpu \(cpu\)"):
        choose(manifest(ELSEWHERE, HERE), "npu", str(tmp_path))


@pytest.mark.parametrize("found", [(5, 3), (5, 9)])
def test_cubins_run_on_later_minor_capabilities(found: tuple[int, int]) -> None:
    check_capability("X", found, "sm_53")


@pytest.mark.parametrize("found", [(5, 2), (6, 3), (9, 0)])
def test_cubins_do_not_run_on_others(found: tuple[int, int]) -> None:
    with pytest.raises(Fault, match=f"it is for sm_53, X is sm_{found[0]}{found[1]}"):
        check_capability("X", found, "sm_53")


def test_a_bundle_without_cpu_code_fits_every_machine() -> None:
    check_machine({"compatibility": {"machines": []}})
    with pytest.raises(ProtocolError, match="the bundle has code for riscv64"):
        check_machine({"compatibility": {"machines": ["riscv64"]}})
