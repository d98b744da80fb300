"""Workloads in the expression language, on the layouts that a network of ours would hand over.

Images are NHWC. Weights are constants and may be laid out ahead of time, as every library does: `operands`
brings them into the operator's order, and a schedule packs them further.

Transposed convolutions have two forms, both without multiplications by inserted zeros and with affine indices
only. By phase, for wide outputs: the output pixel (s*i + a, s*j + b) sums over a small window of the input
around (i, j). By products, where the output channels do not fill a vector: a single matrix product multiplies
every pixel with the whole kernel, and the output gathers its share.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from benchmarks.kernels.workloads import Array, Image, Product, Workload
from cross.expression import Operator, Tensor, Term, compute, placeholder, reduce_axis, sum
from cross.expression.conv import conv2d, depthwise_conv2d
from cross.expression.data_movement import pad
from cross.expression.dense import batch_matmul, dense
from cross.expression.window import Window

NARROW = 16  # output channels


def operator(workload: Workload) -> Operator:
    """The workload as an operator of our language; its second input is a constant unless both vary."""
    of = workload.of
    if isinstance(of, Product):
        return _matmul(workload.name, of)
    data = placeholder((1, of.size, of.size, of.inputs), "data")
    window = Window(strides=(of.stride, of.stride), pads=(of.pad,) * 4)
    if of.family == "transposed":
        form = _products if by_products(of) else _phases
        return form(workload.name, of, data)
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
    if of.family == "transposed" and by_products(of):
        return data, np.ascontiguousarray(right.transpose(0, 2, 3, 1).reshape(of.inputs, -1))
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


def _matmul(name: str, of: Product) -> Operator:
    left, right, _ = of.shapes
    inputs = placeholder(left, "left"), placeholder(right, "right")
    if of.family == "dense":
        return Operator(name, inputs, dense(*inputs, name=name), constants=frozenset({1}))
    return Operator(name, inputs, batch_matmul(*inputs, name=name))


# ---------------------------------------------------------------------------------- transposed convolutions


@dataclass(frozen=True, slots=True)
class Phases:
    """Which input pixels an output pixel s*i + a reads: i + a*step - before + d for 0 <= d < taps.

    `kernel[a][d]` is the place in the kernel that belongs to it; `after` pixels are read beyond the end.
    """

    before: int
    after: int
    step: int
    kernel: tuple[tuple[int, ...], ...]


def phases(of: Image) -> Phases:
    """The phases of a transposed convolution whose kernel is a multiple of its stride.

    Output Y = s*i + a gets x[y] * w[k] wherever Y = s*y - pad + k, so k runs through one residue class.

    Raises:
        ValueError: the stride does not divide the kernel, the output is no multiple of the stride, or the
            phases are not evenly spaced.
    """
    if of.kernel % of.stride or of.output_size != of.size * of.stride:
        raise ValueError(f"no phases of equal size for {of}")
    taps = of.kernel // of.stride
    kernel = tuple(
        tuple((phase + of.pad) % of.stride + of.stride * (taps - 1 - tap) for tap in range(taps))
        for phase in range(of.stride)
    )
    first = [(phase + of.pad - places[0]) // of.stride for phase, places in enumerate(kernel)]
    step = first[1] - first[0] if of.stride > 1 else 0
    if first != [first[0] + step * phase for phase in range(of.stride)]:
        raise ValueError(f"the phases of {of} are not evenly spaced")
    return Phases(-first[0], first[-1] + taps - 1, step, kernel)


def by_products(of: Image) -> bool:
    """Whether a transposed convolution takes the form for narrow outputs."""
    return of.outputs < NARROW


def _taps(of: Image) -> Array:
    """Kernel places [phase, tap], to index the weight with."""
    return np.array(phases(of).kernel)


def _around(data: Tensor, found: Phases) -> Tensor:
    return pad(data, (0, found.before, found.before, 0), (0, found.after, found.after, 0))


def _phases(name: str, of: Image, data: Tensor) -> Operator:
    """Output [1, h, s, w, s, co], in memory an NHWC image; weight [s, s, taps, taps, ci, co]."""
    found, taps = phases(of), of.kernel // of.stride
    weight = placeholder((of.stride, of.stride, taps, taps, of.inputs, of.outputs), "weight")
    padded = _around(data, found)
    dy, dx, kc = reduce_axis(taps, "dy"), reduce_axis(taps, "dx"), reduce_axis(of.inputs, "kc")
    output = compute(
        (1, of.size, of.stride, of.size, of.stride, of.outputs),
        lambda n, i, a, j, b, c: sum(
            padded[n, i + a * found.step + dy, j + b * found.step + dx, kc] * weight[a, b, dy, dx, kc, c],
            (dy, dx, kc),
        ),
        name=name,
    )
    return Operator(name, (data, weight), output, constants=frozenset({1}))


def _products(name: str, of: Image, data: Tensor) -> Operator:
    """The same output; weight [ci, kh * kw * co]."""
    found, taps = phases(of), of.kernel // of.stride
    weight = placeholder((of.inputs, of.kernel**2 * of.outputs), "weight")
    padded = _around(data, found)
    kc = reduce_axis(of.inputs, "kc")
    products = compute(
        (*padded.shape[1:3], weight.shape[1]),
        lambda y, x, place: sum(padded[0, y, x, kc] * weight[kc, place], kc),
        name="products",
    )

    def place(phase: Term, tap: int) -> Term:
        """kernel[phase][tap], which is affine in the phase because the phases are evenly spaced."""
        first, last = found.kernel[0][tap], found.kernel[-1][tap]
        return phase * ((last - first) // max(1, of.stride - 1)) + first

    def gathered(n: Term, i: Term, a: Term, j: Term, b: Term, c: Term) -> Term:
        parts = [
            products[
                i + a * found.step + dy,
                j + b * found.step + dx,
                (place(a, dy) * of.kernel + place(b, dx)) * of.outputs + c,
            ]
            for dy in range(taps)
            for dx in range(taps)
        ]
        return functools.reduce(lambda left, right: left + right, parts)

    shape = (1, of.size, of.stride, of.size, of.stride, of.outputs)
    output = compute(shape, gathered, name=name)
    return Operator(name, (data, weight), output, constants=frozenset({1}))
