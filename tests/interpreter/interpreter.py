"""What a loop nest computes, in numpy: the oracle of every lowering and of code generation.

    interpret(nest, inputs)   operator inputs in, output out; constants are packed here
    run(nest, buffers)        one level lower: every buffer by name, constants already packed

It shares no code with the code generators, nor with the analyses that lowering and binding rest on. Memory
that a program has not written holds NaN (floats) or the dtype's extreme value (integers), so that reading
it shows in the output. An access out of bounds is an InterpreterError; a load in the branch of a Select
that is not taken is never made. Arithmetic runs in the dtypes of the nodes; integer // and % floor.

Speed: the nest is compiled once into closures (evaluate.py), and the loops around a single store run as
numpy lanes wherever that cannot change the result (lanes.py). A reduction done in lanes is summed pairwise,
so a float32 sum differs from the sequential one by rounding, about 1e-7 of its terms' magnitude; it is
never less accurate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cross.expression.language.dtypes import DTYPES
from cross.expression.language.operations import OPERATIONS
from cross.expression.language.terms import Int
from cross.loopnest.nodes import Allocate, Barrier, Block, Buffer, For, LoopNest, Statement, Store
from tests.interpreter.evaluate import (
    Accessor,
    Closure,
    Environment,
    InterpreterError,
    Scope,
    compile_expression,
)
from tests.interpreter.lanes import ChosenLanes, choose_lanes

Array = NDArray[Any]
Action = Callable[[Environment], None]


def interpret(nest: LoopNest, inputs: Sequence[Array]) -> Array:
    """The output of a bound nest.

    Args:
        nest: a bound nest.
        inputs: the operator's inputs in order, each of the shape and dtype the operator gives it
            (constants unpacked: the packing of the nest's arguments is applied here).

    Raises:
        InterpreterError: an input does not fit its argument, or the program leaves a buffer's bounds.
    """
    arguments = [buffer for buffer in nest.arguments if buffer.role != "output"]
    outputs = [buffer for buffer in nest.arguments if buffer.role == "output"]
    if len(inputs) != len(arguments) or len(outputs) != 1:
        raise InterpreterError(
            f"{nest.name}: expected {len(arguments)} inputs and one output, found {len(inputs)} inputs and "
            f"{len(outputs)} outputs"
        )
    buffers = {}
    for buffer, array in zip(arguments, inputs, strict=True):
        packed = buffer.packing.apply(array) if buffer.packing is not None else array
        buffers[buffer.name] = np.array(packed, order="C")
    return run(nest, buffers)[outputs[0].name]


def run(nest: LoopNest, buffers: Mapping[str, Array]) -> dict[str, Array]:
    """Runs a bound nest on buffers given by name, in place; constants are packed already.

    Outputs and workspace that are not given are made, filled with the undefined value.

    Returns:
        Every argument and workspace buffer by name.

    Raises:
        InterpreterError: a buffer is missing or does not fit, or the program leaves a buffer's bounds.
    """
    arrays: dict[str, Array] = {}
    for buffer in (*nest.arguments, *nest.workspace):
        given = buffers.get(buffer.name)
        if given is None:
            if buffer.role in ("input", "constant"):
                raise InterpreterError(f"{nest.name}: no array for the {buffer.role} {buffer.name}")
            given = undefined(buffer_shape(buffer), buffer.dtype)
        _check_fit(nest, buffer, given)
        arrays[buffer.name] = given
    scope = Scope({name: array.reshape(-1) for name, array in arrays.items()})
    program = _compile(nest.body, scope)
    with np.errstate(all="ignore"):
        program(scope.environment())
    return arrays


def undefined(shape: tuple[int, ...], dtype: str) -> Array:
    """An array of the value that stands for memory nobody has written."""
    return np.full(shape, _undefined_value(dtype), dtype)


def _undefined_value(dtype: str) -> float | int:
    kind = DTYPES[dtype].kind
    if kind == "float":
        return float("nan")
    if kind == "bool":
        return True
    limits = np.iinfo(dtype)
    return int(limits.min if kind == "signed" else limits.max)


def buffer_shape(buffer: Buffer) -> tuple[int, ...]:
    """The shape of a bound buffer.

    Raises:
        InterpreterError: the shape still depends on a knob.
    """
    sizes = [extent.value for extent in buffer.shape if isinstance(extent, Int)]
    if len(sizes) != len(buffer.shape):
        raise InterpreterError(f"buffer {buffer.name} has no concrete shape; bind the nest before running it")
    return tuple(sizes)


def _check_fit(nest: LoopNest, buffer: Buffer, array: Array) -> None:
    shape = buffer_shape(buffer)
    if array.shape != shape or array.dtype != np.dtype(buffer.dtype) or not array.flags.c_contiguous:
        raise InterpreterError(
            f"{nest.name}: buffer {buffer.name} expects a contiguous {buffer.dtype}{list(shape)}, "
            f"found {array.dtype}{list(array.shape)}"
        )


def _compile(statement: Statement, scope: Scope) -> Action:
    match statement:
        case Block(statements):
            return _sequence([_compile(item, scope) for item in statements])
        case Allocate():
            return _compile_allocate(statement, scope)
        case Barrier():  # threads run one after the other, up to the end of their loop
            return _sequence([])
        case For() | Store():
            chosen = choose_lanes(statement)
            return _compile_loop(statement, scope) if chosen is None else _compile_lanes(chosen, scope)


def _sequence(actions: list[Action]) -> Action:
    if len(actions) == 1:
        return actions[0]

    def block(environment: Environment) -> None:
        for action in actions:
            action(environment)

    return block


def _compile_allocate(statement: Allocate, scope: Scope) -> Action:
    buffer = statement.buffer
    array = undefined(buffer_shape(buffer), buffer.dtype).reshape(-1)
    value = _undefined_value(buffer.dtype)
    body = _compile(statement.body, scope.with_array(buffer.name, array))

    def allocate(environment: Environment) -> None:
        array.fill(value)
        body(environment)

    return allocate


def _compile_loop(loop: For | Store, scope: Scope) -> Action:
    assert isinstance(loop, For), "a store alone always runs as a single lane"
    if not isinstance(loop.extent, Int):
        raise InterpreterError(f"loop {loop.var} has no concrete extent; bind the nest before running it")
    extent = range(loop.extent.value)
    slot = scope.slot(loop.var)
    body = _compile(loop.body, scope.with_loop(loop.var, loop.extent.value))

    def repeat(environment: Environment) -> None:
        for value in extent:
            environment[slot] = value
            body(environment)

    return repeat


def _compile_lanes(chosen: ChosenLanes, scope: Scope) -> Action:
    """The store with the chosen loops as lanes; loops outside them run one after the other."""
    space = scope.with_lanes(chosen.space)
    target = Accessor(chosen.store.buffer, chosen.store.indices, space)
    if chosen.combiner:
        return _compile_reduction(chosen, scope, target)
    value = compile_expression(chosen.value, space)
    if chosen.store.guard is not None:
        return _guarded_store(target, value, compile_expression(chosen.store.guard, space))

    def store(environment: Environment) -> None:
        target.put(environment, value(environment, None))

    return store


def _guarded_store(target: Accessor, value: Closure, guard: Closure) -> Action:
    def store(environment: Environment) -> None:
        holds = guard(environment, None)
        if isinstance(holds, np.ndarray):
            lanes = np.flatnonzero(holds)
            if len(lanes):
                target.put(environment, value(environment, lanes), lanes)
        elif holds:
            target.put(environment, value(environment, None))

    return store


def _compile_reduction(chosen: ChosenLanes, scope: Scope, target: Accessor) -> Action:
    """target = target (combiner) value for every iteration of the reduction loops, at once."""
    value = compile_expression(chosen.value, scope.with_lanes((*chosen.space, *chosen.reduction)))
    rows, columns = _count(chosen.space), _count(chosen.reduction)
    combine = OPERATIONS[chosen.combiner].numpy
    dtype = np.dtype(chosen.store.buffer.dtype)
    lanes_of_one = rows == 1 and not chosen.space

    def store(environment: Environment) -> None:
        terms = np.asarray(value(environment, None), dtype)
        if terms.size != rows * columns:
            terms = np.broadcast_to(terms, (rows * columns,))
        total = combine.reduce(terms.reshape(rows, columns), axis=1)
        target.put(environment, combine(target.get(environment), total[0] if lanes_of_one else total))

    return store


def _count(lanes: tuple[tuple[str, int], ...]) -> int:
    return int(np.prod([extent for _, extent in lanes], dtype=np.int64))
