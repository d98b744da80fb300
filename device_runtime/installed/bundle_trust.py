"""What a bundle must show before this board takes it, switches to it or starts it.

    DEVICE_DIR/allowed_signers     who may sign bundles for this board; written by the first flash
    DEVICE_DIR/board_name          what the board is called; written by the first bundle that is installed

Both are asked each time, so that a key which is taken out of allowed_signers is refused from then on, also
for what already lies in a slot.
"""

from __future__ import annotations

import os
import platform
import re

from device_runtime.content_store import is_there, write_atomically
from device_runtime.installed import signature
from device_runtime.installed.checked_manifest import Plain
from device_runtime.protocol import UNTRUSTED, ProtocolError, sshsig

BOARD_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


class Trust:
    """Whom and what the board of a device directory trusts."""

    def __init__(self, device_dir: str) -> None:
        self.signers_path = os.path.join(device_dir, "allowed_signers")
        self.name_path = os.path.join(device_dir, "board_name")

    def begin(self, line: str) -> bool:
        """Trust the signer of this allowed_signers line if nobody is trusted yet; whether that was so."""
        if is_there(self.signers_path):
            return False
        write_atomically(self.signers_path, line.encode())
        return True

    def knows(self, signer: str) -> bool:
        """Whether this public key ("ssh-ed25519 AAAA...") may sign."""
        try:
            keys = signature.trusted_keys(self.signers_path)
        except signature.Refused as error:
            raise ProtocolError(UNTRUSTED, str(error)) from None
        return signer in [sshsig.public_line(key) for key in keys]

    def check_signer(self, message: bytes, signature_file: str, what: str) -> str:
        """The trusted key that signed `message`; ProtocolError(UNTRUSTED), in terms of `what`."""
        try:
            return signature.check(message, signature_file, self.signers_path)
        except signature.Refused as error:
            raise ProtocolError(UNTRUSTED, f"the signature of {what} is refused: {error}") from None

    def check_board(self, manifest: Plain, claimed: str = "") -> None:
        """ProtocolError(UNTRUSTED) when the bundle is not for this board.

        `claimed` is what a host calls the board ("": it does not say): that must be so, too, and names a
        board that has no name yet.
        """
        boards, name = manifest["compatibility"]["boards"], self.board_name() or claimed
        if name and name not in boards:
            raise ProtocolError(
                UNTRUSTED,
                f"the bundle is for {', '.join(boards) or 'no board'}, this board is {name} (its name is in "
                f"{self.name_path}); flash a bundle that was tuned for {name}",
            )
        if claimed not in ("", name):
            raise ProtocolError(
                UNTRUSTED,
                f"the host calls this board {claimed!r:.80}, by {self.name_path} it is {name}; use the board "
                "file of that name, or correct the name there",
            )

    def board_name(self) -> str:
        """What this board is called; "" before the first bundle. ProtocolError(UNTRUSTED) when damaged."""
        try:
            with open(self.name_path, "rb") as file:
                name = file.read(1000).decode("ascii", "replace").strip()
        except FileNotFoundError:
            return ""
        if not BOARD_NAME.fullmatch(name):
            raise ProtocolError(
                UNTRUSTED,
                f"{self.name_path} is damaged: expected the name of this board, found {name!r:.80}; write "
                "the name into it, or remove it and flash",
            )
        return name

    def name_board(self, name: str) -> None:
        """Keep the board's name, if it has none and this is one."""
        if BOARD_NAME.fullmatch(name) and not is_there(self.name_path):
            write_atomically(self.name_path, f"{name}\n".encode())


def check_machine(manifest: Plain) -> None:
    """ProtocolError(UNTRUSTED) when the bundle has code for another kind of machine."""
    machine, machines = platform.machine(), manifest["compatibility"]["machines"]
    if machines and machine not in machines:  # without CPU code it runs on any
        raise ProtocolError(
            UNTRUSTED,
            f"the bundle has code for {', '.join(machines)}, this board is {machine}; tune for this board",
        )
