"""Every second of a run is counted once, whatever goes on at once."""

from __future__ import annotations

import threading

import pytest

from toolkit.tuning.time_breakdown import Activity, ActivityTimer, TimeBreakdown


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_one_thing_after_another() -> None:
    clock = Clock()
    timer = ActivityTimer(clock)
    for activity, seconds in ((Activity.PROPOSE, 1.0), (Activity.BUILD, 2.0), (Activity.MEASURE, 4.0)):
        with timer.during(activity):
            clock.now_s += seconds
    timer.device(3.5)
    clock.now_s += 0.5
    accounts = timer.take()
    assert accounts == TimeBreakdown(
        wall_s=7.5, device_s=3.5, measure_s=4.0, build_s=2.0, propose_s=1.0, hidden_s=0.0
    )
    assert accounts.busy_share == pytest.approx(3.5 / 7.5)
    assert accounts.idle_share == pytest.approx(4.0 / 7.5)
    assert accounts.compile_share == pytest.approx(2.0 / 7.5)
    assert accounts.overhead_share == pytest.approx(2.0 / 7.5)  # proposing, transfer, the rest
    assert timer.take() == TimeBreakdown()


def test_what_is_hidden_behind_the_board_costs_nothing() -> None:
    clock = Clock()
    timer = ActivityTimer(clock)
    with timer.during(Activity.PROPOSE):
        clock.now_s += 1.0
        with timer.during(Activity.MEASURE):
            clock.now_s += 2.0
            with timer.during(Activity.BUILD):
                clock.now_s += 3.0
        clock.now_s += 1.0
    assert timer.take() == TimeBreakdown(wall_s=7.0, measure_s=5.0, propose_s=2.0, hidden_s=8.0)


def test_parts_make_the_whole_across_threads() -> None:
    clock = Clock()
    timer = ActivityTimer(clock)
    inside, leave = threading.Event(), threading.Event()

    def build() -> None:
        with timer.during(Activity.BUILD):
            inside.set()
            leave.wait(10.0)

    thread = threading.Thread(target=build)
    thread.start()
    assert inside.wait(10.0)
    clock.now_s += 2.0
    with timer.during(Activity.MEASURE):
        clock.now_s += 1.0
        first = timer.take()
        clock.now_s += 4.0
    leave.set()
    thread.join()
    second = timer.take()
    assert first == TimeBreakdown(wall_s=3.0, measure_s=1.0, build_s=2.0, hidden_s=1.0)
    assert second == TimeBreakdown(wall_s=4.0, measure_s=4.0, hidden_s=4.0)
    assert first + second == TimeBreakdown(wall_s=7.0, measure_s=5.0, build_s=2.0, hidden_s=5.0)


def test_accounts_survive_a_record() -> None:
    accounts = TimeBreakdown(1.25, 0.5, 0.75, 0.25, 0.125, 0.0625)
    assert TimeBreakdown.of(accounts.plain()) == accounts
    assert TimeBreakdown.of({"wall_s": 2.0, "of another version": 1.0}) == TimeBreakdown(wall_s=2.0)
    assert TimeBreakdown().overhead_share == TimeBreakdown().idle_share == 0.0
