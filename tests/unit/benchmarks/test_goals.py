"""What must be reached, from cases: found, judged, and left open where something is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness.documents import write
from benchmarks.kernels.__main__ import main
from benchmarks.kernels.goals import finding, findings, summary
from benchmarks.kernels.limits import limit
from benchmarks.kernels.networks import NAMES
from benchmarks.kernels.ratios import standing
from benchmarks.kernels.results import Case, Finding, GoalReport, read_goals
from benchmarks.kernels.workloads import SUITES
from tests.benchmark_reports import FLOPS, case, report, steady


def whole_suite(suite: str, ours_s: float, *, direct_s: float | None = None, threads: int = 1) -> list[Case]:
    """Every operator of a suite, all alike: theirs takes 1 ms, the peak allows half of that."""
    return [
        case(
            steady("machine", "fma", 0.5e-3),
            steady("machine", "launch", 4e-6, work=1.0),
            steady("ours", "tuned", ours_s, facts={"trials": 400.0, "spills": float(name == "C3")}),
            *([steady("ours", "direct", direct_s)] if direct_s else []),
            steady("torch", "prepacked", 1e-3),
            workload=name,
            suite=suite,
            threads=threads,
        )
        for name in SUITES[suite]
    ]


def by_name(goals: list[Finding]) -> dict[str, Finding]:
    return {goal.name: goal for goal in goals}


def test_a_whole_suite_is_judged_with_and_without_winograd() -> None:
    goals = by_name(findings(whole_suite("conv", 0.8e-3, direct_s=1.25e-3)))
    mean = goals["conv, 1 thread: mean of ours / best library"]
    assert (mean.found, mean.goal, mean.reached) == (pytest.approx(1.25), 1.1, True)
    assert goals["conv, 1 thread: worst of ours / best library"].reached
    direct = goals["conv, 1 thread: mean of ours without Winograd / best library"]
    assert (direct.found, direct.goal, direct.reached) == (pytest.approx(0.8), 1.0, False)
    autotvm = goals["C2 / AutoTVM, as fractions of the peak"]
    assert autotvm.found == pytest.approx(0.5 / 0.8 / (133 / 153))
    assert not autotvm.reached
    assert goals["conv, 1 thread: most trials of an operator"].reached
    spills = goals["conv, 1 thread: winners with spills in the hottest loop"]
    assert (spills.found, spills.reached, spills.detail) == (1.0, False, "C3 1")
    launch = goals["conv, 1 thread: an empty parallel loop, us"]
    assert (launch.found, launch.at_most, launch.reached) == (pytest.approx(4.0), True, True)


def test_operators_without_a_choice_count_as_they_are_in_the_mean_without_winograd() -> None:
    cases = whole_suite("conv", 0.5e-3)
    cases[0] = whole_suite("conv", 0.5e-3, direct_s=2e-3)[0]
    goal = by_name(findings(cases))["conv, 1 thread: mean of ours without Winograd / best library"]
    assert goal.found == pytest.approx((2.0**11 * 0.5) ** (1 / 12))


def test_a_part_of_a_suite_leaves_its_mean_open_but_not_what_is_surely_missed() -> None:
    slow = whole_suite("depthwise", 2e-3)[:2]
    goals = by_name(findings(slow))
    mean = goals["depthwise, 1 thread: mean of ours / best library"]
    assert (mean.found, mean.reached) == (None, None)
    assert mean.detail == "no figure for D3, D4, D5, D6, D7, D8, D9"
    worst = goals["depthwise, 1 thread: worst of ours / best library"]
    assert (worst.found, worst.reached, worst.detail) == (0.5, False, "below: D1 0.50, D2 0.50")
    fast = by_name(findings(whole_suite("depthwise", 0.5e-3)[:2]))
    assert fast["depthwise, 1 thread: worst of ours / best library"].reached is None


def test_threads_are_judged_apart_and_autotvm_on_one() -> None:
    goals = by_name(findings([*whole_suite("conv", 0.5e-3), *whole_suite("conv", 2e-3, threads=2)]))
    assert goals["conv, 1 thread: mean of ours / best library"].reached
    assert not goals["conv, 2 threads: mean of ours / best library"].reached
    assert sum("AutoTVM" in name for name in goals) == 5


def test_recurrent_networks_are_judged_against_onnxruntime() -> None:
    cases = [
        case(
            steady("ours", "bundle", 1e-3),
            steady("onnxruntime", "all", theirs_s),
            steady("torch", "frozen", 0.5e-3),
            workload=name,
            suite="networks",
        )
        for name, theirs_s in (("lstm_lm", 1.3e-3), ("transformer", 0.9e-3), ("resnet18", 1e-3))
    ]
    goals = by_name(findings(cases))
    found = {name: goal for name, goal in goals.items() if "ONNX Runtime" in name}
    assert [(name, goal.goal, goal.reached) for name, goal in found.items()] == [
        ("networks, 1 thread: lstm_lm, ours / ONNX Runtime", 1.2, True),
        ("networks, 1 thread: transformer, ours / ONNX Runtime", 1.0, False),
    ]


def test_networks_are_judged_against_the_best_library_each_and_together() -> None:
    cases = [
        case(
            steady("ours", "bundle", 1e-3),
            steady("litert", "xnnpack", 1.1e-3 if name == "resnet18" else 1.5e-3),
            steady("torch", "compiled", 3e-3),
            workload=name,
            suite="networks",
        )
        for name in NAMES
    ]
    goals = by_name(findings(cases))
    worst = goals["networks, 1 thread: worst of ours / best library"]
    assert (worst.goal, worst.reached, worst.detail) == (1.12, False, "below: resnet18 1.10")
    mean = goals["networks, 1 thread: mean of ours / best library"]
    assert mean.found == pytest.approx((1.1 * 1.5**14) ** (1 / 15)) and mean.reached
    assert goals["networks, 1 thread: mobilenet_v2, ours / best library"].reached
    assert not goals["networks, 1 thread: mobilenet_v3, ours / best library"].reached
    part = by_name(findings(cases[1:]))["networks, 1 thread: mean of ours / best library"]
    assert (part.reached, part.detail) == (None, "no figure for resnet18")


def test_random_shapes_need_their_number_and_right_answers() -> None:
    def shapes(count: int) -> list[Case]:
        return [
            case(
                steady("ours", "default", 1e-3),
                steady("numpy", "taps", 2e-3),
                workload=f"R{number}",
                suite="random",
            )
            for number in range(count)
        ]

    wrong = case(steady("numpy", "taps", 2e-3), workload="R49", suite="random")
    name = "random, 1 thread: shapes without a right answer"
    assert by_name(findings(shapes(50)))[name].reached
    missing = by_name(findings([*shapes(49), wrong]))[name]
    assert (missing.found, missing.reached, missing.detail) == (1.0, False, "R49")
    assert by_name(findings(shapes(10)))[name].reached is None


def test_the_summary_counts_and_names() -> None:
    goals = [
        finding("speed", 1.1, 1.25),
        finding("spills", 0, 3.0, at_most=True, detail="D2 3"),
        finding("mean", 1.0, None, detail="no figure for C1"),
    ]
    lines = [" ".join(line.split()) for line in summary(goals)]
    assert lines == [
        "goals: 1 reached, 1 NOT reached, 1 not measured",
        "speed 1.25 at least 1.1 reached",
        "spills 3.00 at most 0 NOT reached D2 3",
        "mean - at least 1 not measured no figure for C1",
    ]


def test_goals_are_collected_from_files_of_both_kinds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full, alone, together = (tmp_path / name for name in ("full.json", "alone.json", "together.json"))
    write(report(*whole_suite("conv", 0.5e-3)), full)
    write(GoalReport(goals=(finding("spills", 0, 0.0, at_most=True),)), alone)
    assert main(["goals", str(full), str(alone), "--json", str(together)]) == 0
    assert "spills" in capsys.readouterr().out
    assert [goal.name for goal in read_goals(together)][-1] == "spills"
    (tmp_path / "other.json").write_text("{}")
    assert main(["goals", str(tmp_path / "other.json")]) == 2


@pytest.mark.parametrize(
    ("ours_s", "read_bytes", "facts", "said"),
    [
        (1.1e-3, 1e9, {}, "0.91 of the roof (arithmetic): at the machine's limit"),
        (5e-3, 8_000.0, {}, "0.25 of the roof (memory): moving operands"),
        (4e-3, 1e9, {"spills": 3.0}, "0.25 of the roof (arithmetic): 3 spills in the inner loop"),
        (4e-3, 1e9, {"algorithm": "F(2x2,3x3)"}, "the transforms of F(2x2,3x3) beside its products"),
        (
            4e-3,
            1e9,
            {"fma_share": 0.4, "loads_per_fma": 1.5},
            "the inner loop's loads (40% multiply-adds, 1.5",
        ),
        (4e-3, 1e9, {"fma_share": 0.2, "loads_per_fma": 0.5}, "the inner loop's other instructions (20%"),
        (
            4e-3,
            1e9,
            {"fma_share": 0.8, "loads_per_fma": 0.5},
            "outside the inner loop, or its data on the way",
        ),
    ],
)
def test_what_limits(ours_s: float, read_bytes: float, facts: dict[str, str | float], said: str) -> None:
    found = standing(
        case(
            steady("machine", "fma", 1e-3, work=FLOPS),
            steady("machine", "read", 1e-3, work=read_bytes),
            steady("ours", "tuned", ours_s, facts=facts),
            steady("torch", "nchw", 1e-3),
        )
    )
    assert found is not None
    assert said in limit(found)
