"""Uploads, the lease, refusals and greetings, with a real runtime as a subprocess."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from boards.board import Board
from device_runtime.protocol import (
    BAD_HASH,
    BAD_REQUEST,
    CHUNK_BYTES,
    NO_LEASE,
    NOT_FOUND,
    PROTOCOL_VERSION,
    REFUSED,
    UNKNOWN_METHOD,
    BufferRequest,
    Greeting,
    MeasureRequest,
    Timing,
    encode_frame,
    to_plain,
)
from tests.loopback.conftest import CompileKernels
from tests.loopback.kernels import ELEMENTS, Kernels, assert_right
from toolkit.errors import BoardBusy, BoardUnreachable, OutputError, TimedOut
from toolkit.measure.archive import runtime_archive
from toolkit.measure.links import process
from toolkit.measure.session import DeviceError, Session, open_session, put_again

BIG = np.random.default_rng(1).bytes(3 * CHUNK_BYTES + 17)


@pytest.fixture(scope="module")
def kernels(shared_session: Session, compile_kernels: CompileKernels) -> Kernels:
    return Kernels(shared_session, compile_kernels(os.uname().machine))


def test_a_closed_session_is_unreachable(session: Session) -> None:
    session.close()
    session.close()
    with pytest.raises(BoardUnreachable, match="lost during probe: the session is closed"):
        session.probe()


def test_greeting(shared_session: Session) -> None:
    assert shared_session.hello.protocol == PROTOCOL_VERSION
    assert shared_session.hello.machine == os.uname().machine
    assert shared_session.hello.pid != os.getpid()


def test_put_and_read_back(shared_session: Session) -> None:
    seen: list[tuple[int, int]] = []
    sha = shared_session.put(BIG, lambda done, total: seen.append((done, total)))
    assert sha == hashlib.sha256(BIG).hexdigest()
    assert seen == [(min((i + 1) * CHUNK_BYTES, len(BIG)), len(BIG)) for i in range(4)]
    assert shared_session.read(sha, len(BIG)) == BIG
    assert shared_session.put(b"") == hashlib.sha256(b"").hexdigest()
    assert shared_session.read(shared_session.put(b""), 0) == b""


def test_put_again_sends_nothing(session: Session, local_board: Board, tmp_path: Path) -> None:
    session.put(BIG)
    session.close()
    with open_session(local_board, cache_dir=tmp_path / "cache") as again:
        again.put(BIG, lambda done, total: pytest.fail("sent a chunk of what is there"))


def test_an_interrupted_upload_goes_on_where_it_stopped(
    session: Session, local_board: Board, tmp_path: Path
) -> None:
    def stop(done: int, total: int) -> None:
        if done >= 2 * CHUNK_BYTES:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session.put(BIG, stop)
    session.close()
    seen: list[int] = []
    with open_session(local_board, cache_dir=tmp_path / "cache") as again:
        sha = again.put(BIG, lambda done, total: seen.append(done))
        assert again.read(sha, len(BIG)) == BIG
    assert seen == [3 * CHUNK_BYTES, len(BIG)]


def test_a_wrong_chunk_is_refused_and_wrong_bytes_never_appear(shared_session: Session) -> None:
    sha = hashlib.sha256(b"right").hexdigest()
    with pytest.raises(DeviceError) as refused:
        shared_session.exchange("put", {"sha": sha, "total_bytes": 5, "offset": 3}, (b"ht",))
    assert (refused.value.code, refused.value.details) == (REFUSED, {"offset": 0})
    with pytest.raises(DeviceError) as bad:
        shared_session.exchange("put", {"sha": sha, "total_bytes": 5, "offset": 0}, (b"wrong",))
    assert bad.value.code == BAD_HASH
    assert shared_session.call("status", dict, sha=sha) == {"size_bytes": None, "received_bytes": 0}
    assert shared_session.put(b"right") == sha


def test_measuring_what_was_never_put(shared_session: Session, kernels: Kernels) -> None:
    request = dataclasses.replace(kernels.request("right"), module="0" * 64)
    with pytest.raises(DeviceError) as missing:
        shared_session.measure(request)
    assert (missing.value.code, missing.value.details) == (NOT_FOUND, {"sha": "0" * 64})
    assert_right(shared_session, kernels)


def _bounded(request: MeasureRequest, role: str) -> MeasureRequest:
    """The request with bounds for its buffer of this role."""
    buffers = (dataclasses.replace(item, bounds=item.role == role) for item in request.buffers)
    return dataclasses.replace(request, buffers=tuple(buffers))


@pytest.mark.parametrize(
    ("least", "most", "error"), [(0, 0, 0), (-5, 0, 0), (0, 5, 0), (-5, 5, 0), (1, 3, 1), (-4, -2, 2)]
)
def test_integers_may_lie_between_bounds(
    shared_session: Session, kernels: Kernels, least: int, most: int, error: int
) -> None:
    """The kernel's floats are taken for the integers that their bits are; one of them has other bounds."""
    right = kernels.request("right")
    bits = (2 * (np.arange(ELEMENTS, dtype=np.float32) - 500)).view(np.int32)
    bounds = np.stack([bits, bits])
    bounds[:, 700] += np.array([least, most], np.int32)
    wanted = BufferRequest("output", "int32", ELEMENTS, shared_session.put(bounds.tobytes()), True)
    request = dataclasses.replace(right, buffers=(right.buffers[0], wanted), more_data=(), rtol=0.0)
    result = shared_session.measure(request)
    assert result.max_abs_error == error
    if not error:
        assert result.error is None and result.seconds
    else:
        assert result.error is not None and result.error.kind == "wrong_answer"
        assert f"max |error| {error} at index 700 of 1024" in result.error.text


def test_impossible_requests_are_refused(shared_session: Session, kernels: Kernels) -> None:
    right = kernels.request("right")
    too_long = dataclasses.replace(right, timing=Timing(min_repeat_ms=1e9))
    half = BufferRequest("output", "float16", ELEMENTS, kernels.expected)
    halves = dataclasses.replace(right, buffers=(right.buffers[0], half))
    bits = BufferRequest("output", "float8_e5m2", ELEMENTS, kernels.expected)
    unknown = dataclasses.replace(right, buffers=(right.buffers[0], bits))
    wrong_size = BufferRequest("output", "float32", ELEMENTS + 1, kernels.expected)
    longer = dataclasses.replace(right, buffers=(right.buffers[0], wrong_size))
    for request, text in (
        (too_long, "'min_repeat_ms': expected 0 to 10000"),
        (unknown, "'dtype': expected one of bfloat16, float16, .*, found 'float8_e5m2'"),
        (longer, "has 4096 bytes, the buffer it is for 4100"),
        (
            _bounded(right, "input"),
            "'bounds': expected them for outputs, not of half floats, found 'input float32'",
        ),
        (
            _bounded(halves, "output"),
            "'bounds': expected them for outputs, not of half floats, found 'output float16'",
        ),
        (dataclasses.replace(right, symbol="no symbol"), "expected a C identifier"),
        (dataclasses.replace(right, timeout_s=1e6), "'timeout_s': expected 0.001 to 600"),
    ):
        with pytest.raises(DeviceError, match=text) as refused:
            shared_session.measure(request)
        assert refused.value.code == BAD_REQUEST
    with pytest.raises(DeviceError, match=r"cores \[4000\] are not all usable here; usable are"):
        shared_session.measure(dataclasses.replace(right, cores=(4000,)))
    assert_right(shared_session, kernels)


def test_unknown_methods_are_named_and_the_known_ones_listed(shared_session: Session) -> None:
    with pytest.raises(DeviceError, match="no method 'fly'; this runtime has .*measure") as unknown:
        shared_session.call("fly", dict)
    assert unknown.value.code == UNKNOWN_METHOD


def test_check_only_and_unchecked_outputs(shared_session: Session, kernels: Kernels) -> None:
    checked = shared_session.measure(kernels.request("right", timing=None))
    assert (checked.error, checked.seconds, checked.number) == (None, (), 0)
    request = kernels.request("one_element_wrong")
    unchecked = (request.buffers[0], dataclasses.replace(request.buffers[1], sha=""))
    assert shared_session.measure(dataclasses.replace(request, buffers=unchecked)).error is None


def test_one_object_holds_several_sets_of_data(shared_session: Session, kernels: Kernels) -> None:
    values = np.arange(5 * ELEMENTS, dtype=np.float32).reshape(5, ELEMENTS)
    inputs, expected = shared_session.put(values.tobytes()), 2 * values
    more = ((inputs, shared_session.put(expected.tobytes())),)
    request = dataclasses.replace(kernels.request("right"), more_data=(*kernels.more_data, *more))
    assert shared_session.measure(request).error is None
    expected[3, 7] += 4096
    more = ((inputs, shared_session.put(expected.tobytes())),)
    failure = shared_session.measure(dataclasses.replace(request, more_data=more)).error
    assert failure is not None and failure.text.endswith("(data set 5 of 6)")
    uneven = ((inputs, shared_session.put(expected[:4].tobytes())),)
    with pytest.raises(DeviceError, match=r"hold \[5, 4\] sets of data"):
        shared_session.measure(dataclasses.replace(request, more_data=uneven))


def test_the_tolerance_is_relative_to_the_largest_expected_value(
    shared_session: Session, kernels: Kernels
) -> None:
    request = kernels.request("one_element_wrong")  # off by 1 where the largest is 1046
    assert shared_session.measure(dataclasses.replace(request, rtol=1e-3)).error is None
    assert shared_session.measure(dataclasses.replace(request, rtol=9e-4)).error is not None


def test_integer_outputs(shared_session: Session, kernels: Kernels) -> None:
    wide = np.arange(ELEMENTS, dtype=np.int64) << 40
    small = np.arange(ELEMENTS, dtype=np.int8)
    requests = {}
    for symbol, values, expected in (("right_i64", wide, 2 * wide), ("half_i8", small, small)):
        dtype = str(values.dtype)
        buffers = (
            BufferRequest("input", dtype, ELEMENTS, shared_session.put(values.tobytes())),
            BufferRequest("output", dtype, ELEMENTS, shared_session.put(expected.tobytes())),
        )
        requests[symbol] = dataclasses.replace(
            kernels.request(symbol), buffers=buffers, rtol=0.0, more_data=()
        )
    assert shared_session.measure(requests["right_i64"]).error is None
    failure = shared_session.measure(requests["half_i8"]).error
    assert failure is not None
    assert failure.kind == "wrong_answer"


def test_threads_and_cores(shared_session: Session, kernels: Kernels) -> None:
    cores = tuple(sorted(os.sched_getaffinity(0)))
    request = dataclasses.replace(kernels.request("right", threads=len(cores)), cores=cores)
    result = shared_session.measure(request)
    assert result.error is None
    assert result.facts["cores"] == list(cores)


@pytest.mark.slow
def test_probe(shared_session: Session) -> None:
    facts = shared_session.probe(gpus=False)
    assert facts.machine == os.uname().machine
    assert [core.id for core in facts.cores] == sorted(os.sched_getaffinity(0))
    assert facts.storage.free_bytes > 0
    assert facts.memory.total_bytes > facts.memory.available_bytes > 0


# ------------------------------------------------------------------------------------------------ lease


@pytest.mark.slow
def test_one_holder_and_the_other_is_told_who(session: Session, local_board: Board, tmp_path: Path) -> None:
    session.close()
    with open_session(local_board, cache_dir=tmp_path, holder="alice") as first:
        start_s = time.monotonic()
        with pytest.raises(BoardBusy, match=r"Board host is held by alice \(process \d+ on the board\)"):
            open_session(local_board, cache_dir=tmp_path, holder="bob")
        with pytest.raises(TimedOut, match=r"Board host is still held by alice .* waiting 0\.3 s for it"):
            open_session(local_board, cache_dir=tmp_path, holder="bob", wait_s=0.3)
        assert time.monotonic() - start_s >= 0.3
        assert first.call("lease", dict, holder="alice") == {"token": first.token}
    with open_session(local_board, cache_dir=tmp_path, holder="bob") as second:
        assert second.token > first.token


def test_who_waits_gets_the_lease_when_it_is_released(
    session: Session, local_board: Board, tmp_path: Path
) -> None:
    timer = threading.Timer(0.5, session.close)
    timer.start()
    with open_session(local_board, cache_dir=tmp_path, wait_s=20.0) as second:
        assert second.token > session.token


def test_a_killed_holder_frees_the_lease(session: Session, local_board: Board, tmp_path: Path) -> None:
    os.kill(session.hello.pid, signal.SIGKILL)
    with open_session(local_board, cache_dir=tmp_path, wait_s=5.0) as second:
        assert second.token > session.token
    with pytest.raises(BoardUnreachable, match="The runtime on this machine"):
        session.probe()


def test_without_the_lease_one_may_look_but_not_touch(
    session: Session, local_board: Board, tmp_path: Path
) -> None:
    sha = session.put(b"something")
    with open_session(local_board, cache_dir=tmp_path, lease=False) as looker:
        assert looker.read(sha, 9) == b"something"
        with pytest.raises(DeviceError) as refused:
            looker.put(b"else")
    assert refused.value.code == NO_LEASE


def test_a_holder_whose_token_is_stale_is_stopped(session: Session, local_board: Board) -> None:
    info_path = Path(local_board.link.device_dir) / "lease.json"
    info = json.loads(info_path.read_text())
    info_path.write_text(json.dumps({**info, "token": info["token"] + 1}))
    with pytest.raises(DeviceError, match="the lease was lost") as refused:
        session.put(b"late")
    assert refused.value.code == NO_LEASE


# ------------------------------------------------------------------------------------- greeting, framing


def test_a_runtime_that_cannot_start_says_why(local_board: Board, tmp_path: Path) -> None:
    (tmp_path / "device").write_text("a file, not a folder")
    with pytest.raises(BoardUnreachable, match=r"ended before it greeted(.|\n)*File exists"):
        open_session(local_board, cache_dir=tmp_path / "cache")


def test_a_missing_python_is_unreachable(local_board: Board, tmp_path: Path) -> None:
    link = msgspec.structs.replace(local_board.link, python="/no/such/python")
    with pytest.raises(BoardUnreachable, match="does not start: .*No such file"):
        open_session(msgspec.structs.replace(local_board, link=link), cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (
            "import sys; sys.stdout.write('Welcome!' * 20000); input()",
            "did not greet: no greeting, but other",
        ),
        ("print('motd'); import sys; sys.exit(3)", "ended before it greeted|closed in the middle"),
        (
            "import sys; sys.stdout.buffer.write("
            + repr(encode_frame({"greeting": {"protocol": 99, "future": True}}))
            + "); sys.stdout.flush(); input()",
            f"the board speaks protocol 99, this host {PROTOCOL_VERSION}",
        ),
    ],
)
def test_something_else_answers(local_board: Board, tmp_path: Path, script: str, text: str) -> None:
    impostor = tmp_path / "python"
    impostor.write_text(f"#!{sys.executable}\n{script}\n")
    impostor.chmod(0o755)
    link = msgspec.structs.replace(local_board.link, python=str(impostor))
    with pytest.raises(BoardUnreachable, match=text):
        open_session(msgspec.structs.replace(local_board, link=link), cache_dir=tmp_path / "cache")


def test_a_board_that_takes_nothing_more_ends(
    local_board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It greets, and never reads what is put."""
    greeting = encode_frame({"greeting": to_plain(Greeting(PROTOCOL_VERSION, "0.1.0", "3.8.10", "x", 1))})
    script = f"import sys, time; sys.stdout.buffer.write({greeting!r}); sys.stdout.flush(); time.sleep(600)"
    deaf = tmp_path / "python"
    deaf.write_text(f"#!{sys.executable}\n{script}\n")
    deaf.chmod(0o755)
    link = msgspec.structs.replace(local_board.link, python=str(deaf))
    monkeypatch.setattr(process, "FRAME_DEADLINE_S", 0.5)
    monkeypatch.setattr(process, "END_S", 0.1)
    board = msgspec.structs.replace(local_board, link=link)
    with (
        open_session(board, cache_dir=tmp_path / "cache", lease=False) as session,
        pytest.raises(
            BoardUnreachable, match=r"was lost during put: this machine took no request within 0\.5 s"
        ),
    ):
        session.exchange("put", {}, (BIG,))


def test_noise_before_the_greeting_is_passed_over(local_board: Board, tmp_path: Path) -> None:
    noisy = tmp_path / "python"
    noisy.write_text(f'#!/bin/sh\necho "Welcome to the board. TFB"\nexec {sys.executable} "$@"\n')
    noisy.chmod(0o755)
    link = msgspec.structs.replace(local_board.link, python=str(noisy))
    board = msgspec.structs.replace(local_board, link=link)
    with open_session(board, cache_dir=tmp_path / "cache") as session:
        session.put(b"fine")


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"TFBF" + b"\xff" * 12, b"\x00" * 64])
def test_garbage_is_answered_with_a_typed_error_and_the_runtime_ends(tmp_path: Path, garbage: bytes) -> None:
    archive = tmp_path / "runtime.pyz"
    archive.write_bytes(runtime_archive())
    command = [sys.executable, str(archive), "--device-dir", str(tmp_path / "device")]
    done = subprocess.run(command, input=garbage, capture_output=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"bad_frame" in done.stdout or b"too_large" in done.stdout


def test_malformed_requests_are_answered_and_the_next_works(shared_session: Session) -> None:
    for params in ({}, {"sha": 5}, {"sha": "zz"}, {"sha": "A" * 64}):
        with pytest.raises(DeviceError) as refused:
            shared_session.call("status", dict, **params)
        assert refused.value.code == BAD_REQUEST
    assert to_plain(shared_session.hello)["protocol"] == PROTOCOL_VERSION
    shared_session.put(b"still here")


# ----------------------------------------------------------------------- storage that is damaged or full


def _object(board: Board, sha: str) -> Path:
    return Path(board.link.device_dir) / "objects" / sha


def test_a_damaged_expected_output_is_put_again(
    local_board: Board, tmp_path: Path, compile_kernels: CompileKernels
) -> None:
    with open_session(local_board, cache_dir=tmp_path / "cache") as session:
        expected = Kernels(session, compile_kernels(os.uname().machine)).expected
    data = bytearray(_object(local_board, expected).read_bytes())
    data[2] ^= 0x40
    _object(local_board, expected).write_bytes(data)
    with open_session(local_board, cache_dir=tmp_path / "cache") as session:
        assert_right(session, Kernels(session, compile_kernels(os.uname().machine)))


def test_what_the_board_loses_after_it_was_put_is_put_again(local_board: Board, session: Session) -> None:
    def read() -> bytes:
        return session.read(session.put(BIG), len(BIG))

    os.truncate(_object(local_board, session.put(BIG)), 100)
    assert put_again(read) == BIG


def test_an_upload_goes_on_anew_where_what_was_there_is_damaged(local_board: Board, session: Session) -> None:
    sha = hashlib.sha256(BIG).hexdigest()
    (Path(local_board.link.device_dir) / "incoming" / f"{sha}.part").write_bytes(bytes(len(BIG) // 2))
    assert session.read(session.put(BIG), len(BIG)) == BIG


def test_a_board_whose_disk_is_full_says_so(local_board: Board, tmp_path: Path) -> None:
    device_dir = Path(local_board.link.device_dir)
    device_dir.mkdir()
    (device_dir / "lease.json.part").symlink_to("/dev/full")
    with pytest.raises(OutputError, match=r"No space left on device .*; free space or inodes") as full:
        open_session(local_board, cache_dir=tmp_path / "cache")
    assert full.value.exit_code == 2
    (device_dir / "lease.json.part").mkdir()
    with pytest.raises(OutputError, match="Is a directory .*; check the board's storage"):
        open_session(local_board, cache_dir=tmp_path / "cache")
