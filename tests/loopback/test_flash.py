"""Bundles flashed into a device directory on this machine, through a real runtime."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from boards.board import Board, load
from device_runtime.protocol import permission_text
from tests.bundles import SmallModel, contents, host_target, small_model, write_bundle
from tests.loopback.flashing import Flasher
from toolkit.bundle import pack, sign
from toolkit.bundle.verify import open_bundle
from toolkit.errors import (
    BoardBusy,
    InputError,
    NotCommitted,
    OutputError,
    RolledBack,
    VerificationError,
)
from toolkit.flash import job as flashing
from toolkit.flash.replies import VerifiedSlots
from toolkit.flash.values import FlashEvent, FlashProgress
from toolkit.measure.replies import Reply
from toolkit.measure.session import open_session


@pytest.fixture
def flasher(local_board: Board, tmp_path: Path) -> Flasher:
    return Flasher(local_board, tmp_path)


def test_a_first_flash_installs_and_the_model_runs(flasher: Flasher) -> None:
    events: list[FlashEvent] = []
    report = flasher.flash(1, events.append)
    assert report.changed
    assert report.previous == ""
    assert 0 < report.missing_bytes <= report.total_bytes
    assert report.max_relative_error <= 1e-4
    steps = [
        "verify",
        "connect",
        "trust",
        "upload",
        "install",
        "self_test",
        "activate",
        "health_check",
        "commit",
    ]
    assert [event.step for event in events if event.state == "begin"] == steps
    moved = [event.done_bytes for event in events if event.state == "progress"]
    assert moved == sorted(moved)
    assert moved[-1] == report.missing_bytes
    status = flasher.status()
    assert (status.current, status.committed, status.on_trial) == (report.bundle_id, report.bundle_id, False)
    assert status.slots[0].inputs[0].shape == (4, 8)
    flasher.assert_runs(1)


def test_a_second_flash_changes_nothing(flasher: Flasher) -> None:
    flasher.flash(1)
    before = flasher.snapshot()
    events: list[FlashEvent] = []
    report = flasher.flash(1, events.append)
    assert not report.changed
    assert report.missing_bytes == 0
    assert {event.step for event in events} == {"verify", "connect"}
    assert flasher.snapshot() == before


@pytest.mark.slow
def test_an_update_uploads_what_changed_and_rollback_brings_the_old_one_back(flasher: Flasher) -> None:
    first = flasher.flash(1)
    second = flasher.flash(2)
    assert second.previous == first.bundle_id
    assert second.missing_bytes < second.total_bytes
    flasher.assert_runs(2)
    status = flashing.roll_back(flasher.board, flasher.options)
    assert (status.current, status.committed, status.previous) == (
        first.bundle_id,
        first.bundle_id,
        second.bundle_id,
    )
    flasher.assert_runs(1)
    flasher.flash(2)
    flasher.assert_runs(2)


@pytest.mark.slow
def test_rollback_without_a_bundle_before(flasher: Flasher) -> None:
    with pytest.raises(InputError, match="there is nothing to go back to"):
        flashing.roll_back(flasher.board, flasher.options)
    flasher.flash(1)
    with pytest.raises(InputError, match="there is nothing to go back to; flash a bundle instead"):
        flashing.roll_back(flasher.board, flasher.options)
    flasher.assert_runs(1)


def test_a_dry_run_changes_nothing(flasher: Flasher) -> None:
    options = replace(flasher.options, dry_run=True)
    report = flashing.flash_bundle(flasher.bundle(1), flasher.board, options)
    assert (report.changed, report.dry_run, report.missing_bytes) == (False, True, report.total_bytes)
    assert flasher.status().slots == ()
    assert not (flasher.device_dir / "allowed_signers").exists()


# ------------------------------------------------------------------------ bundles that fail on the board


def _wrong_golden(model: SmallModel) -> SmallModel:
    y = model.y.copy()
    y[-1, -1] *= 1.001
    return dataclasses.replace(model, y=y)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "timeout_s", "reason"),
    [
        (_wrong_golden(small_model(2)), 60.0, "self-test failed: wrong_answer: output y: max .error."),
        (small_model(2, "crash"), 60.0, "self-test failed: crash: killed by SIG"),
        (
            small_model(2, "failing"),
            60.0,
            "self-test failed: crash: the model returned -1: a kernel reported",
        ),
        (small_model(2, "hang"), 1.0, "self-test failed: timeout: no answer within 1 s"),
    ],
    ids=["golden", "crash", "failing", "hang"],
)
def test_a_bundle_that_fails_its_self_test_is_not_kept(
    flasher: Flasher, broken: SmallModel, timeout_s: float, reason: str
) -> None:
    first = flasher.flash(1)
    path = flasher.pack(broken)
    options = replace(flasher.options, test_timeout_s=timeout_s)
    with pytest.raises(RolledBack, match=reason) as caught:
        flashing.flash_bundle(path, flasher.board, options)
    assert caught.value.exit_code == 7
    assert f"Slot {first.bundle_id} is current, as before" in str(caught.value)
    flasher.assert_runs(1)
    assert flasher.status().current == flasher.status().committed == first.bundle_id


@pytest.mark.slow
def test_a_first_bundle_that_fails_leaves_nothing_current(flasher: Flasher) -> None:
    with pytest.raises(VerificationError, match="No other bundle is installed") as caught:
        flashing.flash_bundle(flasher.pack(_wrong_golden(small_model(1))), flasher.board, flasher.options)
    assert caught.value.exit_code == 6
    assert flasher.status().current == ""
    with pytest.raises(InputError, match="no bundle is installed on this board; flash one first"):
        flashing.run(flasher.board, [small_model(1).x.tobytes()], options=flasher.options)
    flasher.flash(1)
    flasher.assert_runs(1)


@pytest.mark.slow
def test_a_bundle_that_does_not_start_is_rolled_back(flasher: Flasher) -> None:
    """It breaks between self-test and start, as bad storage would have it."""
    first = flasher.flash(1)

    def damage(event: FlashEvent) -> None:
        if (event.step, event.state) == ("activate", "end"):
            library = flasher.device_dir / "current" / host_target().name / "model.so"
            library.chmod(0o644)
            data = bytearray(library.read_bytes())
            data[len(data) // 2] ^= 1
            library.write_bytes(data)

    with pytest.raises(RolledBack, match="does not start: link: .*model.so is damaged"):
        flasher.flash(2, damage)
    status = flasher.status()
    assert (status.current, status.on_trial) == (first.bundle_id, False)
    assert status.last_failure is not None
    flasher.assert_runs(1)
    flasher.flash(2)  # installs it anew
    flasher.assert_runs(2)


@pytest.mark.slow
def test_three_failed_starts_bring_the_bundle_before_back(flasher: Flasher) -> None:
    flasher.flash(1)
    second = flasher.flash(2)
    library = flasher.device_dir / "current" / host_target().name / "model.so"
    library.unlink()
    for _ in range(3):
        with pytest.raises(VerificationError, match=f"the model in slot {second.bundle_id} failed: link"):
            flasher.run()
    flasher.assert_runs(1)
    assert flasher.status().last_failure == {"id": second.bundle_id, "text": "3 failed starts in a row"}


# ------------------------------------------------------------------------------------------- refusals


@pytest.mark.slow
def test_a_signer_the_board_does_not_trust(flasher: Flasher, tmp_path: Path) -> None:
    first = flasher.flash(1)
    other = Flasher(flasher.board, tmp_path / "other")
    with pytest.raises(VerificationError, match="does not trust the signer of") as caught:
        other.flash(2)
    line = other.key.public.allowed_signers_line
    assert line.strip() in str(caught.value)
    assert flasher.status().current == first.bundle_id
    with (flasher.device_dir / "allowed_signers").open("a") as signers:
        signers.write(line)
    other.flash(2)
    flasher.assert_runs(2)


@pytest.mark.slow
def test_an_older_bundle_needs_this_hosts_permission(flasher: Flasher) -> None:
    flasher.flash(1)
    second = flasher.flash(2)
    with pytest.raises(VerificationError, match="counter is 1, .* is 2; .* flash it with --allow-downgrade"):
        flasher.flash(1)
    assert flasher.status().current == second.bundle_id
    flashing.roll_back(flasher.board, flasher.options)  # the way back is open without
    flasher.flash(2)
    flasher.options = replace(flasher.options, allow_downgrade=True)
    flasher.flash(1)
    flasher.assert_runs(1)


@pytest.mark.slow
def test_a_permission_of_a_stranger_or_of_another_connection_permits_nothing(
    flasher: Flasher, tmp_path: Path
) -> None:
    flasher.flash(1)
    flasher.flash(2)
    bundle = open_bundle(flasher.bundle(1), [flasher.key.public])
    stranger = sign.open_key(tmp_path / "stranger")
    with open_session(flasher.board, cache_dir=flasher.options.cache_dir) as session:
        sent = {"manifest": session.put(bundle.manifest_bytes), "signature": session.put(bundle.signature)}
        nonce = session.call("slots", VerifiedSlots, verify="").nonce
        for key, what in (
            (stranger, permission_text(bundle.id, nonce)),
            (flasher.key, permission_text(bundle.id, "0" * 32)),
            (flasher.key, permission_text("0" * 32, nonce)),
            (flasher.key, bundle.manifest_bytes),
        ):
            permission = session.put(key.sign(what))
            with pytest.raises(VerificationError, match="the permission to downgrade is refused"):
                session.call("install", Reply, board="host", permission=permission, **sent)


@pytest.mark.slow
def test_a_revoked_signer_neither_flashes_nor_starts_nor_comes_back(flasher: Flasher, tmp_path: Path) -> None:
    first = flasher.flash(1)
    other = Flasher(flasher.board, tmp_path / "other")
    signers = flasher.device_dir / "allowed_signers"
    signers.write_text(signers.read_text() + other.key.public.allowed_signers_line)
    other.flash(2)
    signers.write_text(other.key.public.allowed_signers_line)
    with pytest.raises(VerificationError, match="is not in allowed_signers"):
        flashing.roll_back(flasher.board, flasher.options)
    with pytest.raises(VerificationError, match="does not trust the signer of"):
        flasher.flash(1)
    refused = {slot.id: slot.refused for slot in flasher.status().slots}
    assert "is not in allowed_signers" in refused.pop(first.bundle_id)
    assert set(refused.values()) == {""}
    signers.write_text(flasher.key.public.allowed_signers_line)
    with pytest.raises(VerificationError, match="it is not started: flash another bundle, or go back"):
        flasher.run()
    flashing.roll_back(flasher.board, flasher.options)
    flasher.assert_runs(1)


def test_a_signer_this_host_does_not_trust(flasher: Flasher, tmp_path: Path) -> None:
    path = write_bundle(tmp_path, sign.open_key(tmp_path / "stranger"), small_model(1))
    with pytest.raises(VerificationError, match="which is not trusted here"):
        flashing.flash_bundle(path, flasher.board, flasher.options)
    assert not flasher.device_dir.exists()


def test_a_bundle_for_another_board(flasher: Flasher, tmp_path: Path) -> None:
    path = tmp_path / "other.tfb"
    path.write_bytes(pack.pack(contents(small_model(1), boards=("rpi3b", "ultra96")), flasher.key))
    with pytest.raises(
        InputError, match="is for rpi3b, ultra96, not for host; tune the model with --board host"
    ):
        flashing.flash_bundle(path, flasher.board, flasher.options)


@pytest.mark.slow
def test_a_board_that_somebody_holds(flasher: Flasher) -> None:
    with (
        open_session(flasher.board, cache_dir=flasher.options.cache_dir, holder="the tests"),
        pytest.raises(BoardBusy, match="held by the tests"),
    ):
        flasher.flash(1)
    flasher.flash(1)


def test_a_target_that_the_bundle_has_no_code_for(flasher: Flasher) -> None:
    options = replace(flasher.options, target="a72")
    words = "has no variant for the target 'a72', only for cpu; name one of these with --target"
    with pytest.raises(InputError, match=words):
        flashing.flash_bundle(flasher.bundle(1), flasher.board, options)
    flasher.flash(1)
    with pytest.raises(InputError, match=words):  # also where nothing would change
        flashing.flash_bundle(flasher.bundle(1), flasher.board, options)


@pytest.mark.slow
def test_inputs_that_do_not_fit(flasher: Flasher) -> None:
    flasher.flash(1)
    with pytest.raises(InputError, match=r"input x: expected 128 bytes \(float32 \[4, 8\]\), found 3"):
        flashing.run(flasher.board, [b"abc"], options=flasher.options)
    with pytest.raises(InputError, match=r"expected 1 objects \(x\), found 0"):
        flashing.run(flasher.board, [], options=flasher.options)
    assert flasher.status().failed_starts == 0


# ------------------------------------------------------------------------------------------ other ways


@pytest.mark.slow
def test_an_upload_goes_on_where_it_stopped(flasher: Flasher, tmp_path: Path) -> None:
    """The board goes away in the middle of a large part; the next flash sends only the rest."""
    model = small_model(1)
    large = np.random.default_rng(5).bytes(8 << 20)
    plan = replace(model.plan, parameters=model.plan.parameters + large)
    path = flasher.pack(dataclasses.replace(model, plan=plan))

    def interrupt(event: FlashEvent) -> None:
        if event.state == "progress" and event.done_bytes > 3 << 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        flashing.flash_bundle(path, flasher.board, flasher.options, interrupt)
    report = flashing.flash_bundle(path, flasher.board, flasher.options)
    assert report.changed
    assert report.missing_bytes <= report.total_bytes - (3 << 20)
    flasher.assert_runs(1)


@pytest.mark.slow
def test_many_runs_are_timed(flasher: Flasher) -> None:
    flasher.flash(1)
    result = flashing.run(flasher.board, [small_model(1).x.tobytes()], repeat=5, options=flasher.options)
    assert len(result.seconds) == 5
    assert all(seconds > 0 for seconds in result.seconds)


@pytest.mark.slow
def test_running_out_of_time_is_no_failed_start(flasher: Flasher) -> None:
    """Three runs that started and then took too long do not bring the bundle before back."""
    flasher.flash(1)
    path = flasher.pack(small_model(2, "tiring"))
    report = flashing.flash_bundle(path, flasher.board, flasher.options)
    options = replace(flasher.options, test_timeout_s=0.4)
    for _ in range(3):
        with pytest.raises(VerificationError, match="failed: timeout"):
            flashing.run(flasher.board, [small_model(1).x.tobytes()], repeat=9, options=options)
    status = flasher.status()
    assert (status.current, status.failed_starts) == (report.bundle_id, 0)
    flasher.assert_runs(2)


def test_the_current_bundle_is_found_by_applications(flasher: Flasher) -> None:
    """`current` is a plain link to a folder with the library and its header."""
    flasher.flash(1)
    link = flasher.device_dir / "current"
    assert os.path.islink(link)
    assert sorted(path.name for path in (link / host_target().name).iterdir()) == [
        "model.h",
        "model.so",
        "plan.json",
        "tfb_model.pc",
        "tfb_model.py",
    ]


@pytest.mark.slow
def test_a_slot_whose_python_module_was_imported_is_whole(flasher: Flasher) -> None:
    """Python keeps compiled modules in a folder beside them where it may write."""
    report = flasher.flash(1)
    folder = flasher.device_dir / "current" / host_target().name
    command = [sys.executable, "-c", "from tfb_model import model; print(model.inputs[0].name)"]
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.stdout == "x\n", done.stderr
    assert (folder / "__pycache__").is_dir()
    assert not flasher.flash(1).changed
    (slot,) = flasher.status().slots
    assert not slot.damaged and slot.tested and not slot.refused
    flasher.flash(2)
    flashing.roll_back(flasher.board, flasher.options)
    flasher.assert_runs(1)
    (folder / "model.so").unlink()
    assert flasher.flash(1).changed  # repaired
    flasher.assert_runs(1)
    assert (
        sorted(path.name for path in (flasher.device_dir / "slots" / report.bundle_id).rglob("*.pyc")) == []
    )


PYTHON_38 = Path("~/.pyenv/versions/3.8.18/bin/python").expanduser()


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON_38.exists(), reason="no Python 3.8 here")
def test_on_the_oldest_python(flasher: Flasher) -> None:
    link = replace(flasher.board.link, python=str(PYTHON_38))
    flasher.board = replace(flasher.board, link=link)
    flasher.flash(1)
    flasher.flash(2)
    flasher.assert_runs(2)
    flashing.roll_back(flasher.board, flasher.options)
    flasher.assert_runs(1)


@pytest.mark.emulated
def test_on_an_emulated_board(emulated_board: Board, tmp_path: Path) -> None:
    target = load("emulated-a53").target(None)
    flasher = Flasher(emulated_board, tmp_path, target)
    report = flasher.flash(1)
    assert report.changed
    flasher.assert_runs(1)
    assert not flasher.flash(1).changed
    wrong = _wrong_golden(small_model(2, target=target))
    with pytest.raises(RolledBack, match="wrong_answer"):
        flashing.flash_bundle(flasher.pack(wrong), flasher.board, flasher.options)
    flasher.assert_runs(1)


# ----------------------------------------------------------------------------------- storage that fails


@pytest.mark.slow
def test_a_damaged_object_is_uploaded_again(flasher: Flasher) -> None:
    first = flasher.flash(1)
    flasher.flash(2)
    shutil.rmtree(flasher.device_dir / "slots" / first.bundle_id)
    for stored in (flasher.device_dir / "objects").iterdir():
        stored.write_bytes(stored.read_bytes()[:-1] + b"?")
    flasher.options = replace(flasher.options, allow_downgrade=True)
    report = flasher.flash(1)
    assert report.missing_bytes == report.total_bytes
    flasher.assert_runs(1)


@pytest.mark.slow
def test_nothing_half_made_stays(flasher: Flasher) -> None:
    flasher.flash(1)
    for number in range(50):
        (flasher.device_dir / "incoming" / f"{number:064x}.part").write_bytes(b"abandoned")
    (flasher.device_dir / "slots" / f".removing-{0:032x}").mkdir()
    old = flasher.device_dir / "incoming" / f"{0:064x}.part"
    os.utime(old, (0, 0))
    assert not flasher.flash(1).changed  # takes the lease, no more
    assert not old.exists()
    assert len(list((flasher.device_dir / "incoming").iterdir())) == 49
    assert not list((flasher.device_dir / "slots").glob(".removing-*"))
    flasher.flash(2)
    assert not list((flasher.device_dir / "incoming").iterdir())


def _at(step: str, act: Callable[[], None]) -> FlashProgress:
    def listen(event: FlashEvent) -> None:
        if (event.step, event.state) == (step, "begin"):
            act()

    return listen


@pytest.mark.slow
@pytest.mark.parametrize("step", ["activate", "health_check", "commit"])
def test_a_disk_that_fails_after_the_self_test(flasher: Flasher, step: str) -> None:
    """The state cannot be written until the bundle is taken back."""
    blocked = flasher.device_dir / "slots" / "state.json.part"

    def listen(event: FlashEvent) -> None:
        if (event.step, event.state) == (step, "begin"):
            blocked.mkdir()
        elif (event.step, event.state) == ("rollback", "begin"):
            blocked.rmdir()

    with pytest.raises(OutputError, match="No other bundle is installed") as nothing_before:
        flasher.flash(1, listen)
    assert nothing_before.value.exit_code == 2
    assert flasher.status().current == ""
    first = flasher.flash(1)
    with pytest.raises(RolledBack, match="Is a directory .* is current, as before") as caught:
        flasher.flash(2, listen)
    assert caught.value.exit_code == 7
    assert flasher.status().current == flasher.status().committed == first.bundle_id
    flasher.flash(2)
    flasher.assert_runs(2)


@pytest.mark.slow
def test_a_bundle_that_can_neither_be_committed_nor_taken_back(flasher: Flasher) -> None:
    flasher.flash(1)
    blocked = flasher.device_dir / "slots" / "state.json.part"
    with pytest.raises(
        NotCommitted, match=r"its commit is not confirmed: .*nor could it be taken back"
    ) as caught:
        flasher.flash(2, _at("health_check", blocked.mkdir))
    assert caught.value.exit_code == 8
    assert flasher.status().on_trial
    blocked.rmdir()
    flasher.flash(2)
    flasher.assert_runs(2)
    assert not flasher.status().on_trial


@pytest.mark.slow
@pytest.mark.parametrize("step", ["activate", "health_check", "commit"])
def test_ctrl_c_after_the_switch_takes_the_bundle_back(flasher: Flasher, step: str) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    first = flasher.flash(1)
    with pytest.raises(KeyboardInterrupt) as caught:
        flasher.flash(2, _at(step, interrupt))
    assert f"Slot {first.bundle_id} is current, as before" in caught.value.__notes__[0]
    assert flasher.status().current == flasher.status().committed == first.bundle_id
    flasher.assert_runs(1)
    flasher.flash(2)
    flasher.assert_runs(2)


@pytest.mark.slow
def test_a_rollback_that_the_disk_prevents(flasher: Flasher) -> None:
    flasher.flash(1)
    flasher.flash(2)
    blocked = flasher.device_dir / "slots" / "state.json.part"
    blocked.mkdir()
    with pytest.raises(OutputError, match="Is a directory .*check the board's storage and its kernel log$"):
        flashing.roll_back(flasher.board, flasher.options)
    blocked.rmdir()
    flasher.assert_runs(2)
