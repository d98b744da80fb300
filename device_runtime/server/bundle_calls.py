"""The calls that put a bundle on the board and run it. The state they change is installed/bundle_slots.py's.

Order of a flash: trust, (put what is missing), install, self_test, activate, health_check, commit. Each call
may be repeated, and each may be the last one that arrives: what was current before runs until `activate`, and
what is current then has passed its self-test.
"""

from __future__ import annotations

import functools
import mmap
import os
from typing import Any, Callable, Dict, List, Optional, Tuple

from device_runtime.installed import run_model
from device_runtime.installed.bundle_slots import Slots
from device_runtime.installed.bundle_trust import BOARD_NAME
from device_runtime.installed.checked_manifest import MANIFEST, SIGNATURE
from device_runtime.installed.installed_model import InstalledModel, output_sizes, read_file, size_bytes
from device_runtime.installed.parts import bundle_id_of, read_whole
from device_runtime.protocol import (
    BAD_HASH,
    BAD_REQUEST,
    MAX_TIMEOUT_S,
    NOT_FOUND,
    ProtocolError,
    permission_text,
    sshsig,
    take,
    take_sha,
    to_plain,
)
from device_runtime.sandbox.isolation import Limits, Outcome, PeerGone
from device_runtime.server.method import Context, Method, Reply

MAX_REPEAT = 100_000
START_S = 10.0  # a start that had less time than this and did not end is no failed one

Plain = Dict[str, Any]


def call_slots(context: Context, params: Plain, buffers: List[bytes]) -> Reply:
    """{verify} -> the state and all slots; `verify`: a slot to hash as well ("": none), result in `whole`.

    `whole` is false for a slot that is not trusted, too. `nonce` is what `install` wants signed.
    """
    slots, bundle_id = Slots(context.device_dir), take(params, "verify", str)
    whole = bundle_id != "" and slots.is_whole(bundle_id) and not slots.why_refused(bundle_id)
    return Reply({**slots.status(), "whole": whole, "nonce": context.nonce})


def call_trust(context: Context, params: Plain, buffers: List[bytes]) -> Reply:
    """{signer, line} -> {trusted, installed}; the first caller's key becomes the trusted one.

    `signer` is "ssh-ed25519 AAAA...", `line` its allowed_signers line.
    """
    signer: str = take(params, "signer", str)
    line: str = take(params, "line", str)
    if [sshsig.public_line(key) for key in sshsig.allowed_keys(line)] != [signer]:
        raise ProtocolError(BAD_REQUEST, f"'line' is not the allowed_signers line of {signer!r:.120}")
    slots = Slots(context.device_dir)
    with slots.locked():
        if slots.trust.begin(line):
            return Reply({"trusted": True, "installed": True})
        known = slots.trust.knows(signer)
    return Reply({"trusted": known, "installed": False, "path": slots.trust.signers_path})


def call_install(context: Context, params: Plain, buffers: List[bytes]) -> Reply:
    """{manifest, signature, board, permission} -> {id, installed, signer}; see Slots.install.

    `manifest` and `signature` are object hashes, `board` is what the host calls this board. `permission`: ""
    or the hash of a trusted signer's signature of `permission_text`, for a bundle with a lower counter.
    """
    manifest_file = context.store.path(take_sha(params, "manifest"))
    signature_file = context.store.path(take_sha(params, "signature"))
    board: str = take(params, "board", str)
    if not BOARD_NAME.fullmatch(board):
        raise ProtocolError(BAD_REQUEST, f"'board': expected the name of a board, found {board!r:.80}")
    permitted = take(params, "permission", str) != ""
    slots = Slots(context.device_dir)
    with slots.locked():
        if permitted:
            text = permission_text(bundle_id_of(read_whole(manifest_file)), context.nonce)
            permission_file = context.store.path(take_sha(params, "permission"))
            slots.trust.check_signer(text, permission_file, "the permission to downgrade")
        parts = context.store.path
        return Reply(slots.install(manifest_file, signature_file, parts, board=board, permitted=permitted))


def call_self_test(context: Context, params: Plain, buffers: List[bytes]) -> Reply:
    """{id, target, timeout_s} -> {passed, failure, outputs, seconds, variant} of an installed slot."""
    slots, bundle_id = Slots(context.device_dir), take(params, "id", str)
    slots.check_trusted(bundle_id)
    model = run_model.installed_model(slots, bundle_id, take(params, "target", str), context.watch_fd)
    limits = run_model.limits(model, take(params, "timeout_s", float, 0.001, MAX_TIMEOUT_S))
    outcome = run_model.in_child(run_model.check_golden, model, context.device_dir, limits, context.watch_fd)
    with slots.locked():
        slots.tested(bundle_id, _text(outcome))
    return Reply(_plain(outcome, model))


def call_activate(context: Context, params: Plain, buffers: List[bytes]) -> Reply:
    """{id} -> the state; the slot must have passed its self-test, be trusted and no older one."""
    slots = Slots(context.device_dir)
    with slots.locked():
        slots.activate(take(params, "id", str))
        return Reply(slots.state())


def call_health_check(context: Context, params: Plain, buffers: List[bytes]) -> Reply:
    """{target, timeout_s} -> {id, passed, failure, outputs, seconds, variant}: starts the current slot."""
    timeout_s = take(params, "timeout_s", float, 0.001, MAX_TIMEOUT_S)
    bundle_id, model = _startable(context, params)
    started = run_model.shared_memory(0)
    outcome = _start(
        context, (bundle_id, model), run_model.check_golden, (run_model.limits(model, timeout_s), started)
    )
    return Reply({"id": bundle_id, **_plain(outcome, model)})


def call_commit(context: Context, params: Plain, buffers: List[bytes]) -> Reply:
    """{id} -> the state; the slot must be current. Other uploads that were broken off go."""
    slots = Slots(context.device_dir)
    with slots.locked():
        slots.commit(take(params, "id", str))
        context.store.forget_unfinished(0.0)
        return Reply(slots.state())


def call_rollback(context: Context, params: Plain, buffers: List[bytes]) -> Reply:
    """{expected_current, reason} -> {id} of what is current now; see Slots.rollback."""
    slots = Slots(context.device_dir)
    with slots.locked():
        current = slots.rollback(take(params, "expected_current", str), take(params, "reason", str) or None)
    return Reply({"id": current})


def call_run(context: Context, params: Plain, buffers: List[bytes]) -> Reply:
    """{inputs, target, repeat, timeout_s} -> {id, passed, failure, outputs, seconds, variant}.

    Runs the current slot's model `repeat` times on stored objects (hashes, in the order of the manifest's
    inputs). `outputs` are the hashes of what the last run gave, stored for `read`.
    """
    repeat = take(params, "repeat", int, 1, MAX_REPEAT)
    timeout_s = take(params, "timeout_s", float, 0.001, MAX_TIMEOUT_S)
    bundle_id, model = _startable(context, params)
    files = _input_files(context, model, take(params, "inputs", list))
    sizes = output_sizes(model)
    results = run_model.shared_memory(sum(sizes))
    work = functools.partial(run_model.run_on, input_files=files, repeat=repeat, results=results)
    outcome = _start(context, (bundle_id, model), work, (run_model.limits(model, timeout_s), results))
    hashes = []
    at_bytes = run_model.FLAG_BYTES
    for count_bytes in sizes if outcome.failure is None else ():
        hashes.append(context.store.add(results[at_bytes : at_bytes + count_bytes]))
        at_bytes += count_bytes
    return Reply({"id": bundle_id, **_plain(outcome, model), "outputs": hashes})


def call_share(context: Context, params: Plain, buffers: List[bytes]) -> Reply:
    """{id, path} -> {sha, size_bytes} of a file of an installed slot, stored for `read` and `measure`."""
    slots, bundle_id, path = Slots(context.device_dir), take(params, "id", str), take(params, "path", str)
    parts = {part["path"]: part["sha256"] for part in slots.check_trusted(bundle_id)["parts"]}
    if path not in (MANIFEST, SIGNATURE, *parts):
        raise ProtocolError(NOT_FOUND, f"slot {bundle_id} has no file {path!r:.200}")
    data = bytes(read_file(os.path.join(slots.folder(bundle_id), path)).memory)
    sha = context.store.add(data)
    if parts.get(path, sha) != sha:
        raise ProtocolError(BAD_HASH, f"slot {bundle_id}: {path} is damaged on the disk; flash it again")
    return Reply({"sha": sha, "size_bytes": len(data)})


def _startable(context: Context, params: Plain) -> Tuple[str, InstalledModel]:
    """The slot to start and its variant. That none of its variants runs here counts as a failed start."""
    slots, target = Slots(context.device_dir), take(params, "target", str)
    with slots.locked():
        bundle_id = slots.startable()
    try:
        return bundle_id, run_model.installed_model(slots, bundle_id, target, context.watch_fd)
    except ProtocolError as error:
        if target == "" and error.code == NOT_FOUND:
            with slots.locked():
                slots.begin_start()
                slots.end_start(bundle_id, error.text)
        raise


def _start(
    context: Context,
    started: Tuple[str, InstalledModel],
    work: Callable[[InstalledModel], Plain],
    bounds: Tuple[Limits, mmap.mmap],
) -> Outcome:
    """Run `work` as a start of the slot; `bounds`: its limits, and the memory whose flag says it has started.

    Running out of time afterwards, or out of too little time before, says nothing about the slot.
    """
    slots = Slots(context.device_dir)
    limits, memory = bounds
    bundle_id, model = started
    with slots.locked():
        slots.begin_start()
    try:
        outcome = run_model.in_child(work, model, context.device_dir, limits, context.watch_fd)
    except PeerGone:
        with slots.locked():
            slots.give_up_start(bundle_id)
        raise
    with slots.locked():
        timed_out = outcome.failure is not None and outcome.failure.kind == "timeout"
        if timed_out and run_model.has_started(memory):
            slots.end_start(bundle_id, None)
        elif timed_out and limits.timeout_s < START_S:
            slots.give_up_start(bundle_id)
        else:
            slots.end_start(bundle_id, _text(outcome))
    return outcome


def _input_files(context: Context, model: InstalledModel, hashes: List[Any]) -> List[str]:
    """Paths of stored inputs, whose number and sizes fit the model; ProtocolError(BAD_REQUEST)."""
    specs = model.manifest["inputs"]
    if len(hashes) != len(specs):
        names = ", ".join(spec["name"] for spec in specs)
        text = f"'inputs': expected {len(specs)} objects ({names}), found {len(hashes)}"
        raise ProtocolError(BAD_REQUEST, text)
    files = []
    for spec, sha in zip(specs, hashes):
        path = context.store.path(take_sha({"inputs": sha}, "inputs"))
        found, expected = os.stat(path).st_size, size_bytes(spec)
        if found != expected:
            what = f"{spec['dtype']} {spec['shape']}"
            text = f"input {spec['name']}: expected {expected} bytes ({what}), found {found}"
            raise ProtocolError(BAD_REQUEST, text)
        files.append(path)
    return files


def _text(outcome: Outcome) -> Optional[str]:
    failure = outcome.failure
    return None if failure is None else f"{failure.kind}: {failure.text}"


def _plain(outcome: Outcome, model: InstalledModel) -> Plain:
    failure = None if outcome.failure is None else to_plain(outcome.failure)
    return {
        "outputs": [],
        "seconds": 0.0,
        **(outcome.answer or {}),
        "failure": failure,
        "passed": failure is None,
        "variant": model.choice.plain(),
    }


METHODS: Dict[str, Method] = {
    "slots": Method(call_slots, lease=False),
    "trust": Method(call_trust, lease=True),
    "install": Method(call_install, lease=True),
    "self_test": Method(call_self_test, lease=True),
    "activate": Method(call_activate, lease=True),
    "health_check": Method(call_health_check, lease=True),
    "commit": Method(call_commit, lease=True),
    "rollback": Method(call_rollback, lease=True),
    "run": Method(call_run, lease=True),
    "share": Method(call_share, lease=True),
}
