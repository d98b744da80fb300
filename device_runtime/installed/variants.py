"""Which of a bundle's variants to start here: the first one whose device is there, and why it is that one.

The manifest lists them in the order in which the host wants them tried: what was tuned first, the CPU last.
A GPU is looked for at each start, in a child process, because its driver may crash, or start threads.
"""

from __future__ import annotations

import dataclasses
import functools
import platform
from dataclasses import dataclass
from typing import Any, Dict, Optional

from device_runtime.drivers.cuda_driver import find_cuda
from device_runtime.drivers.gpu_open import DRIVERS_WRITE, GPU_FILE_BYTES, GPU_HEADROOM_BYTES, gpu_folders
from device_runtime.drivers.opencl_driver import find_opencl
from device_runtime.protocol import NOT_FOUND, ProtocolError
from device_runtime.sandbox.isolation import Fault, Limits, run_isolated

LOOKING = Limits(30.0, GPU_HEADROOM_BYTES, limit_address_space=False, file_bytes=GPU_FILE_BYTES)

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
    if variant["kind"] == "cpu":
        machine = platform.machine()
        wanted = variant["triple"].split("-")[0]
        if wanted != machine:
            raise Fault("link", f"it is for {wanted}, this board is {machine}")
        return machine
    with gpu_folders(device_dir, variant["kind"]) as (_, scratch):
        bounds = dataclasses.replace(LOOKING, writable=(scratch, *DRIVERS_WRITE))
        outcome = run_isolated(functools.partial(_find, variant, scratch), bounds, watch_fd)
    if outcome.failure is not None:
        raise Fault(outcome.failure.kind, outcome.failure.text)
    assert outcome.answer is not None
    return str(outcome.answer["device"])


def _find(variant: Plain, scratch: str) -> Plain:
    """In the child. Raises Fault("link")."""
    if variant["kind"] == "opencl":
        name, threads = find_opencl(variant["device"], scratch)
    else:
        name, capability, threads = find_cuda(variant["device"])
        check_capability(name, capability, variant["compute_capability"])
    wanted = variant["threads_per_block"]
    if wanted > threads:
        raise Fault("link", f"it needs {wanted} threads a block, {name} has at most {threads}")
    return {"device": name}


def check_capability(name: str, found: Any, wanted: str) -> None:
    """A cubin runs on its own compute capability, and on later minor ones of the same major one."""
    digits = wanted.rpartition("_")[2]
    major, minor = int(digits[:-1]), int(digits[-1])
    if found[0] != major or found[1] < minor:
        raise Fault("link", f"it is for {wanted}, {name} is sm_{found[0]}{found[1]}")
