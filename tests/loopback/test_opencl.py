"""The OpenCL driver of a real runtime on PoCL: right kernels are timed, all others are typed failures."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from boards.board import Board
from device_runtime.protocol import GpuKernel, GpuModule, Launch, Timing
from tests.loopback.conftest import descendants
from tests.loopback.gpu_modules import BODIES, HEAD, by_way_of_workspace, measure_request, twice
from toolkit.measure.session import Session, open_session
from toolkit.report.health import check_board

pytestmark = pytest.mark.slow  # PoCL takes seconds to start, and for each kernel


@pytest.fixture(scope="module")
def session(pocl_board: Board) -> Iterator[Session]:
    with open_session(pocl_board) as opened:
        yield opened


def assert_right(session: Session, module: GpuModule) -> None:
    result = session.measure(measure_request(session, module))
    assert result.error is None
    assert len(result.seconds) == 2
    assert all(seconds > 0 for seconds in result.seconds)
    assert (result.max_abs_error, result.max_abs_reference) == (0, 1046)


def test_a_kernel_is_checked_and_timed(session: Session) -> None:
    assert_right(session, twice("right"))


def test_launches_follow_each_other_through_the_workspace(session: Session) -> None:
    assert_right(session, by_way_of_workspace())


def test_a_kernel_is_checked_without_being_timed(session: Session) -> None:
    result = session.measure(measure_request(session, twice("right"), timing=None))
    assert (result.error, result.seconds, result.number) == (None, (), 0)
    assert result.max_abs_reference == 1046


def test_calls_grow_until_a_repeat_lasts_and_caches_are_flushed(session: Session) -> None:
    timing = Timing(repeat=1, min_repeat_ms=2.0, flush_bytes=1 << 16)
    result = session.measure(measure_request(session, twice("right"), timing))
    assert result.error is None
    assert result.number * result.seconds[0] >= 2e-3 or result.number == timing.max_number
    assert result.number > 1


FAILURES = [
    ("wrong", "wrong_answer", "max |error| 100 at index 7 of 1024"),
    ("clips", "wrong_answer", "(data set 2 of 3)"),
    ("strays", "wrong_answer", "it wrote 4 bytes after the end of buffer 1"),
    ("strays_back", "wrong_answer", " bytes before the start of buffer 1"),
    (
        "reads_beyond",
        "wrong_answer",
        "1 of 1024 elements are NaN, infinite or unwritten, the first at index 3",
    ),
    ("writes_input", "wrong_answer", "it wrote to buffer 0, an input"),
    ("unwritten", "wrong_answer", "1 of 1024 elements are NaN, infinite or unwritten, the first at index 5"),
    ("wrong_later", "wrong_answer", "max |error| "),
    ("refused", "build", "BUILD_PROGRAM_FAILURE"),
    ("crashes", "crash", "killed by SIGSEGV"),
]


@pytest.mark.parametrize(("name", "kind", "text"), FAILURES)
def test_a_failure_is_typed_and_the_next_measurement_is_right(
    session: Session, name: str, kind: str, text: str
) -> None:
    result = session.measure(measure_request(session, twice(name)))
    assert result.error is not None
    assert (result.error.kind, result.seconds) == (kind, ())
    assert text in result.error.text
    assert_right(session, twice("right"))


def test_the_compiler_says_what_it_refuses(session: Session) -> None:
    result = session.measure(measure_request(session, twice("refused")))
    assert result.error is not None
    assert "error" in result.error.text and ";" in result.error.text


def test_a_kernel_that_hangs_is_killed_and_the_next_measurement_is_right(session: Session) -> None:
    started_s = time.monotonic()
    result = session.measure(measure_request(session, twice("hangs"), timeout_s=4.0))
    assert result.error is not None and result.error.kind == "timeout"
    assert time.monotonic() - started_s >= 4.0
    assert descendants(session.hello.pid) == set()
    assert_right(session, twice("right"))


def test_launches_that_the_device_cannot_do_are_refused(session: Session) -> None:
    result = session.measure(measure_request(session, twice("right", threads=1 << 20)))
    assert result.error is not None and result.error.kind == "launch"
    assert "INVALID_WORK_GROUP_SIZE" in result.error.text
    assert_right(session, twice("right"))


LINKS = [
    (twice("right", arguments=(0,)), "twice takes 2 arguments, the launch gives 1"),
    (twice("right", arguments=(0, 2)), "launch twice takes argument 2, the kernel has 2"),
    (GpuModule("opencl", {"other": twice("right").kernels["twice"]}), "no kernel twice; it has other"),
    (
        GpuModule("cuda", {"twice": GpuKernel(b"cubin", 0, twice("right").kernels["twice"].launches)}),
        "the module is for cuda, the request for opencl",
    ),
]


@pytest.mark.parametrize(("module", "text"), LINKS)
def test_modules_that_do_not_fit_their_request_are_refused(
    session: Session, module: GpuModule, text: str
) -> None:
    result = session.measure(measure_request(session, module))
    assert result.error is not None and result.error.kind == "link"
    assert text in result.error.text


def test_a_function_that_is_not_in_the_program_is_refused(session: Session) -> None:
    launch = Launch("thrice", (1, 1, 1), (1, 1, 1), (0, 1))
    module = GpuModule("opencl", {"twice": GpuKernel(f"{HEAD}{BODIES['right']}\n}}", 0, (launch,))})
    result = session.measure(measure_request(session, module))
    assert result.error is not None and result.error.kind == "build"
    assert "INVALID_KERNEL_NAME" in result.error.text


def test_a_device_that_is_not_there_is_named_with_those_that_are(session: Session) -> None:
    asked = dataclasses.replace(measure_request(session, twice("right")), device="Mali")
    result = session.measure(asked)
    assert result.error is not None and result.error.kind == "link"
    assert "no OpenCL device 'Mali'; there is: Portable Computing Language: " in result.error.text


def test_cuda_is_refused_where_pycuda_or_its_device_is_missing(session: Session) -> None:
    asked = dataclasses.replace(measure_request(session, twice("right")), driver="cuda")
    result = session.measure(asked)
    assert result.error is not None and result.error.kind == "link"
    assert "pycuda cannot be loaded" in result.error.text or "device" in result.error.text


def test_binaries_are_kept_and_damaged_ones_are_built_again(session: Session, pocl_board: Board) -> None:
    """PoCL's from the second measurement on, as it compiles for them alone."""
    module = twice("right")
    folder = Path(pocl_board.link.device_dir) / "opencl" / "binaries"
    for path in folder.iterdir() if folder.exists() else ():
        path.unlink()  # of the tests before
    assert_right(session, module)
    kept = list(folder.iterdir())
    assert len(kept) == 1 and len(kept[0].read_bytes()) < 100
    assert_right(session, module)
    assert len(kept[0].read_bytes()) > 1000
    for path in kept:
        path.write_bytes(path.read_bytes()[:100])
    assert_right(session, module)
    assert any(len(path.read_bytes()) > 1000 for path in kept)


def test_nothing_else_is_left_behind(session: Session, pocl_board: Board) -> None:
    session.measure(measure_request(session, twice("crashes")))
    device_dir = Path(pocl_board.link.device_dir)
    assert [path.name for path in (device_dir / "opencl").iterdir()] == ["binaries"]
    assert not list(device_dir.glob("probe-*"))


def test_the_probe_and_the_doctor_know_the_device(session: Session, pocl_board: Board) -> None:
    target = pocl_board.target()
    assert target.gpu is not None
    device = next(one for one in session.probe().opencl if target.device in one.platform)
    assert device.max_threads_per_block >= target.gpu.max_threads_per_block
    assert device.shared_memory_bytes >= target.gpu.shared_memory_bytes
    assert device.compute_units >= 1 and len(device.max_block_dims) == 3
    checks = {check.name: check for check in check_board(pocl_board).checks}
    assert checks["opencl"].state == "ok"
    assert device.name in checks["opencl"].found
