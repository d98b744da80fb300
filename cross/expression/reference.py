"""What an operator computes, in numpy: the meaning that programs are checked against. Start at `evaluate`.

Stages are evaluated one after the other on whole arrays. Floats of every width are computed in float64, so
that the result is right to the last bits of the output's dtype; integers and bools in their own dtype.
A sum of products of two tensors (dense, convolution) goes through einsum, and so through BLAS; every
other reduction is evaluated in pieces of at most PIECE_ELEMENTS.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from cross.errors import ExpressionError
from cross.expression.operator import Operator
from cross.expression.tensor import Tensor
from cross.expression.terms import FLOATS, Axis, Binary, Call, Cast, Const, Read, Reduce, Select, Term

Array = NDArray[Any]
Memory = Mapping[Tensor, Array]

PIECE_ELEMENTS = 1 << 22


def evaluate(operator: Operator, inputs: Sequence[Array]) -> Array:
    """The operator's output.

    Args:
        operator: what to compute.
        inputs: one array per input, in order, of its shape and dtype.

    Returns:
        A new array of the output's shape and dtype.

    Raises:
        ExpressionError: an input has another shape or dtype, or the expression reads outside a tensor
            (other than in a branch of a select that is not taken).
    """
    if len(inputs) != len(operator.inputs):
        raise ExpressionError(
            f"operator {operator.name}: expected {len(operator.inputs)} inputs, found {len(inputs)}"
        )
    memory: dict[Tensor, Array] = {}
    for tensor, array in zip(operator.inputs, inputs, strict=True):
        if array.shape != tensor.shape or array.dtype != np.dtype(tensor.dtype):
            raise ExpressionError(
                f"operator {operator.name}: input {tensor.name} is {tensor.dtype}{list(tensor.shape)}, "
                f"found {array.dtype}{list(array.shape)}"
            )
        memory[tensor] = array.astype(_working_dtype(tensor.dtype))
    with np.errstate(all="ignore"):
        for stage in operator.stages:
            memory[stage] = _stage(stage, memory)
        return np.array(memory[operator.output], dtype=operator.output.dtype, order="C")


def _working_dtype(dtype: str) -> np.dtype[Any]:
    return np.dtype("float64" if dtype in FLOATS else dtype)


def _stage(stage: Tensor, memory: Memory) -> Array:
    dtype = _working_dtype(stage.dtype)
    body = stage.body
    assert body is not None
    if not isinstance(body, Reduce):
        grids = _grids(stage.axes, {})
        return np.array(np.broadcast_to(_Evaluation(stage, memory, grids).term(body), stage.shape), dtype)
    product = _contraction(stage, body, memory)
    return _reduction(stage, body, memory) if product is None else product.astype(dtype)


def _grids(axes: Sequence[Axis], fixed: Mapping[Axis, int]) -> dict[Axis, Array]:
    """The values of the axes, one dimension of the result each; fixed ones as scalars."""
    grids: dict[Axis, Array] = {axis: np.asarray(value, np.int64) for axis, value in fixed.items()}
    for position, axis in enumerate(axes):
        shape = [1] * len(axes)
        shape[position] = axis.extent
        grids[axis] = np.arange(axis.extent, dtype=np.int64).reshape(shape)
    return grids


# ------------------------------------------------------------------------------------------- reductions


def _reduction(stage: Tensor, body: Reduce, memory: Memory) -> Array:
    """Any reduction: the innermost axes at once as far as PIECE_ELEMENTS allows, the others one by one."""
    dtype = _working_dtype(stage.dtype)
    together, size = len(body.axes), stage.elements
    while together and size * body.axes[together - 1].extent <= PIECE_ELEMENTS:
        together -= 1
        size *= body.axes[together].extent
    outer, inner = body.axes[:together], body.axes[together:]
    reduced = tuple(range(len(stage.axes), len(stage.axes) + len(inner)))
    shape = (*stage.shape, *(axis.extent for axis in inner))
    total: Array | None = None
    for point in itertools.product(*(range(axis.extent) for axis in outer)):
        grids = _grids((*stage.axes, *inner), dict(zip(outer, point, strict=True)))
        values = np.broadcast_to(_Evaluation(stage, memory, grids).term(body.body), shape)
        piece = _REDUCE[body.combiner](values, axis=reduced)
        total = piece if total is None else _COMBINE[body.combiner](total, piece)
    return np.asarray(total, dtype)


def _contraction(stage: Tensor, body: Reduce, memory: Memory) -> Array | None:
    """A sum of products of two reads at affine indices through einsum; None for anything else."""
    product = body.body
    if body.combiner != "sum" or stage.dtype not in FLOATS or not isinstance(product, Binary):
        return None
    if product.op != "*" or not isinstance(product.left, Read) or not isinstance(product.right, Read):
        return None
    axes = (*stage.axes, *body.axes)
    views = [_view(read, axes, memory[read.tensor]) for read in (product.left, product.right)]
    if views[0] is None or views[1] is None:
        return None
    (left, left_axes), (right, right_axes) = views[0], views[1]
    missing = [axis for axis in axes if axis not in left_axes and axis not in right_axes]
    if missing:
        return None
    numbers = {axis: position for position, axis in enumerate(axes)}
    result = np.einsum(
        left,
        [numbers[axis] for axis in left_axes],
        right,
        [numbers[axis] for axis in right_axes],
        [numbers[axis] for axis in stage.axes],
        optimize=True,
    )
    return np.asarray(result)


def _view(read: Read, axes: Sequence[Axis], array: Array) -> tuple[Array, list[Axis]] | None:
    """A view of a tensor with one dimension per axis that its affine indices use; None if they are not."""
    steps: dict[Axis, int] = {}
    first: list[int] = []
    for dimension, index in enumerate(read.indices):
        affine = _affine(index)
        if affine is None:
            return None
        coefficients, start = affine
        ends = [(coefficient * (axis.extent - 1)) for axis, coefficient in coefficients.items()]
        low, high = start + sum(min(0, end) for end in ends), start + sum(max(0, end) for end in ends)
        if low < 0 or high >= array.shape[dimension]:
            return None
        first.append(start)
        for axis, coefficient in coefficients.items():
            steps[axis] = steps.get(axis, 0) + coefficient * array.strides[dimension]
    used = [axis for axis in axes if axis in steps]
    origin = array[tuple(slice(start, None) for start in first)]
    view = as_strided(origin, [axis.extent for axis in used], [steps[axis] for axis in used], writeable=False)
    return view, used


def _affine(index: Term) -> tuple[dict[Axis, int], int] | None:
    """Coefficients by axis and the constant of an affine integer term, else None."""
    match index:
        case Const(value, _):
            return {}, int(value)
        case Axis():
            return {index: 1}, 0
        case Binary("+" | "-" as op, left, right):
            a, b = _affine(left), _affine(right)
            if a is None or b is None:
                return None
            sign = 1 if op == "+" else -1
            terms = dict(a[0])
            for axis, coefficient in b[0].items():
                terms[axis] = terms.get(axis, 0) + sign * coefficient
            return terms, a[1] + sign * b[1]
        case Binary("*", left, right):
            a, b = _affine(left), _affine(right)
            if a is None or b is None or (a[0] and b[0]):
                return None
            terms, factor = (a[0], b[1]) if a[0] else (b[0], a[1])
            return {axis: factor * coefficient for axis, coefficient in terms.items()}, a[1] * b[1]
        case _:
            return None


# ------------------------------------------------------------------------------------------------ terms


class _Evaluation:
    """Terms of one stage over grids of its axes."""

    def __init__(self, stage: Tensor, memory: Memory, grids: Mapping[Axis, Array]) -> None:
        self.stage = stage
        self.memory = memory
        self.grids = grids

    def term(self, term: Term, guarded: bool = False) -> Array:
        """The value everywhere; in a branch of a select (`guarded`) reads out of range give anything."""
        match term:
            case Const(value, dtype):
                return np.asarray(value, _working_dtype(dtype))
            case Axis():
                return self.grids[term]
            case Read():
                return self.read(term, guarded)
            case Binary(op, left, right):
                return np.asarray(_BINARY[op](self.term(left, guarded), self.term(right, guarded)))
            case Call(function, arguments):
                return np.asarray(_FUNCTIONS[function](*(self.term(item, guarded) for item in arguments)))
            case Select(condition, then, otherwise):
                chosen = self.term(condition, guarded)
                return np.where(chosen, self.term(then, True), self.term(otherwise, True))
            case Cast(dtype, value):
                return self.term(value, guarded).astype(_working_dtype(dtype))
            case _:
                raise ExpressionError(f"tensor {self.stage.name}: a {type(term).__name__} cannot stand here")

    def read(self, read: Read, guarded: bool) -> Array:
        array = self.memory[read.tensor]
        indices = []
        for dimension, (index, extent) in enumerate(zip(read.indices, array.shape, strict=True)):
            values = self.term(index, guarded)
            low, high = int(values.min()), int(values.max())
            if (low < 0 or high >= extent) and not guarded:
                raise ExpressionError(
                    f"tensor {self.stage.name} reads {read.tensor.name} at {low} to {high} in dimension "
                    f"{dimension}, expected 0 to {extent - 1}"
                )
            indices.append(np.clip(values, 0, extent - 1) if low < 0 or high >= extent else values)
        return np.asarray(array[tuple(indices)])


_erf = np.frompyfunc(math.erf, 1, 1)

_REDUCE: dict[str, Callable[..., Array]] = {
    "sum": lambda values, axis: np.add.reduce(values, axis=axis, dtype=values.dtype),
    "max": np.maximum.reduce,
    "min": np.minimum.reduce,
}
_COMBINE: dict[str, Callable[[Array, Array], Array]] = {"sum": np.add, "max": np.maximum, "min": np.minimum}
_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "//": np.floor_divide,
    "%": np.mod,
    "min": np.minimum,
    "max": np.maximum,
    "<": np.less,
    "<=": np.less_equal,
    "==": np.equal,
    "and": np.logical_and,
    "or": np.logical_or,
}
_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "sigmoid": lambda value: 1 / (1 + np.exp(-value)),
    "erf": lambda value: np.asarray(_erf(value), np.float64),
    "floor": np.floor,
    "ceil": np.ceil,
    "abs": np.abs,
    "neg": np.negative,
    "pow": np.power,
    "not": np.logical_not,
}
