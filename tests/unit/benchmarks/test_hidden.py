"""Other libraries held to a level of x86-64: what their processes find out about the CPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.kernels.hidden import CannotHide, hidden
from benchmarks.kernels.processes import Contender, LibraryProcess, contenders

WORKER = """
import json, os, sys
import llvmlite.binding as llvm
import numpy as np
features = [name for name, there in llvm.get_host_cpu_features().items() if there]
for line in sys.stdin:
    product = float((np.arange(512.0) * 2).sum())
    told = os.environ.get("OPENBLAS_CORETYPE")
    print(json.dumps({"protocol": 2, "features": features, "product": product, "told": told}), flush=True)
"""
AVX512 = {"avx512f", "avx512vl", "avx512vnni", "avxvnni", "amx-tile"}
AVX2 = {"avx", "avx2", "fma", "f16c", "bmi2"}


def features(folder: Path, board: str) -> set[str]:
    """What LLVM finds in a library's process."""
    (folder / "asked.py").write_text(WORKER)
    try:
        with hidden(board) as preload:
            library = Contender("asked", "asked", Path(sys.executable), checkout=folder, preload=preload)
            process = LibraryProcess(library, threads=1)
            try:
                answer = process.ask({"do": "hello"}, timeout_s=60.0)
            finally:
                process.close()
    except CannotHide as error:
        pytest.skip(str(error))
    assert answer["product"] == 511 * 512
    assert board == "host" or answer["told"] is None, "of AVX-512, which is hidden"
    return set(answer["features"])


def test_levels_hide_what_is_beyond_them(tmp_path: Path) -> None:
    everything = features(tmp_path, "host")
    third, second = features(tmp_path, "host:x86-64-v3"), features(tmp_path, "host:x86-64-v2")
    assert not third & AVX512 and third >= AVX2 & everything
    assert not second & (AVX512 | AVX2) and second >= {"sse4.2", "popcnt", "ssse3"} & everything
    assert everything - third >= AVX512 & everything


@pytest.mark.parametrize("board", ["rpi3b", "host:x86-64-v9", "host:x86-64-v4", "host-x86-64-v3"])
def test_another_board_is_refused(board: str) -> None:
    expected = pytest.raises(ValueError, match=f"expected this machine, host or .*; found the board {board}")
    with expected, hidden(board):
        pass


def test_ours_is_told_and_libraries_are_held_back(tmp_path: Path) -> None:
    preload = tmp_path / "hidden.so"
    machine, ours, numpy = contenders(tmp_path, (), ["numpy"], board="host:x86-64-v3", preload=preload)
    assert machine.arguments == ours.arguments == ("--board", "host:x86-64-v3")
    assert machine.preload is ours.preload is None
    assert numpy.preload == preload and numpy.arguments == ()
    assert [item.preload for item in contenders(tmp_path, (), ["numpy"])] == [None] * 3
