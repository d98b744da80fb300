"""Reductions in two steps: partial results side by side, then their combination.

    y[i] = sum_k x[i, k]        rfactor(y, k, 16)        y.rf[i, v] = sum_k0 x[i, 16 k0 + v]
                                                         y[i] = sum_l y.rf[i, l]

The partial results have a new innermost space axis along which `k` is contiguous, so a reduction along
memory runs in vectors (Halide's and TVM's rfactor).
"""

from __future__ import annotations

from msgspec.structs import replace

from cross.errors import ExpressionError
from cross.expression.language.functions import reduce_axis
from cross.expression.language.naming import replace_reads
from cross.expression.language.operations import neutral_value
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import Axis, Reduce, Tensor
from cross.expression.language.terms import Term, constant, select, substitute


def rfactor(operator: Operator, stage: Tensor, axis: Axis, factor: int) -> Operator:
    """The operator with the reduction of `stage` over `axis` in two steps.

    Args:
        operator: any operator.
        stage: a reduction among its stages.
        axis: one of its reduction axes; `factor` need not divide its extent.
        factor: number of partial results per element.

    Raises:
        ExpressionError: the stage does not reduce over the axis.
    """
    if axis not in stage.reduce_axes:
        raise ExpressionError(f"rfactor: stage {stage.name} does not reduce over axis {axis.name}")
    renewed: dict[Tensor, Tensor] = {}
    for tensor in operator.stages:
        assert tensor.body is not None
        body = replace_reads(
            tensor.body, lambda read: replace(read, tensor=renewed.get(read.tensor, read.tensor))
        )
        current = replace(tensor, body=body)
        renewed[tensor] = _combined(current, axis, factor) if tensor is stage else current
    return replace(operator, output=renewed[operator.output])


def _combined(stage: Tensor, axis: Axis, factor: int) -> Tensor:
    partial = _partial(stage, axis, factor)
    body = stage.body
    assert isinstance(body, Reduce)
    lane = reduce_axis(factor, f"{axis.name}_lane")
    combined = Reduce(body.combiner, partial[(*stage.axes, lane)], (lane,))
    return replace(stage, body=combined)


def _partial(stage: Tensor, axis: Axis, factor: int) -> Tensor:
    body = stage.body
    assert isinstance(body, Reduce)
    steps = reduce_axis(-(-axis.extent // factor), axis.name)
    lane = Axis(f"{axis.name}_lane", factor)
    space = tuple(replace(item) for item in stage.axes)
    reduced = {item: steps if item is axis else replace(item) for item in body.axes}
    position = steps * factor + lane
    values: dict[Axis, Term] = {**dict(zip(stage.axes, space, strict=True)), **reduced, axis: position}
    term = substitute(body.body, values)
    if axis.extent % factor:
        neutral = constant(neutral_value(body.combiner, stage.dtype), stage.dtype)
        term = select(position < axis.extent, term, neutral)
    whole = Reduce(body.combiner, term, tuple(reduced[item] for item in body.axes))
    return Tensor(f"{stage.name}.rf", (*stage.shape, factor), stage.dtype, (*space, lane), whole)
