"""Arrays as plain data, for files and for messages: dtype, shape and bytes."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

DTYPES: Final = ("float32", "int64")


def packed(array: NDArray[Any]) -> dict[str, Any]:
    """The array as msgpack-able data, little endian and row-major. Raises ValueError for other dtypes."""
    name = array.dtype.name
    if name not in DTYPES:
        raise ValueError(f"an array of a model: expected dtype {' or '.join(DTYPES)}, found {name}")
    data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
    return {"dtype": name, "shape": list(array.shape), "data": data}


def unpacked(stored: dict[str, Any]) -> NDArray[Any]:
    """The array that `packed` wrote, in memory of its own. Raises ValueError when the parts disagree."""
    name, shape, data = stored["dtype"], tuple(stored["shape"]), stored["data"]
    if name not in DTYPES:
        raise ValueError(f"an array of a model: expected dtype {' or '.join(DTYPES)}, found {name!r}")
    dtype = np.dtype(name).newbyteorder("<")
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"an array of a model: {name}{list(shape)} does not have {len(data)} bytes")
    return np.frombuffer(data, dtype).reshape(shape).astype(name)
