"""Importers of functions of one or two elements beyond arithmetic: trigonometry, rounding, truth values."""

from __future__ import annotations

import numpy as np

from cross.expression.language.dtypes import DTYPES
from toolkit.model.graph import STORED, Attribute, GraphBuilder
from toolkit.model.import_arithmetic import cast, cast_to, elementwise
from toolkit.model.source import FLOATS, INTEGERS, NUMBERS, TRUTH, VALUES, Importer, Source


def is_infinite(source: Source, build: GraphBuilder) -> None:
    """IsInf of either sign, or of one of them."""
    keys = {"negative": "detect_negative", "positive": "detect_positive"}
    attributes: dict[str, Attribute] = {key: source.integer(name, 1) for key, name in keys.items()}
    source.emit(build, "IsInf", [source.input(0).name], attributes)


def modulo(source: Source, build: GraphBuilder) -> None:
    """Mod with the sign of the divisor, or with that of the dividend (fmod)."""
    operands = [source.input(0).name, source.input(1).name]
    source.emit(build, "TruncatedMod" if source.integer("fmod", 0) else "Mod", operands)


def bit_shift(source: Source, build: GraphBuilder) -> None:
    """BitShift to the left or to the right."""
    direction = source.text("direction", "")
    if direction not in ("LEFT", "RIGHT"):
        raise source.invalid(f"direction must be LEFT or RIGHT, found {direction!r}")
    operands = [source.input(0).name, source.input(1).name]
    source.emit(build, "ShiftLeft" if direction == "LEFT" else "ShiftRight", operands)


def bitwise_not(source: Source, build: GraphBuilder) -> None:
    """BitwiseNot: -1 - x, and of unsigned integers the largest minus x."""
    data = source.input(0)
    largest = np.iinfo(data.dtype).max if data.dtype.startswith("u") else -1
    ones = build.constant(f"{source.output.name}/ones", np.asarray(largest, data.dtype))
    source.emit(build, "Sub", [ones, data.name])


def bit_cast(source: Source, build: GraphBuilder) -> None:
    """BitCast between dtypes of one size: the same bits, which integers keep when they are converted."""
    data, dtype = source.input(0), source.output.dtype
    one, other = DTYPES[data.dtype], DTYPES[dtype]
    if one.kind != "float" and other.kind not in ("float", "bool"):
        cast(source, build)
    elif one.kind == other.kind:
        source.emit(build, "Identity", [data.name])
    elif {data.dtype, dtype} & set(STORED) or other.kind == "bool":
        raise source.refuse(
            f"the bits of {data.dtype} cannot be read as {dtype}", "export the model without it"
        )
    elif one.kind == "float":
        signed = dtype.removeprefix("u")
        bits = source.emit(build, f"As{signed.capitalize()}", [data.name], None, data.shape, signed)
        source.emit(build, "Cast", [bits], {"to": dtype})
    else:
        signed = cast_to(source, build, data, data.dtype.removeprefix("u"))
        source.emit(build, f"As{dtype.capitalize()}", [signed])


_PLAIN = "Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Round"

IMPORTERS: dict[str, Importer] = {
    **{op: Importer(elementwise) for op in _PLAIN.split()},
    "Sign": Importer(elementwise, dtypes=NUMBERS),
    "IsNaN": Importer(elementwise, dtypes=FLOATS | TRUTH),
    "IsInf": Importer(is_infinite, {"detect_negative", "detect_positive"}, FLOATS | TRUTH),
    "Mod": Importer(modulo, {"fmod"}, NUMBERS),
    **{op: Importer(elementwise, dtypes=INTEGERS) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")},
    "BitShift": Importer(bit_shift, {"direction"}, INTEGERS),
    "BitCast": Importer(bit_cast, {"to"}, VALUES),
    "BitwiseNot": Importer(bitwise_not, dtypes=INTEGERS),
    **{op: Importer(elementwise, dtypes=TRUTH) for op in ("And", "Or", "Xor")},
}
