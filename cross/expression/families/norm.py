"""Normalizations: softmax, layer and instance norm, Frobenius norm, local response normalization."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cross.expression.families.data_movement import pad
from cross.expression.families.elementwise import apply, clip, combine
from cross.expression.families.pool import reduce
from cross.expression.language.dtypes import SMALLEST_NORMAL
from cross.expression.language.functions import absolute, exp, log, power, reduce_axis, sqrt, sum
from cross.expression.language.tensor import Tensor, compute
from cross.expression.language.terms import Term

LARGEST = (2.0 - 2.0**-23) * 2.0**127  # of the float32 numbers


def softmax(data: Tensor, dimension: int, name: str = "softmax") -> Tensor:
    """exp(x - max) / sum(exp(x - max)) along one dimension, in four stages.

    The quotient is a product with a reciprocal, of which there is one a row instead of one an element.
    """
    largest = reduce(data, (dimension,), "max", name=f"{name}_max")
    exponent = combine(lambda x, m: exp(x - m), data, largest, f"{name}_exp")
    total = reduce(exponent, (dimension,), "sum", name=f"{name}_sum")
    return combine(lambda e, s: e * (1.0 / s), exponent, total, name)


def log_softmax(data: Tensor, dimension: int, name: str = "log_softmax") -> Tensor:
    """x - max - log(sum(exp(x - max))) along one dimension: finite where softmax is too small for a float."""
    largest = reduce(data, (dimension,), "max", name=f"{name}_max")
    shifted = combine(lambda x, m: x - m, data, largest, f"{name}_shifted")
    total = reduce(apply(exp, shifted, f"{name}_exp"), (dimension,), "sum", name=f"{name}_sum")
    return combine(lambda x, s: x - log(s), shifted, total, name)


def normalize(
    data: Tensor, dimensions: Sequence[int], epsilon: float = 1e-5, name: str = "normalize"
) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon), both over the given dimensions.

    Over the image dimensions it is instance normalization, over the last ones layer normalization.
    """
    count = float(math.prod(data.shape[dimension] for dimension in dimensions))
    total = reduce(data, dimensions, "sum", name=f"{name}_sum")
    centered = combine(lambda x, s: x - s * (1.0 / count), data, total, f"{name}_centered")
    squares = apply(lambda x: x * x, centered, f"{name}_squares")
    variance = reduce(squares, dimensions, "sum", name=f"{name}_variance")
    return combine(
        lambda x, v: x * (1.0 / sqrt(v * (1.0 / count) + epsilon)), centered, variance, f"{name}_normal"
    )


def layer_norm(
    data: Tensor, scale: Tensor, shift: Tensor, epsilon: float = 1e-5, name: str = "layer_norm"
) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) * scale + shift over the last dimension; scale, shift: [c]."""
    normal = normalize(data, (len(data.shape) - 1,), epsilon, name)
    scaled = combine(lambda x, s: x * s, normal, scale, f"{name}_scaled")
    return combine(lambda x, s: x + s, scaled, shift, name)


def euclidean_norm(data: Tensor, dimensions: Sequence[int], name: str = "euclidean_norm") -> Tensor:
    """sqrt(sum(x * x)) over the given dimensions, whose squares neither overflow nor underflow."""
    largest = reduce(apply(absolute, data, f"{name}_abs"), dimensions, "max", name=f"{name}_max")
    scale = apply(lambda m: clip(m, SMALLEST_NORMAL, LARGEST), largest, f"{name}_scale")
    shares = combine(lambda x, s: x / s, data, scale, f"{name}_shares")
    squares = reduce(apply(lambda x: x * x, shares, f"{name}_squares"), dimensions, "sum", name=f"{name}_sum")
    return combine(lambda q, s: sqrt(q) * s, squares, scale, name)


def local_response_norm(
    data: Tensor, size: int, coefficients: tuple[float, float, float], name: str = "lrn"
) -> Tensor:
    """x / (bias + alpha / size * sum of x^2 over `size` neighbouring channels) ^ beta, channels last.

    `coefficients` is (alpha, beta, bias); the window reaches (size - 1) // 2 back and size // 2 ahead.
    """
    alpha, beta, bias = coefficients
    last = len(data.shape) - 1
    before = [0] * last + [(size - 1) // 2]
    after = [0] * last + [size // 2]
    padded = pad(data, before, after, name=f"{name}_pad")
    k = reduce_axis(size, "k")

    def squares(*axes: Term) -> Term:
        element = padded[(*axes[:-1], axes[-1] + k)]
        return sum(element * element, k)

    total = compute(data.shape, squares, name=f"{name}_squares")
    return combine(lambda x, s: x / _power(s * (alpha / size) + bias, beta), data, total, name)


def _power(base: Term, exponent: float) -> Term:
    """base ** exponent of a base that is not negative: powers are calls, square roots are not."""
    if exponent == 0.5:
        return sqrt(base)
    return sqrt(base) * sqrt(sqrt(base)) if exponent == 0.75 else power(base, exponent)
