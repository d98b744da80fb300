"""The model beside this file as a Python function; it needs Python 3.8 and nothing else.

    import sys
    sys.path.insert(0, FOLDER)  # of this file
    from tfb_model import model

    y = model(x)

Inputs come in the order of `model.inputs`, as numpy arrays or anything else with a buffer of the right dtype
and size in C order. One output is returned as it is, several as a tuple: numpy arrays where numpy is
installed, memoryviews otherwise. An output whose size depends on data has the size of this call. Without
numpy a float16 is a uint16 of the same bits, going in and coming out. The first call pins the calling thread
to the first core of the model, and all other calls must come from that thread. Raises TypeError or ValueError
for inputs that do not fit, RuntimeError when the model fails.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any, NamedTuple

arrays: Any
try:
    import numpy as arrays
except ImportError:  # then outputs are memoryviews
    arrays = None

ABI_VERSION = 2
FORMATS = {
    "float32": "f", "float64": "d", "bool": "?", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H",
    "int32": "i", "uint32": "I", "int64": "q", "uint64": "Q",
    "bfloat16": "H",  # as its bits: numpy has no such dtype
    "float16": "H" if arrays is None else "e",  # memoryview.cast knows no half floats
}  # fmt: skip
SAME = {"l": "q", "L": "Q"}  # as numpy calls 64-bit integers


class Spec(NamedTuple):
    """An input or output of the model.

    Where the size of an output depends on data, the output number `count_output` says how many slices along
    `count_dimension` it has, of those that there is room for; otherwise that is -1.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    count_output: int
    count_dimension: int


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("layout", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("rank", ctypes.c_int32),
        ("elements", ctypes.c_int64),
        ("size_bytes", ctypes.c_int64),
        ("count_output", ctypes.c_int32),
        ("count_dimension", ctypes.c_int32),
    )


class Model:
    """The function; `inputs` and `outputs` say what it takes and gives."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        if self._library.tfb_model_abi_version() != ABI_VERSION:
            raise RuntimeError(f"{path}: expected a model of ABI version {ABI_VERSION}")
        self._library.tfb_model_run.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self._library.tfb_model_error_text.restype = ctypes.c_char_p
        self.inputs = self._specs("input")
        self.outputs = self._specs("output")
        self._instance = ctypes.c_void_p()
        self._thread = 0

    def __call__(self, *inputs: Any) -> Any:
        if len(inputs) != len(self.inputs):
            names = ", ".join(spec.name for spec in self.inputs)
            raise TypeError(f"expected the inputs {names}, found {len(inputs)} arrays")
        given = [_checked(value, spec) for value, spec in zip(inputs, self.inputs)]  # noqa: B905 - Python 3.8
        if not self._instance:
            self._explain(self._library.tfb_model_create(ctypes.byref(self._instance)))
            self._thread = threading.get_ident()
        if self._thread != threading.get_ident():
            raise RuntimeError("the model belongs to the thread of its first call: call it from there")
        sources = [(ctypes.c_char * len(data)).from_buffer_copy(data) for data in given]
        sinks = [(ctypes.c_char * spec.size_bytes)() for spec in self.outputs]
        self._explain(self._library.tfb_model_run(self._instance, _pointers(sources), _pointers(sinks)))
        hidden = {spec.count_output for spec in self.outputs}
        found = [
            _array(*_cut(sinks, number, spec))
            for number, spec in enumerate(self.outputs)
            if number not in hidden
        ]
        return found[0] if len(found) == 1 else tuple(found)

    def _specs(self, role: str) -> tuple[Spec, ...]:
        describe = self._library["tfb_model_" + role]
        describe.restype = ctypes.POINTER(_Tensor)
        count = self._library[f"tfb_model_{role}_count"]()
        tensors = [describe(number).contents for number in range(count)]
        return tuple(
            Spec(
                item.name.decode(),
                item.dtype.decode(),
                tuple(item.shape[: item.rank]),
                item.size_bytes,
                item.count_output,
                item.count_dimension,
            )
            for item in tensors
        )

    def _explain(self, status: int) -> None:
        if status != 0:
            raise RuntimeError(self._library.tfb_model_error_text(status).decode())


def _checked(value: Any, spec: Spec) -> memoryview:
    view = memoryview(value)
    wanted = f"expected {spec.dtype} {spec.shape} in C order for input {spec.name}"
    if not view.c_contiguous or SAME.get(view.format, view.format) != FORMATS[spec.dtype]:
        raise TypeError(f"{wanted}, found format {view.format!r}, C order {view.c_contiguous}")
    if view.nbytes != spec.size_bytes:
        raise ValueError(f"{wanted}, found shape {view.shape}")
    return view.cast("B") if view.nbytes else memoryview(b"")  # an empty view has no cast


def _pointers(buffers: list[Any]) -> Any:
    return (ctypes.c_void_p * max(1, len(buffers)))(*[ctypes.addressof(buffer) for buffer in buffers])


def _cut(sinks: list[Any], number: int, spec: Spec) -> tuple[Any, Spec]:
    """An output without the slices that do not count, and its description."""
    if spec.count_output < 0:
        return sinks[number], spec
    kept = ctypes.c_int64.from_buffer(sinks[spec.count_output]).value
    outer, extent = spec.shape[: spec.count_dimension], spec.shape[spec.count_dimension]
    blocks = 1
    for size in outer:
        blocks *= size
    whole = spec.size_bytes // blocks
    part = whole // extent * kept
    data = bytearray().join(sinks[number][block * whole : block * whole + part] for block in range(blocks))
    shape = (*outer, kept, *spec.shape[spec.count_dimension + 1 :])
    return data, spec._replace(shape=shape, size_bytes=len(data))


def _array(data: Any, spec: Spec) -> Any:
    if arrays is not None:
        return arrays.frombuffer(data, dtype=FORMATS[spec.dtype]).reshape(spec.shape)
    view: Any = memoryview(data if spec.size_bytes else b"").cast("B")
    shape = spec.shape if spec.size_bytes else ()  # no view has a dimension of 0
    return view.cast(FORMATS[spec.dtype], shape) if shape else view.cast(FORMATS[spec.dtype])


model: Any = None
if __name__ == "tfb_model":  # as it is imported from its folder in a bundle
    model = Model(os.path.join(os.path.dirname(os.path.abspath(__file__)), "model.so"))
