"""Workloads in the expression language, on the layouts that a network of ours would hand over.

Images are NHWC. Weights are constants and may be laid out ahead of time, as every library does: `operands`
brings them into the operator's order, and a schedule packs them further. A transposed convolution is written
by output phase: the output pixel (s*i + a, s*j + b) reads a small window of the input around (i, j), so that
no multiplication by an inserted zero is made and every index is affine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.kernels.workloads import Array, Image, Product, Workload
from cross.expression import Operator, Tensor, compute, placeholder, reduce_axis, sum
from cross.expression.conv import conv2d, depthwise_conv2d
from cross.expression.data_movement import pad
from cross.expression.dense import batch_matmul, dense
from cross.expression.window import Window


def operator(workload: Workload) -> Operator:
    """The workload as an operator of our language; its second input is a constant unless both vary."""
    of = workload.of
    if isinstance(of, Product):
        return _product(workload.name, of)
    data = placeholder((1, of.size, of.size, of.inputs), "data")
    window = Window(strides=(of.stride, of.stride), pads=(of.pad,) * 4)
    if of.family == "transposed":
        return _transposed(workload.name, of, data)
    if of.family == "depthwise":
        weight = placeholder((of.kernel, of.kernel, of.inputs), "weight")
        output = depthwise_conv2d(data, weight, window, name=workload.name)
    else:
        weight = placeholder((of.kernel, of.kernel, of.inputs, of.outputs), "weight")
        output = conv2d(data, weight, window, name=workload.name)
    return Operator(workload.name, (data, weight), output, constants=frozenset({1}))


def operands(workload: Workload, left: Array, right: Array) -> tuple[Array, Array]:
    """The documented operands (workloads.py) as the operator's inputs."""
    of = workload.of
    if isinstance(of, Product):
        return left, right
    data = np.ascontiguousarray(left.transpose(0, 2, 3, 1))
    if of.family == "transposed":
        weight = right[:, :, _taps(of)][:, :, :, :, _taps(of)]  # [ci, co, a, dy, b, dx]
        return data, np.ascontiguousarray(weight.transpose(2, 4, 3, 5, 0, 1))
    if of.family == "depthwise":
        return data, np.ascontiguousarray(right[:, 0].transpose(1, 2, 0))
    return data, np.ascontiguousarray(right.transpose(2, 3, 1, 0))


def documented(workload: Workload, output: Array) -> Array:
    """The operator's output in the layout of workloads.py."""
    if isinstance(workload.of, Product):
        return output
    size = workload.of.output_size
    return output.reshape(1, size, size, -1).transpose(0, 3, 1, 2)


def _product(name: str, of: Product) -> Operator:
    left, right, _ = of.shapes
    inputs = placeholder(left, "left"), placeholder(right, "right")
    if of.family == "dense":
        return Operator(name, inputs, dense(*inputs, name=name), constants=frozenset({1}))
    return Operator(name, inputs, batch_matmul(*inputs, name=name))


# ---------------------------------------------------------------------------------- transposed convolutions


@dataclass(frozen=True, slots=True)
class Phases:
    """Which input pixels an output pixel s*i + a reads: i + first[a] + d for 0 <= d < taps.

    `kernel[a][d]` is the place in the kernel that belongs to it.
    """

    first: tuple[int, ...]
    kernel: tuple[tuple[int, ...], ...]


def phases(of: Image) -> Phases:
    """The phases of a transposed convolution whose kernel is a multiple of its stride.

    Output Y = s*i + a gets x[y] * w[k] wherever Y = s*y - pad + k, so k runs through one residue class.

    Raises:
        ValueError: the stride does not divide the kernel, or the output is no multiple of the stride.
    """
    if of.kernel % of.stride or of.output_size != of.size * of.stride:
        raise ValueError(f"no phases of equal size for {of}")
    taps = of.kernel // of.stride
    kernel = tuple(
        tuple((phase + of.pad) % of.stride + of.stride * (taps - 1 - tap) for tap in range(taps))
        for phase in range(of.stride)
    )
    first = tuple((phase + of.pad - kernel[phase][0]) // of.stride for phase in range(of.stride))
    return Phases(first, kernel)


def _taps(of: Image) -> Array:
    """Kernel places [phase, tap], to index the weight with."""
    return np.array(phases(of).kernel)


def _transposed(name: str, of: Image, data: Tensor) -> Operator:
    """Output [1, h, s, w, s, co], in memory an NHWC image; weight [s, s, taps, taps, ci, co]."""
    found = phases(of)
    step = found.first[1] - found.first[0] if of.stride > 1 else 0
    if any(first != found.first[0] + step * phase for phase, first in enumerate(found.first)):
        raise ValueError(f"the phases of {of} do not start at regular distances")
    taps, before = of.kernel // of.stride, -found.first[0]
    after = found.first[-1] + taps - 1
    weight = placeholder((of.stride, of.stride, taps, taps, of.inputs, of.outputs), "weight")
    padded = pad(data, (0, before, before, 0), (0, after, after, 0))
    dy, dx, kc = reduce_axis(taps, "dy"), reduce_axis(taps, "dx"), reduce_axis(of.inputs, "kc")
    output = compute(
        (1, of.size, of.stride, of.size, of.stride, of.outputs),
        lambda n, i, a, j, b, c: sum(
            padded[n, i + a * step + dy, j + b * step + dx, kc] * weight[a, b, dy, dx, kc, c], (dy, dx, kc)
        ),
        name=name,
    )
    return Operator(name, (data, weight), output, constants=frozenset({1}))
