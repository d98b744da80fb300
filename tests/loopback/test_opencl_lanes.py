"""The lanes that an OpenCL compiler can compile, found on PoCL; and when it aborts over long vectors."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from boards.board import Board
from device_runtime.drivers import opencl_driver, opencl_lanes, pocl
from device_runtime.measure import board_facts
from toolkit.measure.session import open_session

POCL_OPTIMIZES = True
TRIPLE = b"x86_64-unknown-linux-gnu"


def name_device(device: int, name: bytes) -> None:
    """Name the CPU of a PoCL device: the word after its triple points at the name."""
    memory = os.open("/proc/self/mem", os.O_RDWR)
    words = [int.from_bytes(os.pread(memory, 8, device + place), "little") for place in range(0, 4096, 8)]
    for place, address in enumerate(words):
        try:
            found = os.pread(memory, len(TRIPLE), address) if 1 << 12 <= address < 1 << 47 else b""
        except OSError:
            continue
        if found == TRIPLE:
            pocl._names.append(ctypes.create_string_buffer(name))
            given = ctypes.addressof(pocl._names[-1]).to_bytes(8, "little")
            os.pwrite(memory, given, device + 8 * (place + 1))
            return
    raise AssertionError("PoCL's device has no triple")


def lanes_of_an_old_cpu(device_dir: str) -> tuple[int, int]:
    """The lanes that a probe finds where PoCL's device is called x86-64, and how many widths it tried."""
    tried, run = [], opencl_lanes._tried
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opencl_driver, "name_cpu", lambda device: name_device(device, b"x86-64"))
        patch.setattr(opencl_lanes, "_tried", lambda *given: tried.append(given) or run(*given))
        (device,) = board_facts.probe(device_dir)["opencl"]
    return device["vector_lanes"], len(tried)


@pytest.mark.slow
def test_the_probe_says_how_long_vectors_may_be(pocl_board: Board) -> None:
    with open_session(pocl_board, lease=False) as session:
        device = next(one for one in session.probe().opencl if "Portable" in one.platform)
    assert device.vector_lanes in opencl_lanes.WIDTHS


def test_what_was_found_is_kept(pocl_board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """The board has been probed before; nothing is compiled again."""
    monkeypatch.setattr(opencl_lanes, "_tried", lambda *given: pytest.fail("compiled again"))
    found = board_facts.probe(pocl_board.link.device_dir)["opencl"]
    assert any(device["vector_lanes"] in opencl_lanes.WIDTHS for device in found)


@pytest.mark.slow
def test_a_compiler_that_aborts_over_long_vectors_leaves_the_shorter_ones(
    pocl_board: Board, tmp_path: Path
) -> None:
    """LLVM takes the CPU for one without AVX, while PoCL's functions are those of the CPU that it is."""
    if " avx2 " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("PoCL's functions for this CPU have no vectors longer than SSE's")
    # a process that forks: beside the threads that PoCL has in this one by now, its children would hang
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:
        lanes, tried = alone.submit(lanes_of_an_old_cpu, str(tmp_path)).result()
    assert lanes in (2, 4, 8)
    assert tried == 1 + 5 - lanes.bit_length() + (lanes > opencl_lanes.WIDTHS[-1])  # the shortest first


def test_a_cpu_that_the_compiler_takes_for_an_older_one_is_named_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Zen 4 is "znver3" to LLVM 14, which has no AVX-512."""
    struct = (ctypes.c_char_p * 600)()
    struct[7] = b"znver3"
    for flags, named in ((set(), b"znver3"), (pocl._KNOWN_CPUS[0][0], b"skylake-avx512")):
        monkeypatch.setattr(pocl, "_flags", lambda flags=flags: flags)
        assert pocl.name_cpu(ctypes.addressof(struct)) == (named != b"znver3")
        assert struct[7] == named
