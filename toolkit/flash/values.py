"""What goes into flashing and what comes out: options, events, and what is installed or was done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from device_runtime.protocol import DTYPE_BYTES
from toolkit.bundle.manifest import TensorSpec, counters

MAX_TENSORS_BYTES: Final = 1 << 30
"""All inputs, or all outputs, of one run; a board that says more is not believed."""

BundleId = Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{32})?\Z")]
"""The id of the bundle in a slot; "" where a slot is empty."""

StepName = Literal[
    "verify", "connect", "trust", "upload", "install", "self_test", "activate", "health_check", "commit",
    "rollback",
]  # fmt: skip
StepState = Literal["begin", "progress", "end", "failed"]


class FlashEvent(msgspec.Struct, frozen=True):
    """A step began, ended or failed with an error; or an upload moved on, `done_bytes` of `total_bytes`."""

    step: StepName
    state: StepState
    done_bytes: int = 0
    total_bytes: int = 0


FlashProgress = Callable[[FlashEvent], None]


class FlashOptions(msgspec.Struct, frozen=True):
    """How to flash; the defaults are what the command does."""

    dry_run: bool = False
    """Verify and look, but change nothing on the board."""
    allow_downgrade: bool = False
    """Flash a bundle that is older than one that was committed under its name; this host's key permits it."""
    target: str = ""
    """Variant to start, by target name; empty: the first whose device the board has."""
    test_timeout_s: float = 120.0
    """Longest that a self-test, a health check or the runs of `run_installed` may take."""
    wait_s: float = 0.0
    """How long to wait for the board's lease."""
    config_dir: Path | str | None = None
    """Where the signing key and trusted signers are; None: ~/.config/tune-for-board."""
    cache_dir: Path | str | None = None

    @property
    def start(self) -> dict[str, Any]:
        """Parameters of the calls that start the model."""
        return {"target": self.target, "timeout_s": self.test_timeout_s}


class StartedVariant(msgspec.Struct, frozen=True, kw_only=True):
    """`reason` says why the variants before this one could not be started; empty for the first."""

    target: str
    kind: str
    device: str
    reason: str

    @property
    def text(self) -> str:
        """For the user: `mali (opencl) on ...`, or what was fallen back to and why."""
        kind = f" ({self.kind})" if self.kind != self.target else ""
        found = f"{self.target}{kind} on {self.device}"
        return f"fell back to {found}: {self.reason}" if self.reason else found


class SlotInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One bundle installed on a board."""

    id: BundleId
    name: str
    size_bytes: Annotated[int, msgspec.Meta(ge=0)]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    damaged: bool
    tested: bool
    refused: str
    """Why the board neither switches to it nor starts it, such as a signer no longer trusted; or ""."""

    def __post_init__(self) -> None:
        for specs in (self.inputs, self.outputs):
            if any(spec.dtype not in DTYPE_BYTES for spec in specs):
                raise ValueError(f"Expected dtypes out of {', '.join(DTYPE_BYTES)}")
            if sum(spec.size_bytes for spec in specs) > MAX_TENSORS_BYTES:
                raise ValueError(f"Expected inputs and outputs of at most {MAX_TENSORS_BYTES} bytes each")
            if len({spec.name for spec in specs}) < len(specs):
                raise ValueError("Expected different names of inputs and of outputs")
        counters(self.outputs)


class SlotStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Which bundles a board has. `current` runs; it is on trial while it is not `committed`."""

    device_dir: str
    current: BundleId
    committed: BundleId
    previous: BundleId
    on_trial: bool
    failed_starts: int
    last_failure: dict[str, str] | None
    slots: tuple[SlotInfo, ...]

    def slot(self, bundle_id: str) -> SlotInfo | None:
        """The installed bundle with this id."""
        return next((slot for slot in self.slots if slot.id == bundle_id), None)


class FlashReport(msgspec.Struct, frozen=True):
    """What a flash did. `missing_bytes` had to be uploaded (or would have to be, in a dry run)."""

    board: str
    device_dir: str
    bundle_id: str
    name: str
    changed: bool
    dry_run: bool
    previous: str
    missing_bytes: int
    total_bytes: int
    max_relative_error: float
    """The self-test's largest |error| of any output over that output's largest |expected|."""
    seconds: float
    variant: StartedVariant | None
    """What the self-test ran; None when there was none."""


class RunResult(msgspec.Struct, frozen=True):
    """What the installed model computed: raw C-order bytes per output, and the seconds of every run."""

    bundle_id: str
    outputs: tuple[bytes, ...]
    seconds: tuple[float, ...]
    variant: StartedVariant
