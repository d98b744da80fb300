"""The slots of a board: what each step changes, and what is refused."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest

from device_runtime.checked_json import write_checked
from device_runtime.installed.bundle_slots import MAX_FAILED_STARTS
from device_runtime.protocol import ProtocolError
from tests.slot_boards import SlotBoard, snapshot, three_bundles
from toolkit.bundle import sign, verify


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[int, verify.VerifiedBundle]:
    return three_bundles(tmp_path_factory.mktemp("bundles"))


@pytest.fixture
def board(tmp_path: Path, bundles: dict[int, verify.VerifiedBundle]) -> SlotBoard:
    return SlotBoard(tmp_path, bundles)


def test_a_flash_makes_the_bundle_current_and_committed(board: SlotBoard) -> None:
    board.flash(1)
    state = board.slots.state()
    assert (state["current"], state["committed"], state["previous"]) == (board.id(1), board.id(1), "")
    assert board.linked() == board.id(1)
    for part in board.bundles[1].manifest.parts:
        installed = board.device_dir / "current" / part.path
        assert installed.read_bytes() == board.bundles[1].read_part(part.path)
        assert installed.stat().st_mode & 0o222 == 0


def test_the_slot_before_is_kept_and_older_ones_go(board: SlotBoard) -> None:
    for number in (1, 2, 3):
        board.flash(number)
    state = board.slots.state()
    assert (state["committed"], state["previous"]) == (board.id(3), board.id(2))
    assert board.slots.installed() == sorted([board.id(2), board.id(3)])


def test_installing_again_changes_nothing(board: SlotBoard) -> None:
    assert board.install(1)["installed"] is True
    before = snapshot(board.device_dir / "slots")
    assert board.install(1)["installed"] is False
    assert snapshot(board.device_dir / "slots") == before


def test_a_damaged_slot_is_installed_anew(board: SlotBoard) -> None:
    board.flash(1)
    part = board.device_dir / "current" / board.bundles[1].manifest.parts[0].path
    part.chmod(0o644)
    part.write_bytes(part.read_bytes() + b"x")
    assert not board.slots.is_whole(board.id(1))
    assert board.install(1)["installed"] is True
    assert board.slots.is_whole(board.id(1))


def test_a_slot_with_files_that_cannot_be_removed_is_repaired_again_and_again(
    board: SlotBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as what Python compiles where root imports the model's module: only root may remove it."""
    board.flash(1)
    with monkeypatch.context() as without:
        without.setattr(shutil, "rmtree", lambda path, ignore_errors: None)
        for _ in range(3):
            (board.device_dir / "current" / board.bundles[1].manifest.parts[0].path).unlink()
            assert board.install(1)["installed"] is True
            assert board.slots.is_whole(board.id(1))
    with board.slots.locked():
        assert board.slots.installed() == [board.id(1)]
    assert not list((board.device_dir / "slots").glob(".removing-*"))


def test_only_a_tested_slot_is_activated_and_only_the_current_one_committed(board: SlotBoard) -> None:
    board.flash(1)
    board.install(2)
    slots = board.slots
    with slots.locked(), pytest.raises(ProtocolError, match="has not passed its self-test"):
        slots.activate(board.id(2))
    with slots.locked(), pytest.raises(ProtocolError, match=f"cannot be committed: {board.id(1)} is current"):
        slots.commit(board.id(2))
    assert board.linked() == board.id(1)


def test_rollback_from_a_trial_and_from_a_commit(board: SlotBoard) -> None:
    board.flash(1)
    board.flash(2)
    slots = board.slots
    with slots.locked():
        assert slots.rollback(board.id(2), "too slow") == board.id(1)
    assert board.linked() == board.id(1)
    assert slots.state()["last_failure"] == {"id": board.id(2), "text": "too slow"}
    with slots.locked():
        slots.activate(board.id(2))
        assert slots.status()["on_trial"]
        assert slots.rollback(board.id(2)) == board.id(1)
        assert slots.rollback(board.id(2)) == board.id(1)  # somebody was faster
    assert board.linked() == board.id(1)


def test_rollback_without_a_slot_before(board: SlotBoard) -> None:
    slots = board.slots
    with slots.locked(), pytest.raises(ProtocolError, match="there is nothing to go back to"):
        slots.rollback("")
    board.install(1)
    with slots.locked():
        slots.tested(board.id(1), None)
        slots.activate(board.id(1))
        assert slots.rollback(board.id(1)) == ""
    assert board.linked() == ""
    with slots.locked(), pytest.raises(ProtocolError, match="no bundle is installed"):
        slots.startable()


def test_three_failed_starts_fall_back(board: SlotBoard) -> None:
    board.flash(1)
    board.flash(2)
    slots = board.slots
    for _ in range(MAX_FAILED_STARTS - 1):
        with slots.locked():
            assert slots.startable() == board.id(2)
            slots.begin_start()
            slots.end_start(board.id(2), "crash: SIGSEGV")
    with slots.locked():
        assert slots.startable() == board.id(2)
        slots.begin_start()
        slots.end_start(board.id(2), "crash: SIGSEGV")
    assert board.linked() == board.id(1)
    assert slots.state()["last_failure"]["text"] == "3 failed starts in a row"


def test_starts_that_never_ended_count_as_failed(board: SlotBoard) -> None:
    board.flash(1)
    board.flash(2)
    slots = board.slots
    for _ in range(MAX_FAILED_STARTS):
        with slots.locked():
            slots.startable()
            slots.begin_start()
    with slots.locked():
        assert slots.startable() == board.id(1)


def test_a_good_start_and_one_given_up_do_not_count(board: SlotBoard) -> None:
    board.flash(1)
    board.flash(2)
    slots = board.slots
    for _ in range(2 * MAX_FAILED_STARTS):
        with slots.locked():
            slots.begin_start()
            slots.give_up_start(board.id(2))
    for _ in range(2):
        with slots.locked():
            slots.begin_start()
            slots.end_start(board.id(2), "crash")
    with slots.locked():
        slots.begin_start()
        slots.end_start(board.id(2), None)
    assert slots.state()["failed_starts"] == 0
    assert board.linked() == board.id(2)


def test_without_a_slot_before_failed_starts_change_nothing(board: SlotBoard) -> None:
    board.flash(1)
    slots = board.slots
    for _ in range(5):
        with slots.locked():
            assert slots.startable() == board.id(1)
            slots.begin_start()
            slots.end_start(board.id(1), "crash")


def test_a_current_slot_that_is_gone_falls_back(board: SlotBoard) -> None:
    board.flash(1)
    board.flash(2)
    shutil.rmtree(board.device_dir / "slots" / board.id(2))
    slots = board.slots
    with slots.locked():
        assert slots.startable() == board.id(1)


def test_state_of_another_version_is_refused(board: SlotBoard) -> None:
    board.flash(1)
    write_checked(board.slots.state_path, {**board.slots.state(), "version": 3})
    with pytest.raises(ProtocolError, match="has version 3, expected 2"):
        board.slots.state()
    Path(board.slots.state_path).write_text(json.dumps({"version": 1, "current": board.id(1)}))
    with pytest.raises(ProtocolError, match="has version 1, expected 2"):
        board.slots.state()


@pytest.mark.parametrize("name", ["../..", "", "state.json", "A" * 32, "0" * 31])
def test_only_bundle_ids_name_slots(board: SlotBoard, name: str) -> None:
    with pytest.raises(ProtocolError, match="expected a bundle id of 32 hexadecimal digits"):
        board.slots.folder(name)


# -------------------------------------------------------------------------------- refusals of an install


def _install_refused(board: SlotBoard, match: str) -> None:
    board.flash(1)
    before = snapshot(board.device_dir / "slots" / board.id(1))
    with pytest.raises(ProtocolError, match=match):
        board.install(2)
    slots = board.slots
    with slots.locked():
        assert slots.startable() == board.id(1)
    assert slots.installed() == [board.id(1)]
    assert snapshot(board.device_dir / "slots" / board.id(1)) == before


def test_a_flipped_signature(board: SlotBoard) -> None:
    file = board.objects / "signature-2"
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    _install_refused(board, f"the signature of bundle {board.id(2)} is refused")


def test_a_flipped_manifest(board: SlotBoard) -> None:
    file = board.objects / "manifest-2"
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    _install_refused(board, "is refused: it does not belong to this manifest")


def test_a_flipped_part(board: SlotBoard) -> None:
    part = next(p for p in board.bundles[2].manifest.parts if p.path.endswith("model.so"))
    file = board.objects / part.sha256
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    _install_refused(board, f"part {part.path}: expected {part.size_bytes} bytes with SHA-256")


def test_a_shorter_part(board: SlotBoard) -> None:
    part = next(p for p in board.bundles[2].manifest.parts if p.path.endswith("model.so"))
    (board.objects / part.sha256).write_bytes(b"")
    _install_refused(board, "found 0 with")


def test_a_stranger(board: SlotBoard, tmp_path: Path) -> None:
    stranger = sign.open_key(tmp_path / "stranger")
    (board.objects / "signature-2").write_bytes(stranger.sign(board.bundles[2].manifest_bytes))
    _install_refused(board, "is not in allowed_signers")


def test_nobody_is_trusted_yet(board: SlotBoard) -> None:
    (board.device_dir / "allowed_signers").unlink()
    with pytest.raises(ProtocolError, match="nobody is trusted to sign here"):
        board.install(1)


def test_another_machine(board: SlotBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(ProtocolError, match=r"has code for \w+, this board is riscv64"):
        board.install(1)


def test_a_full_disk(board: SlotBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    board.flash(1)
    monkeypatch.setattr("shutil.disk_usage", lambda path: _Usage)
    with pytest.raises(OSError, match="bytes are needed, 1000 are free") as caught:
        board.install(2)
    assert caught.value.errno == errno.ENOSPC
    assert not list((board.device_dir / "slots").glob(".installing-*"))
    assert board.linked() == board.id(1)


class _Usage:
    free = 1000
