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

from benchmarks.harness.operators import Convolution, Form, Product
from cross.expression import Operator, compute, placeholder, reduce_axis, sqrt, sum
from cross.expression.families.conv import capsule_conv2d
from cross.expression.families.window import Window

Sizes = Mapping[str, int]


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


def _convolution(name: str, form: Form, rank: int = 2, kernel: int = 3) -> Callable[[Sizes], Operator]:
    def make(sizes: Sizes) -> Operator:
        groups = sizes.get("groups", 1)
        inputs = sizes["channels"] if form == "depthwise" else groups * sizes["inputs"]
        outputs = inputs if form == "depthwise" else groups * sizes["outputs"]
        window = (sizes.get("kernel", kernel),) * rank
        stride, pad = (2, 1) if form == "transposed" else (1, window[0] // 2)
        image = (sizes["size"],) * rank
        layer = Convolution(form, image, inputs, outputs, window, (stride,) * rank, (pad,) * rank, 1, groups)
        return layer.operator(name)

    return make


def _capsule(sizes: Sizes) -> Operator:
    data = placeholder((1, sizes["size"], sizes["size"], sizes["inputs"], 4, 4), "X")
    weight = placeholder((3, 3, sizes["inputs"], sizes["outputs"], 4, 4), "W")
    output = capsule_conv2d(data, weight, Window(pads=(1, 1, 1, 1)), name="Y")
    return Operator("capsule", (data, weight), output, constants=frozenset({1}))


def _batch_matmul(sizes: Sizes) -> Operator:
    return Product(sizes["batch"], sizes["rows"], sizes["columns"], sizes["inner"]).operator()


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
        _convolution("conv1d", "conv1d", 1),
        {"size": (128, 256), "inputs": (64, 128), "outputs": (64, 128), "kernel": (3, 5)},
        fixed=("kernel",),
    ),
    "conv2d": Family(_convolution("conv2d", "conv2d"), {**IMAGES, "kernel": (1, 3, 5)}, fixed=("kernel",)),
    "conv3d": Family(
        _convolution("conv3d", "conv3d", 3),
        {"size": (7, 14), "inputs": (16, 32), "outputs": (16, 32), "kernel": (3,)},
        fixed=("kernel",),
    ),
    "batch_matmul": Family(
        _batch_matmul,
        {"batch": (4, 12), "rows": (64, 128), "columns": (64, 128), "inner": (64, 128, 256)},
    ),
    "grouped": Family(
        _convolution("grouped", "grouped"),
        {"groups": (4, 8), "size": (14, 28), "inputs": (8, 16), "outputs": (8, 16)},
    ),
    "depthwise": Family(
        _convolution("depthwise", "depthwise"), {"size": (28, 56), "channels": (64, 128, 256)}
    ),
    "transposed": Family(
        _convolution("transposed", "transposed", kernel=4),
        {"size": (4, 8, 16), "inputs": (64, 128), "outputs": (32, 64)},
    ),
    "capsule": Family(_capsule, {"size": (8, 16), "inputs": (8, 16), "outputs": (8, 16)}),
    "winograd": Family(
        _convolution("winograd", "conv2d"), {**IMAGES, "kernel": (3,)}, fixed=("kernel",), winograd=True
    ),
    "norm": Family(_norm, {"batch": (16, 64), "elements": (4096, 16384)}),
}
