"""Clusters of cores as one target."""

from __future__ import annotations

import msgspec
import pytest

from boards.board import board_names, load
from boards.errors import UnfitTargets, UnknownTarget
from boards.joined import joined
from boards.target import Target

ROCK = load("rock960")
BOTH = ROCK.target("a72+a53")


def test_all_cores_in_the_order_of_the_names() -> None:
    assert (BOTH.name, BOTH.cores, BOTH.threads) == ("a72+a53", (4, 5, 0, 1, 2, 3), 6)
    assert ROCK.target("a53+a72").cores == (0, 1, 2, 3, 4, 5)


def test_code_is_for_what_all_have_and_ordered_for_those_that_issue_in_order() -> None:
    assert BOTH.cpu == ROCK.target("a53+a72").cpu == "cortex-a53"
    assert BOTH.l2_bytes == ROCK.target("a53").l2_bytes < ROCK.target("a72").l2_bytes
    big = msgspec.structs.replace(ROCK.target("a72"), features=("+neon", "+crc"), l1d_bytes=65536)
    other = msgspec.structs.replace(big, name="big2", cores=(7,), cpu="cortex-a76", features=("+crc", "+sve"))
    found = joined("board", [big, other])
    assert (found.cpu, found.features, found.l1d_bytes) == ("cortex-a76", ("+crc",), 65536)


@pytest.mark.parametrize("board", ["rock960", "firefly-rk3399", "odroid-n2", "hikey970"])
def test_the_estimated_peak_is_the_sum(board: str) -> None:
    cpus = [target for target in load(board).targets if target.kind == "cpu"]
    found = load(board).target("+".join(target.name for target in cpus))
    assert found.estimated_peak_gflops == pytest.approx(sum(one.estimated_peak_gflops for one in cpus))


def test_measured_figures_count_where_all_are_known() -> None:
    one, other = ROCK.target("a72"), ROCK.target("a53")
    measured = msgspec.structs.replace(one, peak_gflops=20.0, measured_bandwidth_gbs=4.0)
    assert joined("b", [measured, other]).peak_gflops is None
    both = joined("b", [measured, msgspec.structs.replace(other, peak_gflops=30.0)])
    assert (both.peak_gflops, both.measured_bandwidth_gbs) == (50.0, 4.0)


def test_records_are_those_of_boards_with_the_same_cores() -> None:
    same = load("firefly-rk3399").target("a72+a53")
    assert same.key == BOTH.key
    others = {load(name).target("a73+a53").key for name in ("odroid-n2", "hikey970")}
    assert len(others | {BOTH.key, ROCK.target("a53").key}) == 4


def test_a_board_s_own_choice_is_one_of_its_targets() -> None:
    for name in board_names():
        if load(name).targets:
            assert load(name).target() in load(name).targets


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a72+mali", "mali is no CPU"),
        ("a72+a72", "share cores"),
    ],
)
def test_what_cannot_be_joined(name: str, text: str) -> None:
    with pytest.raises(UnfitTargets, match=text):
        ROCK.target(name)


def test_architectures_are_not_mixed() -> None:
    other: Target = msgspec.structs.replace(ROCK.target("a53"), triple="x86_64-unknown-linux-gnu")
    with pytest.raises(UnfitTargets, match="aarch64-unknown-linux-gnu"):
        joined("b", [ROCK.target("a72"), other])


@pytest.mark.parametrize("name", ["a72+", "+", "+a53", "a72+a35", "a72 + a53"])
def test_unknown_parts_are_named(name: str) -> None:
    with pytest.raises(UnknownTarget, match="expected a72 or a53 or mali"):
        ROCK.target(name)
