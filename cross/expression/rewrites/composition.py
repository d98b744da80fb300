"""Two operators as one: what the first computes is a stage that the second reads."""

from __future__ import annotations

from msgspec.structs import replace

from cross.errors import ExpressionError
from cross.expression.language.naming import replace_reads, unique_tensors
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import Read, Tensor
from cross.expression.language.terms import Term


def composed(producer: Operator, consumer: Operator, position: int) -> Operator:
    """The operator that computes `consumer` with the result of `producer` as its input at `position`.

    Its inputs are the producer's, then the consumer's without that one.

    Raises:
        ExpressionError: that input has another shape or dtype, or the producer writes into a larger tensor.
    """
    handed = consumer.inputs[position]
    made = producer.output
    if (made.shape, made.dtype) != (handed.shape, handed.dtype) or producer.destination is not None:
        raise ExpressionError(
            f"operator {consumer.name}: input {position} is {handed.dtype}{list(handed.shape)}, but "
            f"{producer.name} computes {made.dtype}{list(producer.written)}"
        )
    new: dict[Tensor, Tensor] = {handed: made}

    def change(read: Read) -> Term:
        return replace(read, tensor=new.get(read.tensor, read.tensor))

    for stage in consumer.stages:
        assert stage.body is not None
        new[stage] = replace(stage, body=replace_reads(stage.body, change))
    inputs = (*producer.inputs, *(item for item in consumer.inputs if item is not handed))
    known = {consumer.inputs[number] for number in consumer.constants}
    known |= {producer.inputs[number] for number in producer.constants}
    constants = frozenset(number for number, item in enumerate(inputs) if item in known)
    found = Operator(consumer.name, inputs, new[consumer.output], constants, consumer.destination)
    named = unique_tensors(found)  # rewrites inline stages by their names
    return replace(found, inputs=tuple(named[item] for item in inputs), output=named[found.output])
