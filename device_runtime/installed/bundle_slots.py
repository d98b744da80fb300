"""Installed bundles: which are here, which one runs, and which one to fall back on.

    DEVICE_DIR/slots/state.json    the truth: current, committed and previous slot; replaced atomically
    DEVICE_DIR/slots/<bundle id>/  one bundle's files, read-only; appears by rename, after fsync
    DEVICE_DIR/current             symbolic link to the current slot, for applications; follows state.json

Every step is one atomic replacement of state.json, and everything else is put right from it by the next call
(`Slots.recover`), so the process may be killed anywhere. A slot becomes current only after its self-test; it
is on trial (current, not committed) until the host commits it; after MAX_FAILED_STARTS failed starts in a row
the slot before it is current again. A bundle's id is the first 32 hex digits of its manifest's SHA-256.

A slot is tested, made current, committed, gone back to and started only while its signer is trusted and it is
for this board (bundle_trust.py). A bundle with a lower counter than one that was committed under its name is
older: it is refused unless a trusted signer permits it; going back to the slot before needs no permission.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from device_runtime.content_store import is_there, part_of, sync_directory, write_atomically
from device_runtime.installed.bundle_trust import Trust, check_machine
from device_runtime.installed.checked_manifest import MANIFEST, MAX_MANIFEST_BYTES, SIGNATURE, parse_manifest
from device_runtime.installed.parts import bundle_id_of, check_hash, copy_part, read_whole
from device_runtime.installed.state import empty_state, read_state, write_state
from device_runtime.protocol import BAD_HASH, NOT_FOUND, REFUSED, UNTRUSTED, ProtocolError

MAX_FAILED_STARTS = 3
SPARE_BYTES = 16 << 20
INSTALLING = ".installing-"
REMOVING = ".removing-"
BUNDLE_ID = re.compile(r"[0-9a-f]{32}")

Plain = Dict[str, Any]


class Slots:
    """The installed bundles of one device directory."""

    def __init__(self, device_dir: str) -> None:
        self.device_dir = device_dir
        self.slots_dir = os.path.join(device_dir, "slots")
        self.state_path = os.path.join(self.slots_dir, "state.json")
        self.link_path = os.path.join(device_dir, "current")
        self.trust = Trust(device_dir)
        os.makedirs(self.slots_dir, mode=0o755, exist_ok=True)

    # ------------------------------------------------------------------------------------------- reading

    def state(self) -> Plain:
        """The recorded state; an empty one before the first bundle, a rebuilt one when it is damaged."""
        return self._state()[0]

    def _state(self) -> Tuple[Plain, bool]:
        """The state, and whether it is what the file has."""
        try:
            return read_state(self.state_path), True
        except FileNotFoundError:
            if not os.path.islink(self.link_path):
                return empty_state(), True
            return self._rebuilt(f"{self.state_path} was gone"), False
        except ValueError as error:
            return self._rebuilt(f"{self.state_path} was damaged: {error}"), False

    def _rebuilt(self, damage: str) -> Plain:
        """The state by what else is on the disk: the slot behind `current`, if every byte of it is as signed.

        Of no other slot it is known that it passed its self-test, so there is none to go back to.
        """
        whole = {
            bundle_id: self.manifest(bundle_id) for bundle_id in self.installed() if self.is_whole(bundle_id)
        }
        link = os.readlink(self.link_path) if os.path.islink(self.link_path) else ""
        current = os.path.basename(link) if os.path.basename(link) in whole else ""
        counters: Dict[str, int] = {}
        for manifest in whole.values():
            name, counter = manifest["name"], manifest["counter"]
            counters[name] = max(counter, counters.get(name, counter))
        return {
            **empty_state(),
            "current": current,
            "committed": current,
            "tested": [current] if current else [],
            "last_failure": {"id": current, "text": f"{damage}; the state was made again from the slots"},
            "counters": counters,
        }

    def folder(self, bundle_id: str) -> str:
        """Where a slot's files lie, whether or not it exists."""
        if not BUNDLE_ID.fullmatch(bundle_id):
            raise ProtocolError(
                REFUSED, f"slot {bundle_id!r:.80}: expected a bundle id of 32 hexadecimal digits"
            )
        return os.path.join(self.slots_dir, bundle_id)

    def manifest(self, bundle_id: str) -> Plain:
        """A slot's manifest, whose bytes are checked against the id; ProtocolError when absent or damaged."""
        return parse_manifest(self._manifest_bytes(bundle_id))

    def _manifest_bytes(self, bundle_id: str) -> bytes:
        path = os.path.join(self.folder(bundle_id), MANIFEST)
        try:
            with open(path, "rb") as file:
                data = file.read(MAX_MANIFEST_BYTES)
        except OSError as error:
            raise ProtocolError(NOT_FOUND, f"slot {bundle_id} is not installed ({error.strerror})") from None
        if bundle_id_of(data) != bundle_id:
            raise ProtocolError(
                BAD_HASH, f"slot {bundle_id}: its manifest is damaged on the disk; flash it again"
            )
        return data

    def check_trusted(self, bundle_id: str) -> Plain:
        """The manifest of a slot whose signer is trusted now and that is for this board; ProtocolError."""
        data = self._manifest_bytes(bundle_id)
        signature_file = os.path.join(self.folder(bundle_id), SIGNATURE)
        self.trust.check_signer(data, signature_file, f"slot {bundle_id}")
        manifest = parse_manifest(data)
        check_machine(manifest)
        self.trust.check_board(manifest)
        return manifest

    def why_refused(self, bundle_id: str) -> str:
        """Why a slot may not be switched to or started; "" when it may."""
        try:
            self.check_trusted(bundle_id)
        except ProtocolError as error:
            return error.text
        return ""

    def is_whole(self, bundle_id: str) -> bool:
        """Whether a slot is installed and every byte of it is as signed; reads all of it."""
        try:
            for part in self.manifest(bundle_id)["parts"]:
                with open(os.path.join(self.folder(bundle_id), part["path"]), "rb") as file:
                    check_hash(file.fileno(), part)
        except (OSError, ProtocolError):
            return False
        return True

    def installed(self) -> List[str]:
        """Ids of the slots that are here."""
        return sorted(name for name in os.listdir(self.slots_dir) if BUNDLE_ID.fullmatch(name))

    def status(self) -> Plain:
        """The state and the installed slots, as `flash --status` shows them."""
        state = self.state()
        on_trial = state["current"] != "" and state["current"] != state["committed"]
        slots = [self._describe(bundle_id, bundle_id in state["tested"]) for bundle_id in self.installed()]
        return {**state, "on_trial": on_trial, "slots": slots, "device_dir": self.device_dir}

    def _describe(self, bundle_id: str, tested: bool) -> Plain:
        try:
            manifest = self.manifest(bundle_id)
        except ProtocolError:
            manifest = {"name": "", "parts": [], "inputs": [], "outputs": []}
        return {
            "id": bundle_id,
            "name": manifest["name"],
            "size_bytes": sum(part["size_bytes"] for part in manifest["parts"]),
            "inputs": manifest["inputs"],
            "outputs": manifest["outputs"],
            "damaged": not manifest["parts"],
            "tested": tested,
            "refused": self.why_refused(bundle_id),
        }

    # ------------------------------------------------------------------------------------------- changing

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the slots' lock, with everything put right first and nothing half-made left behind."""
        fd = os.open(os.path.join(self.slots_dir, ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            self.recover()
            yield
        finally:
            self.remove_leftovers()
            os.close(fd)

    def recover(self) -> None:
        """Finish what a killed process began: the link follows the state, half-made folders go.

        A damaged state is replaced by the one that is made from the slots.
        """
        self.remove_leftovers()
        state, recorded = self._state()
        if not recorded:
            write_state(self.state_path, state)
        self._link(state["current"])

    def remove_leftovers(self) -> None:
        """Remove folders half made and half removed, and files half written; what cannot be removed now is
        tried again next time."""
        for path in (self.state_path, self.trust.signers_path, self.trust.name_path):
            with contextlib.suppress(OSError):
                os.unlink(part_of(path))
        with contextlib.suppress(OSError):
            for name in os.listdir(self.slots_dir):
                if name.startswith((INSTALLING, REMOVING)):
                    shutil.rmtree(os.path.join(self.slots_dir, name), ignore_errors=True)

    def change(self, **changes: Any) -> Plain:
        """Replace entries of the state, durably, then let the link follow. Call with the lock held."""
        state = {**self.state(), **changes}
        state["tested"] = sorted(set(state["tested"]) & set(self.installed()))
        write_state(self.state_path, state)
        self._link(state["current"])
        return state

    def install(
        self,
        manifest_file: str,
        signature_file: str,
        part_file: Callable[[str], str],
        *,
        board: str = "",
        permitted: bool = False,
    ) -> Plain:
        """Make a slot out of stored objects; `part_file` finds a part by its SHA-256.

        `board` is what the host calls this board; `permitted`: a trusted signer permits it to be older. Every
        byte is hashed from the descriptor it was written through. Nothing is copied when the slot is here and
        whole. ProtocolError: UNTRUSTED (signature, board, age), BAD_HASH, NOT_FOUND (a part); OSError.
        """
        data = read_whole(manifest_file)
        bundle_id = bundle_id_of(data)
        signer = self.trust.check_signer(data, signature_file, f"bundle {bundle_id}")
        manifest = parse_manifest(data)
        check_machine(manifest)
        self.trust.check_board(manifest, board)
        if permitted:
            self.change(permitted=bundle_id)
        self._check_age(bundle_id, manifest)
        self.trust.name_board(board)
        if self.is_whole(bundle_id) and not self.why_refused(bundle_id):
            return {"id": bundle_id, "installed": False, "signer": signer}
        staging = os.path.join(self.slots_dir, INSTALLING + bundle_id)
        os.mkdir(staging)
        write_atomically(os.path.join(staging, MANIFEST), data)
        write_atomically(os.path.join(staging, SIGNATURE), read_whole(signature_file))
        need_bytes = sum(part["size_bytes"] for part in manifest["parts"]) + SPARE_BYTES
        free_bytes = shutil.disk_usage(self.slots_dir).free
        if free_bytes < need_bytes:
            text = f"{need_bytes} bytes are needed, {free_bytes} are free"
            raise OSError(errno.ENOSPC, text, self.slots_dir)
        for part in manifest["parts"]:
            copy_part(part_file(part["sha256"]), os.path.join(staging, part["path"]), part)
        for folder, _, _ in os.walk(staging):
            sync_directory(folder)
        self._remove(bundle_id)  # only a damaged one can be here, or one whose signer is no longer trusted
        os.replace(staging, self.folder(bundle_id))
        sync_directory(self.slots_dir)
        return {"id": bundle_id, "installed": True, "signer": signer}

    def _check_age(self, bundle_id: str, manifest: Plain) -> None:
        """ProtocolError(UNTRUSTED) when a newer bundle of this name was committed, unless it is permitted.

        The committed bundle itself, to which the board was rolled back, may be repaired.
        """
        state = self.state()
        highest = state["counters"].get(manifest["name"], 0)
        if manifest["counter"] < highest and bundle_id not in (state["permitted"], state["committed"]):
            raise ProtocolError(
                UNTRUSTED,
                f"bundle {bundle_id} is older than one that was committed here: its counter is "
                f"{manifest['counter']}, the highest of {manifest['name']!r:.80} is {highest}; if the older "
                "one is wanted, flash it with --allow-downgrade",
            )

    def tested(self, bundle_id: str, failure: Optional[str]) -> None:
        """Note the outcome of a self-test; only a slot that passed can be activated."""
        others = [entry for entry in self.state()["tested"] if entry != bundle_id]
        if failure is None:
            self.change(tested=[*others, bundle_id])
        else:
            self.change(tested=others, last_failure={"id": bundle_id, "text": failure})

    def activate(self, bundle_id: str) -> None:
        """Make a tested slot current, on trial until `commit`; it must be trusted and no older one."""
        self._check_age(bundle_id, self.check_trusted(bundle_id))
        if bundle_id not in self.state()["tested"]:
            raise ProtocolError(
                REFUSED, f"slot {bundle_id} has not passed its self-test here; run self_test first"
            )
        if self.state()["current"] != bundle_id:
            self.change(current=bundle_id, failed_starts=0)

    def commit(self, bundle_id: str) -> None:
        """Keep the current slot for good; slots that are neither it nor the one before it go."""
        state = self.state()
        if state["current"] != bundle_id:
            raise ProtocolError(
                REFUSED, f"slot {bundle_id} cannot be committed: {state['current'] or 'nothing'} is current"
            )
        if state["committed"] != bundle_id:
            manifest = self.check_trusted(bundle_id)
            name, counter = manifest["name"], manifest["counter"]
            if state["permitted"] != bundle_id:
                counter = max(counter, state["counters"].get(name, 0))
            state = self.change(
                committed=bundle_id,
                previous=state["committed"],
                failed_starts=0,
                counters={**state["counters"], name: counter},
                permitted="",
            )
        for other in self.installed():
            if other not in (state["committed"], state["previous"]):
                with contextlib.suppress(OSError):  # the commit stands; the next one tries again
                    self._remove(other)

    def rollback(self, expected_current: str, failure: Optional[str] = None) -> str:
        """Make the slot before the current one current; returns its id, "" when nothing runs now.

        From a trial that is the committed slot, otherwise the one committed before it; never one that is no
        longer trusted: a trial that cannot go back to a trusted slot ends with nothing current. Nothing
        happens when `expected_current` is no longer current (somebody was faster). ProtocolError: no trusted
        slot before.
        """
        state = self.state()
        current, committed, previous = state["current"], state["committed"], state["previous"]
        if current != expected_current:
            return str(current)
        noted = {"last_failure": {"id": current, "text": failure}} if failure else {}
        if current != committed:
            trusted = [slot for slot in (committed, previous) if slot and not self.why_refused(slot)]
            before = trusted[0] if trusted else ""
            previous = previous if before == committed else ""
            self.change(current=before, committed=before, previous=previous, failed_starts=0, **noted)
            return before
        if previous not in self.installed():
            raise ProtocolError(
                REFUSED, f"no slot was committed before {current or 'this'}: there is nothing to go back to"
            )
        self.check_trusted(previous)
        self.change(current=previous, committed=previous, previous=committed, failed_starts=0, **noted)
        return str(previous)

    # ------------------------------------------------------------------------------------------- starting

    def startable(self) -> str:
        """The id of the slot to start: the current one, or the one before when that has failed too often."""
        self._fall_back()
        current: str = self.state()["current"]
        if not current:
            raise ProtocolError(NOT_FOUND, "no bundle is installed on this board; flash one first")
        try:
            self.check_trusted(current)
        except ProtocolError as error:
            text = f"{error.text}; it is not started: flash another bundle, or go back with flash --rollback"
            raise ProtocolError(error.code, text) from None
        return current

    def begin_start(self) -> None:
        """Count a start as failed until `end_start` or `give_up_start`: the board may not live to tell."""
        self.change(failed_starts=self.state()["failed_starts"] + 1)

    def end_start(self, bundle_id: str, failure: Optional[str]) -> None:
        """Note how a start went; falls back when it was one failure too many."""
        state = self.state()
        if state["current"] != bundle_id:
            return
        if failure is None:
            self.change(failed_starts=0)
        else:
            self.change(last_failure={"id": bundle_id, "text": failure})
            self._fall_back()

    def give_up_start(self, bundle_id: str) -> None:
        """Take back `begin_start`: it ended for a reason that says nothing about the slot."""
        state = self.state()
        if state["current"] == bundle_id:
            self.change(failed_starts=max(0, state["failed_starts"] - 1))

    def _fall_back(self) -> None:
        """Roll back when the current slot failed too often or is gone, and another one is there."""
        state = self.state()
        current = state["current"]
        gone = current not in self.installed()
        before = state["committed"] if current != state["committed"] else state["previous"]
        if (gone or state["failed_starts"] >= MAX_FAILED_STARTS) and before and not self.why_refused(before):
            failure = "its files are gone" if gone else f"{state['failed_starts']} failed starts in a row"
            self.rollback(current, failure)

    # ------------------------------------------------------------------------------------------- the disk

    def _link(self, bundle_id: str) -> None:
        """Point `current` at a slot, atomically; remove it when there is none."""
        wanted = os.path.join("slots", bundle_id) if bundle_id else None
        found = os.readlink(self.link_path) if os.path.islink(self.link_path) else None
        if found == wanted:
            return
        if wanted is None:
            os.unlink(self.link_path)
        else:
            temporary = os.path.join(self.device_dir, ".current.part")
            if os.path.islink(temporary):
                os.unlink(temporary)
            os.symlink(wanted, temporary)
            os.replace(temporary, self.link_path)
        sync_directory(self.device_dir)

    def _remove(self, bundle_id: str) -> None:
        """Take a slot away by rename, so that no half of it is seen under its name; `locked` removes it."""
        folder = self.folder(bundle_id)
        if not is_there(folder):
            return
        doomed = os.path.join(self.slots_dir, REMOVING + bundle_id)
        while is_there(doomed):  # it could not be removed: a program of another user has left files in it
            doomed += "-"
        os.replace(folder, doomed)
        sync_directory(
            self.slots_dir
        )  # before its files go, or a power cut could bring the name back without them
