"""Pools on cores of different speed: every iteration runs once, and fast threads take over from slow ones."""

from __future__ import annotations

import ctypes
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests import native_probes
from tests.native_probes import Counter as Hits

BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
HANGS_S = 30.0  # a worker that waits so long for a caller that takes nothing over fails the test


def _cores(folder: Path, file: str, values: Sequence[object]) -> Path:
    """A folder that says of cores what Linux says below /sys."""
    for core, value in enumerate(values):
        path = folder / f"cpu{core}" / file
        path.parent.mkdir(parents=True)
        path.write_text(f"{value}\n")
    return folder


def _pool(library: ctypes.CDLL, threads: int, *, named: bool = True) -> int:
    """A pool whose threads are on the cores 0 and 1 by turns, as far as these are usable; or on any."""
    cores = (ctypes.c_int32 * threads)(*(thread % 2 for thread in range(threads)))
    made: int = library.tfb_pool_create(threads, cores if named else None, threads if named else 0)
    return made


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("native")
    return native_probes.load(folder, _cores(folder, "cpu_capacity", (446, 1024)))


@pytest.fixture(params=[2, 3, 7])
def pool(library: ctypes.CDLL, request: pytest.FixtureRequest) -> Iterator[int]:
    made = _pool(library, request.param)
    yield made
    library.tfb_pool_destroy(made)


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("extent", [0, 1, 2, 3, 7, 8, 63, 1000, 1001])
def test_every_iteration_runs_once(library: ctypes.CDLL, pool: int, extent: int, turned: int) -> None:
    library.turn(turned)
    for _ in range(20):
        hits = Hits(extent)
        hits.run(library, pool, extent)
        assert (hits.hits[:extent] == 1).all()
    library.turn(0)


@pytest.mark.parametrize("extent", [17, 500])
def test_many_loops_lose_no_iteration(library: ctypes.CDLL, pool: int, extent: int) -> None:
    hits = Hits(extent)
    library.stress(pool, ctypes.byref(hits.closure), extent, 3000)
    assert (hits.hits == 3000).all()


def test_a_child_process_divides_loops_in_the_same_way(library: ctypes.CDLL, pool: int) -> None:
    child = os.fork()
    if child == 0:  # leaves by _exit alone: pytest must not run twice
        hits = Hits(100)
        for _ in range(50):
            hits.run(library, pool, 100)
        os._exit(0 if (hits.hits == 50).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_huge_extent_is_split_without_overflow(library: ctypes.CDLL, pool: int) -> None:
    seen: list[tuple[int, int]] = []
    body = BODY(lambda closure, begin, end: seen.append((begin, end)))
    library.tfb_parallel_for(pool, ctypes.cast(body, ctypes.c_void_p), None, 2**63 - 1)
    ranges = sorted(seen)
    assert len(ranges) == library.tfb_pool_threads(pool)
    assert [begin for begin, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
    assert ranges[-1][1] == 2**63 - 1


def _by_thread(library: ctypes.CDLL, extent: int, waits_for: int, *, named: bool) -> list[int]:
    """Iterations of the caller and of two workers, which wait until the caller has run `waits_for`."""
    pool = _pool(library, 3, named=named)
    caller, counts, enough = threading.get_ident(), Counter[int](), threading.Event()

    def run(_: int, begin: int, end: int) -> None:
        mine = threading.get_ident()
        if mine != caller:
            enough.wait(HANGS_S)
        counts[mine] += end - begin
        if counts[caller] >= waits_for:
            enough.set()

    library.tfb_parallel_for(pool, ctypes.cast(BODY(run), ctypes.c_void_p), None, extent)
    library.tfb_pool_destroy(pool)
    assert sum(counts.values()) == extent
    return [counts.pop(caller), *sorted(counts.values())]


def test_a_fast_thread_takes_over_from_slow_ones(library: ctypes.CDLL) -> None:
    """A worker holds no more than the first piece of its share, 5 of 20; one that wakes late holds less."""
    own, *others = _by_thread(library, 60, 50, named=True)
    assert own >= 50 and sum(others) <= 10


def test_on_even_cores_every_thread_runs_its_share(library: ctypes.CDLL) -> None:
    assert _by_thread(library, 30, 10, named=False) == [10, 10, 10]


@pytest.mark.parametrize(
    ("file", "values", "uneven"),
    [
        ("cpu_capacity", (1024, 1024), False),
        ("cpu_capacity", (446, 1024), True),
        ("cpufreq/cpuinfo_max_freq", (1416000, 1800000), True),
        ("cpufreq/cpuinfo_max_freq", (5700000, 5500000), False),
        ("cpufreq/cpuinfo_max_freq", (1800000,), False),
        ("cpu_capacity", ("", 1024), False),
        ("cpu_capacity", (), False),
    ],
)
def test_linux_says_which_cores_differ(
    file: str, values: tuple[object, ...], uneven: bool, tmp_path: Path
) -> None:
    library = native_probes.load(tmp_path, _cores(tmp_path, file, values))
    pool, hits = _pool(library, 2), Hits(64)
    hits.run(library, pool, 64)
    library.tfb_pool_destroy(pool)
    assert (hits.hits == 1).all()
    assert (hits.closure.chunks > 2) == uneven
