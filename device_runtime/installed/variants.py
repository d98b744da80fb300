"""Which of a bundle's variants to start here: the first one whose device is there, and why it is that one.

The manifest lists them in the order in which the host wants them tried: what was tuned first, the CPU last.
A GPU is looked for at each start, in a child process, because its driver may crash, or start threads.
"""

from __future__ import annotations

import functools
import platform
from dataclasses import dataclass
from typing import Any, Dict, Optional

from device_runtime.drivers.gpu_open import GPU_DRIVERS, GPU_HEADROOM_BYTES, Folders, run_on_gpu
from device_runtime.protocol import NOT_FOUND, ProtocolError
from device_runtime.sandbox.isolation import Fault, Limits

LOOKING = Limits(30.0, GPU_HEADROOM_BYTES)

Plain = Dict[str, Any]


@dataclass(frozen=True)
class Choice:
    """A variant of the manifest, the device that it runs on, and why those before it do not run ("")."""

    variant: Plain
    device: str
    reason: str

    def plain(self) -> Plain:
        """What the host is told."""
        return {
            "target": self.variant["target"],
            "kind": self.variant["kind"],
            "device": self.device,
            "reason": self.reason,
        }


def choose(manifest: Plain, target: str, device_dir: str, watch_fd: Optional[int] = None) -> Choice:
    """The first variant that this board can run, of those for `target` ("": of all).

    Raises ProtocolError(NOT_FOUND) with a reason for each variant; PeerGone.
    """
    reasons = []
    for variant in manifest["variants"]:
        if target not in ("", variant["target"]):
            continue
        try:
            device = _device(variant, device_dir, watch_fd)
        except Fault as fault:
            reasons.append(f"{variant['target']}: {fault.text}")
            continue
        return Choice(variant, device, "; ".join(reasons))
    if reasons:
        raise ProtocolError(NOT_FOUND, f"the bundle has no variant for this board: {'; '.join(reasons)}")
    names = ", ".join(f"{variant['target']} ({variant['kind']})" for variant in manifest["variants"])
    raise ProtocolError(NOT_FOUND, f"the bundle has no variant for target {target!r}; it has {names}")


def _device(variant: Plain, device_dir: str, watch_fd: Optional[int]) -> str:
    """What the variant would run on. Raises Fault with what is missing."""
    kind = variant["kind"]
    if kind == "cpu":
        machine = platform.machine()
        wanted = variant["triple"].split("-")[0]
        if wanted != machine:
            raise Fault("link", f"it is for {wanted}, this board is {machine}")
        return machine
    looking = functools.partial(_find, variant)
    outcome = run_on_gpu(kind, looking, LOOKING, device_dir, watch_fd, keeps=False)
    if outcome.failure is not None:
        raise Fault(outcome.failure.kind, outcome.failure.text)
    assert outcome.answer is not None
    return str(outcome.answer["device"])


def _find(variant: Plain, folders: Folders) -> Plain:
    """Look for the variant's device, in a child process. Raises Fault("link")."""
    name, threads = GPU_DRIVERS[variant["kind"]].find(variant, folders[1])
    wanted = variant["threads_per_block"]
    if wanted > threads:
        raise Fault("link", f"it needs {wanted} threads a block, {name} has at most {threads}")
    return {"device": name}
