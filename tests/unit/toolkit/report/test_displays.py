"""What is shown while a job runs, where no terminal is: plain lines, now and then."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from boards.board import load
from toolkit.errors import InputError
from toolkit.flash.job import flash_bundle
from toolkit.flash.values import FlashEvent
from toolkit.model_job.options import JobEvent, StageDone, StageStarted, TuningPlanned
from toolkit.model_job.tuning_plan import OperatorPlan, TuningPlan
from toolkit.records import TuningRecord
from toolkit.report.flash_display import FlashDisplay
from toolkit.report.tune_display import PLAIN_EVERY_S, TuneDisplay
from toolkit.tuning.progress import OperatorDone, OperatorStarted, TrialDone, TuningResult
from toolkit.tuning.time_breakdown import TimeBreakdown

RECORD = TuningRecord(
    operator_key="o", target_key="t", space_key="s", tool_version="0", configuration={}, seconds=(1e-3,),
    timestamp_s=0.0, seed=0, trial=0,
)  # fmt: skip


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def shown(events: list[tuple[float, JobEvent]], *, live: bool = False) -> str:
    stream, clock = io.StringIO(), Clock()
    with TuneDisplay(stream, live=live, clock=clock) as display:
        for at_s, event in events:
            clock.now_s = at_s
            display(event)
    return stream.getvalue()


def result(trials: int, best: TuningRecord | None = RECORD) -> TuningResult:
    return TuningResult(
        "conv", best, best, 2_000_000, trials, (), trials, TimeBreakdown(1.0, 0.5), TimeBreakdown(1.0, 0.5)
    )


def trial(number: int) -> TrialDone:
    return TrialDone("conv", number, 8, RECORD, 2.0, 4.0, 1.0)


def planned(*, emulated: bool = False, trials: int | None = 8, seconds: float | None = None) -> TuningPlanned:
    return TuningPlanned(("conv", "pool"), trials, seconds, 2, emulated)


def test_the_lines_of_a_job() -> None:
    text = shown([
        (0.0, StageStarted("tune")),
        (0.0, planned()),
        (0.0, OperatorStarted("conv", 2, 4)),
        (1.0, trial(1)),
        (PLAIN_EVERY_S + 1, trial(2)),
        (PLAIN_EVERY_S + 2, trial(3)),
        (PLAIN_EVERY_S + 3, OperatorDone("conv", result(4))),
        (PLAIN_EVERY_S + 4, StageDone("tune", 14.0, "all done")),
    ])  # fmt: skip
    assert text.splitlines() == [
        "tuning 2 operators: 8 trials, 2 of them recorded already",
        "[0/2]  trial    2/8      2.0 GFLOP/s    0.2 trials/s  0:22 left  conv",
        "[1/2]     4 trials  best    1.000 ms      2.0 GFLOP/s  conv",
        "tune         14.0 s  all done",
    ]


def test_a_space_that_was_searched_through_leaves_less_to_do() -> None:
    text = shown([
        (0.0, planned(trials=80)),
        (0.0, OperatorStarted("conv", 2, 40)),
        (10.0, trial(1)),
        (10.0, OperatorDone("conv", result(3))),  # of 40; 2 were recorded, 40 are left for the other
        (10.0, OperatorStarted("pool", 0, 40)),
        (20.0, trial(1)),
    ])  # fmt: skip
    assert "0.1 trials/s  6:30 left  conv" in text.splitlines()[-1]  # 39 at 0.1 a second


def test_emulated_figures_are_marked() -> None:
    lines = shown([
        (0.0, planned(emulated=True)),
        (0.0, OperatorStarted("conv", 0, 4)),
        (11.0, trial(1)),
        (12.0, OperatorDone("conv", result(4))),
    ]).splitlines()  # fmt: skip
    assert "no time says anything about a chip" in lines[0]
    assert lines[1].count("(emulated)") == 1
    assert "GFLOP/s (emulated)" in lines[-1]


def test_an_operator_without_success_has_no_time() -> None:
    text = shown([
        (0.0, planned()), (0.0, OperatorStarted("conv", 0, 4)), (1.0, OperatorDone("conv", result(4, None))),
    ])  # fmt: skip
    assert text.splitlines()[-1].endswith("best           -  conv")


def test_an_operator_that_computes_nothing_has_a_time_and_no_speed() -> None:
    moves = TuningResult(
        "conv", RECORD, RECORD, 0, 4, (), 4, TimeBreakdown(1.0, 0.5), TimeBreakdown(1.0, 0.5)
    )
    idle = TrialDone("conv", 1, 8, RECORD, 0.0, 4.0, 1.0)
    text = shown([(0.0, planned()), (11.0, idle), (12.0, OperatorDone("conv", moves))])
    assert text.splitlines()[1:] == [
        "[0/2]  trial    1/8    0.1 trials/s  0:55 left  conv",
        "[1/2]     4 trials  best    1.000 ms  conv",
    ]


def test_with_a_time_budget_the_time_left_is_the_budgets() -> None:
    text = shown([
        (0.0, planned(trials=None, seconds=60.0)), (0.0, OperatorStarted("conv", 0, 4)), (20.0, trial(1)),
    ])  # fmt: skip
    assert "1:00 of time" in text
    assert "0:40 left" in text


def test_a_plan_is_shown_before_and_its_stages_count_as_time_left() -> None:
    plan = TuningPlan(
        operators=(OperatorPlan("conv", 2, 0, 90, 45.0), OperatorPlan("pool", 1, 4, 10, 5.0)),
        trials=100, budget_s=70.0, prepared_s=3.0, tuning_s=50.0, confirm_s=10.0, finish_s=7.0, total_s=70.0,
    )  # fmt: skip
    event = TuningPlanned(("conv", "pool"), None, 50.0, 4, False, plan)
    lines = shown([(0.0, event), (0.0, OperatorStarted("conv", 0, None)), (20.0, trial(1))]).splitlines()
    assert lines[:10] == [
        "operator  runs  recorded  trials  time",
        "--------  ----  --------  ------  ----",
        "conv         2         0      90  0:45",
        "pool         1         4      10  0:05",
        "",
        "prepared    0:03",
        "tuning      0:50, about 100 trials",
        "confirming  0:10, the fastest of each operator once more",
        "finishing   0:07, to compile, measure and pack the model",
        "in all      1:10, of 1:10 given",
    ]
    assert lines[10].startswith("tuning 2 operators: 0:50 of time, 4 trials recorded already; done at ")
    assert lines[11].endswith("0:47 left  conv")


def test_a_terminal_gets_a_bar() -> None:
    text = shown([(0.0, planned()), (0.0, OperatorStarted("conv", 0, 4)), (1.0, trial(1))], live=True)
    assert "█" in text
    assert "trials/s" in text


def test_flash_steps_without_a_terminal() -> None:
    stream = io.StringIO()
    display = FlashDisplay(stream)
    for event in (
        FlashEvent("verify", "begin"),
        FlashEvent("verify", "end"),
        FlashEvent("upload", "begin"),
        FlashEvent("upload", "progress", 5, 10),
        FlashEvent("upload", "end"),
    ):
        display(event)
    assert stream.getvalue() == "verifying the bundle ... done\nuploading ... done\n"


def test_a_step_that_fails_ends_its_line_before_the_error_is_printed(tmp_path: Path) -> None:
    stream = io.StringIO()
    with pytest.raises(InputError):
        flash_bundle(tmp_path / "no.tfb", load("host"), progress=FlashDisplay(stream))
    assert stream.getvalue() == "verifying the bundle ... failed\n"


def test_no_line_is_longer_than_80_columns() -> None:
    name = "conv 3x3 s2 112x112 64->128 (stage2/block0/Conv2D)"
    text = shown([
        (0.0, TuningPlanned((name, "pool"), 8, None, 2, True)),
        (0.0, OperatorStarted(name, 2, 4)),
        (PLAIN_EVERY_S + 1, TrialDone(name, 2, 8, RECORD, 2.0, 4.0, 1.0)),
        (PLAIN_EVERY_S + 3, OperatorDone(name, result(4))),
    ])  # fmt: skip
    lines = text.splitlines()[1:]
    assert max(map(len, lines)) <= 80
    assert all("conv 3x3" in line for line in lines if not line.startswith("[") or "best" in line)
