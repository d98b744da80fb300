"""Run an installed bundle's model, in a child process, and check it against its golden data.

The child opens each file it needs, hashes what it opened against the signed manifest, and uses that very
descriptor (the shared object is loaded through /proc/self/fd), so nothing can be exchanged in between.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import time
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from device_runtime.buffers import Region
from device_runtime.check import compare, unwritten_byte
from device_runtime.installed import Slots
from device_runtime.isolation import Fault, Limits
from device_runtime.parts import check_hash
from device_runtime.protocol import DTYPE_BYTES, NOT_FOUND, ProtocolError

MODEL_ABI_VERSION = 1
HEADROOM_BYTES = 256 << 20
FLAG_BYTES = 1
ERROR_WORDS = 300

Plain = Dict[str, Any]


@dataclass(frozen=True)
class InstalledModel:
    """One variant of an installed bundle; plain data, so that it can be made before the fork."""

    folder: str
    manifest: Plain
    variant: Plain

    def part(self, path: str) -> Plain:
        """The manifest's line for a part."""
        found: Plain = next(part for part in self.manifest["parts"] if part["path"] == path)
        return found

    @property
    def limits_bytes(self) -> int:
        """Memory that a child may use for this model."""
        files = sum(part["size_bytes"] for part in self.manifest["parts"])
        variant = self.variant
        return int(HEADROOM_BYTES + 2 * files + variant["workspace_bytes"] + 2 * variant["parameters_bytes"])


def installed_model(slots: Slots, bundle_id: str, target: str = "") -> InstalledModel:
    """The slot's variant for `target`, "" for the first that fits; ProtocolError(NOT_FOUND) when none."""
    manifest = slots.manifest(bundle_id)
    machine = platform.machine()
    for variant in manifest["variants"]:
        if variant["triple"].split("-")[0] == machine and target in ("", variant["target"]):
            return InstalledModel(slots.folder(bundle_id), manifest, variant)
    names = ", ".join(f"{variant['target']} ({variant['triple']})" for variant in manifest["variants"])
    wanted = f"target {target!r}" if target else "this board"
    raise ProtocolError(NOT_FOUND, f"the bundle has no variant for {wanted} ({machine}); it has {names}")


def limits(model: InstalledModel, timeout_s: float) -> Limits:
    """What a child that runs this model may use."""
    return Limits(timeout_s, model.limits_bytes)


def shared_memory(outputs_bytes: int) -> mmap.mmap:
    """Memory that a child writes and its parent reads: a flag (it has run once), then all outputs."""
    return mmap.mmap(-1, FLAG_BYTES + outputs_bytes)


def has_started(memory: mmap.mmap) -> bool:
    """Whether the child got through its first run."""
    return memory[0] != 0


def output_sizes(model: InstalledModel) -> List[int]:
    """Bytes of each output."""
    return [elements(spec) * DTYPE_BYTES[spec["dtype"]] for spec in model.manifest["outputs"]]


def elements(spec: Plain) -> int:
    """How many values a tensor has."""
    count = 1
    for extent in spec["shape"]:
        count *= extent
    return count


# ------------------------------------------------------------------------------------------ in the child


def check_golden(model: InstalledModel, runs: int = 2) -> Plain:
    """Feed the golden inputs and compare with the golden outputs; raises Fault("wrong_answer").

    It runs more than once because a first run may be right by the luck of fresh memory.
    """
    golden, rtol = model.manifest["golden"], model.manifest["golden"]["rtol"]
    inputs = [read_part(model, path) for path in golden["inputs"]]
    expected = [read_part(model, path) for path in golden["outputs"]]
    with open_library(model) as library, make_instance(library) as instance:
        for _ in range(runs):
            outputs, seconds = call(model, library, instance, inputs)
            answer = []
            for spec, got, want in zip(model.manifest["outputs"], outputs, expected):
                difference = compare(library, spec["dtype"], got.address, want.address, elements(spec))
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
    with open_library(model) as library, make_instance(library) as instance:
        for _ in range(repeat):
            outputs, last_s = call(model, library, instance, inputs)
            seconds.append(last_s)
            results[0] = 1
    results.seek(FLAG_BYTES)
    for region in outputs:
        results.write(region.memory[: region.size_bytes])
    return {"seconds": seconds}


@contextlib.contextmanager
def open_library(model: InstalledModel) -> Iterator[ctypes.CDLL]:
    """The variant's shared object, loaded from the descriptor that was hashed; raises Fault("link")."""
    part = model.part(model.variant["library"])
    fd = open_checked(os.path.join(model.folder, part["path"]), part)
    try:
        library = ctypes.CDLL(f"/proc/self/fd/{fd}", mode=os.RTLD_NOW | os.RTLD_LOCAL)
        library.tfb_model_abi_version.restype = ctypes.c_int32
        version = library.tfb_model_abi_version()
        library.tfb_model_create.argtypes = (ctypes.c_void_p,)
        library.tfb_model_run.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        library.tfb_model_destroy.argtypes = (ctypes.c_void_p,)
        library.tfb_model_error_text.restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:
        raise Fault("link", f"the model cannot be loaded: {str(error)[:ERROR_WORDS]}") from None
    finally:
        os.close(fd)
    if version != MODEL_ABI_VERSION:
        raise Fault("link", f"the model has ABI version {version}, this runtime {MODEL_ABI_VERSION}")
    counts = (library.tfb_model_input_count(), library.tfb_model_output_count())
    wanted = (len(model.manifest["inputs"]), len(model.manifest["outputs"]))
    if counts != wanted:
        raise Fault("link", f"the model has {counts} inputs and outputs, its manifest says {wanted}")
    yield library


@contextlib.contextmanager
def make_instance(library: ctypes.CDLL) -> Iterator[ctypes.c_void_p]:
    """A model with its memory and threads; raises Fault."""
    instance = ctypes.c_void_p()
    explain(library, library.tfb_model_create(ctypes.byref(instance)))
    yield instance
    library.tfb_model_destroy(instance)


def call(
    model: InstalledModel, library: ctypes.CDLL, instance: ctypes.c_void_p, inputs: Sequence[Region]
) -> Tuple[List[Region], float]:
    """One run: fresh outputs, and the seconds it took; raises Fault."""
    outputs = [Region(size) for size in output_sizes(model)]
    for spec, region in zip(model.manifest["outputs"], outputs):
        region.fill(unwritten_byte(spec["dtype"]))
    sources = (ctypes.c_void_p * max(1, len(inputs)))(*[region.address for region in inputs])
    sinks = (ctypes.c_void_p * max(1, len(outputs)))(*[region.address for region in outputs])
    started_s = time.perf_counter()
    status = library.tfb_model_run(instance, sources, sinks)
    seconds = time.perf_counter() - started_s
    explain(library, status)
    return outputs, seconds


def explain(library: ctypes.CDLL, status: int) -> None:
    """Raise Fault with the library's own words unless the status is 0."""
    if status != 0:
        text = library.tfb_model_error_text(status).decode("utf-8", "replace")
        kind = "out_of_memory" if status == -3 else "crash"
        raise Fault(kind, f"the model returned {status}: {text}")


def read_part(model: InstalledModel, path: str) -> Region:
    """A part's bytes, hashed as they were read."""
    part = model.part(path)
    fd = open_checked(os.path.join(model.folder, path), part)
    try:
        return region_of(fd, part["size_bytes"])
    finally:
        os.close(fd)


def read_file(path: str) -> Region:
    """A file's bytes."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return region_of(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)


def region_of(fd: int, size_bytes: int) -> Region:
    """The first `size_bytes` of an open file."""
    region = Region(size_bytes)
    view = memoryview(region.memory)[:size_bytes]
    done = 0
    while done < size_bytes:
        count = os.preadv(fd, [view[done:]], done)
        if count == 0:
            raise Fault("link", f"a file became shorter than {size_bytes} bytes while it was read")
        done += count
    return region


def open_checked(path: str, part: Plain) -> int:
    """A descriptor of a part whose bytes are as signed; raises Fault("link") otherwise."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0))
    except OSError as error:
        raise Fault("link", f"{path} cannot be opened: {error.strerror}") from None
    try:
        check_hash(fd, part)
    except ProtocolError as error:
        os.close(fd)
        raise Fault("link", f"{path} is damaged: {error.text}") from None
    return fd
