"""Importers of arithmetic: elementwise operators, matrix products, normalizations."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from toolkit.model.graph import Array, Attribute, GraphBuilder, computed_in
from toolkit.model.source import INTEGERS, NUMBERS, TRUTH, VALUES, Emitter, Importer, Operand, Source

INFINITY = float("inf")
LARGEST = float(np.finfo(np.float32).max)


def elementwise(source: Source, build: GraphBuilder) -> None:
    """An operator of elements with numpy's broadcasting; SETTINGS has the defaults of its attributes."""
    attributes: dict[str, Attribute] = {
        key: source.number(key, default) for key, default in SETTINGS.get(source.op, {}).items()
    }
    operands = [source.input(position).name for position in range(len(source.inputs))]
    source.emit(build, source.op, operands, attributes)


def gelu(source: Source, build: GraphBuilder) -> None:
    """Gelu, exact or by a hyperbolic tangent."""
    kind = source.text("approximate", "none")
    if kind not in ("none", "tanh"):
        raise source.invalid(f"approximate must be none or tanh, found {kind!r}")
    source.emit(build, "Gelu" if kind == "none" else "GeluTanh", [source.input(0).name])


def clip(source: Source, build: GraphBuilder) -> None:
    """Clip: bounds are attributes before opset 11, by default the largest floats, and inputs since."""
    low, high = source.number("min", -LARGEST), source.number("max", LARGEST)
    if any(bound is not None and bound.data is None for bound in source.inputs[1:]):
        _clip_to_computed(source, build)
        return
    if source.opset >= 11:
        low, high = _bound(source, 1, "lower bound", -INFINITY), _bound(source, 2, "upper bound", INFINITY)
    source.emit(build, "Clip", [source.input(0).name], {"low": low, "high": high})


def _clip_to_computed(source: Source, build: GraphBuilder) -> None:
    """Clip to bounds of which one is computed, at least."""
    data = source.input(0)
    steps = [(op, bound) for op, bound in (("Max", source.optional(1)), ("Min", source.optional(2))) if bound]
    name = data.name
    for position, (op, bound) in enumerate(steps):
        shape = data.shape if position < len(steps) - 1 else None
        name = source.emit(build, op, [name, bound.name], shape=shape)


def _bound(source: Source, position: int, what: str, absent: float) -> float:
    """A bound of Clip that is an input. Raises ModelError for more or fewer than one number."""
    given = source.known(position, what)
    if given is None:
        return absent
    if given.size != 1:
        raise source.invalid(f"expected one number as its {what}, found shape {list(given.shape)}")
    number: float = given.item()
    return number


def broadcast(source: Source) -> tuple[int, ...]:
    """The shape of two operands with numpy's broadcasting."""
    return np.broadcast_shapes(source.input(0).shape, source.input(1).shape)


def power(source: Source, build: GraphBuilder) -> None:
    """Pow; the exponents 2, 3 and 0.5 are cheaper than a general power. Of integers by float64."""
    base, exponent = source.input(0), source.input(1)
    if exponent.data is not None and exponent.data.size == 1:
        value = float(exponent.data.ravel()[0])
        if value in (2.0, 3.0) and source.output.shape == base.shape:
            square = source.emit(build, "Mul", [base.name] * 2, shape=base.shape if value == 3.0 else None)
            if value == 3.0:
                source.emit(build, "Mul", [square, base.name])
            return
        if value == 0.5 and source.output.shape == base.shape:
            source.emit(build, "Sqrt", [base.name])
            return
    if base.dtype in INTEGERS:
        operands = [cast_to(source, build, operand, "float64") for operand in (base, exponent)]
        op = "IntegerPow" if exponent.dtype in INTEGERS else "Pow"
        name = source.emit(build, op, operands, None, source.output.shape, "float64")
        source.emit(build, "Cast", [name], {"to": base.dtype})
        return
    source.emit(build, "Pow", [base.name, cast_to(source, build, exponent, base.dtype)])


def cast_to(source: Source, build: GraphBuilder, operand: Operand, dtype: str) -> str:
    """The operand in another dtype; a constant is converted ahead of time."""
    if operand.dtype == dtype:
        return operand.name
    if operand.data is not None:
        return build.constant(f"{operand.name}/{dtype}", operand.data.astype(dtype))
    return source.emit(build, "Cast", [operand.name], {"to": dtype}, shape=operand.shape, dtype=dtype)


def variadic(source: Source, build: GraphBuilder) -> None:
    """Sum, Mean, Max and Min of any number of operands, as a chain of pairs; a mean is a sum and a scale.

    Constants come last, so that no pair is of two.
    """
    op = "Add" if source.op in ("Sum", "Mean") else source.op
    operands = [source.input(position) for position in range(len(source.inputs))]
    operands.sort(key=lambda operand: operand.data is not None)
    result, shape = operands[0].name, operands[0].shape
    if len(operands) == 1:
        source.emit(build, "Identity", [result])
        return
    for operand in operands[1:-1]:
        shape = np.broadcast_shapes(shape, operand.shape)
        result = source.emit(build, op, [result, operand.name], shape=shape)
    if source.op != "Mean":
        source.emit(build, op, [result, operands[-1].name])
        return
    result = source.emit(build, op, [result, operands[-1].name], shape=source.output.shape)
    scale = source.number_as(build, "scale", 1.0 / len(operands))
    source.emit(build, "Mul", [result, scale])


def gemm(source: Source, build: GraphBuilder) -> None:
    """alpha * A' @ B' + beta * C, where ' transposes if asked for."""
    a, b = (
        Emitter(source, build).transposed(operand.name, (1, 0)) if source.integer(key, 0) else operand.name
        for key, operand in (("transA", source.input(0)), ("transB", source.input(1)))
    )
    alpha, beta = source.number("alpha", 1.0), source.number("beta", 1.0)
    c = source.optional(2)
    if beta == 0.0:
        c = None
    shape = source.output.shape
    result = source.emit(build, "MatMul", [a, b], shape=shape if alpha != 1.0 or c is not None else None)
    if alpha != 1.0:
        factor = source.number_as(build, "alpha", alpha)
        result = source.emit(build, "Mul", [result, factor], shape=shape if c is not None else None)
    if c is not None:
        source.emit(build, "Add", [result, _scaled(source, build, c, beta)])


def _scaled(source: Source, build: GraphBuilder, operand: Operand, factor: float) -> str:
    if factor == 1.0:
        return operand.name
    if operand.data is not None:
        return build.constant(
            f"{operand.name}/scaled", (operand.data * factor).astype(computed_in(operand.dtype))
        )
    name = source.number_as(build, "beta", factor)
    return source.emit(build, "Mul", [operand.name, name], shape=operand.shape)


def matmul(source: Source, build: GraphBuilder, attributes: Mapping[str, Attribute] | None = None) -> None:
    """numpy.matmul. A stack of matrices times one matrix is one tall matrix times it."""
    left, right = source.input(0), source.input(1)
    left_shape = (1, *left.shape) if left.rank == 1 else left.shape
    right_shape = (*right.shape, 1) if right.rank == 1 else right.shape
    if len(left_shape) > 2 and len(right_shape) == 2:
        left_shape = (int(np.prod(left_shape[:-1])), left_shape[-1])
    matrices = [
        operand.name if shape == operand.shape else Emitter(source, build).shaped(operand.name, shape)
        for operand, shape in ((left, left_shape), (right, right_shape))
    ]
    outer = np.broadcast_shapes(left_shape[:-2], right_shape[:-2])
    product = (*outer, left_shape[-2], right_shape[-1])
    if product == source.output.shape:
        source.emit(build, "MatMul", matrices, attributes)
        return
    source.emit(build, "Reshape", [source.emit(build, "MatMul", matrices, attributes, shape=product)])


def batch_normalization(source: Source, build: GraphBuilder) -> None:
    """At inference: x * scale + shift per channel, both known ahead of time."""
    if source.integer("training_mode", 0) != 0:
        raise source.refuse("training_mode 1 is not supported", "export the model for inference")
    if source.integer("spatial", 1) != 1:
        raise source.refuse("spatial 0 is not supported", "export the model with a newer opset")
    parts: list[Array] = []
    for position, what in enumerate(("scale", "bias", "mean", "variance"), start=1):
        data = source.known(position, what)
        if data is None:
            raise source.invalid(f"its {what} is missing")
        parts.append(data.astype(np.float64))
    scale, bias, mean, variance = parts
    factor = scale / np.sqrt(variance + source.number("epsilon", 1e-5))
    shift = bias - mean * factor
    view = (-1,) + (1,) * (source.input(0).rank - 2)
    output, dtype = source.output, computed_in(source.output.dtype)
    factor_name = build.constant(f"{output.name}/factor", factor.reshape(view).astype(dtype))
    shift_name = build.constant(f"{output.name}/shift", shift.reshape(view).astype(dtype))
    scaled = source.emit(build, "Mul", [source.input(0).name, factor_name], shape=output.shape)
    source.emit(build, "Add", [scaled, shift_name])


def softmax(source: Source, build: GraphBuilder) -> None:
    """Softmax and LogSoftmax. Before opset 13 every dimension from `axis` on was one."""
    data = source.input(0)
    axis = source.integer("axis", -1 if source.opset >= 13 else 1)
    if not -data.rank <= axis < data.rank:
        raise source.invalid(f"axis {axis} (1 where it is left out) is none of its {data.rank} dimensions")
    axis = axis + data.rank if axis < 0 else axis
    if source.opset >= 13 or all(extent == 1 for extent in data.shape[axis + 1 :]):
        source.emit(build, source.op, [data.name], {"axis": axis})
        return
    matrix = (int(np.prod(data.shape[:axis])), int(np.prod(data.shape[axis:])))
    result = source.emit(build, "Reshape", [data.name], shape=matrix)
    result = source.emit(build, source.op, [result], {"axis": 1}, shape=matrix)
    source.emit(build, "Reshape", [result])


def cast(source: Source, build: GraphBuilder) -> None:
    """Cast and CastLike, of which only the output's dtype counts."""
    data, dtype = source.input(0), source.output.dtype
    if data.dtype == dtype:
        source.emit(build, "Identity", [data.name])
    else:
        source.emit(build, "Cast", [data.name], {"to": dtype})


SETTINGS: dict[str, dict[str, float]] = {
    "LeakyRelu": {"alpha": 0.01},
    "Elu": {"alpha": 1.0},
    "Celu": {"alpha": 1.0},
    "Selu": {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "ThresholdedRelu": {"alpha": 1.0},
}

_PLAIN = "Sigmoid Tanh Exp Log Sqrt Reciprocal Erf Softplus HardSwish Floor Ceil Mish Softsign"
_NUMERIC = "Relu Abs Neg Add Sub Mul Div PRelu"
_COMPARISONS = "Less LessOrEqual Greater GreaterOrEqual"

IMPORTERS: dict[str, Importer] = {
    **{op: Importer(elementwise) for op in _PLAIN.split()},
    **{op: Importer(elementwise, frozenset(keys)) for op, keys in SETTINGS.items()},
    **{op: Importer(elementwise, dtypes=NUMBERS) for op in _NUMERIC.split()},
    # ONNX infers no shape of LessOrEqual and GreaterOrEqual before opset 16
    **{op: Importer(elementwise, dtypes=VALUES, shape=broadcast) for op in _COMPARISONS.split()},
    **{op: Importer(variadic) for op in ("Sum", "Mean")},
    **{op: Importer(variadic, dtypes=NUMBERS) for op in ("Max", "Min")},
    "Not": Importer(elementwise, dtypes=TRUTH),
    **{op: Importer(elementwise, dtypes=VALUES) for op in ("Equal", "Where")},
    "Gelu": Importer(gelu, {"approximate"}),
    "Clip": Importer(clip, {"min", "max"}, NUMBERS),
    "Pow": Importer(power, dtypes=NUMBERS),
    "Gemm": Importer(gemm, {"alpha", "beta", "transA", "transB"}, NUMBERS),
    "MatMul": Importer(matmul, dtypes=NUMBERS),
    "BatchNormalization": Importer(
        batch_normalization, {"epsilon", "momentum", "spatial", "training_mode"}, folds=True
    ),
    "Softmax": Importer(softmax, {"axis"}, folds=True),
    "LogSoftmax": Importer(softmax, {"axis"}, folds=True),
    "Cast": Importer(cast, {"to", "saturate", "round_mode"}, VALUES),
    "CastLike": Importer(cast, {"saturate", "round_mode"}, VALUES),
}
