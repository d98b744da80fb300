"""Importers of functions of one or two elements beyond arithmetic: trigonometry, rounding, truth values."""

from __future__ import annotations

import numpy as np

from toolkit.model.graph import Attribute, GraphBuilder
from toolkit.model.import_arithmetic import binary, unary
from toolkit.model.source import FLOATS, INTEGERS, NUMBERS, TRUTH, Importer, Source


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
        raise source.refuse(f"direction must be LEFT or RIGHT, found {direction!r}", "export the model again")
    operands = [source.input(0).name, source.input(1).name]
    source.emit(build, "ShiftLeft" if direction == "LEFT" else "ShiftRight", operands)


def bitwise_not(source: Source, build: GraphBuilder) -> None:
    """BitwiseNot: -1 - x, and of unsigned integers the largest minus x."""
    data = source.input(0)
    largest = np.iinfo(data.dtype).max if data.dtype.startswith("u") else -1
    ones = build.constant(f"{source.output.name}/ones", np.asarray(largest, data.dtype))
    source.emit(build, "Sub", [ones, data.name])


_PLAIN = "Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Round"

IMPORTERS: dict[str, Importer] = {
    **{op: Importer(unary) for op in _PLAIN.split()},
    "Sign": Importer(unary, dtypes=NUMBERS),
    "IsNaN": Importer(unary, dtypes=FLOATS | TRUTH),
    "IsInf": Importer(is_infinite, frozenset({"detect_negative", "detect_positive"}), FLOATS | TRUTH),
    "Mod": Importer(modulo, frozenset({"fmod"}), NUMBERS),
    **{op: Importer(binary, dtypes=INTEGERS) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")},
    "BitShift": Importer(bit_shift, frozenset({"direction"}), INTEGERS),
    "BitwiseNot": Importer(bitwise_not, dtypes=INTEGERS),
    **{op: Importer(binary, dtypes=TRUTH) for op in ("And", "Or", "Xor")},
}
