"""Importers of what slides a window: convolutions, poolings, local response normalization.

One-dimensional data [n, c, l] becomes an image [n, c, 1, l] and back: both reshapes are free.
Three-dimensional data stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from toolkit.model.graph import Array, Attribute, GraphBuilder, computed_in
from toolkit.model.source import NUMBERS, Importer, Operand, Source


class _Geometry(msgspec.Struct, frozen=True):
    """A window over two or three dimensions with its padding explicit; pads as in ONNX, all befores first."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    ceil_extra: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.kernel)

    def attributes(self) -> dict[str, Attribute]:
        after = tuple(pad + extra for pad, extra in zip(self.pads[self.rank :], self.ceil_extra, strict=True))
        return {
            "kernel": self.kernel,
            "strides": self.strides,
            "pads": (*self.pads[: self.rank], *after),
            "dilations": self.dilations,
        }


def image_rank(source: Source) -> int:
    """How many image dimensions a node's data has, behind [n, c].

    Raises:
        ModelError: not one to three.
    """
    data = source.input(0)
    if not 3 <= data.rank <= 5:
        raise source.refuse(
            f"its data has shape {list(data.shape)}; expected one to three image dimensions behind [n, c]",
            "export the model with 1-D, 2-D or 3-D windows",
        )
    return data.rank - 2


def auto_pad_of(source: Source) -> str:
    """How a node's padding is chosen. Raises ModelError for a word that ONNX does not have."""
    auto_pad = source.text("auto_pad", "NOTSET")
    if auto_pad not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise source.refuse(f"auto_pad must be NOTSET, VALID, SAME_UPPER or SAME_LOWER, found {auto_pad!r}")
    return auto_pad


def shared_pads(totals: Sequence[int], *, more_behind: bool) -> tuple[int, ...]:
    """Padding of each dimension shared between both sides: all before, then all behind."""
    small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return tuple(small + large) if more_behind else tuple(large + small)


def _geometry(source: Source, kernel: Sequence[int]) -> _Geometry:
    """Strides, pads and dilations of a node from its attributes and shapes; 1-D ones as 2-D."""
    data, output = source.input(0), source.output
    dimensions = image_rank(source)
    strides = source.integers("strides", [1] * dimensions)
    dilations = source.integers("dilations", [1] * dimensions)
    pads = source.integers("pads", [0] * (2 * dimensions))
    reach = [(kernel[i] - 1) * dilations[i] + 1 for i in range(dimensions)]
    auto_pad = auto_pad_of(source)
    if auto_pad == "VALID":
        pads = (0,) * (2 * dimensions)
    elif auto_pad != "NOTSET":
        totals = [
            max((-(-data.shape[2 + i] // strides[i]) - 1) * strides[i] + reach[i] - data.shape[2 + i], 0)
            for i in range(dimensions)
        ]
        pads = shared_pads(totals, more_behind=auto_pad == "SAME_UPPER")
    if min(pads) < 0:
        raise source.refuse(f"negative pads {list(pads)} are not supported")
    padded = [data.shape[2 + i] + pads[i] + pads[dimensions + i] for i in range(dimensions)]
    outside = any(map(int.__gt__, reach, padded))
    computes_nothing = 0 in output.shape[2:]
    allowed = computes_nothing or source.integer("ceil_mode", 0)
    if outside and (not allowed or min(output.shape[2:]) < 0):
        raise source.refuse(
            f"its window reaches over {reach} elements, which its data with padding, {padded}, does not have",
            "export the model for larger data",
        )
    # with ceil_mode the last window may reach further than the padding
    extra = tuple(
        max((output.shape[2 + i] - 1) * strides[i] + reach[i] - padded[i], 0) for i in range(dimensions)
    )
    if dimensions > 1:
        return _Geometry(tuple(kernel), strides, pads, dilations, extra)
    return _Geometry(
        (1, kernel[0]), (1, strides[0]), (0, pads[0], 0, pads[1]), (1, dilations[0]), (0, extra[0])
    )


def image_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape [n, c, image...] with at least two image dimensions."""
    return (*shape[:2], 1, shape[2]) if len(shape) == 3 else tuple(shape)


def as_image(source: Source, build: GraphBuilder, operand: Operand) -> str:
    """The operand with at least two image dimensions."""
    if operand.rank != 3:
        return operand.name
    return source.emit(build, "Reshape", [operand.name], None, image_shape(operand.shape), operand.dtype)


class Step(msgspec.Struct, frozen=True):
    """One node of a chain: the result so far comes in front of `operands`."""

    op: str
    operands: tuple[str, ...] = ()
    attributes: Mapping[str, Attribute] | None = None
    shape: tuple[int, ...] | None = None  # of the result; None: that of the ONNX node's output, as an image


def emit_image_chain(source: Source, build: GraphBuilder, data: str, steps: Sequence[Step]) -> None:
    """Emit the steps one behind the other; the last one gives the node's output, as an image or reshaped."""
    image = image_shape(source.output.shape)
    if source.output.rank == 3:
        steps = [*steps, Step("Reshape")]
    for position, step in enumerate(steps):
        last = position == len(steps) - 1
        shape = None if last else step.shape or image
        data = source.emit(build, step.op, [data, *step.operands], step.attributes, shape)


def bias_steps(source: Source, build: GraphBuilder, shape: tuple[int, ...] | None = None) -> list[Step]:
    """An Add of the node's third input, one number per channel, if there is one; `shape` as in Step."""
    bias, channels_out = source.optional(2), source.output.shape[1]
    if bias is None:
        return []
    if bias.shape != (channels_out,):
        raise source.invalid(
            f"expected a bias of shape [{channels_out}], one number for each output channel, "
            f"found {list(bias.shape)}"
        )
    view = (bias.shape[0], *(1,) * (len(image_shape(source.output.shape)) - 2))
    return [Step("Add", (source.emit(build, "Reshape", [bias.name], shape=view),), shape=shape)]


def _groups(source: Source) -> int:
    """The number of groups of a Conv, which ONNX's checker does not compare with the shapes.

    Raises:
        ModelError: it does not divide the channels, or the data have other channels than the weights read.
    """
    groups, weight, channels = source.integer("group", 1), source.input(1).shape, source.input(0).shape[1]
    if groups < 1 or weight[0] % groups or channels != groups * weight[1]:
        raise source.invalid(
            f"group {groups} and weights of shape {list(weight)} read {groups * weight[1]} channels and "
            f"write {weight[0]} in equal groups; the data have {channels} channels"
        )
    return groups


def kernel_of(source: Source) -> tuple[int, ...]:
    """The extents of the kernel in the weights, which `kernel_shape` must not contradict."""
    weight = source.input(1)
    kernel = weight.shape[2:]
    if source.integers("kernel_shape", kernel) != kernel:
        given = source.attributes["kernel_shape"]
        raise source.invalid(f"kernel_shape {given} contradicts weights of shape {list(weight.shape)}")
    return kernel


def conv(source: Source, build: GraphBuilder, zero: int = 0) -> None:
    """Conv(data [n, c, image...], weight [co, c / group, kernel...]); a bias becomes an Add behind it.

    The data count from `zero`: it lies around the image, and its products with the weights, which are known
    then, are taken away behind the sum.
    """
    geometry = _geometry(source, kernel_of(source))
    data, weight = as_image(source, build, source.input(0)), as_image(source, build, source.input(1))
    attributes: dict[str, Attribute] = {**geometry.attributes(), "group": _groups(source)}
    steps = [Step("Conv", (weight,), attributes), *bias_steps(source, build)]
    if zero:
        attributes["padding"] = zero
        known = source.input(1).data
        assert known is not None
        sums = zero * known.sum(axis=tuple(range(1, known.ndim)), dtype=np.int32)
        column = sums.reshape(-1, *(1,) * (len(geometry.kernel)))
        steps.append(Step("Sub", (build.constant(f"{source.input(1).name}/sums", column),)))
    emit_image_chain(source, build, data, steps)


def _pool_geometry(source: Source) -> _Geometry:
    """The window of a pooling node. Raises ModelError where one may lie in the padding alone."""
    kernel = source.integers("kernel_shape", ())
    geometry = _geometry(source, kernel)
    reach = [(k - 1) * d + 1 for k, d in zip(geometry.kernel, geometry.dilations, strict=True)]
    if any(pad >= extent for pad, extent in zip(geometry.pads, (*reach, *reach), strict=True)):
        raise source.invalid(
            f"pads {list(geometry.pads)} are not smaller than windows that reach over {reach} elements"
        )
    return geometry


def pooled_shape(source: Source) -> tuple[int, ...]:
    """The output's shape without windows that would begin behind the data: ceil_mode makes none of those."""
    geometry = _pool_geometry(source)
    image = image_shape(source.input(0).shape)[2:]
    counts = [
        (extent + before - 1) // stride + 1
        for extent, before, stride in zip(image, geometry.pads, geometry.strides, strict=False)
    ]
    found = source.output.shape
    return (
        *found[:2],
        *(min(own, most) for own, most in zip(found[2:], counts[-len(found[2:]) :], strict=True)),
    )


def max_pool(source: Source, build: GraphBuilder) -> None:
    """MaxPool, and the places of the largest elements; padding never wins."""
    geometry = _pool_geometry(source)
    data = as_image(source, build, source.input(0))
    emit_image_chain(source, build, data, [Step("MaxPool", (), geometry.attributes())])
    if len(source.outputs) > 1 and source.outputs[1] is not None:
        places = replace(source.outputs[1], shape=source.output.shape)
        attributes = {**geometry.attributes(), "column_major": source.integer("storage_order", 0)}
        own = replace(source, outputs=(places,))
        emit_image_chain(own, build, data, [Step("MaxPoolPlaces", (), attributes)])


def _unpool_geometry(source: Source) -> tuple[_Geometry, tuple[int, ...]]:
    """The window of MaxUnpool, and the image that it makes whole, before it is cut or padded."""
    kernel = source.integers("kernel_shape", ())
    strides = source.integers("strides", [1] * len(kernel))
    pads = source.integers("pads", [0] * (2 * len(kernel)))
    image = source.input(0).shape[2:]
    if not len(image) == len(kernel) == len(strides) == len(pads) // 2:
        raise source.invalid(f"kernel_shape {kernel} does not fit an image of {len(image)} dimensions")
    whole = [
        (extent - 1) * strides[d] + kernel[d] - pads[d] - pads[len(kernel) + d]
        for d, extent in enumerate(image)
    ]
    if len(kernel) == 1:
        return _Geometry((1, *kernel), (1, *strides), (0, pads[0], 0, pads[1]), (1, 1), (0, 0)), (1, *whole)
    return _Geometry(kernel, strides, pads, (1,) * len(kernel), (0,) * len(kernel)), tuple(whole)


def unpooled_shape(source: Source) -> tuple[int, ...]:
    """The shape that the input says, or the windows."""
    given = source.known_integers(2, "output shape")
    whole = _unpool_geometry(source)[1]
    return given or (*source.input(0).shape[:2], *whole[len(whole) - source.input(0).rank + 2 :])


def max_unpool(source: Source, build: GraphBuilder) -> None:
    """MaxUnpool: each element at its place in the image that the windows make; zeros behind, if there are."""
    geometry, whole = _unpool_geometry(source)
    data, places = (as_image(source, build, source.input(position)) for position in (0, 1))
    attributes = {**geometry.attributes(), "output": whole}
    shape, wanted = (*source.input(0).shape[:2], *whole), image_shape(source.output.shape)
    steps = [Step("MaxUnpool", (places,), attributes, shape)]
    if shape != wanted:
        after = tuple(want - have for want, have in zip(wanted, shape, strict=True))
        pads: dict[str, Attribute] = {
            "mode": "constant",
            "before": (0,) * len(after),
            "after": after,
            "value": 0.0,
        }
        if min(after) < 0:
            raise source.refuse(
                f"its output shape {list(source.output.shape)} is smaller than {list(shape)}, which its "
                "windows make"
            )
        steps.append(Step("Pad", (), pads))
    emit_image_chain(source, build, data, steps)


def average_pool(source: Source, build: GraphBuilder) -> None:
    """AveragePool: a sum over the window, then a scale by what each window counts."""
    geometry = _pool_geometry(source)
    operand = source.input(0)
    image, result = image_shape(operand.shape)[2:], image_shape(source.output.shape)[2:]
    padded = source.integer("count_include_pad", 0) != 0
    counted = np.ones(())
    for i in range(geometry.rank):
        counted = np.multiply.outer(counted, _counts(geometry, i, image[i], result[i], padded))
    scale = (1.0 / counted).astype(computed_in(operand.dtype))
    if scale.size and np.all(scale == scale.flat[0]):
        scale = scale.reshape(-1)[:1].reshape(())
    factor = build.constant(f"{source.output.name}/scale", scale)
    steps = [Step("SumPool", (), geometry.attributes()), Step("Mul", (factor,))]
    emit_image_chain(source, build, as_image(source, build, operand), steps)


def lp_pool(source: Source, build: GraphBuilder) -> None:
    """LpPool: the p-th root of the sum of the p-th powers of sizes in a window."""
    geometry, p = _pool_geometry(source), source.integer("p", 2)
    power, root = (
        build.constant(f"{source.output.name}/exponent", np.asarray(value, np.float32))
        for value in (p, 1 / p)
    )
    data = as_image(source, build, source.input(0))
    shape = image_shape(source.input(0).shape)
    data = source.emit(build, "Abs", [data], shape=shape)
    data = source.emit(build, "Pow", [data, power], shape=shape)
    emit_image_chain(source, build, data, [Step("SumPool", (), geometry.attributes()), Step("Pow", (root,))])


def _counts(geometry: _Geometry, axis: int, extent: int, windows: int, padded: bool) -> Array:
    """How many elements each window counts along one axis."""
    before, after = geometry.pads[axis], geometry.pads[geometry.rank + axis]
    low, high = (0, before + extent + after) if padded else (before, before + extent)
    starts = np.arange(windows) * geometry.strides[axis]
    positions = starts[:, None] + np.arange(geometry.kernel[axis]) * geometry.dilations[axis]
    counted: Array = ((positions >= low) & (positions < high)).sum(axis=1)
    return np.maximum(counted, 1)


def global_pool(source: Source, build: GraphBuilder) -> None:
    """GlobalAveragePool and GlobalMaxPool: reductions over every image dimension."""
    data = source.input(0)
    axes = tuple(range(2, data.rank))
    if source.op == "GlobalMaxPool":
        source.emit(build, "ReduceMax", [data.name], {"axes": axes})
        return
    total = source.emit(build, "ReduceSum", [data.name], {"axes": axes}, shape=source.output.shape)
    count = int(np.prod(data.shape[2:]))
    factor = source.number_as(build, "scale", 1.0 / count)
    source.emit(build, "Mul", [total, factor])


def lrn(source: Source, build: GraphBuilder) -> None:
    """Local response normalization over channels."""
    attributes = {
        "size": source.integer("size", 1),
        "alpha": source.number("alpha", 1e-4),
        "beta": source.number("beta", 0.75),
        "bias": source.number("bias", 1.0),
    }
    if source.input(0).rank != 4:
        raise source.refuse(f"its data has shape {list(source.input(0).shape)}; expected [n, c, h, w]")
    source.emit(build, "LRN", [source.input(0).name], attributes)


_WINDOW = {"auto_pad", "kernel_shape", "strides", "pads", "dilations"}

IMPORTERS: dict[str, Importer] = {
    "Conv": Importer(conv, _WINDOW | {"group"}, folds=True),
    "MaxPool": Importer(
        max_pool,
        _WINDOW | {"ceil_mode", "storage_order"},
        NUMBERS,
        extra_outputs=True,
        shape=pooled_shape,
        folds=True,
    ),
    "MaxUnpool": Importer(max_unpool, {"kernel_shape", "strides", "pads"}, NUMBERS, shape=unpooled_shape),
    "AveragePool": Importer(
        average_pool, _WINDOW | {"ceil_mode", "count_include_pad"}, shape=pooled_shape, folds=True
    ),
    "LpPool": Importer(lp_pool, _WINDOW | {"ceil_mode", "p"}, shape=pooled_shape),
    "GlobalAveragePool": Importer(global_pool, folds=True),
    "GlobalMaxPool": Importer(global_pool, folds=True),
    "LRN": Importer(lrn, {"size", "alpha", "beta", "bias"}, folds=True),
}
