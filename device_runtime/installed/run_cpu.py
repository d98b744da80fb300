"""Start a CPU variant: the shared object is loaded through /proc/self/fd, from the descriptor that was
hashed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from typing import Iterator, List, Sequence, Tuple

from device_runtime.installed.installed_model import InstalledModel, Started, open_checked, output_sizes
from device_runtime.measure.check import Difference, compare
from device_runtime.protocol import unwritten_byte
from device_runtime.sandbox.guarded_memory import Region
from device_runtime.sandbox.isolation import Fault

MODEL_ABI_VERSION = 2
ERROR_WORDS = 300


@contextlib.contextmanager
def start_on_cpu(model: InstalledModel) -> Iterator[Started]:
    """The model with its memory and threads; raises Fault."""
    library = open_library(model)
    instance = ctypes.c_void_p()
    explain(library, library.tfb_model_create(ctypes.byref(instance)))
    yield _OnCpu(model, library, instance)
    library.tfb_model_destroy(instance)


def open_library(model: InstalledModel) -> ctypes.CDLL:
    """The variant's shared object; raises Fault("link")."""
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
    return library


class _OnCpu(Started):
    def __init__(self, model: InstalledModel, library: ctypes.CDLL, instance: ctypes.c_void_p) -> None:
        self._model = model
        self._library = library
        self._instance = instance

    def run(self, inputs: Sequence[Region]) -> Tuple[List[Region], float]:
        outputs = [Region(size) for size in output_sizes(self._model)]
        for spec, region in zip(self._model.manifest["outputs"], outputs):
            region.fill(unwritten_byte(spec["dtype"]))
        sources = (ctypes.c_void_p * max(1, len(inputs)))(*[region.address for region in inputs])
        sinks = (ctypes.c_void_p * max(1, len(outputs)))(*[region.address for region in outputs])
        started_s = time.perf_counter()
        status = self._library.tfb_model_run(self._instance, sources, sinks)
        seconds = time.perf_counter() - started_s
        explain(self._library, status)
        for spec, region in zip(self._model.manifest["outputs"], outputs):
            if region.strayed():
                raise Fault("wrong_answer", f"the model wrote {region.strayed()} of output {spec['name']}")
        return outputs, seconds

    def difference(self, dtype: str, got: Region, want: Region, elements: int) -> Difference:
        return compare(self._library, dtype, got.address, want.address, elements)


def explain(library: ctypes.CDLL, status: int) -> None:
    """Raise Fault with the library's own words unless the status is 0."""
    if status != 0:
        text = library.tfb_model_error_text(status).decode("utf-8", "replace")
        kind = "out_of_memory" if status == -3 else "crash"
        raise Fault(kind, f"the model returned {status}: {text}")
