"""An ONNX file with its weights apart: their bytes go straight into arrays, all else into a message.

Weights are nearly all of a large file. A protobuf message would copy them, so would each look into it, and
ONNX's checker writes down the whole message again. So the file is read field by field; what an initializer
holds never enters a message, in which it stays as an empty tensor of its name and type.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from toolkit.model.graph import Array

# (number of the field << 3) | 2, as protobuf begins a field with a length; numbers from onnx.proto
_GRAPH, _INITIALIZER, _RAW_DATA = (number << 3 | 2 for number in (7, 5, 9))
_FIXED_BYTES = {
    1: 8,
    5: 4,
}  # protobuf's kinds of fields: 0 one number, 1 and 5 of fixed size, 2 with a length
_LONGEST_NUMBER = 10  # bytes of one number in protobuf


class Initializer(msgspec.Struct, frozen=True):
    """A weight: an onnx.TensorProto without raw data, and these as bytes [n]; None where it has none."""

    tensor: Any
    raw: Array | None

    def with_data(self, folder: Path) -> Initializer:
        """The weight with its data in memory, read from another file below `folder` where they lie in one.

        Raises:
            OSError, ValueError, onnx.checker.ValidationError: that file cannot be read.
        """
        import onnx

        if not onnx.external_data_helper.uses_external_data(self.tensor):
            return self
        found = onnx.TensorProto()
        found.CopyFrom(self.tensor)
        onnx.external_data_helper.load_external_data_for_tensor(found, str(folder))
        return Initializer(self.tensor, np.frombuffer(found.raw_data, np.uint8))

    def array(self) -> Array:
        """The weight's elements, of its shape and dtype.

        Raises:
            ValueError, KeyError, TypeError: it does not hold what its shape and element type promise.
        """
        import onnx

        dtype = onnx.helper.tensor_dtype_to_np_dtype(self.tensor.data_type)
        if self.raw is None:
            return np.asarray(onnx.numpy_helper.to_array(self.tensor))
        if dtype.isbuiltin == 1 and math.prod(self.tensor.dims) * dtype.itemsize == self.raw.size:
            return np.reshape(self.raw.view(dtype), self.tensor.dims)
        whole = onnx.TensorProto(
            dims=self.tensor.dims, data_type=self.tensor.data_type, raw_data=self.raw.tobytes()
        )
        return np.asarray(onnx.numpy_helper.to_array(whole))


def read_apart(path: Path) -> tuple[Any, list[Initializer]]:
    """The onnx.ModelProto at `path`, in which initializers are empty, and what those hold, in order.

    Raises:
        OSError, UnicodeDecodeError, google.protobuf.message.DecodeError: it cannot be read, or is no such
            message.
    """
    import onnx

    model, weights = onnx.ModelProto(), []
    with path.open("rb") as file:
        for tag, head, length in _fields(file, path.stat().st_size):
            if tag != _GRAPH:
                model.MergeFromString(head + file.read(length))
                continue
            model.graph.SetInParent()
            for inner, front, size in _fields(file, file.tell() + length):
                if inner != _INITIALIZER:
                    model.graph.MergeFromString(front + file.read(size))
                    continue
                weights.append(_initializer(file, file.tell() + size))
                tensor = weights[-1].tensor
                model.graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=[0])
    return model, weights


def _initializer(file: BufferedReader, end: int) -> Initializer:
    import onnx

    tensor, raw = onnx.TensorProto(), None
    for tag, head, length in _fields(file, end):
        if tag == _RAW_DATA:
            raw = np.empty(length, np.uint8)
            file.readinto(raw.data)
        else:
            tensor.MergeFromString(head + file.read(length))
    return Initializer(tensor, raw)


def _fields(file: BufferedReader, end: int) -> Iterator[tuple[int, bytes, int]]:
    """The fields up to `end`: tag, the bytes in front of its content, and that content's length.

    Who asks for the next field has read this one's content.
    """
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    while file.tell() < end:
        head, tag = _number(file)
        length = _FIXED_BYTES.get(tag & 7, 0)
        if tag & 7 in (0, 2):
            more, value = _number(file)
            head, length = head + more, value if tag & 7 == 2 else 0
        elif not length:
            raise DecodeError(f"a field of the unknown kind {tag & 7} at byte {file.tell()}")
        if file.tell() + length > end:
            raise DecodeError(f"a field of {length} bytes at byte {file.tell()}, beyond the end")
        yield tag, head, length


def _number(file: BufferedReader) -> tuple[bytes, int]:
    """One number of 7 bits a byte, lowest first, the last byte below 128: its bytes, and its value."""
    from google.protobuf.message import DecodeError

    found = b""
    while not found or found[-1] >= 128:
        byte = file.read(1)
        if not byte or len(found) == _LONGEST_NUMBER:
            raise DecodeError(f"no number at byte {file.tell()}")
        found += byte
    return found, sum((byte & 127) << 7 * place for place, byte in enumerate(found))
