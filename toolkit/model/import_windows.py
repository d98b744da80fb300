"""Importers of what slides a window: convolutions, poolings, local response normalization.

One-dimensional data [n, c, l] becomes an image [n, c, 1, l] and back: both reshapes are free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from toolkit.model.graph import Array, GraphBuilder
from toolkit.model.source import Importer, Operand, Source


@dataclass(frozen=True, slots=True)
class _Geometry:
    """A 2-D window with its padding explicit; pads are (top, left, bottom, right)."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    dilations: tuple[int, int]
    ceil_extra: tuple[int, int] = (0, 0)

    def attributes(self) -> dict[str, tuple[int, ...]]:
        bottom, right = self.pads[2] + self.ceil_extra[0], self.pads[3] + self.ceil_extra[1]
        return {
            "kernel": self.kernel,
            "strides": self.strides,
            "pads": (self.pads[0], self.pads[1], bottom, right),
            "dilations": self.dilations,
        }


def _geometry(source: Source, kernel: Sequence[int]) -> _Geometry:
    """Strides, pads and dilations of a node, as 2-D, from its attributes and shapes."""
    data, output = source.input(0), source.output
    dimensions = data.rank - 2
    if dimensions not in (1, 2):
        raise source.refuse(
            f"its data has shape {list(data.shape)}; expected one or two image dimensions behind [n, c]",
            "export the model with 1-D or 2-D windows",
        )
    strides = source.integers("strides", [1] * dimensions)
    dilations = source.integers("dilations", [1] * dimensions)
    pads = source.integers("pads", [0] * (2 * dimensions))
    reach = [(kernel[i] - 1) * dilations[i] + 1 for i in range(dimensions)]
    auto_pad = source.text("auto_pad", "NOTSET")
    if auto_pad not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise source.refuse(f"auto_pad must be NOTSET, VALID, SAME_UPPER or SAME_LOWER, found {auto_pad!r}")
    if auto_pad == "VALID":
        pads = (0,) * (2 * dimensions)
    elif auto_pad != "NOTSET":
        totals = [
            max((-(-data.shape[2 + i] // strides[i]) - 1) * strides[i] + reach[i] - data.shape[2 + i], 0)
            for i in range(dimensions)
        ]
        small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
        pads = tuple(small + large) if auto_pad == "SAME_UPPER" else tuple(large + small)
    if min(pads) < 0:
        raise source.refuse(f"negative pads {list(pads)} are not supported")
    # with ceil_mode the last window may reach further than the padding
    extra = [
        max(
            (output.shape[2 + i] - 1) * strides[i]
            + reach[i]
            - (data.shape[2 + i] + pads[i] + pads[dimensions + i]),
            0,
        )
        for i in range(dimensions)
    ]
    return _as_image(kernel, strides, pads, dilations, extra)


def _as_image(
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    extra: Sequence[int],
) -> _Geometry:
    if len(kernel) == 2:
        return _Geometry(
            (kernel[0], kernel[1]),
            (strides[0], strides[1]),
            (pads[0], pads[1], pads[2], pads[3]),
            (dilations[0], dilations[1]),
            (extra[0], extra[1]),
        )
    return _Geometry(
        (1, kernel[0]), (1, strides[0]), (0, pads[0], 0, pads[1]), (1, dilations[0]), (0, extra[0])
    )


def _image(source: Source, build: GraphBuilder, operand: Operand) -> str:
    """The operand with two image dimensions."""
    if operand.rank == 4:
        return operand.name
    shape = (*operand.shape[:2], 1, operand.shape[2])
    if operand.data is not None:
        return build.constant(f"{operand.name}/image", operand.data.reshape(shape))
    return source.emit(build, "Reshape", [operand.name], shape=shape)


def _windowed(
    source: Source,
    build: GraphBuilder,
    op: str,
    inputs: Sequence[str],
    attributes: dict[str, tuple[int, ...] | int],
    scale: Array | None = None,
) -> None:
    """Emit the window operation, the scale behind it, and the reshape back to one dimension."""
    output = source.output
    flat = output.rank == 3
    image = (*output.shape[:2], 1, output.shape[2]) if flat else output.shape
    steps = 1 + (scale is not None) + flat
    result = source.emit(build, op, inputs, attributes, image if steps > 1 else None)
    if scale is not None:
        factor = build.constant(f"{output.name}/scale", scale)
        result = source.emit(build, "Mul", [result, factor], shape=image if flat else None)
    if flat:
        source.emit(build, "Reshape", [result])


def conv(source: Source, build: GraphBuilder) -> None:
    """Conv(data [n, c, h, w], weight [co, c / group, kh, kw]); a bias becomes an Add behind it."""
    data, weight, bias = source.input(0), source.input(1), source.optional(2)
    kernel = weight.shape[2:]
    if source.integers("kernel_shape", kernel) != kernel:
        given = source.attributes["kernel_shape"]
        raise source.refuse(
            f"kernel_shape {given} contradicts weights of shape {list(weight.shape)}",
            "export the model again",
        )
    geometry = _geometry(source, kernel)
    inputs = [_image(source, build, data), _image(source, build, weight)]
    attributes: dict[str, tuple[int, ...] | int] = {
        **geometry.attributes(),
        "group": source.integer("group", 1),
    }
    if bias is None:
        _windowed(source, build, "Conv", inputs, attributes)
        return
    output = source.output
    flat = output.rank == 3
    image = (*output.shape[:2], 1, output.shape[2]) if flat else output.shape
    result = source.emit(build, "Conv", inputs, attributes, image)
    if bias.data is not None:
        channels = build.constant(f"{bias.name}/channels", bias.data.reshape(-1, 1, 1))
    else:
        channels = source.emit(build, "Reshape", [bias.name], shape=(bias.shape[0], 1, 1))
    result = source.emit(build, "Add", [result, channels], shape=image if flat else None)
    if flat:
        source.emit(build, "Reshape", [result])


def max_pool(source: Source, build: GraphBuilder) -> None:
    """MaxPool; padding never wins."""
    if source.integer("storage_order", 0) != 0:
        raise source.refuse("storage_order 1 is not supported")
    geometry = _geometry(source, source.integers("kernel_shape", ()))
    data = _image(source, build, source.input(0))
    _windowed(source, build, "MaxPool", [data], {**geometry.attributes()})


def average_pool(source: Source, build: GraphBuilder) -> None:
    """AveragePool: a sum over the window, then a scale by what each window counts."""
    geometry = _geometry(source, source.integers("kernel_shape", ()))
    operand = source.input(0)
    image = operand.shape[2:] if operand.rank == 4 else (1, operand.shape[2])
    result = source.output.shape[2:] if operand.rank == 4 else (1, source.output.shape[2])
    padded = source.integer("count_include_pad", 0) != 0
    counts = [_counts(geometry, i, image[i], result[i], padded) for i in range(2)]
    scale = (1.0 / np.outer(counts[0], counts[1])).astype(np.float32)
    if np.all(scale == scale.flat[0]):
        scale = scale.reshape(-1)[:1].reshape(())
    data = _image(source, build, operand)
    _windowed(source, build, "SumPool", [data], {**geometry.attributes()}, scale)


def _counts(geometry: _Geometry, axis: int, extent: int, windows: int, padded: bool) -> Array:
    """How many elements each window counts along one axis."""
    before, after = geometry.pads[axis], geometry.pads[2 + axis]
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
    factor = build.constant(f"{source.output.name}/scale", np.asarray(1.0 / count, np.float32))
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


_WINDOW = frozenset({"auto_pad", "kernel_shape", "strides", "pads", "dilations"})

IMPORTERS: dict[str, Importer] = {
    "Conv": Importer(conv, _WINDOW | {"group"}),
    "MaxPool": Importer(max_pool, _WINDOW | {"ceil_mode", "storage_order"}),
    "AveragePool": Importer(average_pool, _WINDOW | {"ceil_mode", "count_include_pad"}),
    "GlobalAveragePool": Importer(global_pool),
    "GlobalMaxPool": Importer(global_pool),
    "LRN": Importer(lrn, frozenset({"size", "alpha", "beta", "bias"})),
}
