"""Running a graph on numpy, group by group: the expected values that everything else is checked against."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from cross.expression.language.operator import Operator
from cross.expression.reference import evaluate
from toolkit.errors import InputError
from toolkit.model.graph import Array, Choose, Control, Graph, Group

Compute = Callable[[Operator, Sequence[Array]], Array]


def run_reference(graph: Graph, inputs: Mapping[str, Array], compute: Compute = evaluate) -> dict[str, Array]:
    """Every graph output; `inputs` has an array for each graph input, `compute` makes an operator's."""
    roots = {graph.root(name) for name in graph.outputs}
    computed = {name: data for name in roots if (data := graph.values[name].data) is not None}  # empty ones
    computed |= {name: array for name, array in run_steps(graph, inputs, compute) if name in roots}
    return {name: computed[graph.root(name)].reshape(graph.values[name].shape) for name in graph.outputs}


def cut(graph: Graph, outputs: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs without the slices that do not count, and without the counts."""
    counted = {name: count for name, count in graph.counts.items() if name in outputs}
    hidden = {count.by for count in counted.values()}
    found = {name: array for name, array in outputs.items() if name not in hidden}
    for name, count in counted.items():
        kept = slice(0, int(outputs[count.by]))
        found[name] = found[name][(slice(None),) * count.dimension + (kept,)]
    return found


def run_steps(graph: Graph, inputs: Mapping[str, Array], compute: Compute) -> Iterator[tuple[str, Array]]:
    """Every value that a step writes, in running order and in its physical shape; not those inside of loops.

    Raises:
        InputError: an input is missing, or has another shape or dtype.
    """
    memory = {name: _checked(graph, name, inputs) for name in graph.inputs}
    last_use = {graph.root(name): number for number, step in enumerate(graph.steps) for name in step.inputs}
    keep = {graph.root(name) for name in graph.outputs}
    for number, step in enumerate(graph.steps):
        written: dict[str, Array] = {}
        if isinstance(step, Group):
            written[step.output] = compute(step.operator, operands_of(graph, step, memory))
        else:
            operands = [_value(graph, name, memory) for name in step.inputs]
            results = _run_control(step.control, operands, compute)
            written |= zip(step.outputs, results, strict=True)
        for name, array in written.items():
            if isinstance(step, Group) and step.operator.destination is not None:
                whole = graph.values[graph.root(name)]
                memory.setdefault(whole.name, np.empty(whole.shape, whole.dtype))
                memory[whole.name].reshape(step.operator.written)[step.operator.part] = array
                yield whole.name, memory[whole.name]
            else:
                memory[name] = array.reshape(graph.values[name].shape)
            yield name, array.reshape(graph.values[name].shape)
        for name in {graph.root(name) for name in (*step.inputs, *written)} - keep:
            if last_use.get(name, number) <= number:
                memory.pop(name, None)


def _run_control(control: Control, operands: Sequence[Array], compute: Compute) -> list[Array]:
    """The outputs of a loop or a choice."""
    if isinstance(control, Choose):
        chosen = control.then if operands[0].all() else control.otherwise
        outputs = run_reference(chosen, dict(zip(chosen.inputs, operands[1:], strict=True)), compute)
        return [outputs[name] for name in chosen.outputs]
    carried = list(operands[: control.carried])
    scanned = operands[control.carried : control.carried + control.scanned]
    others = operands[control.carried + control.scanned :]
    names = control.results[control.carried :]
    stacks = [
        np.empty((control.count, *control.body.values[name].shape), control.body.values[name].dtype)
        for name in names
    ]
    for run in range(control.count):
        if control.conditional and not carried[0].all():
            break
        at = [control.count - 1 - run if back else run for back in control.backwards]
        slices = [array[place] for array, place in zip(scanned, at, strict=False)]
        given = dict(zip(control.body.inputs, [*carried, *slices, *others], strict=True))
        found = run_reference(control.body, given, compute)
        carried = [found[name] for name in control.results[: control.carried]]
        for stack, place, name in zip(stacks, at[control.scanned :], names, strict=True):
            stack[place] = found[name]
    return [*carried, *stacks]


def _value(graph: Graph, name: str, memory: Mapping[str, Array]) -> Array:
    value = graph.values[name]
    array = memory[graph.root(name)] if value.data is None else value.data
    return array.reshape(value.shape)


def operands_of(graph: Graph, group: Group, memory: Mapping[str, Array]) -> list[Array]:
    """The arrays that the group's operator reads, in the shapes it wants; constants come from the graph."""
    operands: list[Array] = []
    for name, tensor in zip(group.inputs, group.operator.inputs, strict=True):
        data = graph.values[name].data
        array = memory[graph.root(name)] if data is None else data
        if array.size != tensor.elements:  # bytes that are read as words (packed_products.py)
            array = np.ascontiguousarray(array).reshape(-1).view(tensor.dtype)
        operands.append(array.reshape(tensor.shape))
    return operands


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
