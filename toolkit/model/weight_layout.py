"""The weights of convolutions as their families want them: arranged ahead of time, by numpy.

ONNX gives Conv [co, ci / g, kernel...] and ConvTranspose [ci, co / g, kernel...].
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cross.expression.families.transposed import (
    Phases,
    Transposed,
    is_narrow,
    narrow_weights,
    phase_weights,
    phases,
)
from toolkit.model.graph import Array, Node


def channels_last(rank: int) -> tuple[int, ...]:
    """The order of the axes of an image of `rank` dimensions, batch and channels included: NHWC for 4."""
    return (0, *range(2, rank), 1)


def kernel_first(rank: int) -> tuple[int, ...]:
    """[co, ci, kernel...] to [kernel..., ci, co]."""
    return (*range(2, rank), 1, 0)


def is_depthwise(node: Node, shape: Sequence[int]) -> bool:
    """Whether every group of the convolution reads one channel and writes one; `shape` is ONNX's."""
    groups = node.integer("group")
    read, written = (shape[1], shape[0] // groups) if node.op == "Conv" else (shape[0] // groups, shape[1])
    return groups > 1 and read == written == 1


def group_count(node: Node, weight_rank: int) -> int:
    """In how many groups a node splits the channels it reads and writes; 1 where it does not.

    `weight_rank` is that of the arranged weights: a depthwise one has no dimension for groups.
    """
    if node.op not in ("Conv", "ConvTranspose"):
        return 1
    image = len(node.integers("strides"))
    places = image if node.op == "Conv" else 2 * image
    return node.integer("group") if weight_rank == places + 3 else 1


def grouped_weight(node: Node, data: Array) -> Array:
    """Depthwise: [kernel..., c]; grouped: [g, kernel..., ci / g, co / g]. For Conv with several groups."""
    groups, rank = node.integer("group"), data.ndim
    if is_depthwise(node, data.shape):
        return np.moveaxis(data[:, 0], 0, -1)
    grouped = data.reshape(groups, data.shape[0] // groups, *data.shape[1:])
    return grouped.transpose(0, *range(3, rank + 1), 2, 1)


def phases_of(node: Node, image: Sequence[int]) -> tuple[Phases, ...]:
    """The phases of a ConvTranspose node over an input image of these extents."""
    rank = len(image)
    pads = node.integers("pads")
    return tuple(
        phases(
            image[i],
            Transposed(
                node.integers("kernel")[i],
                node.integers("strides")[i],
                (pads[i], pads[rank + i]),
                node.integers("dilations")[i],
                node.integers("output_padding")[i],
            ),
        )
        for i in range(rank)
    )


def transposed_weight(node: Node, data: Array, image: Sequence[int]) -> Array:
    """Dense: [phases..., taps..., ci, co], or [ci, phases * taps * co] for few channels; depthwise:
    [phases..., taps..., c]; grouped: the group in front, [g, phases..., taps..., ci / g, co / g].
    """
    groups, rank = node.integer("group"), data.ndim - 2
    dimensions = phases_of(node, image)
    if groups == 1:
        weights = phase_weights(np.moveaxis(data, (0, 1), (-2, -1)), dimensions)
        return narrow_weights(weights) if is_narrow(dimensions, data.shape[1]) else weights
    if is_depthwise(node, data.shape):
        return phase_weights(np.moveaxis(data[:, 0], 0, -1), dimensions)
    split = data.reshape(groups, data.shape[0] // groups, *data.shape[1:])
    return np.moveaxis(phase_weights(np.moveaxis(split, (0, 1, 2), (-3, -2, -1)), dimensions), 2 * rank, 0)


def phase_sums(node: Node, weight: Array, image: Sequence[int]) -> Array:
    """What all weights of each phase and output channel sum to, of `transposed_weight`'s:
    int32 [phases..., c], or [g, phases..., c] where the weights have groups.
    """
    rank, dimensions = len(image), phases_of(node, image)
    if weight.ndim == 2:
        extents = [item.stride for item in dimensions] + [item.taps for item in dimensions]
        weight = np.moveaxis(weight.reshape(weight.shape[0], *extents, -1), 0, -2)
    grouped = weight.ndim == 2 * rank + 3
    axes = tuple(range(rank + grouped, weight.ndim - 1))
    return np.asarray(weight.sum(axis=axes, dtype=np.int32))


def packed_shape(shape: Sequence[int], count: int) -> tuple[int, ...]:
    """The shape of a tensor of numbers in words of `count` of them."""
    return (*shape[:-1], shape[-1] // count)
