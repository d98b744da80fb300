"""From turns to ratios, means and tables."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.harness.documents import NoDocument, write
from benchmarks.kernels.goals import against_autotvm
from benchmarks.kernels.ratios import ratio, standing
from benchmarks.kernels.results import Series, read, sample
from benchmarks.kernels.tables import text
from tests.benchmark_reports import FLOPS, case, report, series, steady, turn


def test_a_slow_phase_of_the_machine_does_not_change_a_ratio() -> None:
    ours = series("ours", "tuned", turn(1e-3), turn(2e-3), turn(1e-3))
    theirs = series("torch", "nchw", turn(2e-3), turn(4e-3), turn(2e-3))
    found = ratio(ours, theirs)
    assert found is not None
    assert (found.median, found.low, found.high, found.clean) == (2.0, 2.0, 2.0, True)


def test_disturbed_rounds_count_only_where_there_is_nothing_better() -> None:
    disturbed = turn(9e-3, kept=0)
    ours = series("ours", "tuned", turn(1e-3), disturbed, turn(1e-3), turn(1e-3))
    theirs = series("torch", "nchw", turn(1e-3), turn(1e-3), turn(1e-3), turn(1e-3))
    found = ratio(ours, theirs)
    assert found is not None
    assert (found.median, found.low, found.clean) == (1.0, 1.0, True)
    short = ratio(
        series("ours", "tuned", turn(1e-3), disturbed), series("torch", "nchw", turn(1e-3), turn(1e-3))
    )
    assert short is not None
    assert not short.clean
    assert short.low < 1.0
    assert ratio(series("ours", "tuned", None), series("torch", "nchw", turn(1.0))) is None


def test_a_sample_prefers_undisturbed_batches() -> None:
    few = sample([2.0, 3.0], [9.0, 1.0])
    assert (few.seconds, few.kept, few.disturbed, few.clean) == (1.0, 2, 2, False)
    enough = sample([1.0, 2.0, 3.0], [0.5])
    assert (enough.seconds, enough.disturbed, enough.clean) == (2.0, 1, True)


def test_the_best_library_the_peak_and_the_roof() -> None:
    rounds = [turn(1e-3)] * 3
    found = standing(
        case(
            series("machine", "fma", *rounds, work=2 * FLOPS),
            series("machine", "read", *rounds, work=10_000 * 1.5),
            series("ours", "default", *[turn(4e-3)] * 3),
            series("ours", "tuned", *rounds),
            series("torch", "nchw", *[turn(3e-3)] * 3),
            series("torch", "prepacked", *[turn(1.25e-3)] * 3),
            series("openvino", "nchw", None, turn(2e-3), turn(2e-3)),
        )
    )
    assert found is not None
    assert found.best is not None and found.best.name == "torch prepacked"
    assert found.against is not None and found.against.median == pytest.approx(1.25)
    assert found.peak is not None and found.peak.median == pytest.approx(0.5)
    assert found.roof is not None and found.roof.median == pytest.approx(1 / 1.5)
    assert found.bound == "memory"
    assert against_autotvm(found) == pytest.approx(0.5 / (138 / 153))


def test_without_tuning_the_default_schedule_stands_for_us() -> None:
    found = standing(case(series("ours", "default", turn(1e-3)), series("torch", "nchw", turn(1e-3))))
    assert found is not None and found.ours.variant == "default" and found.peak is None
    assert standing(case(series("torch", "nchw", turn(1e-3)))) is None


def test_wrong_answers_are_no_figures() -> None:
    fast_but_wrong = Series(
        library="torch", variant="nchw", error=0.5, work=FLOPS, rounds=tuple([turn(1e-6)] * 3)
    )
    ours = series("ours", "tuned", *[turn(1e-3)] * 3)
    found = standing(case(ours, fast_but_wrong))
    assert found is not None and found.against is None
    assert standing(case(msgspec.structs.replace(ours, error=0.5))) is None
    assert "WRONG: torch nchw on C6, relative error 5.0e-01" in text(report(case(ours, fast_but_wrong)))


def test_tables_say_what_is_reached_and_what_is_missing() -> None:
    said = text(
        report(
            case(series("ours", "tuned", *[turn(1e-3)] * 3), series("torch", "nchw", *[turn(1.2e-3)] * 3)),
            case(
                series("ours", "default", *[turn(1e-3)] * 3),
                series("torch", "nchw", *[turn(0.8e-3)] * 3),
                workload="C7",
            ),
        )
    )
    assert "ours / best library, geometric mean of 2: 0.98" in said
    goals = {" ".join(line.split()) for line in said.splitlines()}
    assert (
        "conv, 1 thread: worst of ours / best library 0.80 at least 0.9 NOT reached below: C7 0.80" in goals
    )
    assert "not measured: litert: no Python at nowhere; on (threads) C6 (1), C7 (1)" in said
    row = next(line for line in said.splitlines() if line.lstrip().startswith("C7"))
    assert row.split()[:4] == ["C7", "-", "1.0", "1.2"]


def test_the_table_has_both_of_our_winners() -> None:
    said = text(
        report(
            case(
                steady("ours", "tuned", 1e-3, facts={"algorithm": "F(2x2,3x3)"}),
                steady("ours", "direct", 2e-3, facts={"algorithm": "direct"}),
                steady("ours", "default", 3e-3),
                steady("torch", "nchw", 1.5e-3),
            )
        )
    )
    row = next(line for line in said.splitlines() if line.lstrip().startswith("C6"))
    assert row.split()[:8] == ["C6", "1.0", "F(2x2,3x3)", "0.5", "0.75", "0.3", "0.7", "1.50"]
    assert "without Winograd, geometric mean of 1: 0.75" in said


def test_kernels_of_another_checkout_are_compared_with_the_same_ones() -> None:
    made = case(
        series("ours", "default", *[turn(2e-3)] * 3),
        series("ours", "tuned", *[turn(1e-3)] * 3),
        series("before", "default", *[turn(3e-3)] * 3),
        series("before", "tuned", *[turn(0.9e-3)] * 3),
    )
    printed = text(report(made))
    assert "default, ours / before, geometric mean of 1: 1.500" in printed
    assert "tuned, ours / before, geometric mean of 1: 0.900\n    C6 0.900 (0.900-0.900)" in printed
    assert "ours / before," not in text(report(case(series("ours", "tuned", turn(1e-3)))))


def test_networks_are_told_in_milliseconds() -> None:
    ours = series("ours", "bundle", turn(10e-3), turn(11e-3), turn(12e-3))
    said = text(
        report(
            case(ours, steady("torch", "frozen", 22e-3), workload="resnet18", suite="networks"),
            complete=False,
        )
    )
    row = next(line for line in said.splitlines() if line.lstrip().startswith("resnet18"))
    assert row.split()[:6] == ["resnet18", "11.00", "(10.00-12.00)", "22.00", "(22.00-22.00)", "2.00"]
    assert "interrupted: the same command measures what is missing" in said


def test_reports_survive_the_file(tmp_path: Path) -> None:
    made = report(case(series("ours", "tuned", turn(1e-3), None)))
    write(made, tmp_path / "deep" / "report.json")
    assert read(tmp_path / "deep" / "report.json") == made
    (tmp_path / "other.json").write_text('{"schema": "something else"}')
    with pytest.raises(
        NoDocument, match=r"other.json cannot be read as Report: Invalid enum value .something else"
    ):
        read(tmp_path / "other.json")
