"""Tensors stored as half floats, computed with as float32: half the memory and bandwidth, a rounding each.

    out[i] = sum(A[i, k] * B[k])      ->      out[i] = half(sum(float(A[i, k]) * float(B[k])))

Start at `with_half_storage`. It is for operators alone; toolkit/model/half_storage.py decides for a network.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from cross.expression.language.naming import replace_reads
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import Read, Tensor, compute, placeholder
from cross.expression.language.terms import Term, cast

COMPUTED = "float32"


def with_half_storage(
    operator: Operator, inputs: Collection[int], output: bool, dtype: str = "float16"
) -> Operator:
    """The operator with some float32 inputs, by position, and its float32 output stored in a dtype of half
    the size.

    Sums are in float32 as before; an element is rounded when it is stored. Of other dtypes nothing changes.
    """
    new: dict[Tensor, Tensor] = {
        tensor: placeholder(tensor.shape, tensor.name, dtype)
        for position, tensor in enumerate(operator.inputs)
        if position in inputs and tensor.dtype == COMPUTED
    }
    given = tuple(new.get(tensor, tensor) for tensor in operator.inputs)

    def change(read: Read) -> Term:
        return cast(read.dtype, replace(read, tensor=new.get(read.tensor, read.tensor)))

    for stage in operator.stages:
        assert stage.body is not None
        new[stage] = replace(stage, body=replace_reads(stage.body, change))
    result = new[operator.output]
    if output and result.dtype == COMPUTED:
        result = _stored(result, dtype)
    return replace(operator, inputs=given, output=result)


def _stored(computed: Tensor, dtype: str) -> Tensor:
    names = [axis.name for axis in computed.axes]
    return compute(
        computed.shape, lambda *axes: cast(dtype, computed[axes]), name=f"{computed.name}.half", axes=names
    )
