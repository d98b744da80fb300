"""The dtypes of values: one row each. What a dialect of C calls them stands in the dialect."""

from __future__ import annotations

from typing import Final

import ml_dtypes  # noqa: F401 - numpy knows bfloat16 once it is imported
import msgspec

SMALLEST_NORMAL: Final = 2.0**-126  # of the float32 numbers
INDEX: Final = "int64"  # of axes, loop variables and indices


class Dtype(msgspec.Struct, frozen=True):
    """A dtype: numpy's name, "float", "signed", "unsigned" or "bool", bytes of an element, LLVM's type."""

    name: str
    kind: str
    item_bytes: int
    llvm: str


DTYPES: Final = {
    row.name: row
    for row in (
        Dtype("bfloat16", "float", 2, "i16"),  # by its bits: nothing computes in it
        Dtype("float16", "float", 2, "half"),
        Dtype("float32", "float", 4, "float"),
        Dtype("float64", "float", 8, "double"),
        Dtype("int8", "signed", 1, "i8"),
        Dtype("int16", "signed", 2, "i16"),
        Dtype("int32", "signed", 4, "i32"),
        Dtype("int64", "signed", 8, "i64"),
        Dtype("uint8", "unsigned", 1, "i8"),
        Dtype("uint16", "unsigned", 2, "i16"),
        Dtype("uint32", "unsigned", 4, "i32"),
        Dtype("uint64", "unsigned", 8, "i64"),
        Dtype("bool", "bool", 1, "i1"),
    )
}
FLOATS: Final = tuple(name for name, row in DTYPES.items() if row.kind == "float")
INTEGERS: Final = tuple(name for name, row in DTYPES.items() if row.kind in ("signed", "unsigned"))
ITEM_BYTES: Final = {name: row.item_bytes for name, row in DTYPES.items()}
