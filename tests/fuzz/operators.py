"""Random operators of every family, with tiny and prime shapes among them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cross.errors import ExpressionError
from cross.expression import Operator, Tensor, placeholder
from cross.expression.families.conv import capsule_conv2d, conv2d, dense_conv, depthwise_conv, grouped_conv
from cross.expression.families.data_movement import (
    concat,
    gather,
    gather_elements,
    pad,
    strided_slice,
    transpose,
)
from cross.expression.families.dense import batch_matmul, dense
from cross.expression.families.elementwise import UNARY, apply, bias_add, combine
from cross.expression.families.norm import layer_norm, local_response_norm, normalize, softmax
from cross.expression.families.pool import pool, pool2d, reduce
from cross.expression.families.transposed import (
    Phases,
    Transposed,
    depthwise_transposed_conv,
    grouped_transposed_conv,
    narrow_transposed_conv,
    phases,
    transposed_conv,
)
from cross.expression.families.window import Window
from cross.expression.language.operator import reachable
from cross.expression.language.terms import call, cast
from cross.expression.rewrites.composition import composed
from tests.other_operators import conv2d_nchw, frobenius_norm

MAX_POINTS = 60_000  # innermost iterations of one operator: the interpreter shall take well under a second
WINOGRAD_POINTS = 400_000  # its algorithms are no choice for few channels or few tiles
SEED_STRIDE = 1_000_000  # numbers of random cases between one --seed and the next

EXTENTS = (1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 23, 24, 31, 32, 37, 48, 61, 64)
CHANNELS = (1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 24, 32)
IMAGES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 14)
ACTIVATIONS = ("Relu", "LeakyRelu", "Elu", "Sigmoid", "Tanh", "HardSwish", "Softplus", "Erf", "Abs", "Neg")

Array = NDArray[Any]
Family = Callable[[np.random.Generator], Operator]


def random_operator(rng: np.random.Generator, family: str | None = None) -> Operator:
    """An operator of a family (drawn where none is named) whose run takes at most so many iterations."""
    build = FAMILIES[family or _pick(rng, sorted(FAMILIES))]
    while True:
        try:
            operator = build(rng)
        except ExpressionError:
            continue  # a window that does not fit its image
        most = WINOGRAD_POINTS if build in (winograd, winograd_transposed) else MAX_POINTS
        if sum(map(_points, operator.stages)) <= most:
            return operator


def random_inputs(operator: Operator, rng: np.random.Generator) -> list[Array]:
    """Normal inputs of the operator's shapes and dtypes; integers with a standard deviation of 8."""
    return [
        (rng.standard_normal(item.shape) * (1 if item.dtype.startswith("float") else 8)).astype(item.dtype)
        for item in operator.inputs
    ]


def _points(stage: Tensor) -> int:
    return stage.elements * int(np.prod([axis.extent for axis in stage.reduce_axes], dtype=np.int64))


def _pick(rng: np.random.Generator, choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def _operator(name: str, output: Tensor, constants: tuple[str, ...] = ()) -> Operator:
    """The operator with all placeholders as inputs; those named in `constants` are weights."""
    inputs = tuple(tensor for tensor in reachable(output) if tensor.body is None)
    weights = frozenset(position for position, item in enumerate(inputs) if item.name in constants)
    return Operator(name, inputs, output, weights)


def _epilogue(rng: np.random.Generator, data: Tensor, channels_last: bool = True) -> Tensor:
    """Nothing, or a bias, an activation, a residual sum, in some combination."""
    if channels_last and rng.random() < 0.5:
        data = bias_add(data, placeholder(data.shape[-1:], "bias"))
    if rng.random() < 0.25:
        data = combine(lambda x, r: x + r, data, placeholder(data.shape, "residual"), "sum")
    if rng.random() < 0.6:
        data = apply(UNARY[_pick(rng, ACTIVATIONS)], data, "activation")
    return data


def _window(rng: np.random.Generator) -> tuple[tuple[int, int], Window]:
    kernel = (_pick(rng, (1, 2, 3, 3, 5)), _pick(rng, (1, 2, 3, 3, 4)))
    pads = tuple(int(rng.integers(0, 3)) if rng.random() < 0.6 else 0 for _ in range(4))
    strides = (_pick(rng, (1, 1, 2, 3)), _pick(rng, (1, 1, 2)))
    dilations = (_pick(rng, (1, 1, 1, 2)), _pick(rng, (1, 1, 2)))
    return kernel, Window(strides, pads, dilations)


def matmul(rng: np.random.Generator) -> Operator:
    m, n, k = (_pick(rng, EXTENTS) for _ in range(3))
    weights = ("B",) if rng.random() < 0.6 else ()
    output = dense(placeholder((m, k), "A"), placeholder((k, n), "B"), "matmul")
    return _operator("matmul", _epilogue(rng, output), weights)


def batched(rng: np.random.Generator) -> Operator:
    b, m, n, k = _pick(rng, (1, 2, 3, 5)), *(_pick(rng, EXTENTS[:13]) for _ in range(3))
    left = placeholder((b, m, k), "A")
    right = placeholder((_pick(rng, (1, b)), k, n), "B")
    return _operator("batch_matmul", _epilogue(rng, batch_matmul(left, right)))


def bytes_in_words(rng: np.random.Generator) -> Operator:
    """Products of four bytes at a time, in a matrix product or a convolution; rounded to bytes or not."""
    co, ci = _pick(rng, CHANNELS), _pick(rng, (1, 2, 4, 9))
    product = partial(call, _pick(rng, ("dot4", "sdot4", "wide_dot2")))
    if rng.random() < 0.5:
        data, weight = (
            placeholder(shape, name, "int32") for shape, name in (((7, ci), "X"), ((ci, co), "W"))
        )
        output = dense(data, weight, "products", product)
    else:
        kernel, window = _window(rng)
        data = placeholder((1, _pick(rng, IMAGES), _pick(rng, IMAGES), ci), "X", "int32")
        weight = placeholder((*kernel, ci, co), "W", "int32")
        output = dense_conv(data, weight, window, "products", padding=0x7F00FF01, product=product)
    if rng.random() < 0.5:
        output = apply(lambda x: cast("int8", cast("float32", x) * 0.01), output, "rescaled")
    return _operator("products", output, ("W",) if rng.random() < 0.7 else ())


def convolution(rng: np.random.Generator) -> Operator:
    kernel, window = _window(rng)
    n, h, w = _pick(rng, (1, 1, 2)), _pick(rng, IMAGES), _pick(rng, IMAGES)
    ci, co = _pick(rng, CHANNELS), _pick(rng, CHANNELS)
    weights = ("W",) if rng.random() < 0.7 else ()
    if rng.random() < 0.5:
        data, weight = placeholder((n, h, w, ci), "X"), placeholder((*kernel, ci, co), "W")
        return _operator("conv_nhwc", _epilogue(rng, conv2d(data, weight, window)), weights)
    data, weight = placeholder((n, ci, h, w), "X"), placeholder((co, ci, *kernel), "W")
    output = conv2d_nchw(data, weight, window)
    return _operator("conv_nchw", _epilogue(rng, output, channels_last=False), weights)


def winograd(rng: np.random.Generator) -> Operator:
    """A convolution that Winograd's algorithms compute too."""
    n, h, w = _pick(rng, (1, 1, 2)), _pick(rng, IMAGES[2:]), _pick(rng, IMAGES[2:])
    ci, co = _pick(rng, (16, 16, 17, 24)), _pick(rng, (16, 19, 32))
    window = Window(pads=tuple(_pick(rng, (0, 1, 2)) for _ in range(4)))
    kernel = _pick(rng, ((3, 3), (3, 3), (5, 5), (3, 1), (1, 3), (2, 2), (1, 5)))
    data, weight = placeholder((n, h, w, ci), "X"), placeholder((*kernel, ci, co), "W")
    return _operator("conv_winograd", _epilogue(rng, conv2d(data, weight, window)), ("W",))


def grouped(rng: np.random.Generator) -> Operator:
    kernel, window = _window(rng)
    h, w, g = _pick(rng, IMAGES), _pick(rng, IMAGES), _pick(rng, (1, 2, 3, 4))
    ci, co = _pick(rng, CHANNELS[:7]), _pick(rng, CHANNELS[:8])
    data, weight = placeholder((1, h, w, g, ci), "X"), placeholder((g, *kernel, ci, co), "W")
    return _operator("grouped_conv", _epilogue(rng, grouped_conv(data, weight, window)), ("W",))


def depthwise(rng: np.random.Generator) -> Operator:
    kernel, window = _window(rng)
    n, h, w, c = _pick(rng, (1, 2)), _pick(rng, IMAGES), _pick(rng, IMAGES), _pick(rng, CHANNELS)
    data, weight = placeholder((n, h, w, c), "X"), placeholder((*kernel, c), "W")
    return _operator("depthwise_conv", _epilogue(rng, depthwise_conv(data, weight, window)), ("W",))


def other_ranks(rng: np.random.Generator) -> Operator:
    """Convolutions and poolings over one or three image dimensions."""
    rank = _pick(rng, (1, 3))
    kernel = tuple(_pick(rng, (1, 2, 3, 3, 5) if rank == 1 else (1, 2, 3)) for _ in range(rank))
    window = Window(
        tuple(_pick(rng, (1, 1, 2)) for _ in range(rank)),
        tuple(int(rng.integers(0, min(k, 3))) for k in kernel * 2),
        tuple(_pick(rng, (1, 1, 2)) for _ in range(rank)),
    )
    image = tuple(_pick(rng, EXTENTS[:13] if rank == 1 else IMAGES[:7]) for _ in range(rank))
    ci, co = _pick(rng, CHANNELS), _pick(rng, CHANNELS)
    data = placeholder((_pick(rng, (1, 1, 2)), *image, ci), "X")
    match int(rng.integers(4)):
        case 0:
            weight = placeholder((*kernel, ci), "W")
            output = depthwise_conv(data, weight, window)
        case 1:
            window = Window(
                window.strides,
                tuple(min(p, (k - 1) // 2) for p, k in zip(window.pads, kernel * 2, strict=True)),
                window.dilations,
            )
            return _operator("pool", pool(data, kernel, window, _pick(rng, ("max", "min", "sum"))))
        case _:
            weight = placeholder((*kernel, ci, co), "W")
            output = dense_conv(data, weight, window)
    return _operator(f"conv{rank}d", _epilogue(rng, output), ("W",))


def capsules(rng: np.random.Generator) -> Operator:
    kernel, window = _window(rng)
    ci, co, p, q, r = (_pick(rng, (1, 2, 3, 4)) for _ in range(5))
    data = placeholder((1, _pick(rng, IMAGES[:8]), _pick(rng, IMAGES[:8]), ci, p, r), "X")
    output = capsule_conv2d(data, placeholder((*kernel, ci, co, r, q), "W"), window)
    return _operator("capsule_conv", _epilogue(rng, output), ("W",))


def _phases(rng: np.random.Generator) -> Phases:
    kernel, stride = _pick(rng, (1, 2, 3, 4, 4, 5)), _pick(rng, (1, 2, 2, 3, 4))
    pads = tuple(int(rng.integers(0, kernel)) for _ in range(2))
    geometry = Transposed(kernel, stride, pads, _pick(rng, (1, 1, 1, 2)), int(rng.integers(0, stride)))  # type: ignore[arg-type]
    return phases(_pick(rng, IMAGES[:8]), geometry)


def transposed(rng: np.random.Generator) -> Operator:
    """Transposed convolutions by phases, dense, narrow, grouped and depthwise, over one or two dimensions."""
    found = [_phases(rng) for _ in range(_pick(rng, (1, 2, 2)))]
    image = tuple(item.extent for item in found)
    places = (*(item.stride for item in found), *(item.taps for item in found))
    ci, co, g = _pick(rng, CHANNELS), _pick(rng, CHANNELS), _pick(rng, (2, 3))
    match int(rng.integers(4)):
        case 0:
            data, weight = placeholder((1, *image, ci), "X"), placeholder((*places, ci), "W")
            output = depthwise_transposed_conv(data, weight, found)
        case 1:
            data, weight = placeholder((1, *image, g, ci), "X"), placeholder((g, *places, ci, co), "W")
            output = grouped_transposed_conv(data, weight, found)
        case 2:
            columns = int(np.prod(places)) * _pick(rng, (1, 2, 3, 5))
            data, weight = placeholder((1, *image, ci), "X"), placeholder((ci, columns), "W")
            output = narrow_transposed_conv(data, weight, found)
        case _:
            data, weight = placeholder((1, *image, ci), "X"), placeholder((*places, ci, co), "W")
            output = transposed_conv(data, weight, found)
    return _operator("transposed_conv", _epilogue(rng, output), ("W",))


def winograd_transposed(rng: np.random.Generator) -> Operator:
    """A transposed convolution that Winograd's algorithms compute too, with 2 or 3 taps a phase."""
    kernel, stride = _pick(rng, ((4, 2), (4, 2), (3, 2), (2, 1), (3, 1), (5, 2), (5, 3)))
    found = []
    for _ in range(2):
        pads = _pick(rng, (0, 1)), _pick(rng, (0, 1, 2))
        geometry = Transposed(kernel, stride, pads, 1, int(rng.integers(0, stride)))
        found.append(phases(_pick(rng, (3, 4, 5, 6, 7, 8, 9, 12)), geometry))
    ci, co = _pick(rng, (16, 16, 17)), _pick(rng, (16, 16, 19))
    data = placeholder((_pick(rng, (1, 1, 2)), *(item.extent for item in found), ci), "X")
    places = (*(item.stride for item in found), *(item.taps for item in found))
    output = transposed_conv(data, placeholder((*places, ci, co), "W"), found)
    return _operator("transposed_winograd", _epilogue(rng, output), ("W",))


def pooling(rng: np.random.Generator) -> Operator:
    kernel, window = _window(rng)
    pads = tuple(min(p, (extent - 1) // 2) for p, extent in zip(window.pads, kernel * 2, strict=True))
    window = Window(window.strides, pads)
    data = placeholder((1, _pick(rng, IMAGES), _pick(rng, IMAGES), _pick(rng, CHANNELS)), "X")
    combiner = _pick(rng, ("max", "min", "sum"))
    output = pool2d(data, kernel, window, combiner)
    if combiner == "sum":
        output = apply(lambda x: x * (1.0 / (kernel[0] * kernel[1])), output, "mean")
    return _operator(f"{combiner}_pool", output)


def reduction(rng: np.random.Generator) -> Operator:
    rank = _pick(rng, (1, 2, 3, 4))
    shape = tuple(_pick(rng, (EXTENTS, EXTENTS, EXTENTS[:10], EXTENTS[:7])[rank - 1]) for _ in range(rank))
    count = int(rng.integers(1, rank + 1))
    dimensions = sorted(map(int, rng.choice(rank, count, replace=False)))
    data = placeholder(shape, "X")
    keep = bool(rng.random() < 0.5)
    return _operator("reduce", reduce(data, dimensions, _pick(rng, ("sum", "max", "min")), keep))


def normalization(rng: np.random.Generator) -> Operator:
    rows, columns = _pick(rng, EXTENTS), _pick(rng, EXTENTS[1:])
    data = placeholder((rows, columns), "X")
    match int(rng.integers(5)):
        case 0:
            return _operator("softmax", softmax(data, int(rng.integers(2))))
        case 1:
            scale, shift = placeholder((columns,), "scale"), placeholder((columns,), "shift")
            # a large epsilon keeps rows of one or two elements well conditioned
            return _operator("layer_norm", layer_norm(data, scale, shift, epsilon=0.1))
        case 2:
            shape = (_pick(rng, (1, 3)), rows, _pick(rng, EXTENTS[:10]))
            return _operator("frobenius_norm", frobenius_norm(placeholder(shape, "X")))
        case 3:
            picture = (_pick(rng, (1, 2)), _pick(rng, (2, 3, 5)), 3, _pick(rng, CHANNELS))
            return _operator("instance_norm", normalize(placeholder(picture, "X"), (1, 2), 0.1))
        case _:
            image = placeholder((1, _pick(rng, (1, 3, 5)), 3, columns), "X")
            return _operator("lrn", local_response_norm(image, _pick(rng, (1, 3, 5)), (0.1, 0.75, 2.0)))


def chain(rng: np.random.Generator) -> Operator:
    rank = _pick(rng, (1, 2, 3))
    shape = tuple(_pick(rng, (EXTENTS, EXTENTS[:14], EXTENTS[:9])[rank - 1]) for _ in range(rank))
    data = placeholder(shape, "X")
    for position in range(int(rng.integers(1, 5))):
        if rng.random() < 0.35:
            other_shape = tuple(1 if rng.random() < 0.4 else extent for extent in shape)
            other = placeholder(other_shape, f"other{position}")
            operation = _pick(rng, (lambda a, b: a + b, lambda a, b: a * b, lambda a, b: a - b))
            data = combine(operation, data, other, f"combine{position}")
        else:
            data = apply(UNARY[_pick(rng, ACTIVATIONS)], data, f"unary{position}")
    return _operator("elementwise", data)


def joined(rng: np.random.Generator) -> Operator:
    """Two or three of a convolution, a pooling and a matrix product behind one another, as one operator."""
    n, h, w, channels = _pick(rng, (1, 1, 2)), _pick(rng, IMAGES), _pick(rng, IMAGES), _pick(rng, CHANNELS)
    result: Operator | None = None
    for position in range(int(rng.integers(2, 4))):
        shape = (n, h, w, channels) if result is None else result.output.shape
        data, (kernel, window) = placeholder(shape, f"X{position}"), _window(rng)
        match int(rng.integers(4)):
            case 0:
                output = depthwise_conv(data, placeholder((*kernel, shape[-1]), "W"), window)
            case 1:
                weight = placeholder((*kernel, shape[-1], _pick(rng, CHANNELS)), "W")
                output = conv2d(data, weight, window)
            case 2:
                output = conv2d(data, placeholder((1, 1, shape[-1], _pick(rng, CHANNELS)), "W"), Window())
            case _:
                output = pool2d(
                    data, kernel, window, "sum"
                )  # a window of padding alone has no largest element
        link = _operator("joined", _epilogue(rng, output), ("W",))
        result = link if result is None else composed(result, link, 0)
    assert result is not None
    return result


def movement(rng: np.random.Generator) -> Operator:
    """Transposes, concatenations, slices and paddings, alone or in a chain; some end in a computation."""
    shape = tuple(_pick(rng, EXTENTS[:10]) for _ in range(int(rng.integers(2, 5))))
    data = placeholder(shape, "X")
    for position in range(int(rng.integers(1, 4))):
        rank = len(data.shape)
        name = f"move{position}"
        match int(rng.integers(4)):
            case 0:
                data = transpose(data, list(map(int, rng.permutation(rank))), name)
            case 1:
                dimension = int(rng.integers(rank))
                grown = list(data.shape)
                grown[dimension] = _pick(rng, (1, 2, 5))
                data = concat([data, placeholder(tuple(grown), f"part{position}")], dimension, name)
            case 2:
                before, after = rng.integers(0, 3, rank).tolist(), rng.integers(0, 3, rank).tolist()
                data = pad(data, before, after, 0.5, name)
            case _:
                starts, counts, steps = _slice(rng, data.shape)
                data = strided_slice(data, starts, steps, counts, name)
    if data.body is None or rng.random() < 0.4:
        data = apply(UNARY["Tanh"], data, "tanh")
    return _operator("movement", data)


def gathered(rng: np.random.Generator) -> Operator:
    """Elements at indices that are read, of an input or of a matrix product; many of them out of range."""
    rows, columns, count = (_pick(rng, EXTENTS) for _ in range(3))
    data = placeholder((rows, columns), "data")
    if rng.random() < 0.4:
        data = dense(data, placeholder((columns, _pick(rng, EXTENTS)), "weight"))
    dtype = _pick(rng, ("int64", "int32", "int8"))
    axis = int(rng.integers(2))
    if rng.random() < 0.5:
        shape = (count, _pick(rng, (1, 2))) if rng.random() < 0.3 else (count,)
        return _operator("gather", gather(data, placeholder(shape, "indices", dtype), axis))
    places = placeholder(tuple(count if d == axis else data.shape[d] for d in range(2)), "indices", dtype)
    return _operator("gather", _epilogue(rng, gather_elements(data, places, axis)))


ROWS = (1, 5, 8, 13, 16, 24)


def attention(rng: np.random.Generator) -> Operator:
    """Scores of some tokens and keys, their softmax, and what they weigh, as one operator."""
    heads, tokens, keys, each = (_pick(rng, choices) for choices in ((1, 2, 3), ROWS, ROWS, (1, 4, 8, 10)))
    query, key = placeholder((heads, tokens, each), "Q"), placeholder((heads, each, keys), "K")
    scores = _operator("scores", batch_matmul(query, key))
    if rng.random() < 0.5:
        masked = combine(lambda a, b: a + b, scores.output, placeholder((1, 1, keys), "M"), "masked")
        scores = _operator("scores", masked)
    links = [_operator("softmax", softmax(placeholder((heads, tokens, keys), "S"), 2))]
    weights, value = placeholder((heads, tokens, keys), "P"), placeholder((heads, keys, each), "V")
    links.append(_operator("product", batch_matmul(weights, value)))
    for link in links:
        scores = composed(scores, link, 0)
    return scores


def _slice(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[list[int], list[int], list[int]]:
    starts, counts, steps = [], [], []
    for extent in shape:
        step = _pick(rng, (1, 1, 2, -1))
        count = int(rng.integers(1, -(-extent // abs(step)) + 1))
        reach = (count - 1) * abs(step)
        start = int(rng.integers(0, extent - reach))
        starts.append(start if step > 0 else start + reach)
        counts.append(count)
        steps.append(step)
    return starts, counts, steps


FAMILIES: dict[str, Family] = {
    "attention": attention,
    "gathered": gathered,
    "batched": batched,
    "bytes in words": bytes_in_words,
    "capsules": capsules,
    "chain": chain,
    "convolution": convolution,
    "depthwise": depthwise,
    "grouped": grouped,
    "joined": joined,
    "matmul": matmul,
    "movement": movement,
    "normalization": normalization,
    "other ranks": other_ranks,
    "pooling": pooling,
    "reduction": reduction,
    "transposed": transposed,
    "winograd": winograd,
    "winograd transposed": winograd_transposed,
}
