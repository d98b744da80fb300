"""Put a bundle on a board, or take it back: the host's side of device_runtime/server/bundle_calls.py.

`flash` connects and takes the lease, verifies the bundle, uploads what the board lacks, and has it installed,
self-tested, made current, health-checked and committed. Whatever breaks on the way, a slot that passed its
self-test stays current, and the same call goes on where the last one stopped. A bundle that is already there
and committed changes nothing.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from boards.board import Board
from device_runtime.protocol import BAD_HASH, NOT_FOUND, REFUSED, permission_text
from toolkit.bundle.sign import key_file, open_key
from toolkit.bundle.verify import VerifiedBundle, open_bundle, trusted_keys
from toolkit.errors import (
    BoardUnreachable,
    InputError,
    NotCommitted,
    OutputError,
    RolledBack,
    ToolkitError,
    UnfitBoard,
    VerificationError,
)
from toolkit.flash.replies import Current, ModelStart, SelfTest, Start, Trusted, VerifiedSlots
from toolkit.flash.values import (
    FlashEvent,
    FlashOptions,
    FlashProgress,
    FlashReport,
    RunResult,
    SlotStatus,
    StartedVariant,
    StepName,
    StepState,
)
from toolkit.measure.fit import require, require_machine
from toolkit.measure.replies import Reply, StoredObject
from toolkit.measure.session import (
    DeviceError,
    LeaseLost,
    Session,
    StorageFailed,
    Untrusted,
    open_session,
    put_again,
)

DEFAULTS: Final = FlashOptions()
REASON_LENGTH: Final = 500  # of why, for the board to keep
TYPED: Final = (StorageFailed, LeaseLost, Untrusted)  # refusals that say all there is to say
AGAIN: Final = "tune or pack the bundle again"


def flash_bundle(
    bundle_path: Path | str,
    board: Board,
    options: FlashOptions = DEFAULTS,
    progress: FlashProgress = lambda _: None,
) -> FlashReport:
    """Install the bundle on the board and make it current.

    Raises InputError (no such file, wrong board), VerificationError (signature, hashes, or the self-test of a
    first bundle), UnfitBoard (another machine, or fewer cores), BoardUnreachable, BoardBusy, OutputError (the
    board's storage is full or fails), RolledBack (it failed on the board and the one before runs),
    NotCommitted (it runs, but whether it was committed, or could be taken back, is not known).
    """
    started_s = time.monotonic()
    with _step(progress, "verify"):
        bundle = open_bundle(bundle_path, trusted_keys(options.config_dir))
        _check_fit(bundle, board, options.target)
    with _step(progress, "connect"):
        session = _connect(board, options, lease=not options.dry_run)
    with session:
        _check_board(session, bundle)
        return _Flash(session, bundle, options, progress).run(started_s)


def slot_status(board: Board, options: FlashOptions = DEFAULTS) -> SlotStatus:
    """What is installed on the board; takes no lease. Raises BoardUnreachable."""
    with _connect(board, options, lease=False) as session:
        return session.call("slots", SlotStatus, verify="")


def roll_back(
    board: Board, options: FlashOptions = DEFAULTS, progress: FlashProgress = lambda _: None
) -> SlotStatus:
    """Make the slot before the current one current again, and check that it runs.

    Raises InputError when there is none, VerificationError when it does not run either, BoardUnreachable,
    BoardBusy.
    """
    with _connect(board, options, lease=True) as session:
        before = session.call("slots", SlotStatus, verify="")
        with _step(progress, "rollback"), _refused(f"board {board.name}", "; flash a bundle instead"):
            session.call("rollback", Current, expected_current=before.current, reason="")
        with _step(progress, "health_check"):
            answer = session.call("health_check", Start, **options.start)
        after = session.call("slots", SlotStatus, verify="")
    if not answer.passed:
        raise VerificationError(
            f"board {board.name}: slot {after.current} is current again but does not run: "
            f"{_failure(answer)}; flash a bundle that does"
        )
    return after


def run(
    board: Board, inputs: Sequence[bytes], repeat: int = 1, options: FlashOptions = DEFAULTS
) -> RunResult:
    """Run the board's current model on raw inputs, in the order and layout of `SlotInfo.inputs`.

    Raises InputError (no bundle, inputs that do not fit), VerificationError when the model fails,
    BoardUnreachable, BoardBusy.
    """
    with _connect(board, options, lease=True) as session:
        slots = session.call("slots", SlotStatus, verify="")

        def start() -> ModelStart:
            hashes = [session.put(data) for data in inputs]
            return session.call("run", ModelStart, inputs=hashes, repeat=repeat, **options.start)

        with _refused(f"board {board.name}"):
            answer = put_again(start)
        if not answer.passed:
            raise VerificationError(
                f"board {board.name}: the model in slot {answer.id} failed: {_failure(answer)}"
            )
        slot = slots.slot(answer.id)
        if slot is None or len(answer.outputs) != len(slot.outputs):
            raise VerificationError(
                f"board {board.name} ran slot {answer.id!r} and stored {len(answer.outputs)} outputs, "
                "which is not what it said was installed; flash the bundle again"
            )
        outputs = tuple(
            session.read(sha, spec.size_bytes) for sha, spec in zip(answer.outputs, slot.outputs, strict=True)
        )
    return RunResult(answer.id, outputs, answer.run_s, answer.variant)


def _connect(board: Board, options: FlashOptions, *, lease: bool) -> Session:
    """A session with the machine that the board's file is about. Raises UnfitBoard with any other."""
    session = open_session(board, cache_dir=options.cache_dir, wait_s=options.wait_s, lease=lease)
    try:
        require_machine(session)
    except UnfitBoard:
        session.close()
        raise
    return session


def _check_board(session: Session, bundle: VerifiedBundle) -> None:
    """UnfitBoard when the board lacks the cores or the CPU's features that a bundle for its CPU needs.

    Beside a variant for a GPU the CPU's is one to fall back to: the board decides when it starts one.
    """
    names = {variant.target for variant in bundle.manifest.variants if variant.kind == "cpu"}
    if len(names) == len(bundle.manifest.variants):
        targets = [target for target in session.board.targets if target.name in names]
        require(session.board, targets, session.probe(gpus=False))


def _check_fit(bundle: VerifiedBundle, board: Board, target: str) -> None:
    """InputError when the bundle is not for this board, or has no variant for the target asked for."""
    boards = bundle.manifest.compatibility.boards
    if board.name not in boards:
        raise InputError(
            f"bundle {bundle.path} is for {', '.join(boards)}, not for {board.name}; "
            f"tune the model with --board {board.name}, or flash the bundle to one of its boards"
        )
    targets = [variant.target for variant in bundle.manifest.variants]
    if target and target not in targets:
        raise InputError(
            f"bundle {bundle.path} has no variant for the target {target!r}, only for {', '.join(targets)}; "
            "name one of these with --target, or leave it out"
        )


# -------------------------------------------------------------------------------------------------- steps


class _Flash(msgspec.Struct, frozen=True):
    """One bundle on its way to one board; `before` is what its methods take: the slots as they were first."""

    session: Session
    bundle: VerifiedBundle
    options: FlashOptions
    tell: FlashProgress

    def run(self, started_s: float) -> FlashReport:
        """See `flash`; `started_s` is when it began by the monotonic clock."""
        session, bundle, options = self.session, self.bundle, self.options
        before = session.call("slots", VerifiedSlots, verify=bundle.id)
        settled = before.whole and before.current == before.committed == bundle.id
        missing = {} if before.whole else self.missing()
        error, variant = 0.0, None
        if not settled and not options.dry_run:
            if not before.whole:
                self.trust()
            permission = self.permission(before.nonce)
            with self.refusals():
                put_again(functools.partial(self.deliver, permission, upload=not before.whole))
            error, variant = self.self_test(before)
            self.switch(before)
        return FlashReport(
            board=session.board.name,
            device_dir=before.device_dir,
            bundle_id=bundle.id,
            name=bundle.manifest.name,
            changed=not settled and not options.dry_run,
            dry_run=options.dry_run,
            previous=before.previous if settled else before.committed,
            missing_bytes=sum(missing.values()),
            total_bytes=sum(part.size_bytes for part in bundle.manifest.parts),
            max_relative_error=error,
            seconds=time.monotonic() - started_s,
            variant=variant,
        )

    def trust(self) -> None:
        """Let the board trust the signer when it trusts nobody yet; VerificationError when it won't."""
        line = self.bundle.signer.allowed_signers_line
        with _step(self.tell, "trust"):
            answer = self.session.call("trust", Trusted, signer=self.bundle.signer.line, line=line)
        if not answer.trusted:
            raise VerificationError(
                f"board {self.session.board.name} does not trust the signer of {self.bundle.path} "
                f"({self.bundle.signer.fingerprint}); if it should, add this line to {answer.path} "
                f"there: {line.strip()}"
            )

    def missing(self) -> dict[str, int]:
        """Bytes still to upload of each part, by SHA-256."""
        missing = {}
        for part in self.bundle.manifest.parts:
            stored = self.session.call("status", StoredObject, sha=part.sha256)
            if stored.size_bytes is None:
                missing[part.sha256] = part.size_bytes - min(stored.received_bytes, part.size_bytes)
        return missing

    def deliver(self, permission: bytes, *, upload: bool) -> None:
        """Upload what the board lacks now, unless all is in a slot, and have it installed.

        The board looks at signer, board and age of the bundle also where nothing is to be copied.
        """
        if upload:
            self.upload(self.missing())
        with _step(self.tell, "install"):
            self.session.call(
                "install",
                Reply,
                manifest=self.session.put(self.bundle.manifest_bytes),
                signature=self.session.put(self.bundle.signature),
                board=self.session.board.name,
                permission=self.session.put(permission) if permission else "",
            )

    def upload(self, missing: dict[str, int]) -> None:
        total_bytes, done_bytes = sum(missing.values()), 0
        with _step(self.tell, "upload"):
            for part in self.bundle.manifest.parts:
                if part.sha256 in missing:
                    resumed_bytes = part.size_bytes - missing[part.sha256]
                    moved = functools.partial(_moved, self.tell, done_bytes - resumed_bytes, total_bytes)
                    self.session.put(self.bundle.read_part(part.path), moved)
                    done_bytes += missing[part.sha256]

    def permission(self, nonce: str) -> bytes:
        """This host's signature that permits an older bundle over this connection; b"" unless asked for."""
        if not self.options.allow_downgrade:
            return b""
        key = key_file(self.options.config_dir)
        if not key.exists():
            raise InputError(
                f"--allow-downgrade: expected a signing key at {key}, found none; flash from a host whose "
                "key the board trusts"
            )
        return open_key(key).sign(permission_text(self.bundle.id, nonce))

    def self_test(self, before: SlotStatus) -> tuple[float, StartedVariant]:
        """Largest relative error, and what ran. RolledBack or VerificationError; nothing was switched."""
        with _step(self.tell, "self_test"), _refused(self.where):
            answer = self.session.call("self_test", SelfTest, id=self.bundle.id, **self.options.start)
        if not answer.passed:
            raise self.rejected(before.current, f"its self-test failed: {_failure(answer)}; {AGAIN}")
        errors = [output.max_abs_error / max(output.max_abs_reference, 1e-30) for output in answer.outputs]
        return max(errors, default=0.0), answer.variant

    def switch(self, before: SlotStatus) -> None:
        """Make the tested slot current, see that it starts, and keep it; if anything fails, take it back."""
        try:
            with _step(self.tell, "activate"):
                self.session.call("activate", Reply, id=self.bundle.id)
            with _step(self.tell, "health_check"):
                answer = self.session.call("health_check", Start, **self.options.start)
            if not answer.passed or answer.id != self.bundle.id:
                raise self.taken_back(before, f"it does not start: {_failure(answer)}; {AGAIN}")
            with _step(self.tell, "commit"):
                self.session.call("commit", Reply, id=self.bundle.id)
        except BoardUnreachable as error:
            raise self.not_committed(before, error) from error
        except (DeviceError, OSError) as error:
            if before.committed == self.bundle.id:
                raise  # it was repaired where it was; there is nothing to take back
            failure = self.taken_back(before, str(error))
            if isinstance(failure, VerificationError) and isinstance(error, (StorageFailed, OSError)):
                failure = OutputError(str(failure))  # nothing ran before, and the bundle is right
            raise failure from error
        except ToolkitError:
            raise
        except BaseException as error:  # Ctrl-C, or an error of who listens to the progress
            if before.committed != self.bundle.id:
                error.add_note(str(self.taken_back(before, "interrupted")))
            raise

    def taken_back(self, before: SlotStatus, reason: str) -> ToolkitError:
        """Have the board go back to the slot before; what to raise then. If it cannot, this is on trial."""
        try:
            with _step(self.tell, "rollback"):
                reason = reason[:REASON_LENGTH]
                after = self.session.call("rollback", Current, expected_current=self.bundle.id, reason=reason)
        except (DeviceError, BoardUnreachable, OSError) as error:
            return self.not_committed(before, f"{reason}; nor could it be taken back: {error}")
        return self.rejected(after.id, reason)

    def not_committed(self, before: SlotStatus, reason: object) -> NotCommitted:
        return NotCommitted(
            f"bundle {self.bundle.id} passed its self-test on {self.session.board.name}, but its commit is "
            f"not confirmed: {str(reason).rstrip('.')}. Flash it again to commit it; until then three failed "
            f"starts bring back {before.committed or 'no other bundle'}."
        )

    def rejected(self, current: str, reason: str) -> RolledBack | VerificationError:
        bundle, board = self.bundle, self.session.board.name
        what = f"bundle {bundle.id} ({bundle.manifest.name}) was not kept on {board}: {reason}"
        if current:
            return RolledBack(f"{what}. Slot {current} is current, as before.")
        return VerificationError(f"{what}. No other bundle is installed.")

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """Turn what the board refuses while it gets a bundle into the error that says what to do."""
        try:
            yield
        except DeviceError as error:
            where = f"{self.where}: {error.text}"
            if error.code in (REFUSED, BAD_HASH):
                raise VerificationError(where) from error
            if error.code == NOT_FOUND:
                raise OutputError(f"{where}; its store loses what is put there: check its storage") from error
            raise

    @property
    def where(self) -> str:
        """The board and the bundle, as error messages name them."""
        return f"board {self.session.board.name}, bundle {self.bundle.path}"


def _moved(tell: FlashProgress, before_bytes: int, all_bytes: int, part_bytes: int, _: int) -> None:
    tell(FlashEvent("upload", "progress", before_bytes + part_bytes, all_bytes))


@contextmanager
def _refused(where: str, instead: str = "") -> Iterator[None]:
    """A call that the board refuses is a wrong input, unless its error is of a type that says more."""
    try:
        yield
    except TYPED:
        raise
    except DeviceError as error:
        raise InputError(f"{where}: {error.text}{instead}") from error


@contextmanager
def _step(tell: FlashProgress, name: StepName) -> Iterator[None]:
    tell(FlashEvent(name, "begin"))
    state: StepState = "failed"
    try:
        yield
        state = "end"
    finally:
        tell(FlashEvent(name, state))


def _failure(answer: Start) -> str:
    if answer.failure is None:
        return f"wrong slot: slot {answer.id} was started"
    return f"{answer.failure.kind}: {answer.failure.text}"
