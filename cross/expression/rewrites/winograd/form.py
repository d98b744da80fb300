"""Rewriting an operator whose reduction is a convolution so that Winograd's algorithm computes it.

Start at `winograd_form`. What is recognized is the expression, whoever wrote it: the windows of conv.py with
2, 3 or 5 taps along one or both dimensions, with stride 2 those with 3 or 5, and the phases of transposed.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace
from numpy.typing import NDArray

from cross.expression.families.data_movement import pad
from cross.expression.families.window import Window
from cross.expression.language.affine import affine
from cross.expression.language.naming import replace_reads
from cross.expression.language.operator import Operator, reads, to_text
from cross.expression.language.tensor import Axis, Read, Reduce, Tensor, placeholder
from cross.expression.language.terms import Binary, Int, Select, Term
from cross.expression.rewrites.winograd.convolution import (
    PhaseReads,
    transform_weights,
    winograd_conv2d,
    winograd_transposed_conv2d,
)
from cross.expression.rewrites.winograd.matrices import FEW_CHANNELS, Planar, planar


class WinogradForm(msgspec.Struct, frozen=True):
    """An operator with its convolution by an algorithm; input number `weight` is U.

    The weights' dimensions `first` and the next are their taps.
    """

    operator: Operator
    weight: int
    algorithm: Planar
    first: int

    def inputs(self, direct: list[NDArray[Any]]) -> list[NDArray[Any]]:
        """The inputs of this form from those of the direct one."""
        given = list(direct)
        given[self.weight] = transform_weights(given[self.weight], self.algorithm, self.first)
        return given


class _Convolution(msgspec.Struct, frozen=True):
    """A direct convolution found in an operator: of `data`, unpadded, by `weight` [(phases...), taps...].

    `reads` says for both dimensions where the phases of a transposed convolution read; None for a window.
    """

    stage: Tensor
    data: Tensor
    weight: Tensor
    window: Window
    reads: tuple[PhaseReads, PhaseReads] | None = None

    @property
    def first(self) -> int:
        """The first of the weights' dimensions that are taps."""
        return 0 if self.reads is None else 2

    @property
    def taps(self) -> tuple[int, int]:
        """Along rows and columns."""
        return self.weight.shape[self.first], self.weight.shape[self.first + 1]

    def by(self, algorithm: Planar, weights: Tensor) -> Tensor:
        """What the convolution computes, computed by an algorithm."""
        if self.reads is None:
            return winograd_conv2d(self.data, weights, algorithm, self.window, self.stage.name)
        return winograd_transposed_conv2d(self.data, weights, self.reads, algorithm, self.stage.name)


def winograd_form(operator: Operator, tile: int) -> WinogradForm | None:
    """The same operator by the algorithm with `tile` outputs along each dimension that has several taps, None
    where its reduction is no such convolution.

    It must be the operator's only reduction: NHWC, strides of 1 or 2 and no dilation of the window, stride 1
    of every phase, constant float32 weights.
    """
    reductions = [stage for stage in operator.stages if stage.reduce_axes]
    found = _convolution(reductions[0]) if len(reductions) == 1 else None
    if found is None or found.weight not in operator.inputs:
        return None
    weight, first = found.weight, found.first
    position = operator.inputs.index(weight)
    if position not in operator.constants or weight.dtype != "float32" or _uses(operator, weight) != 1:
        return None
    high, wide = found.window.strides
    deep = found.data.shape[3] <= FEW_CHANNELS
    algorithm = planar(tile, found.taps, (high, wide), deep=deep)
    if algorithm is None:
        return None
    shape = (*weight.shape[:first], *algorithm.weight_sides, *weight.shape[first + 2 :])
    weights = placeholder(shape, weight.name, weight.dtype)
    inputs = tuple(weights if item is weight else item for item in operator.inputs)
    output = _replaced(operator, found.stage, found.by(algorithm, weights))
    rewritten = replace(operator, name=f"{operator.name}_winograd{tile}", inputs=inputs, output=output)
    return WinogradForm(rewritten, position, algorithm, first)


def _convolution(stage: Tensor) -> _Convolution | None:
    """The convolution that a stage is, if it is one that Winograd's algorithms know."""
    match stage.body:
        case Reduce("sum", Binary("*", Read(data, at), Read(weight, places)), axes) if len(axes) == 3:
            pass
        case _:
            return None
    channels = axes[-1]
    if len(at) != 4 or at[0] not in _batch(stage.axes[0]) or at[3] is not channels:
        return None
    source, window = _unpadded(data)
    seen = at[1], at[2]
    if len(stage.axes) == 4 and places == (*axes, stage.axes[3]):
        strides = tuple(map(_stride, seen, stage.axes[1:3], axes))
        return _Convolution(stage, source, weight, replace(window, strides=strides)) if all(strides) else None
    if len(stage.axes) == 6 and places == (stage.axes[2], stage.axes[4], *axes, stage.axes[5]):
        rows = _phase_reads(seen[0], stage.axes[1], stage.axes[2], axes[0], window.before[0])
        columns = _phase_reads(seen[1], stage.axes[3], stage.axes[4], axes[1], window.before[1])
        if rows is not None and columns is not None:
            return _Convolution(stage, source, weight, window, (rows, columns))
    return None


def _batch(axis: Axis) -> tuple[Term, ...]:
    """How an index may be written that runs over a batch."""
    return (axis, Int(0)) if axis.extent == 1 else (axis,)


def _stride(index: Term, axis: Axis, tap: Axis) -> int:
    """s of axis * s + tap; 0 for any other index."""
    found = affine(index)
    if found is None or found[1] != 0 or found[0].keys() != {axis, tap} or found[0][tap] != 1:
        return 0
    return found[0][axis]


def _phase_reads(index: Term, count: Axis, phase: Axis, tap: Axis, padding: int) -> PhaseReads | None:
    """Where an index count + step * phase + tap + constant of a padded input reads; None for any other."""
    found = affine(index)
    if found is None:
        return None
    factors, offset = dict(found[0]), found[1]
    step = factors.pop(phase, 0)
    if factors != {count: 1, tap: 1} or step not in (0, 1):
        return None
    return PhaseReads(count.extent, phase.extent, offset - padding, step)


def _uses(operator: Operator, tensor: Tensor) -> int:
    return len([read for stage in operator.stages for read in reads(stage) if read.tensor is tensor])


def _unpadded(data: Tensor) -> tuple[Tensor, Window]:
    """What a zero padding in front of a window reads, and the window with that padding."""
    if not isinstance(data.body, Select) or not isinstance(data.body.then, Read):
        return data, Window()
    source, indices = data.body.then.tensor, data.body.then.indices
    if len(source.shape) != 4:
        return data, Window()
    before = tuple(_offset(index, axis) for index, axis in zip(indices, data.axes, strict=True))
    after = tuple(d - s - b for d, s, b in zip(data.shape, source.shape, before, strict=True))
    pads = (before[1], before[2], after[1], after[2])
    if (before[0], before[3], after[0], after[3]) != (0, 0, 0, 0) or min(pads) < 0:
        return data, Window()
    # Whatever else the select may be, only the zero padding itself may be taken apart.
    same = _text(pad(source, before, after)) == _text(data)
    return (source, Window(pads=pads)) if same else (data, Window())


def _offset(index: Term, axis: Axis) -> int:
    """b of axis - b; -1 for anything else."""
    found = affine(index)
    return -found[1] if found is not None and found[0] == {axis: 1} else -1


def _text(tensor: Tensor) -> str:
    assert tensor.body is not None
    return to_text(tensor.body, {}, {axis: f"s{number}" for number, axis in enumerate(tensor.axes)})


def _replaced(operator: Operator, stage: Tensor, result: Tensor) -> Tensor:
    """The operator's output with every read of a stage turned to another tensor."""
    new: dict[Tensor, Tensor] = {stage: result}

    def change(read: Read, known: Mapping[Tensor, Tensor] = new) -> Term:
        return replace(read, tensor=known.get(read.tensor, read.tensor))

    for tensor in operator.stages:
        if tensor not in new and tensor.body is not None:
            new[tensor] = replace(tensor, body=replace_reads(tensor.body, change))
    return new[operator.output]
