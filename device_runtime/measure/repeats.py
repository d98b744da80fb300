"""How often a kernel runs: when its repeats are enough, and the loop for a device with a clock of its own.

`time_repeats` is cross/native/timing.c, step by step. There the loop is native so that no interpreter is in
the figure; here the device's events tell the time.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Callable, List, Sequence, Tuple

from device_runtime.protocol import Timing

SHORTEST_S = 1e-12  # a clock that did not move is not a time of zero
GROWTH = 1.2  # a little more than the estimate, so that one step is mostly enough
SHORTEST_REPEATS_BEFORE_GIVING_UP = 30
AGREEING = 3  # of the fastest repeats
AGREEMENT = 1.05  # the slowest of these over the fastest, at most


def time_until_enough(
    time_some: Callable[[Timing], Tuple[List[float], int]], timing: Timing
) -> Tuple[List[float], int, bool]:
    """Seconds per call of each repeat, calls per repeat, and whether the kernel was given up.

    `time_some` makes all repeats of a timing, or fewer where it gives the kernel up. A kernel whose repeats
    do not agree was disturbed, and gets AGREEING more until they do.
    """
    seconds, number = [], timing.number  # type: Tuple[List[float], int]
    ends = [timing.repeat]
    if 0 < timing.few < timing.repeat:
        ends[:0] = sorted({min(AGREEING, timing.few), *range(timing.few, timing.repeat, AGREEING)})
    for end in ends:
        if seconds and timing.cooldown_s > 0:
            time.sleep(timing.cooldown_s)
        warmup = timing.cooldown_s > 0 if seconds else timing.warmup  # the sleep put the clock down
        some = replace(timing, number=number, repeat=end - len(seconds), warmup=int(warmup))
        found, number = time_some(some)
        seconds += found
        if len(found) < some.repeat:
            return seconds, number, True
        if agree(seconds) and (end >= timing.few or 0 < timing.slow_s < min(seconds)):
            break
        spent_s = number * sum(seconds) if end < timing.repeat else 0.0
        if 0 < timing.give_up_s < min(seconds) and spent_s >= _patience_s(timing):
            return seconds, number, True
    return seconds, number, False


def _patience_s(timing: Timing) -> float:
    return SHORTEST_REPEATS_BEFORE_GIVING_UP * timing.min_repeat_ms * 1e-3


def agree(seconds: Sequence[float]) -> bool:
    """Whether the fastest repeats took the same time: what disturbs a kernel never does so evenly."""
    ordered = sorted(seconds)
    return len(ordered) >= AGREEING and ordered[AGREEING - 1] <= AGREEMENT * ordered[0]


def time_repeats(
    run_s: Callable[[int], float],
    run_once: Callable[[], None],
    timing: Timing,
    clock: Callable[[], float] = time.monotonic,
) -> Tuple[List[float], int]:
    """Seconds per call of each repeat, and calls per repeat; `run_s(number)`: what that many calls take.

    As for CPU kernels: `number` grows until a repeat lasts min_repeat_ms, and a kernel whose fastest repeat
    is slower than give_up_s is given up once it had time enough.
    """
    started_s, least_s = clock(), timing.min_repeat_ms * 1e-3
    number, seconds = timing.number, []  # type: Tuple[int, List[float]]
    for _ in range(timing.warmup):
        run_once()
    for done in range(timing.repeat):
        if done and timing.cooldown_s > 0:
            time.sleep(timing.cooldown_s)
            run_once()  # the sleep put the device's clock down
        took_s = run_s(number)
        while took_s < least_s and number < timing.max_number:
            number = grown(number, timing.max_number, took_s, least_s)
            took_s = run_s(number)
        seconds.append(max(SHORTEST_S, took_s / number))
        spent = clock() - started_s >= _patience_s(timing)
        if timing.give_up_s > 0 and min(seconds) > timing.give_up_s and spent:
            break
    return seconds, number


def grown(number: int, max_number: int, took_s: float, least_s: float) -> int:
    """Calls per repeat so that one lasts `least_s`, judged by one that took `took_s`; at least twofold."""
    wanted = 2.0 * number
    if took_s > 0:
        wanted = max(wanted, GROWTH * number * least_s / took_s)
    return int(min(wanted, max_number))
