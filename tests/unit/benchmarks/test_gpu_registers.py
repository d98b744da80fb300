"""What kernels take as their spaces expect it and as cubins state it: the figures, and a sample of pairs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gpu_registers import Launch, Pair, main, rows, summary, target_of

LAUNCH = Launch("k_conv", 64, 40, 50, 1024, 1024, 0, "registers of a thread", 50 / 255)


def pair(*launches: Launch, error: str = "") -> Pair:
    return Pair("conv", {}, 0.5, launches, error)


def test_what_must_not_be_is_named() -> None:
    over = replace(LAUNCH, share=1.25)
    other = replace(LAUNCH, shared_bytes=2048)
    assert pair(LAUNCH).wrong == []
    assert pair(error="NVRTC refuses").wrong == ["NVRTC refuses"]
    assert pair(over, other).wrong == [
        "k_conv takes 1.25 of the registers of a thread",
        "k_conv takes 2048 bytes of shared memory, 1024 expected",
    ]


def test_the_figures_of_an_architecture() -> None:
    unknown = replace(LAUNCH, name="k_pad", expected_registers=None, registers=200)
    more = replace(LAUNCH, expected_registers=80, registers=60, local_bytes=16)
    found = summary("sm_53", "jetson-nano", [pair(unknown, LAUNCH), pair(more), pair(error="refused")])
    assert (found["pairs"], found["compiled"], found["launches"]) == (3, 2, 3)
    assert (found["over_a_limit"], found["other_shared_memory"]) == (0, 0)
    assert (found["spilling"], found["most_spilled_bytes"]) == (1, 16)
    assert (found["with_expected_registers"], found["more_than_expected"]) == (2, 1)
    assert found["rank_correlation"] == pytest.approx(1.0)
    assert found["median_taken_of_expected"] == pytest.approx((50 / 40 + 60 / 80) / 2)


def test_without_all_the_launches_nearest_to_a_limit_are_shown_first() -> None:
    far, near = replace(LAUNCH, name="k_far", share=0.1), replace(LAUNCH, name="k_near", share=0.9)
    assert [row[1] for row in rows([pair(far, near)], everything=False)] == ["k_near", "k_far"]
    assert [row[1] for row in rows([pair(far, near)], everything=True)] == ["k_far", "k_near"]


def test_an_architecture_that_no_board_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert target_of("sm_53")[0] == "jetson-nano"
    assert main(["--arch", "sm_70"]) == 2
    assert "no board has the architecture sm_70: expected one of sm_" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_53", "sm_90"])
def test_drawn_programs_compile_within_the_limits_of_the_board(architecture: str, tmp_path: Path) -> None:
    pytest.importorskip("nvidia.cuda_nvrtc")
    file = tmp_path / "found.json"
    assert main(["--pairs", "8", "--arch", architecture, "--seed", "1", "--json", str(file)]) == 0
    content = json.loads(file.read_text())
    assert content["schema"] == "tune-for-board/gpu-registers"
    (found,) = content["architectures"]
    assert found["compiled"] == found["pairs"] == len(found["pairs_compiled"]) == 8
    launches = [launch for item in found["pairs_compiled"] for launch in item["launches"]]
    assert all(0 < launch["registers"] <= 255 and launch["share"] <= 1 for launch in launches)
    assert all(launch["shared_bytes"] == launch["expected_shared_bytes"] for launch in launches)
    assert any(launch["shared_bytes"] for launch in launches)
