"""How the native code times a kernel: calls, repeats, giving up, cold caches."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests import native_probes


class Timing(ctypes.Structure):
    _fields_ = [
        ("number", ctypes.c_int64),
        ("max_number", ctypes.c_int64),
        ("repeat", ctypes.c_int32),
        ("warmup", ctypes.c_int32),
        ("min_repeat_s", ctypes.c_double),
        ("cooldown_s", ctypes.c_double),
        ("give_up_s", ctypes.c_double),
        ("flush_bytes", ctypes.c_int64),
    ]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return native_probes.load(tmp_path_factory.mktemp("native"))


class Timed:
    """One tfb_time call over the counting kernel."""

    def __init__(self, library: ctypes.CDLL, sleep_ns: int = 0, fails_at: int = 0, **fields: float) -> None:
        defaults: dict[str, float] = {"number": 1, "max_number": 1 << 40, "repeat": 3, "warmup": 0}
        timing = Timing(**(defaults | fields))
        self.state = np.array([0, sleep_ns, fails_at], np.int64)
        self.seconds = np.full(64, -1.0)
        used = ctypes.c_int64(-1)
        buffers = (ctypes.c_void_p * 1)(self.state.ctypes.data)
        self.returned = library.tfb_time(
            library.counting_kernel, buffers, None, None, ctypes.byref(timing),
            ctypes.c_void_p(self.seconds.ctypes.data), ctypes.byref(used),
        )  # fmt: skip
        self.number = used.value
        self.calls = int(self.state[0])


def test_number_times_repeat_calls_after_the_warm_up(library: ctypes.CDLL) -> None:
    timed = Timed(library, number=5, repeat=4, warmup=3)
    assert timed.returned == 4
    assert timed.calls == 3 + 5 * 4
    assert timed.number == 5
    assert (timed.seconds[:4] >= 0).all() and (timed.seconds[4:] == -1).all()


def test_figures_are_seconds_per_call(library: ctypes.CDLL) -> None:
    timed = Timed(library, sleep_ns=2_000_000, number=3, repeat=2)
    assert (timed.seconds[:2] >= 0.002).all()
    assert (timed.seconds[:2] < 0.2).all()


def test_number_grows_until_a_repeat_is_long_enough(library: ctypes.CDLL) -> None:
    timed = Timed(library, sleep_ns=100_000, number=1, repeat=2, min_repeat_s=0.01)
    assert timed.number >= 2
    assert timed.seconds[0] * timed.number >= 0.01
    assert timed.calls > timed.number  # of the last repeat; a disturbed first one may need fewer


def test_number_grows_no_further_than_allowed(library: ctypes.CDLL) -> None:
    timed = Timed(library, number=3, max_number=17, repeat=2, min_repeat_s=10.0)
    assert timed.returned == 2
    assert timed.number == 17
    assert timed.calls <= 3 + 6 + 12 + 2 * 17
    assert Timed(library, number=9, max_number=2, repeat=1, min_repeat_s=10.0).number == 9


def test_a_beaten_kernel_is_given_up_after_one_repeat(library: ctypes.CDLL) -> None:
    slow = Timed(library, sleep_ns=2_000_000, number=2, repeat=10, give_up_s=0.001)
    assert (slow.returned, slow.calls) == (1, 2)
    assert slow.seconds[0] >= 0.002 and slow.seconds[1] == -1
    assert Timed(library, number=2, repeat=10, give_up_s=1.0).returned == 10


def test_a_beaten_kernel_is_not_given_up_before_a_disturbance_is_over(library: ctypes.CDLL) -> None:
    slow = Timed(library, sleep_ns=2_000_000, repeat=50, min_repeat_s=0.001, give_up_s=0.001)
    assert 1 <= slow.returned <= 16
    patient = Timed(library, sleep_ns=2_000_000, repeat=9, min_repeat_s=10.0, max_number=1, give_up_s=0.001)
    assert patient.returned == 9


def test_after_a_cool_down_one_call_is_not_timed(library: ctypes.CDLL) -> None:
    assert Timed(library, number=4, repeat=3, cooldown_s=0.001).calls == 4 * 3 + 2


def test_the_caches_are_flushed_before_every_call(library: ctypes.CDLL) -> None:
    timed = Timed(library, sleep_ns=100_000, number=4, repeat=2, flush_bytes=1 << 20)
    assert (timed.returned, timed.calls) == (2, 8)
    assert (timed.seconds[:2] >= 0.0001).all()


@pytest.mark.parametrize("fails_at", [1, 2, 3, 5, 9])
def test_a_failing_kernel_ends_the_timing(library: ctypes.CDLL, fails_at: int) -> None:
    timed = Timed(library, fails_at=fails_at, number=2, repeat=4, warmup=1)
    assert (timed.returned, timed.calls) == (-1, fails_at)


def test_the_flushed_loop_sees_failures_too(library: ctypes.CDLL) -> None:
    assert Timed(library, fails_at=3, number=2, repeat=4, flush_bytes=64).returned == -1


@pytest.mark.parametrize(
    "fields", [{"number": 0}, {"repeat": 0}, {"warmup": -1}, {"flush_bytes": -1}, {"number": -5}]
)
def test_impossible_timings_are_refused(library: ctypes.CDLL, fields: dict[str, float]) -> None:
    timed = Timed(library, **fields)
    assert (timed.returned, timed.calls) == (-2, 0)


def test_no_memory_for_the_flush_is_an_error(library: ctypes.CDLL) -> None:
    assert Timed(library, flush_bytes=1 << 60).returned == -3
