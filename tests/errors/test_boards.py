"""What a user reads when a board's name or file is wrong: each rule has a broken file and a pinned text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from boards.board import load
from boards.errors import BadAddress, BadBoardFile, BoardError, UnknownBoard, UnknownTarget
from boards.rules import RULES

FILES = Path(__file__).parent / "boards"
BROKEN = sorted(path for path in FILES.glob("*.toml") if path.stem != "good")


@pytest.mark.parametrize("path", BROKEN, ids=lambda path: path.stem)
def test_a_broken_file_is_refused_with_its_pinned_message(
    path: Path, golden: Callable[[str, str], None]
) -> None:
    with pytest.raises(BadBoardFile) as caught:
        load(path)
    message = str(caught.value).replace(str(path), path.name)
    golden(f"boards/{path.stem}.txt", message + "\n")
    assert caught.value.exit_code == 2
    assert caught.value.file == str(path)
    assert caught.value.expected and caught.value.found


def test_every_rule_has_a_file_that_breaks_it() -> None:
    broken = set()
    for path in BROKEN:
        with pytest.raises(BadBoardFile) as caught:
            load(path)
        broken |= {problem.rule for problem in caught.value.problems}
    assert {name for name, _ in RULES} <= broken


def test_a_file_that_breaks_nothing_loads() -> None:
    assert load(FILES / "good.toml").measure.repeat == 5


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("rpi3", ("rpi3b", "rpi5", "rpi4")),
        ("Host", ("host",)),
        ("jetson-orin", ("jetson-orin-nano", "jetson-nano")),
    ],
)
def test_an_unknown_board_names_the_near_ones(name: str, near: tuple[str, ...]) -> None:
    with pytest.raises(UnknownBoard, match="did you mean") as caught:
        load(name)
    assert caught.value.near == near
    assert all(board in str(caught.value) for board in near)


def test_a_board_like_no_other_gets_the_whole_list() -> None:
    with pytest.raises(UnknownBoard, match=r"known boards: emulated-a53, firefly-rk3399, .*ultra96"):
        load("zzz")


def test_an_unknown_target_names_the_known_ones() -> None:
    with pytest.raises(UnknownTarget, match="no target named 'a73': expected a72 or a53 or mali"):
        load("rock960").target("a73")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("host@pi", "its link is 'local', which has no address"),
        ("rpi3b@pi @x", r"expected \[USER@\]HOST\[:PORT\]"),
        ("rpi3b@pi@x:99999", "expected a port from 1 to 65535, found 99999"),
    ],
)
def test_a_bad_address_says_what_is_wrong_with_it(name: str, reason: str) -> None:
    with pytest.raises(BadAddress, match=reason):
        load(name)


def test_unreadable_files_are_board_errors(tmp_path: Path) -> None:
    latin = tmp_path / "latin.toml"
    latin.write_bytes('title = "Größe"'.encode("latin-1"))
    for path, words in (
        (tmp_path / "none.toml", "No such file"),
        (tmp_path, "Is a directory"),
        (latin, "utf-8"),
    ):
        with pytest.raises(BoardError, match=words):
            load(path)
