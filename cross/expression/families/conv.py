"""Convolutions over one, two or three image dimensions: dense, grouped and depthwise.

Each is a pad stage (left out without padding) and a reduction stage; bias and activation are stages of
elementwise.py behind them. Data is channels last, weights are [kernel..., ci, co].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cross.errors import ExpressionError
from cross.expression.families.data_movement import pad
from cross.expression.families.window import Window
from cross.expression.language.functions import reduce_axis, sum, summand
from cross.expression.language.tensor import Axis, Tensor, compute
from cross.expression.language.terms import Term

IMAGE_AXES = {1: ("x",), 2: ("y", "x"), 3: ("z", "y", "x")}
KERNEL_AXES = {1: ("kw",), 2: ("kh", "kw"), 3: ("kd", "kh", "kw")}


def conv2d(data: Tensor, weight: Tensor, window: Window, name: str = "conv") -> Tensor:
    """2-D convolution: data [n, h, w, ci], weight [kh, kw, ci, co] -> [n, oh, ow, co]."""
    return dense_conv(data, weight, window, name)


def grouped_conv(
    data: Tensor, weight: Tensor, window: Window, name: str = "grouped_conv", *, padding: float = 0.0
) -> Tensor:
    """Grouped convolution of the window's rank: data [n, image..., g, ci/g], weight
    [g, kernel..., ci/g, co/g] -> [n, output..., g, co/g].

    The channels are split into (group, channel), which keeps every index affine; in memory these are plain
    channels-last tensors.
    """
    rank = window.rank
    check_ranks(name, data, rank + 3, weight, rank + 3)
    batch, *image, groups, ci = data.shape
    wgroups, *kernel, wci, co = weight.shape
    _check_channels(name, groups, wgroups)
    _check_channels(name, ci, wci)
    padded = padded_image(data, window, padding)
    taps, kc = kernel_axes(kernel), reduce_axis(ci, "kc")

    def body(b: Term, *axes: Term) -> Term:
        *place, g, c = axes
        element = padded[(b, *seen(place, taps, window), g, kc)]
        return sum(summand(element, weight[(g, *taps, kc, c)]), (*taps, kc))

    shape = (batch, *window.output(image, kernel), groups, co)
    return compute(shape, body, name, ("b", *IMAGE_AXES[rank], "g", "c"))


def depthwise_conv(
    data: Tensor, weight: Tensor, window: Window, name: str = "depthwise_conv", *, padding: float = 0.0
) -> Tensor:
    """Depthwise convolution of the window's rank: data [n, image..., c], weight [kernel..., c]
    -> [n, output..., c].
    """
    rank = window.rank
    check_ranks(name, data, rank + 2, weight, rank + 1)
    batch, *image, channels = data.shape
    *kernel, wchannels = weight.shape
    _check_channels(name, channels, wchannels)
    padded = padded_image(data, window, padding)
    taps = kernel_axes(kernel)

    def body(b: Term, *axes: Term) -> Term:
        *place, c = axes
        return sum(summand(padded[(b, *seen(place, taps, window), c)], weight[(*taps, c)]), taps)

    shape = (batch, *window.output(image, kernel), channels)
    return compute(shape, body, name, ("b", *IMAGE_AXES[rank], "c"))


def capsule_conv2d(data: Tensor, weight: Tensor, window: Window, name: str = "capsule_conv") -> Tensor:
    """2-D convolution of capsules, small matrices that are multiplied where a plain one multiplies numbers.

    data [n, h, w, ci, p, r], weight [kh, kw, ci, co, r, q] -> [n, oh, ow, co, p, q]: "CAP" in the Ansor
    paper, with p = q = r = 4.
    """
    check_ranks(name, data, 6, weight, 6)
    batch, *image, ci, rows, inner = data.shape
    *kernel, wci, co, winner, columns = weight.shape
    _check_channels(name, ci, wci)
    if inner != winner:
        raise ExpressionError(
            f"convolution {name}: expected capsules [p, r] and [r, q], found {(rows, inner)} and "
            f"{(winner, columns)}"
        )
    padded = padded_image(data, window)
    taps, kc, r = kernel_axes(kernel), reduce_axis(ci, "kc"), reduce_axis(inner, "r")
    return compute(
        (batch, *window.output(image, kernel), co, rows, columns),
        lambda b, y, x, c, p, q: sum(
            padded[(b, *seen((y, x), taps, window), kc, p, r)] * weight[(*taps, kc, c, r, q)], (*taps, kc, r)
        ),
        name=name,
    )


def dense_conv(
    data: Tensor,
    weight: Tensor,
    window: Window,
    name: str = "conv",
    *,
    padding: float = 0.0,
    product: Callable[[Term, Term], Term] = summand,
) -> Tensor:
    """Convolution (cross-correlation, as networks mean it) of the window's rank: data [n, image..., ci],
    weight [kernel..., ci, co] -> [n, output..., co].

    Around the image is `padding`; `product` of an element and a weight is summed.

    Raises:
        ExpressionError: ranks or channel counts that do not fit; so for all convolutions here.
    """
    rank = window.rank
    check_ranks(name, data, rank + 2, weight, rank + 2)
    batch, *image, ci = data.shape
    *kernel, wci, co = weight.shape
    _check_channels(name, ci, wci)
    padded = padded_image(data, window, padding)
    taps, kc = kernel_axes(kernel), reduce_axis(ci, "kc")

    def body(b: Term, *axes: Term) -> Term:
        *place, c = axes
        element = padded[(b, *seen(place, taps, window), kc)]
        return sum(product(element, weight[(*taps, kc, c)]), (*taps, kc))

    shape = (batch, *window.output(image, kernel), co)
    return compute(shape, body, name, ("b", *IMAGE_AXES[rank], "c"))


def padded_image(data: Tensor, window: Window, value: float = 0.0) -> Tensor:
    """data [n, image..., more...] with the window's padding around its image dimensions."""
    rest = (0,) * (len(data.shape) - 1 - window.rank)
    return pad(data, (0, *window.before, *rest), (0, *window.after, *rest), value)


def kernel_axes(kernel: Sequence[int]) -> tuple[Axis, ...]:
    """One reduction axis per dimension of the kernel."""
    return tuple(
        reduce_axis(extent, name) for extent, name in zip(kernel, KERNEL_AXES[len(kernel)], strict=True)
    )


def seen(place: Sequence[Term], taps: Sequence[Axis], window: Window) -> list[Term]:
    """Where the kernel's element at `taps` lies in the padded image, for the output at `place`."""
    steps = zip(place, taps, window.strides, window.dilations, strict=True)
    return [at * stride + tap * dilation for at, tap, stride, dilation in steps]


def check_ranks(name: str, data: Tensor, data_rank: int, weight: Tensor, weight_rank: int) -> None:
    """Raises: ExpressionError when data or weights have another rank."""
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
