"""The native code as it ends up in artifacts: linked into a shared object and called through ctypes."""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from boards.target import Target
from cross import native
from cross.link import compile_c, link, native_objects

HOST = Target(
    name="cpu", kind="cpu", triple="x86_64-unknown-linux-gnu", cpu="x86-64", l2_bytes=1 << 20, clock_hz=1e9,
    flops_per_cycle=8.0,
)  # fmt: skip

# Loop bodies and kernels that count what happens to them; closure layouts are declared below once more.
PROBES = r"""
#define _GNU_SOURCE
#include "tfb.h"
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <time.h>

typedef struct {
    int32_t *hits; int64_t *lengths; int64_t chunks; struct tfb_pool *pool; int64_t inner;
} probe;

TFB_EXPORT void count(void *closure, int64_t begin, int64_t end) {
    probe *p = closure;
    int64_t slot = __atomic_fetch_add(&p->chunks, 1, __ATOMIC_SEQ_CST);
    p->lengths[slot] = end - begin;
    for (int64_t i = begin; i < end; i++) p->hits[i]++;
}

TFB_EXPORT void nested(void *closure, int64_t begin, int64_t end) {
    probe *p = closure;
    for (int64_t i = begin; i < end; i++) {
        probe inner = {p->hits + i * p->inner, p->lengths + i, 0, p->pool, 0};
        tfb_parallel_for(p->pool, count, &inner, p->inner);
        __atomic_fetch_add(&p->chunks, inner.chunks, __ATOMIC_SEQ_CST);
    }
}

/* Writes which cores the thread of each iteration may run on, and its cpu set as a bit mask. */
TFB_EXPORT void masks(void *closure, int64_t begin, int64_t end) {
    uint64_t *out = closure;
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    for (int64_t i = begin; i < end; i++) out[i] = *(uint64_t *)&set;
}

TFB_EXPORT int32_t stress(struct tfb_pool *pool, probe *p, int64_t extent, int64_t loops) {
    for (int64_t i = 0; i < loops; i++) {
        p->chunks = 0;
        tfb_parallel_for(pool, count, p, extent);
        if (i % 512 == 0) { struct timespec t = {0, 200000}; nanosleep(&t, NULL); }
    }
    return 0;
}

/* buffers[0]: int64 {calls so far, nanoseconds a call takes, call that fails (0: none)} */
TFB_EXPORT int32_t counting_kernel(void *const *buffers, void *workspace, struct tfb_pool *pool) {
    int64_t *state = buffers[0];
    (void)workspace, (void)pool;
    state[0]++;
    if (state[1]) { struct timespec t = {0, state[1]}; nanosleep(&t, NULL); }
    return state[0] == state[2] ? 7 : 0;
}
"""


class Probe(ctypes.Structure):
    _fields_ = [
        ("hits", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("chunks", ctypes.c_int64),
        ("pool", ctypes.c_void_p),
        ("inner", ctypes.c_int64),
    ]


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


class Difference(ctypes.Structure):
    _fields_ = [
        ("max_abs_error", ctypes.c_double),
        ("max_abs_reference", ctypes.c_double),
        ("worst_index", ctypes.c_int64),
        ("not_finite", ctypes.c_int64),
    ]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("native")
    path = folder / "probes.so"
    path.write_bytes(link([compile_c(PROBES, HOST)], HOST, extra_objects=native_objects(HOST)))
    loaded = ctypes.CDLL(str(path))
    loaded.tfb_pool_create.restype = ctypes.c_void_p
    loaded.tfb_pool_create.argtypes = [ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32]
    loaded.tfb_pool_destroy.argtypes = [ctypes.c_void_p]
    loaded.tfb_pool_threads.argtypes = [ctypes.c_void_p]
    loaded.tfb_pool_spins.argtypes = [ctypes.c_void_p]
    loaded.tfb_parallel_for.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    loaded.stress.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    for kind in ("f32", "f64", "i32"):
        getattr(loaded, f"tfb_compare_{kind}").argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_void_p,
        ]
    return loaded


@pytest.fixture(params=[1, 2, 3, 7])
def pool(library: ctypes.CDLL, request: pytest.FixtureRequest) -> Iterator[int]:
    made = library.tfb_pool_create(request.param, None, 0)
    assert library.tfb_pool_threads(made) == request.param
    yield made
    library.tfb_pool_destroy(made)


@pytest.fixture
def two_threads(library: ctypes.CDLL) -> Iterator[int]:
    made = library.tfb_pool_create(2, None, 0)
    yield made
    library.tfb_pool_destroy(made)


class Counter:
    """A `count` closure over `extent` iterations and what came of it."""

    def __init__(self, extent: int, pool: int | None = None, inner: int = 0) -> None:
        self.hits = np.zeros(max(1, extent * max(1, inner)), np.int32)
        self.lengths = np.zeros(4096, np.int64)
        self.closure = Probe(self.hits.ctypes.data, self.lengths.ctypes.data, 0, pool, inner)

    def run(self, library: ctypes.CDLL, pool: int | None, extent: int, body: str = "count") -> None:
        function = ctypes.cast(getattr(library, body), ctypes.c_void_p)
        assert library.tfb_parallel_for(pool, function, ctypes.byref(self.closure), extent) == 0


def test_the_version_is_the_headers(library: ctypes.CDLL) -> None:
    declared = re.search(r"#define TFB_ABI_VERSION (\d+)", native.HEADER.read_text())
    assert declared is not None
    assert library.tfb_abi_version() == int(declared[1]) == native.ABI_VERSION


# --------------------------------------------------------------------------------------------------- the pool


@pytest.mark.parametrize("extent", [0, -3, 1, 2, 3, 6, 7, 8, 1000, 1001])
def test_every_iteration_runs_once_in_balanced_chunks(library: ctypes.CDLL, pool: int, extent: int) -> None:
    counter = Counter(extent)
    counter.run(library, pool, extent)
    threads = library.tfb_pool_threads(pool)
    assert counter.hits.sum() == max(0, extent)
    assert (counter.hits[: max(0, extent)] == 1).all()
    lengths = counter.lengths[: counter.closure.chunks]
    assert len(lengths) == max(0, min(threads, extent))
    if len(lengths):
        assert lengths.max() - lengths.min() <= 1


def test_a_huge_extent_is_split_without_overflow(library: ctypes.CDLL, two_threads: int) -> None:
    seen: list[tuple[int, int]] = []
    extent = 2**63 - 1
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    body = kind(lambda closure, begin, end: seen.append((begin, end)))
    library.tfb_parallel_for(two_threads, ctypes.cast(body, ctypes.c_void_p), None, extent)
    assert sorted(seen) == [(0, 2**62), (2**62, extent)]


def test_without_a_pool_the_caller_does_it_all(library: ctypes.CDLL) -> None:
    counter = Counter(100)
    counter.run(library, None, 100)
    assert (counter.hits == 1).all()
    assert counter.closure.chunks == 1
    assert library.tfb_pool_threads(None) == 1


def test_a_nested_loop_runs_on_the_thread_it_is_in(library: ctypes.CDLL, pool: int) -> None:
    counter = Counter(10, pool, inner=5)
    counter.run(library, pool, 10, body="nested")
    assert (counter.hits == 1).all()
    assert counter.closure.chunks == 10  # one for each inner loop: not split again


def test_two_callers_at_once_both_get_their_loops(library: ctypes.CDLL, two_threads: int) -> None:
    counters = [Counter(64), Counter(64)]

    def call(counter: Counter) -> None:
        library.stress(two_threads, ctypes.byref(counter.closure), 64, 5000)

    callers = [threading.Thread(target=call, args=(counter,)) for counter in counters]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for counter in counters:
        assert (counter.hits == 5000).all()


def test_many_loops_with_sleeps_between_lose_none(library: ctypes.CDLL, pool: int) -> None:
    counter = Counter(17)
    library.stress(pool, ctypes.byref(counter.closure), 17, 20_000)
    assert (counter.hits == 20_000).all()


def test_an_idle_pool_sleeps(library: ctypes.CDLL) -> None:
    before = set(os.listdir("/proc/self/task"))
    made = library.tfb_pool_create(3, None, 0)
    Counter(9).run(library, made, 9)
    workers = set(os.listdir("/proc/self/task")) - before
    deadline_s = time.monotonic() + 30
    while any(_state(worker) != "S" for worker in workers):
        assert time.monotonic() < deadline_s, "a worker still runs although there is nothing to do"
        time.sleep(0.01)
    blocked = [re.search(r"SigBlk:\s*(\w+)", _status(worker)) for worker in workers]
    library.tfb_pool_destroy(made)
    assert len(workers) == 2
    usual_signals = 0x7FFFFFFF & ~(1 << 8) & ~(1 << 18)  # all of 1 .. 31 but SIGKILL and SIGSTOP
    assert all(found and int(found[1], 16) & usual_signals == usual_signals for found in blocked)


def _status(task: str) -> str:
    return Path(f"/proc/self/task/{task}/status").read_text()


def _state(task: str) -> str:
    found = re.search(r"State:\s*(\w)", _status(task))
    assert found is not None
    return found[1]


def test_a_destroyed_pool_leaves_no_thread(library: ctypes.CDLL) -> None:
    before = len(os.listdir("/proc/self/task"))
    library.tfb_pool_destroy(library.tfb_pool_create(4, None, 0))
    library.tfb_pool_destroy(None)
    assert len(os.listdir("/proc/self/task")) == before


def test_threads_are_pinned_and_the_caller_gets_its_cores_back(library: ctypes.CDLL) -> None:
    allowed = os.sched_getaffinity(0)
    cores = sorted(allowed)[:2]
    array = (ctypes.c_int32 * len(cores))(*cores)
    made = library.tfb_pool_create(len(cores), array, len(cores))
    masks = np.zeros(len(cores), np.uint64)
    function = ctypes.cast(library.masks, ctypes.c_void_p)
    library.tfb_parallel_for(made, function, masks.ctypes.data, len(cores))
    pinned = os.sched_getaffinity(0)
    library.tfb_pool_destroy(made)
    assert [int(mask) for mask in masks] == [1 << core for core in cores]
    assert pinned == {cores[0]}
    assert os.sched_getaffinity(0) == allowed


def test_a_pool_made_by_a_pinned_thread_spins_like_the_first(library: ctypes.CDLL) -> None:
    cores = sorted(os.sched_getaffinity(0))
    array = (ctypes.c_int32 * len(cores))(*cores)
    first = library.tfb_pool_create(len(cores), array, len(cores))
    second = library.tfb_pool_create(len(cores), array, len(cores))
    crowded = library.tfb_pool_create(len(cores) + 1, array, len(cores))
    found = [library.tfb_pool_spins(made) for made in (first, second, crowded, None)]
    for made in (crowded, second, first):
        library.tfb_pool_destroy(made)
    assert found == [1, 1, 0, 0]
    assert os.sched_getaffinity(0) == set(cores)


@pytest.mark.parametrize("core", [-1, 1023, 100_000])
def test_a_core_that_is_not_there_pins_nothing(library: ctypes.CDLL, core: int) -> None:
    allowed = os.sched_getaffinity(0)
    made = library.tfb_pool_create(2, (ctypes.c_int32 * 1)(core), 1)
    assert os.sched_getaffinity(0) == allowed
    counter = Counter(10)
    counter.run(library, made, 10)
    library.tfb_pool_destroy(made)
    assert (counter.hits == 1).all()


def test_impossible_pools_are_null(library: ctypes.CDLL) -> None:
    assert library.tfb_pool_create(0, None, 0) is None
    assert library.tfb_pool_create(2, None, -1) is None
    assert library.tfb_pool_create(2, None, 1) is None


def test_a_child_process_starts_workers_of_its_own(library: ctypes.CDLL, pool: int) -> None:
    Counter(5).run(library, pool, 5)
    child = os.fork()
    if child == 0:  # leaves by _exit alone: pytest must not run twice
        counter = Counter(100)
        for _ in range(50):
            counter.run(library, pool, 100)
        tasks = len(os.listdir("/proc/self/task"))
        library.tfb_pool_destroy(pool)
        right = (counter.hits == 50).all() and len(os.listdir("/proc/self/task")) == 1
        os._exit(0 if right and tasks == library_threads(counter) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    counter = Counter(100)
    counter.run(library, pool, 100)
    assert (counter.hits == 1).all()


def library_threads(counter: Counter) -> int:
    """Threads that took part: as many chunks as a loop had, since each loop here gives every thread one."""
    return int(counter.closure.chunks // 50)


def test_a_child_that_never_used_the_pool_can_destroy_it(library: ctypes.CDLL, two_threads: int) -> None:
    child = os.fork()
    if child == 0:
        library.tfb_pool_destroy(two_threads)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_child_of_a_busy_parent_gets_a_working_pool(library: ctypes.CDLL, two_threads: int) -> None:
    busy = Counter(64)
    worker = threading.Thread(
        target=lambda: library.stress(two_threads, ctypes.byref(busy.closure), 64, 20_000)
    )
    worker.start()
    codes = []
    for _ in range(5):
        child = os.fork()  # at any point of a loop of the other thread
        if child == 0:
            counter = Counter(100)
            counter.run(library, two_threads, 100)
            os._exit(0 if (counter.hits == 1).all() and counter.closure.chunks == 2 else 1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    worker.join()
    assert codes == [0] * 5
    assert (busy.hits == 20_000).all()


# ------------------------------------------------------------------------------------------------- the timing


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


# --------------------------------------------------------------------------------------------- the comparison

KINDS = {"f32": np.float32, "f64": np.float64, "i32": np.int32}
SIZES = [0, 1, 2, 7, 1023, 1024, 1025, 5000]


def _compare(library: ctypes.CDLL, kind: str, got: np.ndarray, want: np.ndarray) -> Difference:
    difference = Difference()
    status = getattr(library, f"tfb_compare_{kind}")(
        got.ctypes.data, want.ctypes.data, len(got), ctypes.byref(difference)
    )
    assert status == 0
    return difference


def _expected(got: np.ndarray, want: np.ndarray) -> tuple[float, float, int]:
    """Largest error, largest reference, wrongly not finite; by the header's words, with numpy."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.abs(got - want)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    error = np.where(np.isfinite(want), np.where(np.isfinite(got), error, 0.0), np.where(same, 0.0, np.inf))
    reference = np.abs(want[np.isfinite(want)])
    wrongly = np.isfinite(want) & ~np.isfinite(got)
    return float(error.max(initial=0.0)), float(reference.max(initial=0.0)), int(wrongly.sum())


@pytest.mark.parametrize(("kind", "size"), list(itertools.product(KINDS, SIZES)))
def test_differences_are_numpys(library: ctypes.CDLL, kind: str, size: int) -> None:
    rng = np.random.default_rng(size)
    want = (rng.standard_normal(size) * 1000).astype(KINDS[kind])
    for wrong in range(0, min(size, 9), 3):
        got = want.copy()
        at = rng.choice(size, wrong, replace=False) if size else []
        got[at] += np.arange(1, wrong + 1, dtype=KINDS[kind]) * 7
        found = _compare(library, kind, got, want)
        error, reference, _ = _expected(got, want)
        assert found.max_abs_error == pytest.approx(error, rel=1e-6)
        assert found.max_abs_reference == reference
        assert found.not_finite == 0
        worst = int(np.argmax(np.abs(got.astype(np.float64) - want.astype(np.float64)))) if wrong else -1
        assert found.worst_index == worst


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("size", SIZES[1:])
def test_what_is_not_finite_is_found_anywhere(library: ctypes.CDLL, kind: str, size: int) -> None:
    rng = np.random.default_rng(size)
    want = rng.standard_normal(size).astype(KINDS[kind])
    for value in (np.nan, -np.nan, np.inf, -np.inf):
        got = want + KINDS[kind](0.5)
        at = np.sort(rng.choice(size, min(size, 3), replace=False))
        got[at] = value
        found = _compare(library, kind, got, want)
        error, reference, wrongly = _expected(got, want)
        assert (found.not_finite, found.worst_index) == (wrongly, at[0])
        assert found.max_abs_error == pytest.approx(error, rel=1e-6)
        assert found.max_abs_reference == reference


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_an_expected_infinity_or_nan_must_be_met(library: ctypes.CDLL, kind: str) -> None:
    want = np.array([1.0, np.inf, -np.inf, np.nan, 2.0], KINDS[kind])
    same = _compare(library, kind, want, want)
    assert (same.max_abs_error, same.max_abs_reference, same.worst_index, same.not_finite) == (
        0.0,
        2.0,
        -1,
        0,
    )
    for position, value in ((1, -np.inf), (1, 5.0), (2, np.nan), (3, 0.0)):
        got = want.copy()
        got[position] = value
        found = _compare(library, kind, got, want)
        assert (found.max_abs_error, found.worst_index, found.not_finite) == (np.inf, position, 0)


def test_the_largest_numbers_do_not_overflow_the_verdict(library: ctypes.CDLL) -> None:
    largest = np.finfo(np.float32).max
    found = _compare(library, "f32", np.array([largest], np.float32), np.array([-largest], np.float32))
    assert found.max_abs_error == 2.0 * float(largest)
    extremes = np.array([2**31 - 1], np.int32), np.array([-(2**31)], np.int32)
    assert _compare(library, "i32", *extremes).max_abs_error == 2.0**32 - 1


def test_a_null_pointer_is_refused(library: ctypes.CDLL) -> None:
    difference = Difference()
    for kind in KINDS:
        compare = getattr(library, f"tfb_compare_{kind}")
        assert compare(None, None, 3, ctypes.byref(difference)) == -2
        assert compare(None, None, -1, ctypes.byref(difference)) == -2
        assert compare(None, None, 0, ctypes.byref(difference)) == 0
