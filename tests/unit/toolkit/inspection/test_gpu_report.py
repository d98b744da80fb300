"""The table of GPU launches and the same as data."""

from __future__ import annotations

from collections.abc import Callable

from boards.board import load
from cross.inspection.gpu_launches import LaunchReport
from toolkit.inspection.gpu_report import static_gpu_content, static_gpu_table

JETSON = load("jetson-nano").target("gpu")
PAD = LaunchReport("k_pad", 12, 64, 0, 0, 4, 10, 0)
CONV = LaunchReport("k_conv", 448, 128, 43428, 64, 4, 74, 0)
KERNELS = [("C1", (PAD, CONV)), ("C2", (LaunchReport("k", 1, 512, 16, 8, 1, None, None),))]


def test_the_table(golden: Callable[[str, str], None]) -> None:
    golden("static_gpu_table.txt", static_gpu_table(KERNELS, JETSON) + "\n")


def test_the_same_as_data() -> None:
    content = static_gpu_content(KERNELS, JETSON)
    assert content["target"] == JETSON.key
    first, second = content["kernels"]  # type: ignore[misc]
    assert first["launches"][1]["registers"] == 74
    assert first["launches"][1]["shares"]["registers"] == 128 * 80 / 32768  # whole eights
    assert (
        second["launches"][0]["shares"]["registers of a thread"] == 8 // 4 / 255
    )  # as the source keeps them
