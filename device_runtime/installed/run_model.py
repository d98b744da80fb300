"""Run an installed bundle's model, in a child process, and check it against its golden data.

The child opens each file it needs, hashes what it opened against the signed manifest, and uses that very
descriptor, so nothing can be exchanged in between.
"""

from __future__ import annotations

import dataclasses
import functools
import mmap
from typing import Any, Callable, ContextManager, Dict, Optional, Sequence

from device_runtime.drivers.gpu_open import GPU_HEADROOM_BYTES, Folders, run_on_gpu
from device_runtime.installed.bundle_slots import Slots
from device_runtime.installed.installed_model import InstalledModel, Started, elements, read_file, read_part
from device_runtime.installed.run_cpu import start_on_cpu
from device_runtime.installed.run_gpu import start_on_gpu
from device_runtime.installed.variants import choose
from device_runtime.sandbox.isolation import Fault, Limits, Outcome, run_isolated

FLAG_BYTES = 1

Plain = Dict[str, Any]


def installed_model(
    slots: Slots, bundle_id: str, target: str = "", watch_fd: Optional[int] = None
) -> InstalledModel:
    """The slot's variant for `target`, "" for the first that fits; ProtocolError(NOT_FOUND) when none."""
    manifest = slots.manifest(bundle_id)
    choice = choose(manifest, target, slots.device_dir, watch_fd)
    return InstalledModel(slots.folder(bundle_id), manifest, choice)


def limits(model: InstalledModel, timeout_s: float) -> Limits:
    """What a child that runs this model may use."""
    if model.kind == "cpu":
        return Limits(timeout_s, model.limits_bytes)
    memory_bytes = GPU_HEADROOM_BYTES + 2 * model.limits_bytes  # twice, for a device that is the CPU
    return Limits(timeout_s, memory_bytes)


def in_child(
    work: Callable[[InstalledModel], Plain],
    model: InstalledModel,
    device_dir: str,
    bounds: Limits,
    watch_fd: Optional[int],
) -> Outcome:
    """`work` on the model, in a child.

    A GPU's binaries are kept apart from those of measured kernels, which would push them out.
    """
    if model.kind == "cpu":
        return run_isolated(functools.partial(work, model), bounds, watch_fd)

    def placed(folders: Folders) -> Plain:
        return work(dataclasses.replace(model, folders=folders))

    return run_on_gpu(model.kind, placed, bounds, device_dir, watch_fd, folder=f"{model.kind}-models")


def shared_memory(outputs_bytes: int) -> mmap.mmap:
    """Memory that a child writes and its parent reads: a flag (it has run once), then all outputs."""
    return mmap.mmap(-1, FLAG_BYTES + outputs_bytes)


def has_started(memory: mmap.mmap) -> bool:
    """Whether the child got through its first run."""
    return memory[0] != 0


# ------------------------------------------------------------------------------------------ in the child


def start(model: InstalledModel) -> ContextManager[Started]:
    """The model's variant with its memory; raises Fault."""
    return start_on_cpu(model) if model.kind == "cpu" else start_on_gpu(model)


def check_golden(model: InstalledModel, runs: int = 2) -> Plain:
    """Feed the golden inputs and compare with the golden outputs; raises Fault("wrong_answer").

    It runs more than once because a first run may be right by the luck of fresh memory.
    """
    golden, rtol = model.manifest["golden"], model.manifest["golden"]["rtol"]
    inputs = [read_part(model, path) for path in golden["inputs"]]
    expected = [read_part(model, path) for path in golden["outputs"]]
    with start(model) as started:
        for _ in range(runs):
            outputs, seconds = started.run(inputs)
            answer = []
            for spec, got, want in zip(model.manifest["outputs"], outputs, expected):
                difference = started.difference(spec["dtype"], got, want, elements(spec))
                if not difference.within(rtol):
                    text = difference.text(elements(spec), rtol)
                    raise Fault("wrong_answer", f"output {spec['name']}: {text}")
                answer.append(
                    {
                        "name": spec["name"],
                        "max_abs_error": difference.max_abs_error,
                        "max_abs_reference": difference.max_abs_reference,
                    }
                )
    return {"outputs": answer, "seconds": seconds, "rtol": rtol}


def run_on(model: InstalledModel, input_files: Sequence[str], repeat: int, results: mmap.mmap) -> Plain:
    """Run on the data in the given files; outputs go into `results`, seconds of each run into the answer."""
    inputs = [read_file(path) for path in input_files]
    seconds = []
    with start(model) as started:
        for _ in range(repeat):
            outputs, last_s = started.run(inputs)
            seconds.append(last_s)
            results[0] = 1
    results.seek(FLAG_BYTES)
    for region in outputs:
        results.write(region.memory)
    return {"seconds": seconds}
