"""Which of a bundle's variants a board has started, and why not the ones before it."""

from __future__ import annotations

import msgspec


class StartedVariant(msgspec.Struct, frozen=True, kw_only=True):
    """`reason` says why the variants before this one could not be started; empty for the first."""

    target: str
    kind: str
    device: str
    reason: str

    @property
    def text(self) -> str:
        """For people: `mali (opencl) on ...`, or what was fallen back to and why."""
        kind = f" ({self.kind})" if self.kind != self.target else ""
        found = f"{self.target}{kind} on {self.device}"
        return f"fell back to {found}: {self.reason}" if self.reason else found
