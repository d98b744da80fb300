"""The ten operator families of ETO's single-pair study, and random pairs of them that may reuse each other.

Sizes are a fraction of the paper's: a kernel runs for 0.1 to 10 ms on one core. The two operators of a draw
differ in some of their dimensions, by a factor of two each; one is nowhere larger than the other. Each draw
makes two pairs: the larger operator reuses the smaller one's program, and the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from cross.expression import Operator, compute, placeholder, reduce_axis, sqrt, sum
from cross.expression.families.conv import (
    capsule_conv2d,
    conv1d,
    conv2d,
    conv3d,
    depthwise_conv2d,
    grouped_conv2d,
)
from cross.expression.families.dense import batch_matmul
from cross.expression.families.transposed import Transposed, phases, transposed_conv
from cross.expression.families.window import Window
from cross.expression.language.tensor import Tensor

Sizes = Mapping[str, int]
Convolution = Callable[[Tensor, Tensor, Window, str], Tensor]


@dataclass(frozen=True, slots=True)
class Family:
    """How operators are made from sizes, and the choices of each size for the smaller one of a pair."""

    make: Callable[[Sizes], Operator]
    choices: Mapping[str, tuple[int, ...]]
    fixed: tuple[str, ...] = ()
    winograd: bool = False


def draw(family: str, seed: int) -> tuple[Operator, Operator]:
    """Two operators that may reuse each other, the larger one first."""
    found = FAMILIES[family]
    rng = np.random.default_rng([seed, *family.encode()])
    small = {name: int(rng.choice(choices)) for name, choices in found.choices.items()}
    free = [name for name in found.choices if name not in found.fixed]
    grown = [name for name in free if rng.random() < 0.5] or [str(rng.choice(free))]
    large = {name: size * 2 if name in grown else size for name, size in small.items()}
    return found.make(large), found.make(small)


def _window(kernel: int, rank: int) -> Window:
    return Window((1,) * rank, (kernel // 2,) * (2 * rank), (1,) * rank)


def _convolution(name: str, rank: int, form: Convolution) -> Callable[[Sizes], Operator]:
    def make(sizes: Sizes) -> Operator:
        image, kernel = (sizes["size"],) * rank, (sizes["kernel"],) * rank
        data = placeholder((1, *image, sizes["inputs"]), "X")
        weight = placeholder((*kernel, sizes["inputs"], sizes["outputs"]), "W")
        output = form(data, weight, _window(sizes["kernel"], rank), "Y")
        return Operator(name, (data, weight), output, constants=frozenset({1}))

    return make


def _conv2d(data: Tensor, weight: Tensor, window: Window, name: str) -> Tensor:
    return conv2d(data, weight, window, name=name)


def _grouped(sizes: Sizes) -> Operator:
    groups, inputs, outputs, size = (sizes[name] for name in ("groups", "inputs", "outputs", "size"))
    data = placeholder((1, size, size, groups, inputs), "X")
    weight = placeholder((groups, 3, 3, inputs, outputs), "W")
    output = grouped_conv2d(data, weight, _window(3, 2), name="Y")
    return Operator("grouped", (data, weight), output, constants=frozenset({1}))


def _depthwise(sizes: Sizes) -> Operator:
    data = placeholder((1, sizes["size"], sizes["size"], sizes["channels"]), "X")
    weight = placeholder((3, 3, sizes["channels"]), "W")
    output = depthwise_conv2d(data, weight, _window(3, 2), name="Y")
    return Operator("depthwise", (data, weight), output, constants=frozenset({1}))


def _transposed(sizes: Sizes) -> Operator:
    dimension = phases(sizes["size"], Transposed(4, 2, (1, 1)))
    data = placeholder((1, sizes["size"], sizes["size"], sizes["inputs"]), "X")
    taps = dimension.taps
    weight = placeholder((2, 2, taps, taps, sizes["inputs"], sizes["outputs"]), "W")
    output = transposed_conv(data, weight, [dimension] * 2, name="Y")
    return Operator("transposed", (data, weight), output, constants=frozenset({1}))


def _capsule(sizes: Sizes) -> Operator:
    data = placeholder((1, sizes["size"], sizes["size"], sizes["inputs"], 4, 4), "X")
    weight = placeholder((3, 3, sizes["inputs"], sizes["outputs"], 4, 4), "W")
    output = capsule_conv2d(data, weight, _window(3, 2), name="Y")
    return Operator("capsule", (data, weight), output, constants=frozenset({1}))


def _batch_matmul(sizes: Sizes) -> Operator:
    batch, rows, columns, inner = (sizes[name] for name in ("batch", "rows", "columns", "inner"))
    left, right = placeholder((batch, rows, inner), "A"), placeholder((batch, inner, columns), "B")
    return Operator("batch_matmul", (left, right), batch_matmul(left, right, name="Y"))


def _norm(sizes: Sizes) -> Operator:
    """The Frobenius norm of each matrix of a batch."""
    data = placeholder((sizes["batch"], sizes["elements"]), "X")
    k = reduce_axis(sizes["elements"], "k")
    squares = compute((sizes["batch"],), lambda b: sum(data[b, k] * data[b, k], k), name="S")
    output = compute((sizes["batch"],), lambda b: sqrt(squares[b]), name="Y")
    return Operator("norm", (data,), output)


IMAGES: Final = {"size": (14, 28), "inputs": (32, 64, 128), "outputs": (32, 64, 128)}
FAMILIES: Final[Mapping[str, Family]] = {
    "conv1d": Family(
        _convolution("conv1d", 1, conv1d),
        {"size": (128, 256), "inputs": (64, 128), "outputs": (64, 128), "kernel": (3, 5)},
        fixed=("kernel",),
    ),
    "conv2d": Family(_convolution("conv2d", 2, _conv2d), {**IMAGES, "kernel": (1, 3, 5)}, fixed=("kernel",)),
    "conv3d": Family(
        _convolution("conv3d", 3, conv3d),
        {"size": (7, 14), "inputs": (16, 32), "outputs": (16, 32), "kernel": (3,)},
        fixed=("kernel",),
    ),
    "batch_matmul": Family(
        _batch_matmul,
        {"batch": (4, 12), "rows": (64, 128), "columns": (64, 128), "inner": (64, 128, 256)},
    ),
    "grouped": Family(_grouped, {"groups": (4, 8), "size": (14, 28), "inputs": (8, 16), "outputs": (8, 16)}),
    "depthwise": Family(_depthwise, {"size": (28, 56), "channels": (64, 128, 256)}),
    "transposed": Family(_transposed, {"size": (4, 8, 16), "inputs": (64, 128), "outputs": (32, 64)}),
    "capsule": Family(_capsule, {"size": (8, 16), "inputs": (8, 16), "outputs": (8, 16)}),
    "winograd": Family(
        _convolution("winograd", 2, _conv2d), {**IMAGES, "kernel": (3,)}, fixed=("kernel",), winograd=True
    ),
    "norm": Family(_norm, {"batch": (16, 64), "elements": (4096, 16384)}),
}
