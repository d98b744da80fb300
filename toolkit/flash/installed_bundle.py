"""The bundle that is current on a board, verified as one from a file, its parts read from there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from boards.board import Board
from toolkit.bundle import sign
from toolkit.bundle.container import MAX_MANIFEST_BYTES, MAX_SIGNATURE_BYTES
from toolkit.bundle.manifest import Part
from toolkit.bundle.verify import VerifiedBundle, verified
from toolkit.errors import InputError, VerificationError
from toolkit.flash.replies import SharedFile
from toolkit.flash.values import SlotStatus
from toolkit.measure.session import Session

MANIFEST: Final = "manifest.json"
SIGNATURE: Final = "manifest.json.sig"


def installed_bundle(session: Session, trusted: Iterable[sign.PublicKey]) -> VerifiedBundle:
    """The current bundle of the session's board, which needs the lease.

    Raises InputError (there is none), VerificationError (it is not what one of the `trusted` keys signed),
    BoardUnreachable.
    """
    board: Board = session.board
    status = session.call("slots", SlotStatus, verify="")
    current, folder = status.current, Path(status.device_dir, "slots", status.current)
    if not current:
        raise InputError(
            f"board {board.name} has no current bundle; flash one first, or name a file with --bundle"
        )

    def read(path: str, most_bytes: int) -> bytes:
        shared = session.call("share", SharedFile, id=current, path=path)
        if shared.size_bytes > most_bytes:
            raise VerificationError(
                f"bundle {folder} on board {board.name}: {path} has {shared.size_bytes} bytes, expected at "
                f"most {most_bytes}; flash it again"
            )
        return session.read(shared.sha, shared.size_bytes)

    def part(line: Part) -> bytes:
        return read(line.path, line.size_bytes)

    manifest, signature = read(MANIFEST, MAX_MANIFEST_BYTES), read(SIGNATURE, MAX_SIGNATURE_BYTES)
    return verified(folder, manifest, signature, trusted, part)
