"""A board file about another machine, or about more than this one has: nothing is tuned or flashed."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from boards.board import Board, load
from boards.target import POCL, Target
from cross.expression import Operator, compute, placeholder
from tests.bundles import contents, small_model
from tests.loopback.conftest import in_folder
from tests.loopback.tune_board import write_network
from toolkit import Budget, FlashOptions, TuneOptions, flash_bundle, run_installed, tune, tune_operator
from toolkit.bundle import pack, sign
from toolkit.errors import UnfitBoard
from toolkit.measure.fit import Check
from toolkit.measure.peak import probe_board
from toolkit.records import Records
from toolkit.report.health import check_board

OTHER = "aarch64" if platform.machine() == "x86_64" else "x86_64"
FOREIGN = msgspec.structs.replace(
    load("rpi3b").target(), triple=f"{OTHER}-unknown-linux-gnu", cpu="generic", features=(), cores=(0,)
)


def board_of(target: Target, folder: Path) -> Board:
    board = in_folder(load("host"), folder / "device")
    changed: Board = msgspec.structs.replace(board, name="mine", targets=(target,))
    return changed


def twice() -> Operator:
    data = placeholder((64,), "X")
    return Operator("twice", (data,), compute((64,), lambda i: data[i] * 2.0, name="twice"))


WRONG = {
    "machine": (
        FOREIGN,
        f"machine: {platform.machine()}, expected {OTHER}",
    ),
    "cores": (
        msgspec.structs.replace(load("host").target(), cores=(0, max(os.sched_getaffinity(0)) + 1)),
        "cores: cores .* are not there, only .*or name others in the board file",
    ),
    "opencl": (
        msgspec.structs.replace(load("pocl").target("opencl"), device="Mali-T860"),
        "opencl: no device.*install the GPU's OpenCL driver",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", WRONG)
def test_tuning_refuses_with_what_the_doctor_says_and_records_nothing(
    what: str, tmp_path: Path, teach: Callable[[Path], None]
) -> None:
    teach(tmp_path / "device")
    target, words = WRONG[what]
    board, records = board_of(target, tmp_path), tmp_path / "records.db"
    with pytest.raises(UnfitBoard, match=words):
        tune_operator(twice(), board, Budget(8), records=records)
    with pytest.raises(UnfitBoard, match=words):
        tune(write_network(tmp_path), board, options_in(tmp_path))
    with Records(records) as store:
        assert not list(store)
    failures = [check for check in check_board(board).checks if check.state == "failure"]
    assert [check.name for check in failures] == [what]
    assert_said(failures[0], board, tmp_path)


def options_in(folder: Path) -> TuneOptions:
    return TuneOptions(
        trials=8, records=folder / "records.db", output=folder / "out.tfb", config_dir=folder / "config",
        shapes={"x": (1, 3, 14, 14)},
    )  # fmt: skip


def assert_said(check: Check, board: Board, folder: Path) -> None:
    """The doctor's words are in the refusal."""
    with pytest.raises(UnfitBoard) as refusal:
        tune_operator(twice(), board, Budget(8), records=folder / "records.db")
    assert f"{check.name}: {check.found}: {check.remedy}" in str(refusal.value)
    assert refusal.value.exit_code == 6


@pytest.mark.parametrize("what", ["machine", "cores"])
def test_flashing_refuses_before_anything_is_uploaded(what: str, tmp_path: Path) -> None:
    target, words = WRONG[what]
    board = board_of(target, tmp_path)
    options = FlashOptions(config_dir=tmp_path / "config", cache_dir=tmp_path / "cache")
    bundle = tmp_path / "bundle.tfb"
    made = contents(small_model(), boards=("mine",))
    bundle.write_bytes(pack.pack(made, sign.open_key(sign.key_file(options.config_dir))))
    with pytest.raises(UnfitBoard, match=words):
        flash_bundle(bundle, board, options)
    assert not [
        path for path in (tmp_path / "device").rglob("*") if path.is_file() and path.stat().st_size > 999
    ]
    if what == "machine":
        with pytest.raises(UnfitBoard, match=words):
            run_installed(board, {}, options=options)


@pytest.mark.slow
def test_a_peak_is_not_measured_on_another_machine(tmp_path: Path, teach: Callable[[Path], None]) -> None:
    teach(tmp_path / "device")
    with pytest.raises(UnfitBoard, match="this is another machine than mine"):
        probe_board(board_of(FOREIGN, tmp_path), cache_dir=tmp_path)


@pytest.mark.slow
def test_a_device_of_the_platform_that_the_file_names_is_enough(pocl_board: Board) -> None:
    assert POCL in pocl_board.target("opencl").device
    states = {check.name: check.state for check in check_board(pocl_board).checks}
    assert (states["opencl"], states["machine"], states["cores"]) == ("ok", "ok", "ok")
