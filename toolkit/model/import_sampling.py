"""Importers of what reads images between their elements: grids, deformed windows, regions of interest."""

from __future__ import annotations

import numpy as np

from toolkit.model.graph import Attribute, GraphBuilder, computed_in
from toolkit.model.source import FLOATS, INTEGERS, Emitter, Importer, Operand, Source

MODES = {
    "nearest": "nearest",
    **dict.fromkeys(("linear", "bilinear"), "linear"),
    "cubic": "cubic",
    "bicubic": "cubic",
}
PADDINGS = frozenset({"zeros", "border", "reflection"})


def sample_grid(source: Source, build: GraphBuilder) -> None:
    """GridSample: the positions that the grid names, and the data there."""
    data, grid = source.input(0), source.input(1)
    mode, padding = source.text("mode", "linear"), source.text("padding_mode", "zeros")
    if mode not in MODES or padding not in PADDINGS:
        raise source.invalid(f"mode {mode!r} or padding_mode {padding!r} is unknown")
    settings: dict[str, Attribute] = {
        "mode": MODES[mode],
        "padding": padding,
        "align_corners": source.integer("align_corners", 0),
    }
    attributes = {**settings, "image": data.shape[2:]}
    positions = source.emit(build, "SamplePositions", [grid.name], attributes, grid.shape, grid.dtype)
    source.emit(build, "Sample", [data.name, positions], settings)


def sampled_shape(source: Source) -> tuple[int, ...]:
    """A sample of each channel for each position of the grid."""
    return (*source.input(0).shape[:2], *source.input(1).shape[1:-1])


def deformed_conv(source: Source, build: GraphBuilder) -> None:
    """DeformConv: the samples that each output reads, as rows of a matrix, times the weights."""
    nodes, (data, weight, offset) = Emitter(source, build), map(source.input, range(3))
    batch, channels, *image = data.shape
    kernel, output = weight.shape[2:], offset.shape[2:]
    rank, taps, pixels = len(image), int(np.prod(kernel)), int(np.prod(output))
    groups, parts = source.integer("group", 1), source.integer("offset_group", 1)
    expected = (batch, parts * taps * rank, *source.output.shape[2:])
    if len(kernel) != rank or offset.shape != expected or channels != groups * weight.shape[1]:
        raise source.invalid(
            f"offsets of shape {list(offset.shape)} and weights of shape {list(weight.shape)} do not fit "
            f"data of shape {list(data.shape)}; expected offsets of shape {list(expected)}"
        )
    whole = (batch * parts, taps, rank, pixels)
    moved = nodes.transposed(nodes.shaped(offset.name, whole), (0, 3, 1, 2))
    start = build.constant(f"{source.output.name}/windows", _windows(source, output, kernel))
    shape = (batch * parts, pixels, taps, rank)
    positions = source.emit(build, "Add", [moved, start], shape=shape, dtype=offset.dtype)
    settings: dict[str, Attribute] = {"mode": "linear", "padding": "zeros", "align_corners": 1}
    part = nodes.shaped(data.name, (batch * parts, channels // parts, *image))
    shape = (batch * parts, channels // parts, pixels, taps)
    samples = source.emit(build, "Sample", [part, positions], settings, shape)
    if (mask := source.optional(4)) is not None:
        factors = nodes.shaped(mask.name, (batch * parts, 1, taps, pixels))
        samples = source.emit(build, "Mul", [samples, nodes.transposed(factors, (0, 1, 3, 2))], shape=shape)
    rows = nodes.shaped(samples, (batch, groups, channels // groups, pixels, taps))
    rows = nodes.transposed(rows, (0, 1, 3, 4, 2))
    columns = nodes.shaped(weight.name, (groups, weight.shape[0] // groups, *weight.shape[1:2], taps))
    columns = nodes.transposed(columns, (0, 3, 2, 1))
    _multiply(source, build, rows, columns)


def _multiply(source: Source, build: GraphBuilder, rows: str, columns: str) -> None:
    """The products of [n, g, pixels, taps, ci] and [g, taps, ci, co], with the bias, as images."""
    nodes = Emitter(source, build)
    batch, groups, pixels, taps, inner = nodes.shape(rows)
    outer = nodes.shape(columns)[-1]
    lead = (batch, groups, pixels) if groups > 1 else (batch * pixels,)
    left = nodes.shaped(rows, (*lead, taps * inner))
    right = nodes.shaped(columns, ((groups,) if groups > 1 else ()) + (taps * inner, outer))
    product = source.emit(build, "MatMul", [left, right], shape=(*lead, outer))
    split = nodes.shaped(product, (batch, groups, pixels, outer))
    moved = nodes.transposed(split, (0, 1, 3, 2))
    bias = source.optional(3)
    if bias is None:
        source.emit(build, "Reshape", [moved])
        return
    image = nodes.shaped(moved, source.output.shape)
    view = (groups * outer, *(1,) * (source.output.rank - 2))
    source.emit(build, "Add", [image, nodes.shaped(bias.name, view)])


def _windows(source: Source, output: tuple[int, ...], kernel: tuple[int, ...]) -> np.ndarray:
    """Where each element of each window is without offsets: [pixels, taps, rank]."""
    rank = len(kernel)
    strides, dilations = (source.integers(key, [1] * rank) for key in ("strides", "dilations"))
    pads = source.integers("pads", [0] * (2 * rank))
    axes = [
        np.arange(output[d])[:, None] * strides[d] - pads[d] + np.arange(kernel[d]) * dilations[d]
        for d in range(rank)
    ]
    grid = np.empty((*output, *kernel, rank), computed_in(source.input(2).dtype))
    for d, own in enumerate(axes):
        shape = [1] * (2 * rank)
        shape[d], shape[rank + d] = own.shape
        grid[..., d] = own.reshape(shape)
    return grid.reshape(int(np.prod(output)), int(np.prod(kernel)), rank)


def align_regions(source: Source, build: GraphBuilder) -> None:
    """RoiAlign: the regions in elements of the data, and samples in their bins."""
    data, rois, batches = (source.input(position) for position in range(3))
    mode, points = source.text("mode", "avg"), source.integer("sampling_ratio", 0)
    shift = source.text("coordinate_transformation_mode", "half_pixel")
    if source.opset < 16:
        shift = "output_half_pixel"
    if mode not in ("avg", "max") or shift not in ("half_pixel", "output_half_pixel"):
        raise source.invalid(f"mode {mode!r} or coordinate_transformation_mode {shift!r} is unknown")
    regions = _regions(source, build, rois, shift == "half_pixel")
    output = source.output.shape[2:]
    if points < 1 and mode == "max":
        weights = [
            _weights(source, build, "RegionExtremes", regions, {"combiner": combiner})
            for combiner in ("max", "min")
        ]
        pairs = [name for both in zip(*weights, strict=True) for name in both]
        source.emit(build, "RegionMaxima", [data.name, *pairs, batches.name])
        return
    if points < 1:
        means = _weights(source, build, "RegionWeights", regions, {})
        source.emit(build, "RegionSums", [data.name, *means, batches.name])
        return
    attributes: dict[str, Attribute] = {
        "output": output,
        "points": points,
        "combiner": "sum" if mode == "avg" else "max",
    }
    operands = [data.name, regions, batches.name]
    if mode == "max":
        source.emit(build, "RoiAlign", operands, attributes)
        return
    total = source.emit(build, "RoiAlign", operands, attributes, source.output.shape)
    source.emit(build, "Mul", [total, source.number_as(build, "share", 1.0 / points**2)])


def _weights(
    source: Source, build: GraphBuilder, op: str, regions: str, settings: dict[str, Attribute]
) -> list[str]:
    """What rows, and columns, of the data are in the bins of regions: each [regions, bins, extent]."""
    rois, weights = build.values[regions], []
    for dimension, bins in enumerate(source.output.shape[2:]):
        extent = source.input(0).shape[2 + dimension]
        own: dict[str, Attribute] = {"extent": extent, "bins": bins, "dimension": dimension, **settings}
        shape = (rois.shape[0], bins, extent)
        weights.append(source.emit(build, op, [regions], own, shape, rois.dtype))
    return weights


def pool_regions(source: Source, build: GraphBuilder) -> None:
    """MaxRoiPool: the largest elements in the bins of regions [r, 5], which name their images first."""
    rois = source.input(1)
    settings: dict[str, Attribute] = {"scale": source.number("spatial_scale", 1.0)}
    rows, columns = _weights(source, build, "RegionBins", rois.name, settings)
    nodes = Emitter(source, build)
    batches = nodes.shaped(nodes.part(rois.name, 1, 0, 1), rois.shape[:1])
    source.emit(build, "RegionMaxima", [source.input(0).name, rows, rows, columns, columns, batches])


def _regions(source: Source, build: GraphBuilder, rois: Operand, half_pixel: bool) -> str:
    """Left, top, width and height of each region in elements [regions, 4]."""
    count = rois.shape[0]
    scale, offset, least = (
        build.constant(f"{source.output.name}/{stem}", np.asarray(number, computed_in(rois.dtype)))
        for stem, number in (("scale", source.number("spatial_scale", 1.0)), ("half", 0.5), ("least", 1.0))
    )

    def emit(op: str, inputs: list[str], shape: tuple[int, ...]) -> str:
        return source.emit(build, op, inputs, shape=shape, dtype=rois.dtype)

    corners = emit("Mul", [rois.name, scale], rois.shape)
    if half_pixel:
        corners = emit("Sub", [corners, offset], rois.shape)
    parts = [Emitter(source, build).part(corners, 1, first, first + 2) for first in (0, 2)]
    size = emit("Sub", [parts[1], parts[0]], (count, 2))
    if not half_pixel:
        size = emit("Max", [size, least], (count, 2))
    return source.emit(build, "Concat", [parts[0], size], {"axis": 1}, (count, 4), rois.dtype)


_WINDOW = frozenset({"kernel_shape", "strides", "pads", "dilations", "group", "offset_group"})
_REGIONS = frozenset(
    (
        "coordinate_transformation_mode",
        "mode",
        "output_height",
        "output_width",
        "sampling_ratio",
        "spatial_scale",
    )
)

IMPORTERS: dict[str, Importer] = {
    "GridSample": Importer(
        sample_grid, frozenset({"align_corners", "mode", "padding_mode"}), shape=sampled_shape
    ),
    "DeformConv": Importer(deformed_conv, _WINDOW),
    "MaxRoiPool": Importer(pool_regions, frozenset({"pooled_shape", "spatial_scale"})),
    "RoiAlign": Importer(align_regions, _REGIONS, FLOATS | INTEGERS),
}
