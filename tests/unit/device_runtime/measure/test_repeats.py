"""The timing loop of devices with a clock of their own, against a kernel whose time is known."""

from __future__ import annotations

import pytest

from device_runtime.measure.repeats import grown, time_repeats, time_until_enough
from device_runtime.protocol import Timing


class Kernel:
    """Takes `each_s` per call; its device's clock is also the host's."""

    def __init__(self, each_s: float) -> None:
        self.each_s = each_s
        self.now_s = 0.0
        self.calls: list[int] = []

    def run_s(self, number: int) -> float:
        self.calls.append(number)
        self.now_s += number * self.each_s
        return number * self.each_s

    def run_once(self) -> None:
        self.run_s(1)

    def timed(self, timing: Timing) -> tuple[list[float], int]:
        return time_repeats(self.run_s, self.run_once, timing, clock=lambda: self.now_s)


def test_calls_grow_once_to_what_a_repeat_needs() -> None:
    kernel = Kernel(1e-4)
    seconds, number = kernel.timed(Timing(number=1, repeat=3, min_repeat_ms=10, warmup=2))
    assert kernel.calls == [1, 1, 1, 120, 120, 120]
    assert number == 120
    assert seconds == pytest.approx([1e-4] * 3)


def test_calls_stay_under_their_limit() -> None:
    kernel = Kernel(1e-6)
    _, number = kernel.timed(Timing(number=2, repeat=1, min_repeat_ms=10, max_number=50, warmup=0))
    assert number == 50 == kernel.calls[-1]


def test_a_beaten_kernel_is_given_up_only_after_thirty_shortest_repeats() -> None:
    kernel = Kernel(1e-3)
    timing = Timing(number=10, repeat=100, min_repeat_ms=10, warmup=0, give_up_s=5e-4)
    seconds, _ = kernel.timed(timing)
    assert len(seconds) == 30
    fast = Kernel(4e-4)
    assert len(fast.timed(timing)[0]) == 100


@pytest.mark.parametrize(
    ("each_s", "repeats", "asked", "given_up"),
    [
        ([1.0] * 20, 6, [(3, 1, 5), (3, 2, 0)], False),
        ([1.0, 1.2] * 10, 6, [(3, 1, 5), (3, 2, 0)], False),
        ([1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 1.0, 1.0] * 4, 9, [(3, 1, 5), (3, 2, 0), (3, 3, 0)], False),
        (
            [1.2**n for n in range(20)],
            20,
            [(3, 1, 5), *[(3, n, 0) for n in (2, 3, 4, 5)], (3, 6, 0), (2, 7, 0)],
            False,
        ),
        ([1.6] * 20, 3, [(3, 1, 5)], False),
        ([1.6] * 4, 3, [(3, 1, 5)], False),
        ([1.0] * 4, 4, [(3, 1, 5), (3, 2, 0)], True),
    ],
)
def test_repeats_are_made_until_the_fastest_agree(
    each_s: list[float], repeats: int, asked: list[tuple[int, int, int]], given_up: bool
) -> None:
    calls: list[tuple[int, int, int]] = []

    def some(timing: Timing) -> tuple[list[float], int]:
        done = sum(repeat for repeat, _, _ in calls)
        calls.append((timing.repeat, timing.number, timing.warmup))
        return each_s[done : done + timing.repeat], len(calls) + 1

    timing = Timing(repeat=20, few=6, slow_s=1.5, warmup=5)
    found = time_until_enough(some, timing)
    assert (found[0], found[2]) == (each_s[:repeats], given_up)
    assert calls == asked


def test_a_beaten_kernel_whose_repeats_never_agree_is_given_up_too() -> None:
    left_s = [1.2**n for n in range(20)]

    def some(timing: Timing) -> tuple[list[float], int]:
        taken, left_s[: timing.repeat] = left_s[: timing.repeat], []
        return taken, 1

    timing = Timing(repeat=20, few=6, min_repeat_ms=200.0, give_up_s=0.5)  # patience of 6 s
    seconds, _, given_up = time_until_enough(some, timing)
    assert (len(seconds), given_up) == (6, True)


def test_between_repeats_that_are_asked_for_apart_a_device_cools_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    warmups: list[int] = []

    def some(timing: Timing) -> tuple[list[float], int]:
        warmups.append(timing.warmup)
        return [1.0] * timing.repeat, 1

    time_until_enough(some, Timing(repeat=20, few=6, cooldown_s=0.5, warmup=4))
    assert (slept, warmups) == ([0.5], [4, 1])


def test_without_few_all_repeats_are_made_at_once() -> None:
    seconds, number, given_up = time_until_enough(lambda timing: ([1.0] * timing.repeat, 7), Timing(repeat=5))
    assert (seconds, number, given_up) == ([1.0] * 5, 7, False)


def test_a_clock_that_does_not_move_is_no_time_of_zero() -> None:
    seconds, number = Kernel(0.0).timed(Timing(repeat=1, min_repeat_ms=1, max_number=8, warmup=0))
    assert seconds[0] > 0 and number == 8


@pytest.mark.parametrize(
    ("took_s", "limit", "expected"),
    [(0.0, 1000, 20), (1e-3, 1000, 120), (1e-3, 100, 100), (9e-3, 1000, 20), (1e-5, 10**6, 11_999)],
)
def test_growth_is_at_least_twofold_and_bounded(took_s: float, limit: int, expected: int) -> None:
    assert grown(10, limit, took_s, 1e-2) == expected
