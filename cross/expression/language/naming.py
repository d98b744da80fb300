"""Unique names: schedules address stages and loops by name, whatever names a user gave them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType

from msgspec.structs import replace

from cross.expression.language.operator import Operator
from cross.expression.language.tensor import Read, Reduce, Tensor
from cross.expression.language.terms import Term, substitute


@functools.lru_cache(maxsize=64)  # every structure of a space asks for those of its operator
def unique_tensors(operator: Operator) -> Mapping[Tensor, Tensor]:
    """The operator's tensors and axes renamed so that names are unique; old to new, producers first."""
    taken: set[str] = set()
    renamed: dict[Tensor, Tensor] = {}
    for tensor in (*operator.inputs, *operator.stages):
        name = _fresh(tensor.name, taken)
        if tensor.body is None:
            renamed[tensor] = Tensor(name, tensor.shape, tensor.dtype)
            continue
        body = replace_reads(tensor.body, lambda read: replace(read, tensor=renamed[read.tensor]))
        renamed[tensor] = _with_unique_axes(replace(tensor, name=name, body=body))
    return MappingProxyType(renamed)


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _with_unique_axes(tensor: Tensor) -> Tensor:
    taken: set[str] = set()
    mapping = {
        axis: replace(axis, name=_fresh(axis.name, taken)) for axis in (*tensor.axes, *tensor.reduce_axes)
    }
    assert tensor.body is not None
    body = substitute(tensor.body, dict(mapping))
    if isinstance(body, Reduce):
        body = replace(body, axes=tuple(mapping[axis] for axis in body.axes))
    return replace(tensor, axes=tuple(mapping[axis] for axis in tensor.axes), body=body)


def replace_reads(term: Term, change: Callable[[Read], Term]) -> Term:
    """The term with every read replaced, innermost indices first."""
    rebuilt = term.mapped(lambda part: replace_reads(part, change))
    return change(rebuilt) if isinstance(rebuilt, Read) else rebuilt


def inlined_body(tensor: Tensor, inlined: Callable[[Tensor], Tensor | None]) -> Term:
    """The body of a computed tensor with reads of inlined tensors replaced by their bodies.

    Args:
        tensor: a computed tensor.
        inlined: what stands for a tensor that is to be inlined, else None.
    """

    def inline(read: Read) -> Term:
        producer = inlined(read.tensor)
        if producer is None:
            return read
        body = inlined_body(producer, inlined)
        return substitute(body, dict(zip(producer.axes, read.indices, strict=True)))

    assert tensor.body is not None
    return replace_reads(tensor.body, inline)
