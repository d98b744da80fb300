"""Installed bundles: which are here, which one runs, and which one to fall back on.

    DEVICE_DIR/allowed_signers     who may sign bundles for this board; written by the first flash
    DEVICE_DIR/slots/state.json    the truth: current, committed and previous slot; replaced atomically
    DEVICE_DIR/slots/<bundle id>/  one bundle's files, read-only; appears by rename, after fsync
    DEVICE_DIR/current             symbolic link to the current slot, for applications; follows state.json

Every step is one atomic replacement of state.json, and everything else is put right from it by the next call
(`Slots.recover`), so the process may be killed anywhere. A slot becomes current only after its self-test; it
is on trial (current, not committed) until the host commits it; after MAX_FAILED_STARTS failed starts in a row
the slot before it is current again. A bundle's id is the first 32 hex digits of its manifest's SHA-256.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional

from device_runtime import signature
from device_runtime.parts import (
    MAX_MANIFEST_BYTES,
    bundle_id_of,
    check_hash,
    check_machine,
    copy_part,
    parse_manifest,
    read_whole,
)
from device_runtime.protocol import BAD_HASH, NOT_FOUND, REFUSED, ProtocolError
from device_runtime.store import sync_directory, write_atomically

STATE_VERSION = 1
MAX_FAILED_STARTS = 3
SPARE_BYTES = 16 << 20
MANIFEST = "manifest.json"
SIGNATURE = "manifest.json.sig"
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
        self.signers_path = os.path.join(device_dir, "allowed_signers")
        os.makedirs(self.slots_dir, mode=0o755, exist_ok=True)

    # ------------------------------------------------------------------------------------------- reading

    def state(self) -> Plain:
        """The recorded state; an empty one when there is none yet."""
        try:
            with open(self.state_path, encoding="utf-8") as file:
                state: Plain = json.load(file)
        except FileNotFoundError:
            return {
                "version": STATE_VERSION,
                "current": "",
                "committed": "",
                "previous": "",
                "tested": [],
                "failed_starts": 0,
                "last_failure": None,
            }
        if state.get("version") != STATE_VERSION:
            raise ProtocolError(
                REFUSED,
                f"{self.state_path} has version {state.get('version')!r}, expected {STATE_VERSION}; use the "
                "tool that wrote it, or remove the slots folder and flash again",
            )
        return state

    def folder(self, bundle_id: str) -> str:
        """Where a slot's files lie, whether or not it exists."""
        if not BUNDLE_ID.fullmatch(bundle_id):
            raise ProtocolError(
                REFUSED, f"slot {bundle_id!r:.80}: expected a bundle id of 32 hexadecimal digits"
            )
        return os.path.join(self.slots_dir, bundle_id)

    def manifest(self, bundle_id: str) -> Plain:
        """A slot's manifest, whose bytes are checked against the id; ProtocolError when absent or damaged."""
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
        return parse_manifest(data)

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
        """Finish what a killed process began: the link follows the state, half-made folders go."""
        self.remove_leftovers()
        self._link(self.state()["current"])

    def remove_leftovers(self) -> None:
        """Remove folders half made and half removed; what cannot be removed now is tried again next time."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.slots_dir):
                if name.startswith((INSTALLING, REMOVING)):
                    shutil.rmtree(os.path.join(self.slots_dir, name), ignore_errors=True)

    def change(self, **changes: Any) -> Plain:
        """Replace entries of the state, durably, then let the link follow. Call with the lock held."""
        state = {**self.state(), **changes}
        state["tested"] = sorted(set(state["tested"]) & set(self.installed()))
        write_atomically(self.state_path, (json.dumps(state, sort_keys=True) + "\n").encode())
        self._link(state["current"])
        return state

    def install(self, manifest_file: str, signature_file: str, part_file: Callable[[str], str]) -> Plain:
        """Make a slot out of stored objects; `part_file` finds a part by its SHA-256.

        Every byte is hashed from the descriptor it was written through. Nothing is changed when the slot is
        here and whole. ProtocolError: REFUSED (signature, board), BAD_HASH, NOT_FOUND (a part); OSError.
        """
        data = read_whole(manifest_file)
        bundle_id = bundle_id_of(data)
        if self.is_whole(bundle_id):
            return {"id": bundle_id, "installed": False}
        staging = os.path.join(self.slots_dir, INSTALLING + bundle_id)
        os.mkdir(staging)
        write_atomically(os.path.join(staging, MANIFEST), data)
        write_atomically(os.path.join(staging, SIGNATURE), read_whole(signature_file))
        signer = self._signer(data, os.path.join(staging, SIGNATURE))
        manifest = parse_manifest(data)
        check_machine(manifest)
        need_bytes = sum(part["size_bytes"] for part in manifest["parts"]) + SPARE_BYTES
        free_bytes = shutil.disk_usage(self.slots_dir).free
        if free_bytes < need_bytes:
            text = f"{need_bytes} bytes are needed, {free_bytes} are free"
            raise OSError(errno.ENOSPC, text, self.slots_dir)
        for part in manifest["parts"]:
            copy_part(part_file(part["sha256"]), os.path.join(staging, part["path"]), part)
        for folder, _, _ in os.walk(staging):
            sync_directory(folder)
        self._remove(bundle_id)  # only a damaged one can be here
        os.replace(staging, self.folder(bundle_id))
        sync_directory(self.slots_dir)
        return {"id": bundle_id, "installed": True, "signer": signer}

    def tested(self, bundle_id: str, failure: Optional[str]) -> None:
        """Note the outcome of a self-test; only a slot that passed can be activated."""
        others = [entry for entry in self.state()["tested"] if entry != bundle_id]
        if failure is None:
            self.change(tested=[*others, bundle_id])
        else:
            self.change(tested=others, last_failure={"id": bundle_id, "text": failure})

    def activate(self, bundle_id: str) -> None:
        """Make a tested slot current, on trial until `commit`."""
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
            state = self.change(committed=bundle_id, previous=state["committed"], failed_starts=0)
        for other in self.installed():
            if other not in (state["committed"], state["previous"]):
                with contextlib.suppress(OSError):  # the commit stands; the next one tries again
                    self._remove(other)

    def rollback(self, expected_current: str, failure: Optional[str] = None) -> str:
        """Make the slot before the current one current; returns its id, "" when nothing ran before.

        From a trial that is the committed slot, otherwise the one committed before it. Nothing happens when
        `expected_current` is no longer current (somebody was faster). ProtocolError(REFUSED): no slot before.
        """
        state = self.state()
        current, committed, previous = state["current"], state["committed"], state["previous"]
        if current != expected_current:
            return str(current)
        noted = {"last_failure": {"id": current, "text": failure}} if failure else {}
        if current != committed:
            self.change(current=committed, failed_starts=0, **noted)
            return str(committed)
        if previous not in self.installed():
            raise ProtocolError(
                REFUSED, f"no slot was committed before {current or 'this'}: there is nothing to go back to"
            )
        self.change(current=previous, committed=previous, previous=committed, failed_starts=0, **noted)
        return str(previous)

    # ------------------------------------------------------------------------------------------- starting

    def startable(self) -> str:
        """The id of the slot to start: the current one, or the one before when that has failed too often."""
        self._fall_back()
        current: str = self.state()["current"]
        if not current:
            raise ProtocolError(NOT_FOUND, "no bundle is installed on this board; flash one first")
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
        if (gone or state["failed_starts"] >= MAX_FAILED_STARTS) and before in self.installed():
            failure = "its files are gone" if gone else f"{state['failed_starts']} failed starts in a row"
            self.rollback(current, failure)

    # ------------------------------------------------------------------------------------------- the disk

    def _signer(self, manifest: bytes, signature_file: str) -> str:
        if not os.path.exists(self.signers_path):
            raise ProtocolError(
                REFUSED, f"{self.signers_path} does not exist: nobody is trusted to sign here"
            )
        try:
            return signature.check(manifest, signature_file, self.signers_path)
        except signature.Refused as error:
            raise ProtocolError(REFUSED, f"the bundle's signature is refused: {error}") from None

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
        if not os.path.lexists(folder):
            return
        doomed = os.path.join(self.slots_dir, REMOVING + bundle_id)
        os.replace(folder, doomed)
        sync_directory(
            self.slots_dir
        )  # before its files go, or a power cut could bring the name back without them
