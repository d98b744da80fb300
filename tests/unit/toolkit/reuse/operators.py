"""Operators of the paper's examples."""

from __future__ import annotations

from cross.expression.families.dense import batch_matmul
from cross.expression.families.window import Window
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import placeholder
from tests.other_operators import conv2d_nchw
from toolkit.explore.neighbourhood.loops import MajorLoops, major_loops


def product(batch: int, rows: int, columns: int, inner: int) -> MajorLoops:
    left, right = placeholder((batch, rows, inner), "left"), placeholder((batch, inner, columns), "right")
    return major_loops(Operator("product", (left, right), batch_matmul(left, right)), "batch_matmul")


def conv(outputs: int, size: int, inputs: int, kernel: int, stride: int = 1) -> MajorLoops:
    """The loops of `conv_operator`."""
    return major_loops(conv_operator(outputs, size, inputs, kernel, stride), "conv2d")


def conv_operator(outputs: int, size: int, inputs: int, kernel: int, stride: int = 1) -> Operator:
    """As ETO writes them: output channels, output size, input channels, kernel, stride; padded inputs."""
    side = (size - 1) * stride + kernel
    data = placeholder((1, inputs, side, side), "data")
    weight = placeholder((outputs, inputs, kernel, kernel), "weight")
    window = Window(strides=(stride, stride))
    return Operator("conv", (data, weight), conv2d_nchw(data, weight, window))


BERT_BASE = [
    (1, 128, 768, 768),
    (1, 128, 3072, 768),
    (1, 128, 768, 3072),
    (12, 128, 128, 64),
    (12, 128, 64, 128),
]
RESNET50 = [
    (64, 112, 3, 7, 2), (64, 56, 64, 1), (64, 56, 64, 3), (256, 56, 64, 1), (64, 56, 256, 1),
    (128, 28, 256, 1, 2), (128, 28, 128, 3), (512, 28, 128, 1), (512, 28, 256, 1, 2), (128, 28, 512, 1),
    (256, 14, 512, 1, 2), (256, 14, 256, 3), (1024, 14, 256, 1), (1024, 14, 512, 1, 2), (256, 14, 1024, 1),
    (512, 7, 1024, 1, 2), (512, 7, 512, 3), (2048, 7, 512, 1), (2048, 7, 1024, 1, 2), (512, 7, 2048, 1),
]  # fmt: skip
