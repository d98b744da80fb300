"""What an operator computes, in numpy: the expected values of every kernel. Start at `evaluate`.

    expected = evaluate(operator, [data, weight])

Floats are computed in float64 from the first stage to the last and rounded once, at the end, and before they
are compared, cut to whole numbers or converted: a float32 quotient of exactly 0.5 lies beside 0.5 in float64.
What is rounded to integers element by element is computed in its own dtype, as kernels do without fused
multiply-adds, so that both round the same number. Integers and bools are computed in their own dtypes, where
overflow wraps. Stages run one after the other. A sum of products goes the fast way of contraction.py;
everything else is evaluated over blocks of its axes, each axis an index array of its own dimension, so that
temporaries stay small.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cross.errors import ExpressionError
from cross.expression.language.dtypes import FLOATS
from cross.expression.language.operations import COMBINERS, OPERATIONS, converted
from cross.expression.language.operator import Operator, reads
from cross.expression.language.tensor import Axis, Read, Reduce, Tensor
from cross.expression.language.terms import Binary, Call, Cast, Const, Int, Lookup, Select, Term, walk
from cross.expression.reference.contraction import BLOCK_ELEMENTS, contract
from cross.expression.reference.strided import blocks, read_view, working_dtype
from cross.expression.reference.ties import nudged, nudged_stages

Array = NDArray[Any]

JUMPS = frozenset({"<", "<=", "==", "floor", "ceil", "round", "fmod"})
"""Operations whose value jumps from one float to the next."""

TERM_BLOCK_ELEMENTS = 1 << 18  # of each temporary of the general path: 2 MiB


def evaluate(
    operator: Operator,
    inputs: Sequence[Array],
    *,
    fast: bool = True,
    block_elements: int | None = None,
    direction: float = 0.0,
    inexact: Collection[Tensor] = (),
) -> Array:
    """The operator's output, in the output's shape and dtype.

    `inputs` are in the operator's order. `fast` allows matrix products for sums of products; `block_elements`
    bounds the temporaries (None: sizes that fit the caches and a small machine's memory). A `direction` of 1
    or -1 moves floats up or down before they are rounded to integers, by what those may be wrong that depend
    on who computes them (ties.py), `inexact` ones of the inputs among them.

    Raises:
        ExpressionError: an input's shape or dtype is not the operator's, or an index leaves its tensor in a
            read that is really made.
    """
    memory = dict(zip(operator.inputs, _checked(operator, inputs), strict=True))
    stepwise = _stepwise(operator)
    moved = nudged_stages(operator, inexact) if direction else ()
    last_use = {read.tensor: step for step, stage in enumerate(operator.stages) for read in reads(stage)}
    with np.errstate(all="ignore"):
        for step, stage in enumerate(operator.stages):
            result = contract(stage, memory, block_elements or BLOCK_ELEMENTS) if fast else None
            if result is None:
                elements = block_elements or TERM_BLOCK_ELEMENTS
                by = direction if stage in moved else 0.0
                result = _evaluate_stage(stage, memory, elements, stepwise=stage in stepwise, direction=by)
            memory[stage] = result
            for tensor in [tensor for tensor in memory if last_use.get(tensor, -1) == step]:
                del memory[tensor]
        return memory[operator.output].astype(operator.output.dtype, order="C")


def _checked(operator: Operator, inputs: Sequence[Array]) -> list[Array]:
    if len(inputs) != len(operator.inputs):
        raise ExpressionError(
            f"operator {operator.name}: expected {len(operator.inputs)} inputs, found {len(inputs)}"
        )
    arrays = [np.asarray(array) for array in inputs]
    for tensor, array in zip(operator.inputs, arrays, strict=True):
        if array.shape != tensor.shape or array.dtype != np.dtype(tensor.dtype):
            raise ExpressionError(
                f"operator {operator.name}: input {tensor.name} is {tensor.dtype}{list(tensor.shape)}, "
                f"found {array.dtype}{list(array.shape)}"
            )
    return arrays


# ------------------------------------------------------------------------------------------- the general path


class _Block(msgspec.Struct, frozen=True):
    """A box of a stage's axes. A value in it has one dimension an axis: the box's length, or 1."""

    stage: Tensor
    axes: tuple[Axis, ...]
    box: tuple[slice, ...]
    memory: Mapping[Tensor, Array]
    stepwise: bool  # every float is rounded to its dtype
    direction: float  # in which what is rounded to integers is moved

    def index(self, axis: Axis) -> Array:
        """The axis's values, along its own dimension."""
        position = self.axes.index(axis)
        cut = self.box[position]
        shape = [1] * len(self.axes)
        shape[position] = cut.stop - cut.start
        return np.arange(cut.start, cut.stop).reshape(shape)


def _stepwise(operator: Operator) -> set[Tensor]:
    """The stages that round, and those without a reduction that they read, directly or through each other."""
    found: set[Tensor] = set()
    for stage in reversed(operator.stages):
        body = stage.body
        if body is None or isinstance(body, Reduce):
            continue
        if stage in found or any(isinstance(term, Call) and term.function == "round" for term in walk(body)):
            found |= {stage, *(read.tensor for read in reads(stage))}
    return found


def _evaluate_stage(
    stage: Tensor, memory: Mapping[Tensor, Array], block_elements: int, *, stepwise: bool, direction: float
) -> Array:
    """A computed tensor in its working dtype."""
    axes = (*stage.axes, *stage.reduce_axes)
    space = len(stage.axes)
    summed = tuple(range(space, len(axes)))
    result = np.empty(stage.shape, working_dtype(stage.dtype))
    body = stage.body
    assert body is not None
    inner = body.body if isinstance(body, Reduce) else body
    for box in blocks([axis.extent for axis in axes], block_elements):
        block = _Block(stage, axes, box, memory, stepwise and not isinstance(body, Reduce), direction)
        lengths = [cut.stop - cut.start for cut in box]
        value = np.broadcast_to(_value(inner, block, None), lengths)
        place = result[box[:space]]
        if not isinstance(body, Reduce):
            place[...] = value
            continue
        combine = OPERATIONS[COMBINERS[body.combiner]].numpy
        part = combine.reduce(value, axis=summed)
        first = all(cut.start == 0 for cut in box[space:])
        place[...] = part if first else combine(place, part)
    return result


def _value(term: Term, block: _Block, mask: Array | None) -> Array:
    """A term over a block; `mask` says where it is really evaluated (None: everywhere)."""
    match term:
        case Int(value) | Const(value, _):
            return np.full([1] * len(block.axes), value, working_dtype(term.dtype))
        case Axis():
            return block.index(term)
        case Read():
            return _stepped(_read(term, block, mask), term, block)
        case Lookup(matrix, row, column, dtype):
            values = np.array(matrix, working_dtype(dtype))
            return np.asarray(values[_value(row, block, mask), _value(column, block, mask)])
        case Binary(name) | Call(name):
            operands = [_value(part, block, mask) for part in term.parts]
            if name in JUMPS:
                operands = [
                    _cast(value, part.dtype) for value, part in zip(operands, term.parts, strict=True)
                ]
            if name == "round" and block.direction:
                operands = [nudged(operands[0], term.dtype, block.direction)]
            return _stepped(np.asarray(OPERATIONS[name].numpy(*operands)), term, block)
        case Cast(dtype, value):
            return _cast(_cast(_value(value, block, mask), value.dtype), dtype)
        case Select():
            return _select(term, block, mask)
    raise ExpressionError(f"tensor {block.stage.name}: {type(term).__name__} cannot stand inside a term")


def _stepped(value: Array, term: Term, block: _Block) -> Array:
    return _cast(value, term.dtype) if block.stepwise and term.dtype in FLOATS else value


def _cast(value: Array, dtype: str) -> Array:
    """The value rounded to a dtype, in its working dtype."""
    return np.asarray(converted(value, dtype).astype(working_dtype(dtype)))


def _select(term: Select, block: _Block, mask: Array | None) -> Array:
    condition = _value(term.condition, block, mask)
    if condition.all():
        return _value(term.then, block, mask)
    if not condition.any():
        return _value(term.otherwise, block, mask)
    masks = [taken if mask is None else mask & taken for taken in (condition, ~condition)]
    return np.where(condition, _value(term.then, block, masks[0]), _value(term.otherwise, block, masks[1]))


def _read(read: Read, block: _Block, mask: Array | None) -> Array:
    array = block.memory[read.tensor]
    view = read_view(array, read.indices, block.axes, block.box)
    if view is None:
        view = _gather(read, array, block, mask)
    return view.astype(working_dtype(read.dtype))


def _gather(read: Read, array: Array, block: _Block, mask: Array | None) -> Array:
    """Element by element. Where the read is not made, indices out of range are moved into it."""
    places: list[Array] = []
    for dimension, (index, extent) in enumerate(zip(read.indices, array.shape, strict=True)):
        values = _value(index, block, mask)
        outside = (values < 0) | (values >= extent)
        if outside.any():
            if (outside if mask is None else outside & mask).any():
                raise ExpressionError(
                    f"tensor {block.stage.name} reads {read.tensor.name} at {values.min()} to "
                    f"{values.max()} in dimension {dimension}, "
                    f"expected 0 to {extent - 1}"
                )
            values = values.clip(0, extent - 1)
        places.append(values)
    return np.asarray(array[tuple(places)]) if places else array.reshape([1] * len(block.axes))
