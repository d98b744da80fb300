"""Convolutions over images: dense, grouped and depthwise.

Each is a pad stage (left out without padding) and a reduction stage; bias and activation are stages of
elementwise.py behind them. Data layouts of the dense one: "NHWC" with weights [kh, kw, ci, co], and
"NCHW" with weights [co, ci, kh, kw].
"""

from __future__ import annotations

from cross.errors import ExpressionError
from cross.expression.data_movement import pad
from cross.expression.tensor import Tensor, compute
from cross.expression.terms import reduce_axis, sum
from cross.expression.window import Window

LAYOUTS = ("NHWC", "NCHW")


def conv2d(data: Tensor, weight: Tensor, window: Window, layout: str = "NHWC", name: str = "conv") -> Tensor:
    """2-D convolution (cross-correlation, as networks mean it).

    NHWC: data [n, h, w, ci], weight [kh, kw, ci, co] -> [n, oh, ow, co].
    NCHW: data [n, ci, h, w], weight [co, ci, kh, kw] -> [n, co, oh, ow].

    Raises:
        ExpressionError: unknown layout, ranks or channel counts that do not fit.
    """
    if layout == "NHWC":
        return _conv2d_nhwc(data, weight, window, name)
    if layout == "NCHW":
        return _conv2d_nchw(data, weight, window, name)
    raise ExpressionError(f"conv2d {name}: expected a layout of {', '.join(LAYOUTS)}, found {layout!r}")


def _conv2d_nhwc(data: Tensor, weight: Tensor, window: Window, name: str) -> Tensor:
    _check_ranks(name, data, 4, weight, 4)
    n, height, width, ci = data.shape
    kernel_height, kernel_width, wci, co = weight.shape
    _check_channels(name, ci, wci)
    oh, ow = window.output((height, width), (kernel_height, kernel_width))
    (sh, sw), (dh, dw) = window.strides, window.dilations
    padded = pad(data, (0, *window.before, 0), (0, *window.after, 0))
    kh, kw, kc = reduce_axis(kernel_height, "kh"), reduce_axis(kernel_width, "kw"), reduce_axis(ci, "kc")
    return compute(
        (n, oh, ow, co),
        lambda b, y, x, c: sum(
            padded[b, y * sh + kh * dh, x * sw + kw * dw, kc] * weight[kh, kw, kc, c], (kh, kw, kc)
        ),
        name=name,
    )


def _conv2d_nchw(data: Tensor, weight: Tensor, window: Window, name: str) -> Tensor:
    _check_ranks(name, data, 4, weight, 4)
    n, ci, height, width = data.shape
    co, wci, kernel_height, kernel_width = weight.shape
    _check_channels(name, ci, wci)
    oh, ow = window.output((height, width), (kernel_height, kernel_width))
    (sh, sw), (dh, dw) = window.strides, window.dilations
    padded = pad(data, (0, 0, *window.before), (0, 0, *window.after))
    kc, kh, kw = reduce_axis(ci, "kc"), reduce_axis(kernel_height, "kh"), reduce_axis(kernel_width, "kw")
    return compute(
        (n, co, oh, ow),
        lambda b, c, y, x: sum(
            padded[b, kc, y * sh + kh * dh, x * sw + kw * dw] * weight[c, kc, kh, kw], (kc, kh, kw)
        ),
        name=name,
    )


def grouped_conv2d(data: Tensor, weight: Tensor, window: Window, name: str = "grouped_conv") -> Tensor:
    """Grouped 2-D convolution with the channels split into (group, channel), which keeps every index affine.

    data [n, h, w, g, ci/g], weight [g, kh, kw, ci/g, co/g] -> [n, oh, ow, g, co/g]; in memory these are
    plain NHWC tensors.
    """
    _check_ranks(name, data, 5, weight, 5)
    n, height, width, groups, ci = data.shape
    wgroups, kernel_height, kernel_width, wci, co = weight.shape
    _check_channels(name, groups, wgroups)
    _check_channels(name, ci, wci)
    oh, ow = window.output((height, width), (kernel_height, kernel_width))
    (sh, sw), (dh, dw) = window.strides, window.dilations
    padded = pad(data, (0, *window.before, 0, 0), (0, *window.after, 0, 0))
    kh, kw, kc = reduce_axis(kernel_height, "kh"), reduce_axis(kernel_width, "kw"), reduce_axis(ci, "kc")
    return compute(
        (n, oh, ow, groups, co),
        lambda b, y, x, g, c: sum(
            padded[b, y * sh + kh * dh, x * sw + kw * dw, g, kc] * weight[g, kh, kw, kc, c], (kh, kw, kc)
        ),
        name=name,
    )


def depthwise_conv2d(data: Tensor, weight: Tensor, window: Window, name: str = "depthwise_conv") -> Tensor:
    """Depthwise 2-D convolution: data [n, h, w, c], weight [kh, kw, c] -> [n, oh, ow, c]."""
    _check_ranks(name, data, 4, weight, 3)
    n, height, width, channels = data.shape
    kernel_height, kernel_width, wchannels = weight.shape
    _check_channels(name, channels, wchannels)
    oh, ow = window.output((height, width), (kernel_height, kernel_width))
    (sh, sw), (dh, dw) = window.strides, window.dilations
    padded = pad(data, (0, *window.before, 0), (0, *window.after, 0))
    kh, kw = reduce_axis(kernel_height, "kh"), reduce_axis(kernel_width, "kw")
    return compute(
        (n, oh, ow, channels),
        lambda b, y, x, c: sum(
            padded[b, y * sh + kh * dh, x * sw + kw * dw, c] * weight[kh, kw, c], (kh, kw)
        ),
        name=name,
    )


def _check_ranks(name: str, data: Tensor, data_rank: int, weight: Tensor, weight_rank: int) -> None:
    if (len(data.shape), len(weight.shape)) != (data_rank, weight_rank):
        raise ExpressionError(
            f"convolution {name}: expected data of rank {data_rank} and weights of rank {weight_rank}, "
            "found shapes "
            f"{data.shape} and {weight.shape}"
        )


def _check_channels(name: str, data: int, weight: int) -> None:
    if data != weight:
        raise ExpressionError(
            f"convolution {name}: the data has {data} input channels (or groups), the weights are for "
            f"{weight}"
        )
