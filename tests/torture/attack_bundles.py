"""Corrupt, foreign, old, misdirected and hostile bundles: neither the host nor the board takes one.

The host's side is the command `flash`; the board's are the calls of a malicious host, some of them to a real
runtime. What a piece of a bundle is not changed by is not tried against who would only see that piece.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from click.testing import CliRunner

from boards.board import load
from device_runtime.protocol import ProtocolError
from device_runtime.server import bundle_calls
from device_runtime.server.serving import make_context
from tests.bundles import contents, small_model
from tests.loopback.tune_board import HOST, board_file
from tests.torture.attack import Attack, Run
from tests.torture.spoiled_bundles import COMMITTED, KINDS, Pieces, Spoiler
from toolkit.bundle import manifest, pack, sign, verify
from toolkit.cli.main import flash
from toolkit.measure.replies import Reply
from toolkit.measure.session import DeviceError, Session, open_session

REFUSALS: Final = ("untrusted", "refused", "bad_hash", "not_found", "bad_request")
IN_A_RUNTIME: Final = 10  # one case of so many is sent to a real runtime, the others to its methods
IN_A_PROCESS: Final = 250  # one case of so many goes to a process, the others to the command here


class Bench:
    """A board on which a bundle is committed, a host that trusts one key, and bundles to spoil."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.key = sign.open_key(sign.key_file(self.home / ".config" / "tune-for-board"))
        stranger, revoked = (sign.open_key(folder / name) for name in ("stranger", "revoked"))
        self.board_path = board_file(folder, HOST)
        self.board = load(self.board_path)
        self.device_dir = Path(self.board.link.device_dir)
        self.context = make_context(str(self.device_dir), -1)
        signers = [revoked.public, self.key.public]
        path = self.device_dir / "allowed_signers"
        path.write_text("".join(key.allowed_signers_line for key in signers))
        running = self.packed(1, COMMITTED)
        self.running = self.install(running)
        installed = bundle_calls.Slots(self.context.device_dir)
        with installed.locked():
            installed.tested(self.running, None)
        self.call("activate", id=self.running)
        self.call("commit", id=self.running)
        path.write_text(self.key.public.allowed_signers_line)
        self.forget()
        good, other = self.packed(2, COMMITTED + 1), self.packed(3, COMMITTED + 2)
        self.spoiler = Spoiler(
            rng, good, other, self.key, stranger, revoked, self.running, self.context.nonce
        )
        shutil.copytree(self.device_dir, self.folder / "as it was", symlinks=True)

    def packed(self, version: int, counter: int, boards: tuple[str, ...] = ("host",)) -> Pieces:
        """A bundle of this host."""
        path = self.folder / "packed.tfb"
        path.write_bytes(pack.pack(contents(small_model(version), boards=boards, counter=counter), self.key))
        bundle = verify.open_bundle(path, [self.key.public])
        parts = tuple(bundle.read_part(part.path) for part in bundle.manifest.parts)
        return Pieces(bundle.manifest_bytes, bundle.signature, parts)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A method of the runtime, as a host that has the lease."""
        return bundle_calls.METHODS[method].handler(self.context, params, []).result

    def install(self, pieces: Pieces) -> str:
        """Put everything, and have it installed; its id."""
        put = self.context.store.add
        for data in pieces.parts:
            put(data)
        sent = {"manifest": put(pieces.manifest), "signature": put(pieces.signature), "board": pieces.board}
        permission = put(pieces.permission) if pieces.permission else ""
        return str(self.call("install", **sent, permission=permission)["id"])

    def install_by(self, session: Session, pieces: Pieces) -> None:
        """The same over a connection to a real runtime."""
        for data in pieces.parts:
            session.put(data)
        sent = {"manifest": session.put(pieces.manifest), "signature": session.put(pieces.signature)}
        permission = session.put(pieces.permission) if pieces.permission else ""
        session.call("install", Reply, **sent, board=pieces.board, permission=permission)

    def forget(self) -> None:
        """Remove what was put, so that each case has to put its own."""
        for name in ("objects", "incoming"):
            for path in (self.device_dir / name).iterdir():
                path.unlink()

    # ------------------------------------------------------------------------------------------- judging

    def board_takes(self, pieces: Pieces, session: Session | None) -> str:
        """What is wrong with the board's answer; "" when it refused and is as it was."""
        try:
            self.install(pieces) if session is None else self.install_by(session, pieces)
            return "the board installed it"
        except (ProtocolError, DeviceError) as error:
            if error.code not in REFUSALS:
                return f"the board's answer is {error.code}: {error.text}"
        finally:
            self.forget()
        for method in ("self_test", "activate", "commit"):
            with contextlib.suppress(ProtocolError):
                self.call(method, id=manifest.bundle_id(pieces.manifest), target="", timeout_s=1.0)
                return f"the board did {method} with it"
        state = bundle_calls.Slots(self.context.device_dir).status()
        found = (state["current"], state["committed"], [slot["id"] for slot in state["slots"]])
        return "" if found == (self.running, self.running, [self.running]) else f"the board has now {found}"

    def host_takes(self, data: bytes, *, process: bool) -> str:
        """What is wrong with the answer of `flash`; "" when it refused as the README says."""
        path = self.folder / "case.tfb"
        path.write_bytes(data)
        arguments = [str(path), "--board", str(self.board_path)]
        if process:
            command = [sys.executable, "-m", "toolkit.cli", "flash", *arguments]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            code, text = done.returncode, done.stderr
        else:
            result = CliRunner().invoke(flash, arguments)
            code, text = result.exit_code, result.output
            if not isinstance(result.exception, SystemExit):
                return f"flash raised {result.exception!r}"
        return "" if code in (2, 6) and "Traceback" not in text else f"flash ended with {code}: {text[-500:]}"


# ------------------------------------------------------------------------------------------------ the attack


def spoil(run: Run) -> None:
    """Spoil a bundle in one way after the other, and try it on the host and on the board."""
    bench = Bench(run.folder, run.rng)
    home, os.environ["HOME"] = os.environ["HOME"], str(bench.home)
    try:
        with open_session(bench.board, cache_dir=run.folder / "cache") as session:
            for number in run:
                case = KINDS[number % len(KINDS)](bench.spoiler)
                found = ""
                if case.file is not None:
                    found = bench.host_takes(case.file, process=number % IN_A_PROCESS == 0)
                if case.pieces is not None and not found:
                    real = number % IN_A_RUNTIME == 0
                    found = bench.board_takes(case.pieces, session if real else None)
                run.check(found == "", f"case {number}, {case.what}: {found}")
                if found:
                    _restore(bench)
    finally:
        os.environ["HOME"] = home
    bench.install(bench.spoiler.good)  # what was spoiled was good


def _restore(bench: Bench) -> None:
    shutil.rmtree(bench.device_dir / "slots")
    shutil.copytree(bench.folder / "as it was" / "slots", bench.device_dir / "slots", symlinks=True)


ATTACKS = (Attack("bundles", "a spoiled bundle is offered to the host and to the board", 5000, 60, spoil),)
