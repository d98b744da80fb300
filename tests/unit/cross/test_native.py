"""The native code's threads, called through ctypes: loops, sleep, cores and child processes."""

from __future__ import annotations

import ctypes
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cross import native
from tests import native_probes
from tests.native_probes import Counter


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return native_probes.load(tmp_path_factory.mktemp("native"))


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


@pytest.mark.parametrize("extent", [1, 5, 16, 17, 1000])
def test_a_turned_loop_begins_with_its_last_part(library: ctypes.CDLL, extent: int) -> None:
    seen: list[tuple[int, int]] = []
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    body = kind(lambda closure, begin, end: seen.append((begin, end)))
    library.turn(1)
    library.tfb_parallel_for(None, ctypes.cast(body, ctypes.c_void_p), None, extent)
    library.turn(0)
    assert seen == sorted(seen, reverse=True) and 1 <= len(seen) <= 16
    assert [index for begin, end in reversed(seen) for index in range(begin, end)] == list(range(extent))


def test_turned_chunks_run_every_iteration_once(library: ctypes.CDLL, pool: int) -> None:
    counter = Counter(1001)
    library.turn(1)
    counter.run(library, pool, 1001)
    library.turn(0)
    assert (counter.hits == 1).all()


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


@pytest.mark.slow
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


@pytest.mark.slow
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
