"""The slots of a board: what each step changes, what is refused, what is left when it is killed anywhere."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from device_runtime.installed import MAX_FAILED_STARTS, Slots
from device_runtime.protocol import ProtocolError
from tests.bundles import small_model, write_bundle
from toolkit.bundle import sign, verify

FILE_EVENTS = (
    "open",
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.symlink",
    "os.truncate",
    "os.chmod",
)


class Board:
    """A device directory, and bundles whose objects lie in a folder by hash."""

    def __init__(self, folder: Path, bundles: dict[int, verify.VerifiedBundle]) -> None:
        self.device_dir = folder / "device"
        self.objects = folder / "objects"
        self.bundles = bundles
        self.device_dir.mkdir()
        self.objects.mkdir()
        signer = bundles[1].signer
        (self.device_dir / "allowed_signers").write_text(signer.allowed_signers_line)
        for number, bundle in bundles.items():
            for part in bundle.manifest.parts:
                (self.objects / part.sha256).write_bytes(bundle.read_part(part.path))
            (self.objects / f"manifest-{number}").write_bytes(bundle.manifest_bytes)
            (self.objects / f"signature-{number}").write_bytes(bundle.signature)

    @property
    def slots(self) -> Slots:
        return Slots(str(self.device_dir))

    def id(self, number: int) -> str:
        return self.bundles[number].id

    def install(self, number: int) -> dict[str, object]:
        slots = self.slots
        with slots.locked():
            manifest, signature = (
                str(self.objects / f"{kind}-{number}") for kind in ("manifest", "signature")
            )
            return slots.install(manifest, signature, lambda sha: str(self.objects / sha))

    def flash(self, number: int) -> None:
        """What a whole flash changes; the model itself is run elsewhere."""
        self.install(number)
        slots, bundle_id = self.slots, self.id(number)
        with slots.locked():
            slots.tested(bundle_id, None)
        with slots.locked():
            slots.activate(bundle_id)
        with slots.locked():
            slots.startable()
            slots.begin_start()
        with slots.locked():
            slots.end_start(bundle_id, None)
        with slots.locked():
            slots.commit(bundle_id)

    def linked(self) -> str:
        """The slot that an application finds behind `current`; "" when there is no link."""
        link = self.device_dir / "current"
        return link.readlink().name if link.is_symlink() else ""


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[int, verify.VerifiedBundle]:
    folder = tmp_path_factory.mktemp("bundles")
    key = sign.open_key(folder / "signing_key")
    paths = {number: write_bundle(folder, key, small_model(number), f"{number}.tfb") for number in (1, 2, 3)}
    return {number: verify.open_bundle(path, [key.public]) for number, path in paths.items()}


@pytest.fixture
def board(tmp_path: Path, bundles: dict[int, verify.VerifiedBundle]) -> Board:
    return Board(tmp_path, bundles)


def test_a_flash_makes_the_bundle_current_and_committed(board: Board) -> None:
    board.flash(1)
    state = board.slots.state()
    assert (state["current"], state["committed"], state["previous"]) == (board.id(1), board.id(1), "")
    assert board.linked() == board.id(1)
    for part in board.bundles[1].manifest.parts:
        installed = board.device_dir / "current" / part.path
        assert installed.read_bytes() == board.bundles[1].read_part(part.path)
        assert installed.stat().st_mode & 0o222 == 0


def test_the_slot_before_is_kept_and_older_ones_go(board: Board) -> None:
    for number in (1, 2, 3):
        board.flash(number)
    state = board.slots.state()
    assert (state["committed"], state["previous"]) == (board.id(3), board.id(2))
    assert board.slots.installed() == sorted([board.id(2), board.id(3)])


def test_installing_again_changes_nothing(board: Board) -> None:
    assert board.install(1)["installed"] is True
    before = _snapshot(board.device_dir / "slots")
    assert board.install(1) == {"id": board.id(1), "installed": False}
    assert _snapshot(board.device_dir / "slots") == before


def test_a_damaged_slot_is_installed_anew(board: Board) -> None:
    board.flash(1)
    part = board.device_dir / "current" / board.bundles[1].manifest.parts[0].path
    part.chmod(0o644)
    part.write_bytes(part.read_bytes() + b"x")
    assert not board.slots.is_whole(board.id(1))
    assert board.install(1)["installed"] is True
    assert board.slots.is_whole(board.id(1))


def test_only_a_tested_slot_is_activated_and_only_the_current_one_committed(board: Board) -> None:
    board.flash(1)
    board.install(2)
    slots = board.slots
    with slots.locked(), pytest.raises(ProtocolError, match="has not passed its self-test"):
        slots.activate(board.id(2))
    with slots.locked(), pytest.raises(ProtocolError, match=f"cannot be committed: {board.id(1)} is current"):
        slots.commit(board.id(2))
    assert board.linked() == board.id(1)


def test_rollback_from_a_trial_and_from_a_commit(board: Board) -> None:
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


def test_rollback_without_a_slot_before(board: Board) -> None:
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


def test_three_failed_starts_fall_back(board: Board) -> None:
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


def test_starts_that_never_ended_count_as_failed(board: Board) -> None:
    board.flash(1)
    board.flash(2)
    slots = board.slots
    for _ in range(MAX_FAILED_STARTS):
        with slots.locked():
            slots.startable()
            slots.begin_start()
    with slots.locked():
        assert slots.startable() == board.id(1)


def test_a_good_start_and_one_given_up_do_not_count(board: Board) -> None:
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


def test_without_a_slot_before_failed_starts_change_nothing(board: Board) -> None:
    board.flash(1)
    slots = board.slots
    for _ in range(5):
        with slots.locked():
            assert slots.startable() == board.id(1)
            slots.begin_start()
            slots.end_start(board.id(1), "crash")


def test_a_current_slot_that_is_gone_falls_back(board: Board) -> None:
    board.flash(1)
    board.flash(2)
    shutil.rmtree(board.device_dir / "slots" / board.id(2))
    slots = board.slots
    with slots.locked():
        assert slots.startable() == board.id(1)


def test_state_of_another_version_is_refused(board: Board) -> None:
    board.flash(1)
    path = Path(board.slots.state_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))
    with pytest.raises(ProtocolError, match="has version 2, expected 1"):
        board.slots.state()


@pytest.mark.parametrize("name", ["../..", "", "state.json", "A" * 32, "0" * 31])
def test_only_bundle_ids_name_slots(board: Board, name: str) -> None:
    with pytest.raises(ProtocolError, match="expected a bundle id of 32 hexadecimal digits"):
        board.slots.folder(name)


# -------------------------------------------------------------------------------- refusals of an install


def _install_refused(board: Board, match: str) -> None:
    board.flash(1)
    before = _snapshot(board.device_dir / "slots" / board.id(1))
    with pytest.raises(ProtocolError, match=match):
        board.install(2)
    slots = board.slots
    with slots.locked():
        assert slots.startable() == board.id(1)
    assert slots.installed() == [board.id(1)]
    assert _snapshot(board.device_dir / "slots" / board.id(1)) == before


def test_a_flipped_signature(board: Board) -> None:
    file = board.objects / "signature-2"
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    _install_refused(board, "the bundle's signature is refused")


def test_a_flipped_manifest(board: Board) -> None:
    file = board.objects / "manifest-2"
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    _install_refused(board, "the bundle's signature is refused: it does not belong to this manifest")


def test_a_flipped_part(board: Board) -> None:
    part = next(p for p in board.bundles[2].manifest.parts if p.path.endswith("model.so"))
    file = board.objects / part.sha256
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    _install_refused(board, f"part {part.path}: expected {part.size_bytes} bytes with SHA-256")


def test_a_shorter_part(board: Board) -> None:
    part = next(p for p in board.bundles[2].manifest.parts if p.path.endswith("model.so"))
    (board.objects / part.sha256).write_bytes(b"")
    _install_refused(board, "found 0 with")


def test_a_stranger(board: Board, tmp_path: Path) -> None:
    stranger = sign.open_key(tmp_path / "stranger")
    (board.objects / "signature-2").write_bytes(stranger.sign(board.bundles[2].manifest_bytes))
    _install_refused(board, "is not in allowed_signers")


def test_nobody_is_trusted_yet(board: Board) -> None:
    (board.device_dir / "allowed_signers").unlink()
    with pytest.raises(ProtocolError, match="nobody is trusted to sign here"):
        board.install(1)


def test_another_machine(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(ProtocolError, match=r"has code for \w+, this board is riscv64"):
        board.install(1)


def test_a_full_disk(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    board.flash(1)
    monkeypatch.setattr("shutil.disk_usage", lambda path: _Usage)
    with pytest.raises(ProtocolError, match="no space for the bundle") as caught:
        board.install(2)
    assert caught.value.code == "no_space"
    assert board.linked() == board.id(1)


class _Usage:
    free = 1000


# -------------------------------------------------------------------------------------- killed anywhere


@pytest.mark.slow
def test_killed_before_every_file_operation_of_a_first_flash(board: Board) -> None:
    _kill_everywhere(board, lambda: board.flash(1), wanted=1, before=0)


@pytest.mark.slow
def test_killed_before_every_file_operation_of_an_update(board: Board) -> None:
    board.flash(3)
    board.flash(1)
    _kill_everywhere(board, lambda: board.flash(2), wanted=2, before=1)


def test_killed_before_every_file_operation_of_a_rollback(board: Board) -> None:
    board.flash(2)
    board.flash(1)

    def roll_back() -> None:
        slots = board.slots
        with slots.locked():
            slots.rollback(board.id(1))

    _kill_everywhere(board, roll_back, wanted=2, before=1)


def _kill_everywhere(board: Board, work: Callable[[], None], wanted: int, before: int) -> None:
    """Do `work` in processes killed before their 1st, 2nd, ... file operation, each from the same start."""
    kept = board.device_dir.with_name("kept")
    shutil.copytree(board.device_dir, kept, symlinks=True)
    count = 0
    while _killed(work, count):
        allowed = {board.id(number) for number in (wanted, before) if number}
        if before or board.linked():
            _assert_runs(board, board.linked(), allowed)  # what an application sees, before anybody cleans up
        slots = board.slots
        with slots.locked():
            current = slots.state()["current"]
            assert board.linked() == current
            if before or current:
                _assert_runs(board, slots.startable(), allowed)
        work()  # the same again finishes it
        assert board.linked() == board.slots.state()["committed"] == board.id(wanted)
        leftovers = [name for name in os.listdir(slots.slots_dir) if name.startswith((".in", ".rem"))]
        assert leftovers == []
        shutil.rmtree(board.device_dir)
        shutil.copytree(kept, board.device_dir, symlinks=True)
        count += 1
    assert count > 10


def _assert_runs(board: Board, bundle_id: str, allowed: set[str]) -> None:
    assert bundle_id in allowed
    assert board.slots.is_whole(bundle_id)


def _killed(work: Callable[[], None], at: int) -> bool:
    """Run `work` in a child that is killed before file operation `at`; False when it ended before that."""
    pid = os.fork()
    if pid == 0:
        seen = 0

        def watch(event: str, _: object) -> None:
            nonlocal seen
            if event in FILE_EVENTS:
                if seen == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                seen += 1

        sys.addaudithook(watch)
        try:
            work()
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 1)
    _, status = os.waitpid(pid, 0)
    assert status in (0, signal.SIGKILL), status
    return status != 0


def _snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of change of every file below a folder."""
    return {
        str(path): (path.lstat().st_ino, path.lstat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.name != ".lock"
    }
