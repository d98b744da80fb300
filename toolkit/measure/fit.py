"""Is this the board that its file describes? What `doctor` asks of it, and what a job needs before it begins.

A job calls `fitted` once it has greeted the board: on another machine, with fewer cores, without the CPU's
features or the GPU that the target is for, all its trials would fail, and be recorded as that board's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from boards.description import Board
from boards.features import missing_flags, needed_flags
from boards.target import Target
from toolkit.errors import UnfitBoard
from toolkit.measure.replies import GPU_DRIVERS, Core, Probe
from toolkit.measure.session import Session

State = Literal["ok", "warning", "failure", "unknown"]


class Check(msgspec.Struct, frozen=True):
    """One question. `unknown`: the board does not expose it. `remedy` says what to do about a bad answer."""

    name: str
    state: State
    found: str
    remedy: str = ""


def fitted(session: Session, target: Target) -> Target:
    """The target as the session's board can run it: with vectors that its OpenCL compiler can compile.

    Raises UnfitBoard with what `doctor` says of it, BoardUnreachable.
    """
    require_machine(session)
    answer = session.probe(gpus=target.kind != "cpu")
    require(session.board, [target], answer)
    return with_compiled_vectors(target, answer)


def require_machine(session: Session) -> None:
    """Raise UnfitBoard where the board's file is for another machine; its greeting says which it is."""
    _refuse(session.board, machine_check(session.board, session.hello.machine))


def require(board: Board, targets: Sequence[Target], answer: Probe) -> None:
    """Raise UnfitBoard where the board that gave this answer lacks what the targets need."""
    _refuse(board, *needs(board, targets, answer))


def needs(board: Board, targets: Sequence[Target], answer: Probe) -> Iterator[Check]:
    """What the targets need of the board that gave this answer: its machine, cores, features, devices."""
    cpus = [target for target in targets if target.kind == "cpu"]
    yield machine_check(board, answer.machine)
    yield _cores(cpus, answer.cores)
    flags = () if board.emulated else answer.cpu.features  # the emulator shows the host's
    yield _features(cpus, frozenset(flags))
    for kind in GPU_DRIVERS:
        yield _devices([target for target in targets if target.kind == kind], kind, answer)


def with_compiled_vectors(target: Target, answer: Probe) -> Target:
    """The target with vectors no longer than those which the probe found its compiler to compile."""
    if target.kind != "opencl" or target.gpu is None:
        return target
    devices = [item for item in answer.opencl if target.device.lower() in item.full_name.lower()]
    lanes = min(
        (item.vector_lanes for item in devices if item.vector_lanes), default=target.gpu.longest_vector
    )
    narrowed: Target = msgspec.structs.replace(target, gpu=target.gpu.with_vectors_up_to(lanes))
    return narrowed


def _refuse(board: Board, *checks: Check) -> None:
    failures = [check for check in checks if check.state == "failure"]
    if failures:
        text = "; ".join(f"{check.name}: {check.found}: {check.remedy}" for check in failures)
        raise UnfitBoard(
            f"board {board.name} is not what its file says: {text}; `toolkit doctor` checks it all"
        )


def machine_check(board: Board, machine: str) -> Check:
    """Whether the board's targets are for this machine, such as "aarch64"."""
    wanted = sorted({target.triple.split("-")[0] for target in board.targets if target.triple})
    if not wanted or machine in wanted:
        return Check("machine", "ok", machine)
    remedy = (
        f"this is another machine than {board.name}: correct the address, or choose a board with {machine}"
    )
    return Check("machine", "failure", f"{machine}, expected {' or '.join(wanted)}", remedy)


def _cores(targets: Sequence[Target], cores: Sequence[Core]) -> Check:
    present = {core.id for core in cores}
    missing = {core for target in targets for core in target.cores} - present
    if not missing:
        return Check("cores", "ok", _listed(present))
    found = f"cores {_listed(missing)} are not there, only {_listed(present)}"
    remedy = f"bring them online (echo 1 | sudo tee /sys/devices/system/cpu/cpu{min(missing)}/online)"
    return Check("cores", "failure", found, f"{remedy}, or name others in the board file")


def _features(targets: Sequence[Target], flags: frozenset[str]) -> Check:
    missing = sorted({flag for target in targets for flag in missing_flags(needed_flags(target), flags)})
    if not flags:
        return Check("features", "unknown", "the board does not expose its CPU's features")
    if not missing:
        return Check("features", "ok", "all that the board file asks for")
    names = ", ".join(target.name for target in targets if missing_flags(needed_flags(target), flags))
    remedy = (
        f"this CPU has no code of target {names}: correct cpu, features and vector_bytes in the board file"
    )
    return Check("features", "failure", f"the CPU lacks {', '.join(missing)}", remedy)


def _devices(targets: Sequence[Target], kind: str, answer: Probe) -> Check:
    present = answer.gpus[kind]
    devices = [device.full_name.lower() for device in present]
    names = ", ".join(device.name for device in present)
    errors = "; ".join(text for text in answer.gpu_errors if text.startswith(kind))
    lacking = [item for item in targets if not any(item.device.lower() in name for name in devices)]
    if not lacking:
        return Check(kind, "ok", names or "no device, and none is needed")
    names_lacking = ", ".join(target.name for target in lacking)
    remedy = f"on the board, install {GPU_DRIVERS[kind]}; target {names_lacking} needs them"
    wanted = ", ".join(repr(target.device) for target in lacking if target.device)
    found = f"no device {wanted}, only {names}" if names else "no device"
    return Check(kind, "failure", errors or found, remedy)


def _listed(cores: set[int]) -> str:
    return ", ".join(map(str, sorted(cores)))
