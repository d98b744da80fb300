"""Operators whose tensors are parts of larger ones, in which they are read and written where they lie."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from cross.expression.language.naming import replace_reads
from cross.expression.language.operator import Operator, Subview
from cross.expression.language.tensor import Read, Tensor, placeholder
from cross.expression.language.terms import Term


def with_parts(operator: Operator, inputs: Mapping[int, Subview], output: Subview | None) -> Operator:
    """The operator with some inputs, by position, read from larger tensors, which become its inputs instead,
    and with its output written into one.
    """
    subviews = {operator.inputs[position]: subview for position, subview in inputs.items()}
    new: dict[Tensor, Tensor] = {
        tensor: placeholder(subview.shape, tensor.name, tensor.dtype) for tensor, subview in subviews.items()
    }

    def change(read: Read) -> Term:
        tensor, indices = new.get(read.tensor, read.tensor), read.indices
        if read.tensor in subviews:
            starts = subviews[read.tensor].starts
            indices = tuple(
                index + start if start else index for index, start in zip(indices, starts, strict=True)
            )
        return replace(read, tensor=tensor, indices=indices)

    for stage in operator.stages if subviews else ():
        assert stage.body is not None
        new[stage] = replace(stage, body=replace_reads(stage.body, change))
    given = tuple(new.get(tensor, tensor) for tensor in operator.inputs)
    result = new.get(operator.output, operator.output)
    return replace(operator, inputs=given, output=result, destination=output)
