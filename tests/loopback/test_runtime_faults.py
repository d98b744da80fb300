"""Kernels that crash, hang, scribble or are wrong: typed failures, and the next measurement is right."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from boards.board import Board, load
from cross.link import compile_c, embed, link, native_objects
from device_runtime.protocol import Timing
from tests.loopback.conftest import CompileKernels, descendants, in_folder, state_and_parent
from tests.loopback.kernels import (
    CALLS,
    QUICK,
    TIMEOUT_S,
    Kernels,
    assert_right,
    kernel_processes,
    left_behind,
)
from tests.targets import HOST
from toolkit.measure.session import Session, open_session

PATIENCE_S = 30.0  # for what happens at once on a machine with nothing else to do

Lab = tuple[Session, Kernels]


@pytest.fixture(scope="module")
def local_lab(tmp_path_factory: pytest.TempPathFactory, compile_kernels: CompileKernels) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("local")
    with open_session(in_folder(load("host"), folder / "device"), cache_dir=folder / "cache") as session:
        yield session, Kernels(session, compile_kernels(os.uname().machine))


@pytest.fixture(scope="module")
def emulated_lab(emulated_board: Board, compile_kernels: CompileKernels) -> Iterator[Lab]:
    with open_session(emulated_board) as session:
        yield session, Kernels(session, compile_kernels("aarch64"), timeout_s=30.0)


@pytest.fixture(params=["local", pytest.param("emulated", marks=pytest.mark.emulated)])
def lab(request: pytest.FixtureRequest) -> Lab:
    made: Lab = request.getfixturevalue(f"{request.param}_lab")
    return made


CRASHES = [
    ("segfault", "killed by SIGSEGV", signal.SIGSEGV),
    ("writes_input", "killed by SIGSEGV", signal.SIGSEGV),
    ("aborts", "killed by SIGABRT; it printed: double free or corruption", signal.SIGABRT),
    ("exits", "exited with status 0 and no answer", None),
    ("exits_at_once", "exited with status 0 and no answer", None),
    ("forks_and_exits", "no answer", None),
    ("returns_error", "kernel returns_error returned 7, expected 0", None),
    ("writes_to_every_descriptor", "something wrote over its answer", None),
    ("reads_after_the_end", "killed by SIGSEGV", signal.SIGSEGV),
    ("reads_before_the_start", "killed by SIGSEGV", signal.SIGSEGV),
    ("reads_beyond_its_addresses", "killed by SIGSEGV", signal.SIGSEGV),
    ("follows_an_address_beyond_its_own", "killed by SIGSEGV", signal.SIGSEGV),
    ("writes_after_the_end", "killed by SIGSEGV", signal.SIGSEGV),
    ("writes_before_the_start", "killed by SIGSEGV", signal.SIGSEGV),
    ("prints_for_ever", "killed by SIGXFSZ; it printed: ", signal.SIGXFSZ),
]


@pytest.mark.parametrize(("symbol", "text", "number"), CRASHES)
def test_a_crash_is_a_typed_failure_and_the_next_measurement_is_right(
    lab: Lab, symbol: str, text: str, number: int | None
) -> None:
    session, kernels = lab
    result = session.measure(kernels.request(symbol))
    assert result.error is not None
    assert (result.error.kind, result.error.signal) == ("crash", number)
    assert text in result.error.text
    assert result.seconds == ()
    assert_right(session, kernels)


def test_a_crash_in_a_worker_thread(lab: Lab) -> None:
    session, kernels = lab
    result = session.measure(kernels.request("segfault_in_worker", threads=2))
    assert result.error is not None
    assert (result.error.kind, result.error.signal) == ("crash", signal.SIGSEGV)
    assert_right(session, kernels)


def test_a_smashed_stack_is_a_failure(lab: Lab) -> None:
    session, kernels = lab
    result = session.measure(kernels.request("smashes_stack", timeout_s=5.0))
    assert result.error is not None
    assert result.error.kind in ("crash", "timeout")
    assert_right(session, kernels)


def test_killing_its_own_group_leaves_the_server_alive(lab: Lab) -> None:
    session, kernels = lab
    result = session.measure(kernels.request("kills_its_group"))
    assert result.error is not None
    assert (result.error.kind, result.error.text) == ("crash", "killed by SIGKILL")
    assert result.error.signal == signal.SIGKILL
    assert_right(session, kernels)


@pytest.mark.parametrize("symbol", ["leaves_an_orphan", "orphan_and_crash"])
def test_what_a_kernel_forked_twice_is_gone_with_it(local_lab: Lab, symbol: str) -> None:
    """qemu knows neither namespaces nor PR_SET_CHILD_SUBREAPER: such a process lives as long as a session."""
    session, kernels = local_lab
    before = kernel_processes(kernels)
    session.measure(kernels.request(symbol, timing=None))
    assert not left_behind(kernels, before)
    assert_right(session, kernels)


@pytest.mark.emulated
def test_what_a_kernel_forked_twice_is_gone_with_the_session_of_an_emulator(
    emulated_board: Board, compile_kernels: CompileKernels, tmp_path: Path
) -> None:
    with open_session(in_folder(emulated_board, tmp_path)) as session:
        kernels = Kernels(session, compile_kernels("aarch64"), timeout_s=30.0)
        before = kernel_processes(kernels)
        session.measure(kernels.request("leaves_an_orphan", timing=None))
        left = kernel_processes(kernels) - before
    assert left
    assert not left_behind(kernels, before)


@pytest.mark.parametrize("symbol", ["kills_its_parent", "kills_everybody"])
def test_a_kernel_reaches_nobody_outside(local_lab: Lab, symbol: str) -> None:
    session, kernels = local_lab
    if not session.probe(gpus=False).protection.namespaces:
        pytest.skip("this system allows no user namespaces")
    session.measure(kernels.request(symbol))
    assert_right(session, kernels)


def test_too_many_processes_are_ended(local_lab: Lab) -> None:
    session, kernels = local_lab
    before = kernel_processes(kernels)
    result = session.measure(kernels.request("forks_often", timeout_s=20.0))
    assert result.error is not None
    assert (result.error.kind, result.error.text) == ("crash", "started more than 256 processes")
    assert not left_behind(kernels, before)
    assert_right(session, kernels)


def test_the_memory_of_all_processes_counts(lab: Lab) -> None:
    session, kernels = lab
    result = session.measure(kernels.request("allocates_in_a_family", timeout_s=30.0))
    assert result.error is not None
    assert result.error.kind == "out_of_memory"
    assert_right(session, kernels)


@pytest.mark.slow
def test_a_kernel_removes_no_file(
    tmp_path: Path, compile_kernels: CompileKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    board = in_folder(load("host"), tmp_path / "device")
    monkeypatch.setenv("TFB_TEST_VICTIM", str(victim))
    with open_session(board, cache_dir=tmp_path / "cache") as session:
        if not session.probe(gpus=False).protection.landlock:
            pytest.skip("this system has no Landlock")
        kernels = Kernels(session, compile_kernels(os.uname().machine))
        result = session.measure(kernels.request("removes_files"))
    assert result.error is not None and "returned 3" in result.error.text
    assert victim.read_text() == "kept"


@pytest.mark.slow
@pytest.mark.parametrize("symbol", ["hangs", "hangs_deaf"])
def test_a_hang_ends_at_the_deadline(lab: Lab, symbol: str) -> None:
    session, kernels = lab
    start_s = time.monotonic()
    result = session.measure(kernels.request(symbol, timeout_s=TIMEOUT_S))
    assert result.error is not None
    assert (result.error.kind, result.error.text) == ("timeout", "no answer within 0.5 s")
    assert time.monotonic() - start_s >= TIMEOUT_S
    assert descendants(session.hello.pid) == set()
    assert_right(session, kernels)


def test_what_a_kernel_forked_is_gone_with_it(lab: Lab) -> None:
    session, kernels = lab
    for symbol in ("leaves_a_process", "forks_and_exits"):
        session.measure(kernels.request(symbol, timing=None))
    assert descendants(session.hello.pid) == set()


def test_an_allocation_bomb_is_out_of_memory(lab: Lab) -> None:
    session, kernels = lab
    result = session.measure(kernels.request("allocates_for_ever", timeout_s=30.0))
    assert result.error is not None
    assert result.error.kind == "out_of_memory"
    assert "MiB it may" in result.error.text
    assert_right(session, kernels)


READS_ALL_WEIGHTS = """
#include "tfb.h"
#include <time.h>
extern const volatile unsigned char weights[] __attribute__((visibility("hidden")));
TFB_EXPORT int32_t reads_all(void *const *buffers, void *workspace, struct tfb_pool *pool) {
    static int64_t reached;
    const float *from = buffers[0];
    float *to = buffers[1], none = 0;
    (void)workspace, (void)pool;
    for (; reached < 320 << 20; reached += 4096) none += weights[reached];
    for (int i = 0; i < 1024; i++) to[i] = 2 * from[i] + none;
    struct timespec t = {0, 400000000}; /* long enough to be seen */
    nanosleep(&t, NULL);
    return 0;
}
"""


@pytest.mark.slow
def test_weights_in_the_code_are_not_taken_for_memory_of_a_kernel(local_lab: Lab) -> None:
    session, _ = local_lab
    weights = embed("weights", bytes(320 << 20), HOST)
    code = link([compile_c(READS_ALL_WEIGHTS, HOST), weights], HOST, extra_objects=native_objects(HOST))
    result = session.measure(Kernels(session, code).request("reads_all", timing=None, timeout_s=60.0))
    assert result.error is None


UNWRITTEN = "1024 of 1024 elements are NaN, infinite or unwritten, the first at index 0"
WRONG = [
    ("one_element_wrong", "max |error| 1 at index 777 of 1024"),
    (
        "last_tile_unwritten",
        "64 of 1024 elements are NaN, infinite or unwritten, the first at index 960",
    ),
    ("writes_nan", "1 of 1024 elements are NaN, infinite or unwritten, the first at index 5"),
    ("wrong_later", "max |error| 1 at index 9 of 1024"),
    ("computes_once", UNWRITTEN),
    ("computes_twice", f"{UNWRITTEN} (data set 3 of 3)"),
    ("knows_its_input", "(data set 3 of 3)"),
    ("clips", "(data set 2 of 3)"),
    ("skips_zeros", "elements are NaN, infinite or unwritten, the first at index 1 (data set 3 of 3)"),
    ("relies_on_zeros", "1 of 1024 elements are NaN, infinite or unwritten, the first at index 3"),
    ("spoils_its_neighbour", "iterations of a parallel loop wrote different values to one place"),
    ("shares_its_workspace", "iterations of a parallel loop wrote different values to one place"),
    ("reads_its_neighbour", "(data set 3 of 3)"),
    ("relies_on_its_stack", "max |error| "),
    ("relies_on_its_last_iteration", "max |error| "),
    ("leaves_its_stack", "it wrote to the stack above its own"),
    ("starts_from_its_workspace", "max |error| "),
    ("leaves_its_workspace", "it wrote 1 bytes after the end of the workspace"),
    ("rounds_upward", "it changed the rounding mode or the handling of denormal numbers"),
]


@pytest.mark.parametrize(("symbol", "text"), WRONG)
def test_a_wrong_answer_is_found_on_the_board(lab: Lab, symbol: str, text: str) -> None:
    session, kernels = lab
    timing = Timing(number=CALLS, max_number=CALLS, repeat=1, min_repeat_ms=0.0, warmup=0)
    result = session.measure(kernels.request(symbol, timing))
    assert result.error is not None
    assert result.error.kind == "wrong_answer"
    assert text in result.error.text
    assert result.seconds == ()
    assert_right(session, kernels)


def test_a_chunk_of_several_iterations_is_run_whatever_the_threads(lab: Lab) -> None:
    session, kernels = lab
    request = kernels.request("computes_the_first_of_a_chunk", threads=2)
    result = session.measure(
        dataclasses.replace(request, more_data=(*request.more_data, request.more_data[0]))
    )
    assert result.error is not None and "elements are NaN, infinite or unwritten" in result.error.text
    assert_right(session, kernels)


def test_a_missing_symbol_and_a_broken_artifact_are_link_failures(lab: Lab) -> None:
    session, kernels = lab
    missing = session.measure(kernels.request("not_there"))
    assert missing.error is not None
    assert missing.error.kind == "link"
    assert "not_there" in missing.error.text
    kernels_of_noise = Kernels(session, b"\x7fELF" + bytes(1000))
    broken = session.measure(kernels_of_noise.request("right"))
    assert broken.error is not None
    assert broken.error.kind == "link"
    assert_right(session, kernels)


def test_a_dead_host_takes_its_measurement_with_it(
    local_board: Board, tmp_path: Path, compile_kernels: CompileKernels
) -> None:
    import threading

    session = open_session(local_board, cache_dir=tmp_path)
    kernels = Kernels(session, compile_kernels(os.uname().machine))
    server = session.hello.pid
    hanging = kernels.request("hangs", timeout_s=60.0)
    thread = threading.Thread(target=lambda: _measure_until_closed(session, hanging))
    thread.start()
    while not descendants(server):
        time.sleep(0.01)
    children = descendants(server)
    session._transport._input.close()  # type: ignore[attr-defined]  # what the kernel does when the host dies
    thread.join(10)
    session.close()
    assert not thread.is_alive()
    assert all(state_and_parent(pid)[0] in "ZX" for pid in children)


def test_a_killed_server_takes_its_measurement_with_it(
    local_board: Board, tmp_path: Path, compile_kernels: CompileKernels
) -> None:
    import threading

    session = open_session(local_board, cache_dir=tmp_path)
    kernels = Kernels(session, compile_kernels(os.uname().machine))
    hanging = kernels.request("hangs", timeout_s=60.0)
    thread = threading.Thread(target=lambda: _measure_until_closed(session, hanging))
    thread.start()
    while not descendants(session.hello.pid):
        time.sleep(0.01)
    children = descendants(session.hello.pid)
    os.kill(session.hello.pid, signal.SIGKILL)
    thread.join(10)
    deadline_s = time.monotonic() + PATIENCE_S
    while {state_and_parent(pid)[0] for pid in children} - set("ZX") and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert {state_and_parent(pid)[0] for pid in children} <= set("ZX")
    with open_session(local_board, cache_dir=tmp_path) as after:  # the lease is free again
        assert_right(after, Kernels(after, compile_kernels(os.uname().machine)))


def _measure_until_closed(session: Session, request: object) -> None:
    from toolkit.errors import BoardUnreachable

    with pytest.raises(BoardUnreachable):
        session.measure(request)  # type: ignore[arg-type]


def test_timing_stops_early_when_clearly_beaten(lab: Lab) -> None:
    session, kernels = lab
    timing = dataclasses.replace(QUICK, repeat=10, give_up_s=0.001)
    result = session.measure(kernels.request("slow", timing=timing))
    assert result.error is None
    assert len(result.seconds) == 1
