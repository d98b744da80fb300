"""Every shipped board loads and makes sense; names, paths and addresses lead to the right one."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boards.board import Board, board_names, load
from boards.errors import BoardError
from boards.features import missing_flags, needed_flags
from boards.probe import Caches, HostFacts, Vectors

OF_THE_DESIGN = {
    "host", "emulated-a53", "pocl", "rpi3b", "rock960", "firefly-rk3399", "ultra96", "hikey970", "odroid-n2",
    "jetson-nano", "jetson-orin-nano", "titan-x", "p100", "h100", "h200",
    "rpi4", "rpi5", "rpi-zero2w", "rock-5b", "imx8mm", "kria-kv260", "orange-pi-zero3",
}  # fmt: skip
SHIPPED = Path(__file__).parents[3] / "boards"
FACTS = HostFacts(
    architecture="x86_64", model="a CPU", machine="maker-1-2-3", cores=(2, 3), vectors=Vectors(32, 16, 32.0),
    caches=Caches(), clock_hz=3e9, memory_bytes=1 << 33,
)  # fmt: skip


def test_every_board_of_the_design_ships() -> None:
    assert set(board_names()) == OF_THE_DESIGN


@pytest.mark.parametrize("name", sorted(OF_THE_DESIGN))
def test_a_shipped_board_loads_by_name_and_by_path(name: str) -> None:
    board = load(name, facts=FACTS)
    assert board.name == name
    assert board.targets and board.memory_bytes > 0
    assert (
        load(SHIPPED / f"{name}.toml", facts=FACTS)
        == load(str(SHIPPED / f"{name}.toml"), facts=FACTS)
        == board
    )
    assert len({target.key for target in board.targets}) == len(board.targets)


@pytest.mark.parametrize(
    ("name", "target", "peak_gflops"),
    # the makers' own figures, where there are any: TITAN X 6.6, P100 10.6, H200 67 TFLOPS, Jetson Nano 0.236
    [
        ("titan-x", "gpu", 6600),
        ("p100", "gpu", 10600),
        ("h100", "gpu", 67000),
        ("h200", "gpu", 67000),
        ("jetson-nano", "gpu", 236),
    ],
)
def test_estimated_peaks_agree_with_the_data_sheets(name: str, target: str, peak_gflops: float) -> None:
    assert load(name).target(target).estimated_peak_gflops == pytest.approx(peak_gflops, rel=0.01)


@pytest.mark.parametrize(("name", "target"), [("rpi5", "cpu"), ("rock-5b", "a76"), ("rock-5b", "a55")])
def test_dot_products_and_half_precision_are_looked_for(name: str, target: str) -> None:
    wanted = needed_flags(load(name).target(target))
    assert {"asimd", "asimddp", "asimdhp"} <= wanted, "as /proc/cpuinfo calls them"
    assert missing_flags(wanted, frozenset({"asimd", "asimdhp"})) == ("asimddp",)
    assert not {"asimddp", "asimdhp"} & needed_flags(load("rpi4").target())


def test_only_the_emulated_board_says_emulated() -> None:
    assert [name for name in board_names() if load(name, facts=FACTS).emulated] == ["emulated-a53"]


def test_the_default_target_is_the_fastest_estimate() -> None:
    board = load("hikey970")
    assert board.target().name == "mali"
    assert board.target("a53").cores == (0, 1, 2, 3)
    measured = tuple(msgspec.structs.replace(target, peak_gflops=1.0) for target in board.targets[1:])
    assert msgspec.structs.replace(board, targets=(board.targets[0], *measured)).target().name == "a73"


def test_the_host_is_filled_in_with_what_was_probed() -> None:
    board = load("host", facts=FACTS)
    target = board.target()
    assert board.memory_bytes == 1 << 33
    assert (target.triple, target.cpu, target.cores) == ("x86_64-unknown-linux-gnu", "native", (2, 3))
    assert target.estimated_peak_gflops == 3e9 * 32 * 2 / 1e9
    assert load("host").targets, "this machine is probed"


def test_opencl_on_this_machine_has_its_cpu_beside_it() -> None:
    board = load("pocl", facts=FACTS)
    opencl, cpu = board.targets
    assert (opencl.name, opencl.kind, opencl.is_pocl, opencl.cores) == ("opencl", "opencl", True, (2, 3))
    assert cpu == load("host", facts=FACTS).target()
    assert board.target() is opencl
    assert not any(
        target.is_pocl for name in ("host", "rock960") for target in load(name, facts=FACTS).targets
    )


def test_an_address_changes_the_way_in_and_nothing_else() -> None:
    board, plain = load("rpi3b@pi@192.168.1.7:2222"), load("rpi3b")
    assert (board.link.user, board.link.host, board.link.port) == ("pi", "192.168.1.7", 2222)
    assert board.targets == plain.targets
    assert load("rpi3b@lab-7").link == msgspec.structs.replace(plain.link, host="lab-7")
    assert load("rpi3b@root@[fe80::1]:22").link.host == "fe80::1"


def test_a_board_survives_json() -> None:
    board = load("rock960")
    assert msgspec.json.decode(msgspec.json.encode(board), type=Board) == board


@given(st.text(max_size=30))
def test_no_name_leads_to_anything_but_a_board_or_a_board_error(name: str) -> None:
    try:
        assert load(name, facts=FACTS).name in board_names()
    except BoardError as error:
        assert str(error)
