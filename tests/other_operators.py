"""Operators that only tests compute: a convolution with channels first, norms of matrices."""

from __future__ import annotations

from cross.expression import Tensor, compute, reduce_axis, sqrt, sum
from cross.expression.families.conv import kernel_axes, seen
from cross.expression.families.data_movement import pad
from cross.expression.families.elementwise import apply
from cross.expression.families.window import Window


def conv2d_nchw(data: Tensor, weight: Tensor, window: Window, name: str = "conv") -> Tensor:
    """data [n, ci, h, w], weight [co, ci, kh, kw] -> [n, co, oh, ow]."""
    batch, ci, *image = data.shape
    co, _, *kernel = weight.shape
    padded = pad(data, (0, 0, *window.before), (0, 0, *window.after))
    kc, taps = reduce_axis(ci, "kc"), kernel_axes(kernel)
    return compute(
        (batch, co, *window.output(image, kernel)),
        lambda b, c, y, x: sum(
            padded[(b, kc, *seen((y, x), taps, window))] * weight[(c, kc, *taps)], (kc, *taps)
        ),
        name=name,
    )


def frobenius_norm(data: Tensor, name: str = "frobenius_norm") -> Tensor:
    """sqrt(sum(x * x)) of each matrix: data [b, m, n] -> [b]."""
    i, j = reduce_axis(data.shape[1], "i"), reduce_axis(data.shape[2], "j")
    squares = compute(
        (data.shape[0],), lambda b: sum(data[b, i, j] * data[b, i, j], (i, j)), name=f"{name}_squares"
    )
    return apply(sqrt, squares, name)


def plain_window(rank: int) -> Window:
    """Strides and dilations of 1 and no padding, over `rank` image dimensions."""
    return Window((1,) * rank, (0,) * (2 * rank), (1,) * rank)
