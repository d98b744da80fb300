"""Who may sign for a board, which board a bundle is for, and how old it may be; and a state that is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from device_runtime.protocol import UNTRUSTED, ProtocolError
from tests.bundles import small_model, write_bundle
from tests.quick import others_slow
from tests.slot_boards import SlotBoard, three_bundles
from toolkit.bundle import sign, verify


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[int, verify.VerifiedBundle]:
    """1 to 3, and 4 by another signer."""
    folder = tmp_path_factory.mktemp("bundles")
    other = sign.open_key(folder / "other_key")
    path = write_bundle(folder, other, small_model(4), "4.tfb", counter=4)
    return {**three_bundles(folder), 4: verify.open_bundle(path, [other.public])}


@pytest.fixture
def board(tmp_path: Path, bundles: dict[int, verify.VerifiedBundle]) -> SlotBoard:
    board = SlotBoard(tmp_path, bundles)
    _trust(board, 1, 4)
    return board


def _trust(board: SlotBoard, *numbers: int) -> None:
    lines = [board.bundles[number].signer.allowed_signers_line for number in numbers]
    (board.device_dir / "allowed_signers").write_text("".join(lines))


# ------------------------------------------------------------------------------------------- revocation


def test_a_revoked_signer_can_do_nothing_with_what_lies_in_a_slot(board: SlotBoard) -> None:
    board.flash(1)
    board.install(2)
    slots = board.slots
    slots.tested(board.id(2), None)
    _trust(board, 4)
    for step in (lambda: board.install(2), lambda: slots.activate(board.id(2)), slots.startable):
        with pytest.raises(ProtocolError, match="is not in allowed_signers") as refused:
            step()
        assert refused.value.code == UNTRUSTED
    assert board.linked() == board.id(1)  # what an application has open is not pulled away
    status = slots.status()
    assert [slot["refused"] != "" for slot in status["slots"]] == [True, True]


def test_there_is_no_way_back_to_a_revoked_signer(board: SlotBoard) -> None:
    board.flash(1)
    board.flash(4)
    _trust(board, 4)
    slots = board.slots
    with slots.locked(), pytest.raises(ProtocolError, match="is not in allowed_signers"):
        slots.rollback(board.id(4))
    for _ in range(5):
        with slots.locked():
            assert slots.startable() == board.id(4)
            slots.begin_start()
            slots.end_start(board.id(4), "crash")
    assert board.linked() == board.id(4)


def test_a_trial_goes_back_to_the_last_trusted_slot_or_to_none(board: SlotBoard) -> None:
    board.flash(1)
    board.flash(2)
    board.install(4)
    slots = board.slots
    slots.tested(board.id(4), None)
    with slots.locked():
        slots.activate(board.id(4))
    _trust(board, 4)
    with slots.locked():
        assert slots.rollback(board.id(4), "it crashed") == ""
    assert board.linked() == ""
    board.flash(4)
    assert slots.installed() == [board.id(4)]


def test_a_bundle_that_a_trusted_signer_signs_again_is_installed_anew(
    board: SlotBoard, tmp_path: Path
) -> None:
    board.flash(1)
    _trust(board, 4)
    again = sign.open_key(tmp_path / "again")
    (board.device_dir / "allowed_signers").write_text(again.public.allowed_signers_line)
    (board.objects / "signature-1").write_bytes(again.sign(board.bundles[1].manifest_bytes))
    assert board.install(1)["installed"] is True
    with board.slots.locked():
        assert board.slots.startable() == board.id(1)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\xff\xfe", "is damaged: expected lines of text"),
        (b"", "is not in allowed_signers"),
        (None, "does not exist"),
    ],
)
def test_damaged_signers_are_nobody(board: SlotBoard, content: bytes | None, text: str) -> None:
    board.flash(1)
    path = board.device_dir / "allowed_signers"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with board.slots.locked(), pytest.raises(ProtocolError, match=text):
        board.slots.startable()


# --------------------------------------------------------------------------------------------------- age


def test_an_older_bundle_is_refused_unless_a_signer_permits_it(board: SlotBoard) -> None:
    board.flash(1)
    board.flash(3)
    older = "its counter is 2, the highest of 'small' is 3; .* flash it with --allow-downgrade"
    with pytest.raises(ProtocolError, match=older) as refused:
        board.install(2)
    assert refused.value.code == UNTRUSTED
    with board.slots.locked(), pytest.raises(ProtocolError, match="its counter is 1"):
        board.slots.activate(board.id(1))
    board.flash(2, permitted=True)
    with pytest.raises(ProtocolError, match="its counter is 1, the highest of 'small' is 2"):
        board.install(1)


def test_the_way_back_needs_no_permission_and_opens_no_other(board: SlotBoard) -> None:
    board.flash(1)
    board.flash(3)
    with board.slots.locked():
        assert board.slots.rollback(board.id(3)) == board.id(1)
        assert board.slots.startable() == board.id(1)
        board.slots.commit(board.id(1))
    (board.device_dir / "current" / "manifest.json.sig").unlink()
    assert board.install(1)["installed"] is True  # what was gone back to may be repaired
    with pytest.raises(ProtocolError, match="the highest of 'small' is 3"):
        board.install(2)
    board.flash(3)


# ------------------------------------------------------------------------------------------------- board


def test_the_first_bundle_names_the_board(board: SlotBoard) -> None:
    with pytest.raises(ProtocolError, match="the bundle is for host, this board is rpi3b"):
        board.install(1, board="rpi3b")
    assert not (board.device_dir / "board_name").exists()
    board.install(1, board="host")
    assert (board.device_dir / "board_name").read_text() == "host\n"
    with pytest.raises(ProtocolError, match="the host calls this board 'rpi3b', by .*board_name it is host"):
        board.install(2, board="rpi3b")


@pytest.mark.parametrize(
    ("name", "text"), [("rpi3b", "this board is rpi3b"), ("", "is damaged: expected the name")]
)
def test_a_bundle_for_another_board_neither_goes_in_nor_starts(
    board: SlotBoard, name: str, text: str
) -> None:
    board.flash(1)
    (board.device_dir / "board_name").write_text(name)
    for step in (lambda: board.install(2), board.slots.startable):
        with pytest.raises(ProtocolError, match=text):
            step()


# ------------------------------------------------------------------------------------------------- state


@pytest.mark.parametrize(
    "content",
    others_slow(
        [
            b"",
            b"\xff\xfe\x00",
            b"[]",
            b"{}",
            b"null",
            b"[" * 100_000,
            b'{"version": "2"}',
            b'{"version": 1e999}',
            None,
        ],
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"version": "2"}',
        None,
    ),
    ids=lambda content: str(content)[:20],
)
def test_a_lost_state_is_made_again_from_the_slots(board: SlotBoard, content: bytes | None) -> None:
    board.flash(1)
    board.flash(3)
    path = Path(board.slots.state_path)
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    slots = board.slots
    assert slots.status()["current"] == board.id(3)
    with slots.locked():
        assert slots.startable() == board.id(3)
    assert "the state was made again from the slots" in slots.state()["last_failure"]["text"]
    with pytest.raises(ProtocolError, match="the highest of 'small' is 3"):
        board.install(2)
    board.flash(3)


def test_a_changed_digit_of_the_state_is_seen(board: SlotBoard) -> None:
    board.flash(3)
    path = Path(board.slots.state_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "counters": {"small": 2}}))
    with pytest.raises(ProtocolError, match="the highest of 'small' is 3"):
        board.install(2)
