"""Neighbouring dimensions that an operator goes over alike, as one: the same elements in the same order.

    out[y, x, c] = sum(A[y, x, k] * W[k, c])      ->      out[yx, c] = sum(A[yx, k] * W[k, c])

A tile of rows then is as long as the registers allow, whatever the width of an image: 49 pixels of 7x7 are
ten tiles of five, where seven rows of seven are fourteen tiles of four; and threads share 49 evenly. What is
computed element by element becomes one long vector, so that operators of one size are one operator.
Dimensions are joined where every tensor that varies along them holds them side by side, the inner one whole,
so nothing moves in memory. Start at `with_joined_dimensions`.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from cross.expression.language.affine import affine
from cross.expression.language.naming import replace_reads
from cross.expression.language.operator import Operator, Subview, reads
from cross.expression.language.tensor import Axis, Read, Tensor, placeholder
from cross.expression.language.terms import Term, walk


def with_joined_dimensions(operator: Operator) -> Operator:
    """The operator with all neighbouring dimensions joined that can be.

    Where something is reduced, the last dimension stays, which is that of vectors, and so do those of one
    element: patterns of products (cross/schedule) know them by their place.
    """
    for outer in reversed(range(len(operator.output.shape) - 1 - operator.reduces)):
        if not operator.reduces or min(operator.output.shape[outer : outer + 2]) > 1:
            operator = _joined(operator, outer) or operator
    return operator


def _joined(operator: Operator, outer: int) -> Operator | None:
    """The operator with dimension `outer` of the output and the next as one; None where that cannot be."""
    destination = operator.destination
    if destination is not None:
        inner = destination.shape[outer + 1]
        if inner != operator.output.shape[outer + 1]:
            return None
        starts = destination.starts
        starts = (*starts[:outer], starts[outer] * inner, *starts[outer + 2 :])
        destination = Subview(_shape(destination.shape, outer), starts)
    if (places := _places(operator, outer)) is None:
        return None
    new: dict[Tensor, Tensor] = {}
    for tensor, at in places.items():
        if tensor.body is None:
            new[tensor] = placeholder(_shape(tensor.shape, at), tensor.name, tensor.dtype)
    for stage in operator.stages:
        if stage in places:
            if (made := _stage(stage, places, new)) is None:
                return None
            new[stage] = made
    inputs = tuple(new.get(tensor, tensor) for tensor in operator.inputs)
    return replace(operator, inputs=inputs, output=new[operator.output], destination=destination)


def _places(operator: Operator, outer: int) -> dict[Tensor, int] | None:
    """Of each tensor that varies along both dimensions, where the outer one is; None where one has them
    otherwise."""
    places, apart = {operator.output: outer}, set[Tensor]()
    for stage in reversed(operator.stages):
        pair = stage.axes[places[stage] : places[stage] + 2] if stage in places else ()
        for read in reads(stage):
            if not (found := [at for at, index in enumerate(read.indices) if not _is_free(index, pair)]):
                apart.add(read.tensor)
            elif not _is_joined(read, found, pair) or places.setdefault(read.tensor, found[0]) != found[0]:
                return None
    return None if apart & places.keys() else places


def _is_free(term: Term, axes: tuple[Axis, ...]) -> bool:
    return not axes or set(axes).isdisjoint(walk(term))


def _is_joined(read: Read, found: list[int], pair: tuple[Axis, ...]) -> bool:
    """Whether the dimensions of a read that vary along a pair of axes go along with one each, side by side,
    the second from end to end."""
    if len(found) != 2 or found[1] != found[0] + 1 or read.tensor.shape[found[1]] != pair[1].extent:
        return False
    first, second = (_start(read.indices[at], axis) for at, axis in zip(found, pair, strict=True))
    return first is not None and second == 0


def _start(index: Term, axis: Axis) -> int | None:
    """Where an axis starts in an index that is the axis and a constant, as axes of one step are 0."""
    form = affine(index)
    if form is None or {item: by for item, by in form[0].items() if item.extent > 1} != {axis: 1}:
        return None
    return form[1]


def _stage(stage: Tensor, places: Mapping[Tensor, int], new: Mapping[Tensor, Tensor]) -> Tensor | None:
    """A stage that varies along both dimensions with one axis in their place; None where its body asks for
    one of them elsewhere than where it reads, as a guard does."""
    outer = places[stage]
    first, second = stage.axes[outer : outer + 2]
    joined = Axis(f"{first.name}{second.name}", first.extent * second.extent)

    def change(read: Read) -> Term:
        if read.tensor not in places:
            return read
        at = places[read.tensor]
        start = _start(read.indices[at], first) or 0
        index = joined + start * second.extent if start else joined
        return Read(new[read.tensor], (*read.indices[:at], index, *read.indices[at + 2 :]))

    assert stage.body is not None
    body = replace_reads(stage.body, change)
    if not _is_free(body, (first, second)):
        return None
    axes = (*stage.axes[:outer], joined, *stage.axes[outer + 2 :])
    return replace(stage, shape=_shape(stage.shape, outer), axes=axes, body=body)


def _shape(shape: tuple[int, ...], outer: int) -> tuple[int, ...]:
    return (*shape[:outer], shape[outer] * shape[outer + 1], *shape[outer + 2 :])
