"""The runtime's own methods: lease, store, probe and measure."""

from __future__ import annotations

import functools
import os
from typing import Any, Dict, List

from device_runtime.content_store import status
from device_runtime.drivers.gpu_open import GPU_DRIVERS, GPU_HEADROOM_BYTES, Folders, run_on_gpu
from device_runtime.installed.bundle_slots import Slots
from device_runtime.measure.board_facts import facts, probe
from device_runtime.measure.cpu_kernel import run_kernel
from device_runtime.measure.gpu_kernel import run_gpu_module
from device_runtime.measure.trial import DataSet
from device_runtime.protocol import (
    BAD_REQUEST,
    CHUNK_BYTES,
    MAX_BUFFER_BYTES,
    MAX_DATA_SETS,
    REFUSED,
    MeasureFailure,
    MeasureRequest,
    MeasureResult,
    ProtocolError,
    take,
    take_sha,
    to_plain,
)
from device_runtime.sandbox.isolation import Limits, Outcome, run_isolated
from device_runtime.server.method import Context, Method, Reply

HEADROOM_BYTES = 256 << 20  # beyond the artifact and the request's own buffers: thread stacks, allocator


def call_probe(context: Context, params: Dict[str, Any], buffers: List[bytes]) -> Reply:
    """{gpus} -> what board_facts.probe finds."""
    return Reply(probe(context.device_dir, params.get("gpus") is not False))


def call_lease(context: Context, params: Dict[str, Any], buffers: List[bytes]) -> Reply:
    """{holder} -> {token}; BUSY with details holder, pid, since_unix_s."""
    holder: str = take(params, "holder", str)
    token = context.lease.acquire(holder[:200])
    context.store.forget_unfinished()  # nobody else is uploading or installing now
    Slots(context.device_dir).remove_leftovers()
    return Reply({"token": token})


def call_release(context: Context, params: Dict[str, Any], buffers: List[bytes]) -> Reply:
    """{} -> {}; lets others have the board."""
    context.lease.release()
    return Reply({})


def call_status(context: Context, params: Dict[str, Any], buffers: List[bytes]) -> Reply:
    """{sha} -> {size_bytes or None, received_bytes} of an object."""
    return Reply(dict(status(context.store, take_sha(params, "sha"))))


def call_put(context: Context, params: Dict[str, Any], buffers: List[bytes]) -> Reply:
    """{sha, total_bytes, offset} and one buffer -> {received_bytes}; see Store.write."""
    if len(buffers) != 1 or len(buffers[0]) > CHUNK_BYTES:
        raise ProtocolError(BAD_REQUEST, f"put: expected one buffer of at most {CHUNK_BYTES} bytes")
    total_bytes = take(params, "total_bytes", int, 0, MAX_BUFFER_BYTES)
    offset = take(params, "offset", int, 0, total_bytes)
    received = context.store.write(take_sha(params, "sha"), total_bytes, offset, buffers[0])
    return Reply({"received_bytes": received})


def call_read(context: Context, params: Dict[str, Any], buffers: List[bytes]) -> Reply:
    """{sha, offset} -> one buffer, at most CHUNK_BYTES of an object; empty at its end."""
    offset = take(params, "offset", int, 0, MAX_BUFFER_BYTES)
    return Reply({}, [context.store.read(take_sha(params, "sha"), offset, CHUNK_BYTES)])


def call_measure(context: Context, params: Dict[str, Any], buffers: List[bytes]) -> Reply:
    """MeasureRequest -> MeasureResult; a kernel that fails is a result, a request that cannot be is not."""
    request = MeasureRequest.from_plain(params)
    _refuse_impossible(request)
    path = context.store.path(request.module)
    try:
        sets = _data_sets(request, context)
    except MemoryError as error:
        return Reply(to_plain(MeasureResult(error=MeasureFailure("out_of_memory", str(error)))))
    measure = _measure_on_cpu if request.driver == "cpu" else _measure_on_gpu
    return Reply(to_plain(_result(measure(context, path, request, sets), request)))


def _data_sets(request: MeasureRequest, context: Context) -> List[DataSet]:
    """The data of all sets, where an object may hold that of several. ProtocolError, MemoryError."""
    sizes_bytes = [buffer.data_bytes for buffer in request.buffers]
    loaded = context.inputs.load(
        (sha, size_bytes, place == 1)
        for place, data in enumerate(request.data_sets)
        for sha, size_bytes in zip(data, sizes_bytes)
        if sha
    )
    sets: List[DataSet] = []
    for data in request.data_sets:
        found = [loaded[place] if place[0] else (None,) for place in zip(data, sizes_bytes)]
        count = max(map(len, found))
        if not {1, count}.issuperset(map(len, found)) or len(sets) + count > MAX_DATA_SETS + 1:
            raise ProtocolError(BAD_REQUEST, f"objects {list(data)} hold {[*map(len, found)]} sets of data")
        sets += [[regions[number % len(regions)] for regions in found] for number in range(count)]
    return sets


def _measure_on_cpu(context: Context, path: str, request: MeasureRequest, sets: List[DataSet]) -> Outcome:
    work = functools.partial(run_kernel, path, request, sets)
    code_bytes = os.stat(path).st_size  # of a model, with its parameters: mapped
    limits = Limits(request.timeout_s, code_bytes + _memory_bytes(request))
    return run_isolated(work, limits, context.watch_fd, until_gone=False)


def _measure_on_gpu(context: Context, path: str, request: MeasureRequest, sets: List[DataSet]) -> Outcome:
    """Measure in a child process, in which alone the GPU's driver is loaded."""
    code_bytes = 4 * os.stat(path).st_size  # of a model, with its parameters: read, parsed, uploaded
    copies_bytes = 2 * sum(buffer.size_bytes for buffer in request.buffers)  # on a device that is the CPU
    memory_bytes = GPU_HEADROOM_BYTES + code_bytes + copies_bytes + _memory_bytes(request)

    def run(folders: Folders) -> Dict[str, Any]:
        device = GPU_DRIVERS[request.driver].open(request.device, folders, request.threads)
        return run_gpu_module(device, path, request, sets)

    limits = Limits(request.timeout_s, memory_bytes)
    return run_on_gpu(request.driver, run, limits, context.device_dir, context.watch_fd)


def _refuse_impossible(request: MeasureRequest) -> None:
    allowed = os.sched_getaffinity(0)
    if not set(request.cores) <= allowed:
        text = f"cores {list(request.cores)} are not all usable here; usable are {sorted(allowed)}: "
        text += "let the runtime use them (taskset, cgroups), or change `cores` in the board file"
        raise ProtocolError(REFUSED, text, {"usable_cores": sorted(allowed)})


def _memory_bytes(request: MeasureRequest) -> int:
    outputs = sum(buffer.size_bytes for buffer in request.buffers if buffer.role == "output")
    flush_bytes = request.timing.flush_bytes if request.timing else 0
    return HEADROOM_BYTES + outputs + request.workspace_bytes + flush_bytes


def _result(outcome: Outcome, request: MeasureRequest) -> MeasureResult:
    answer = outcome.answer or {}
    return MeasureResult(
        seconds=tuple(answer.get("seconds", ())),
        number=answer.get("number", 0),
        error=outcome.failure,
        max_abs_error=answer.get("max_abs_error", 0.0),
        max_abs_reference=answer.get("max_abs_reference", 0.0),
        facts=facts(request.cores),
        device_s=outcome.wall_s,
        step_s=tuple(answer.get("step_s", ())),
        cpu_s=answer.get("cpu_s", 0.0),
    )


METHODS: Dict[str, Method] = {
    "probe": Method(call_probe, lease=False),
    "lease": Method(call_lease, lease=False),
    "release": Method(call_release, lease=False),
    "status": Method(call_status, lease=False),
    "put": Method(call_put, lease=True),
    "read": Method(call_read, lease=False),
    "measure": Method(call_measure, lease=True),
}
