"""Running a graph on numpy, group by group: the expected values that everything else is checked against."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from cross.expression.reference import evaluate
from toolkit.errors import InputError
from toolkit.model.graph import Array, Graph, Group


def run_reference(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Every graph output, computed by the numpy reference; `inputs` has an array for each graph input."""
    roots = {graph.root(name) for name in graph.outputs}
    computed = {group.output: array for group, array in run_groups(graph, inputs) if group.output in roots}
    return {name: computed[graph.root(name)].reshape(graph.values[name].shape) for name in graph.outputs}


def run_groups(graph: Graph, inputs: Mapping[str, Array]) -> Iterator[tuple[Group, Array]]:
    """Each group with its output, in running order; the output has the physical shape of its value.

    Raises:
        InputError: an input is missing, or has another shape or dtype.
    """
    memory = {name: _checked(graph, name, inputs) for name in graph.inputs}
    last_use = {graph.root(name): step for step, group in enumerate(graph.groups) for name in group.inputs}
    keep = {graph.root(name) for name in graph.outputs}
    for step, group in enumerate(graph.groups):
        operands = operands_of(graph, group, memory)
        result = evaluate(group.operator, operands)
        memory[group.output] = result.reshape(graph.values[group.output].shape)
        yield group, memory[group.output]
        for name in {graph.root(name) for name in (*group.inputs, group.output)} - keep:
            if last_use.get(name, step) <= step:
                memory.pop(name, None)


def operands_of(graph: Graph, group: Group, memory: Mapping[str, Array]) -> list[Array]:
    """The arrays that the group's operator reads, in the shapes it wants; constants come from the graph."""
    operands: list[Array] = []
    for name, tensor in zip(group.inputs, group.operator.inputs, strict=True):
        data = graph.values[name].data
        array = memory[graph.root(name)] if data is None else data
        operands.append(np.ascontiguousarray(array).reshape(tensor.shape))
    return operands


def source_view(graph: Graph, name: str, array: Array) -> Array:
    """A value's data in the axis order of the ONNX value it stands for (see `Value.permutation`)."""
    permutation = graph.values[name].permutation
    if not permutation:
        return array
    return array.transpose(np.argsort(permutation))


def _checked(graph: Graph, name: str, inputs: Mapping[str, Array]) -> Array:
    value = graph.values[name]
    if name not in inputs:
        raise InputError(
            f"model {graph.name!r}: the input {name!r} is missing; expected arrays for "
            f"{', '.join(graph.inputs)}"
        )
    array = np.asarray(inputs[name])
    if array.shape != value.shape or str(array.dtype) != value.dtype:
        raise InputError(
            f"model {graph.name!r}: input {name!r} must be {value.dtype}{list(value.shape)}, found "
            f"{array.dtype}{list(array.shape)}; convert the array"
        )
    return array
