"""What device_runtime/server/bundle_calls.py answers, as types; see toolkit/measure/replies.py."""

from __future__ import annotations

from typing import Annotated

import msgspec

from toolkit.flash.values import BundleId, SlotStatus, StartedVariant
from toolkit.measure.replies import Bytes, Reply

Error = Annotated[float, msgspec.Meta(ge=0, le=1e300)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Nonce = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
Sha = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class VerifiedSlots(SlotStatus, frozen=True, kw_only=True):
    """`whole`: the slot that was asked for is installed, every byte of it as signed by somebody trusted.

    `nonce`: what a permission to downgrade over this connection is for.
    """

    whole: bool
    nonce: Nonce


class Trusted(Reply, frozen=True, kw_only=True):
    """`path`: of the board's allowed_signers, "" where the key was the first."""

    trusted: bool
    path: str = ""


class SharedFile(Reply, frozen=True, kw_only=True):
    """A file of a slot, which is in the store now."""

    sha: Sha
    size_bytes: Bytes


class Current(Reply, frozen=True, kw_only=True):
    """After a rollback: the slot that is current now."""

    id: BundleId


class Failure(Reply, frozen=True, kw_only=True):
    kind: str
    text: str


class CheckedOutput(Reply, frozen=True, kw_only=True):
    max_abs_error: Error
    max_abs_reference: Error


class Start(Reply, frozen=True, kw_only=True):
    """A slot's model was started; `failure` says why it did not get through, when it has not `passed`."""

    passed: bool
    failure: Failure | None
    variant: StartedVariant
    id: BundleId = ""

    def __post_init__(self) -> None:
        if self.passed != (self.failure is None):
            raise ValueError("Expected a failure or that it passed, got both or neither")


class SelfTest(Start, frozen=True, kw_only=True):
    """A start with golden data."""

    outputs: tuple[CheckedOutput, ...]


class ModelStart(Start, frozen=True, kw_only=True):
    """A start with data of the host's: the stored outputs, and the seconds of every run."""

    outputs: tuple[Sha, ...]
    seconds: tuple[Seconds, ...] | Seconds

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.passed and not self.run_s:
            raise ValueError("Expected the seconds of every run, got none")

    @property
    def run_s(self) -> tuple[float, ...]:
        """Seconds of every run; none after a failure."""
        return self.seconds if isinstance(self.seconds, tuple) else ()
