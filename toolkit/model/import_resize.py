"""Importers of what repeats or resamples elements: Expand, Tile, Resize, Upsample, DepthToSpace and back.

Repeating is a broadcast between two reshapes. Any other resampling is linear and separable, whatever its mode
and coordinates: one matrix per dimension, which ONNX's reference evaluator gives when it resizes the unit
matrix. Few of its elements are not 0, but for large reductions with antialiasing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from msgspec.structs import replace

from toolkit.model.constants import run_node
from toolkit.model.graph import Array, Attribute, GraphBuilder, computed_in
from toolkit.model.import_arithmetic import cast_to
from toolkit.model.source import FLOATS, NUMBERS, VALUES, Emitter, Importer, Operand, Source
from toolkit.model.weight_layout import channels_last

MOST_TAPS = 16  # elements that are read for a new one in one pass: those of a cubic one of an image
MATRIX_ELEMENTS = 1 << 24  # of a resampling matrix; more would be no sensible way to resize


def expand(source: Source, build: GraphBuilder) -> None:
    """Expand: numpy's broadcast to the output's shape."""
    data, shape = source.input(0), source.output.shape
    if data.shape == shape:
        source.emit(build, "Identity", [data.name])
        return
    name, full = data.name, (1,) * (len(shape) - data.rank) + data.shape
    if full != data.shape:
        name = source.emit(build, "Reshape", [name], shape=full)
    source.emit(build, "Expand", [name], {"shape": shape})


def tile(source: Source, build: GraphBuilder) -> None:
    """Tile: every dimension as often as its repeats say."""
    data = source.input(0)
    repeats = source.known_integers(1, "repeats") or ()
    _repeat(source, build, data, repeats, blocks=True)


def _repeat(source: Source, build: GraphBuilder, data: Operand, repeats: Sequence[int], blocks: bool) -> None:
    """Repeat whole dimensions (abab, `blocks`) or each element (aabb); images with channels last."""
    if all(count == 1 for count in repeats):
        source.emit(build, "Identity", [data.name])
        return
    order, back = _image_order(data.rank)
    before: list[int] = []
    after: list[int] = []
    for axis in order:
        extent, count = data.shape[axis], repeats[axis]
        pair, wide = ((1, extent), (count, extent)) if blocks else ((extent, 1), (extent, count))
        before += pair if count != 1 else (extent,)
        after += wide if count != 1 else (extent,)
    nodes = Emitter(source, build)
    name = nodes.shaped(nodes.transposed(data.name, order), before)
    name = nodes.emit("Expand", [name], after, {"shape": tuple(after)})
    name = nodes.shaped(name, [source.output.shape[axis] for axis in order])
    source.emit(build, "Transpose", [name], {"perm": back})


def _image_order(rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The order that puts channels last, and the one that brings them back."""
    order = channels_last(rank) if rank > 2 else tuple(range(rank))
    return order, tuple(order.index(axis) for axis in range(rank))


def resize(source: Source, build: GraphBuilder) -> None:
    """Resize and Upsample with known sizes: repeated elements, or a matrix product per dimension."""
    data, shape = source.input(0), source.output.shape
    for position, operand in enumerate(source.inputs[1:], start=1):
        source.known(position, "region, scales or sizes" if operand is not None else "")
    matrices: dict[int, Array] = {}
    outside: dict[int, Array] = {}
    repeats = [1] * data.rank
    for axis in _named_axes(source):
        if data.shape[axis] * shape[axis] > MATRIX_ELEMENTS:
            raise source.refuse(
                f"resizing {data.shape[axis]} to {shape[axis]} elements takes too large a matrix"
            )
        matrix, beyond = _matrix(source, axis)
        count = max(1, shape[axis] // data.shape[axis])
        if beyond.any():
            outside[axis] = beyond
        if np.array_equal(matrix, _repeated(data.shape[axis], count)):
            repeats[axis] = count
        else:
            matrices[axis] = matrix
    if not matrices:
        _repeat(source, build, data, repeats, blocks=False)
        return
    matrices |= {axis: _repeated(data.shape[axis], count) for axis, count in enumerate(repeats) if count > 1}
    added = _extrapolated(source, outside)
    exact = not outside and all(set(np.unique(matrix)) <= {0.0, 1.0} for matrix in matrices.values())
    if data.dtype in FLOATS or exact:
        _resample(source, build, data, matrices, added)
        return
    if data.dtype not in ("int8", "uint8") or source.text("mode", "nearest") != "nearest":
        raise source.refuse(f"it computes new elements of {data.dtype}")
    floats = replace(data, name=cast_to(source, build, data, "float32"), dtype="float32")  # holds all bytes
    result = replace(source.output, name=build.fresh(f"{source.output.name}/floats"), dtype="float32")
    _resample(replace(source, inputs=(floats,), outputs=(result,)), build, floats, matrices, added)
    source.emit(build, "Cast", [result.name], {"to": data.dtype})


def _extrapolated(source: Source, outside: Mapping[int, Array]) -> Array | None:
    """What to add where an output element lies outside of the data along some axis; None where none does."""
    value = source.number("extrapolation_value", 0.0)
    if not outside or value == 0.0:
        return None
    rank = source.input(0).rank
    beyond = np.zeros((1,) * rank, bool)
    for axis, places in outside.items():
        beyond = beyond | places.reshape(-1, *(1,) * (rank - axis - 1))
    return np.where(beyond, value, 0.0).astype(computed_in(source.output.dtype))


def _repeated(extent: int, count: int) -> Array:
    """The matrix that repeats each element."""
    return np.eye(extent).repeat(count, axis=0)


def _resample(
    source: Source, build: GraphBuilder, data: Operand, matrices: dict[int, Array], added: Array | None
) -> None:
    """Few elements along some axes in one pass, then many along the others; and add."""
    nodes, name = Emitter(source, build), data.name
    taps = {axis: found for axis, matrix in matrices.items() if (found := _taps(matrix)) is not None}
    together: list[int] = []
    for axis in taps:
        if math.prod(taps[item][0].shape[1] for item in (*together, axis)) > MOST_TAPS:
            name, together = _resampled(nodes, name, {item: taps[item] for item in together}), []
        together.append(axis)
    name = _resampled(nodes, name, {item: taps[item] for item in together})
    dense = {axis: matrix for axis, matrix in matrices.items() if axis not in taps}
    name = _multiplied(nodes, name, dense)
    whole = None if added is None else source.output.shape
    name = source.emit(build, "Identity", [name], shape=whole)
    if added is not None:
        source.emit(build, "Add", [name, build.constant(f"{source.output.name}/extrapolated", added)])


def _taps(matrix: Array) -> tuple[Array, Array] | None:
    """Places and weights [new extent, taps] of elements that are not 0; None where they are many."""
    count = max(1, int((matrix != 0.0).sum(axis=1).max()))
    if count > MOST_TAPS:
        return None
    order = np.argsort(matrix == 0.0, axis=1, kind="stable")[:, :count]
    weights = np.take_along_axis(matrix, order, 1)
    return np.where(weights != 0.0, order, order[:, :1]), weights


def _resampled(nodes: Emitter, name: str, taps: Mapping[int, tuple[Array, Array]]) -> str:
    """Sums of a few weighted elements along each of the axes."""
    if not taps:
        return name
    shape, dtype = list(nodes.shape(name)), nodes.build.values[name].dtype
    operands, weighted = [name], []
    for axis, (places, weights) in taps.items():
        shape[axis] = len(places)
        weighted.append(int((weights != 1.0).any()))
        operands.append(nodes.constant(f"places{axis}", places, "int32"))
        if weighted[-1]:
            operands.append(nodes.constant(f"weights{axis}", weights, computed_in(dtype)))
    attributes: dict[str, Attribute] = {"axes": tuple(taps), "weighted": tuple(weighted)}
    return nodes.emit("Resample", operands, shape, attributes, dtype)


def _multiplied(nodes: Emitter, name: str, matrices: Mapping[int, Array]) -> str:
    """A matrix product along each axis, on channels-last data seen as [outer, extent, inner]."""
    if not matrices:
        return name
    order, back = _image_order(len(nodes.shape(name)))
    name = nodes.transposed(name, order)
    shape, dtype = list(nodes.shape(name)), computed_in(nodes.build.values[name].dtype)
    for axis, matrix in matrices.items():
        place = order.index(axis)
        outer, inner = int(np.prod(shape[:place])), int(np.prod(shape[place + 1 :]))
        left = nodes.constant(f"resize{axis}", matrix, dtype)
        name = nodes.shaped(name, (outer, shape[place], inner))
        shape[place] = matrix.shape[0]
        name = nodes.shaped(nodes.emit("MatMul", [left, name], (outer, shape[place], inner)), shape)
    return nodes.transposed(name, back)


def _matrix(source: Source, axis: int) -> tuple[Array, Array]:
    """What the node does along one axis, found by resizing the unit matrix: the matrix [new extent, extent],
    and which new elements lie outside of the data (their rows are zero).

    Raises:
        ModelError: the evaluator refuses the node.
    """
    extent, wanted = source.input(0).shape[axis], source.output.shape[axis]
    scale = _scale(source, axis)
    keys = source.attributes.keys() - {"axes", "keep_aspect_ratio_policy", "scales"}
    attributes = {key: source.attributes[key] for key in keys} | {"extrapolation_value": 1.0}
    if source.op == "Upsample" or source.opset < 11:
        rounding = "floor" if scale is None or scale >= 1.0 else "ceil"
        attributes |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": rounding}
    inputs: dict[str, Array] = {
        "x": np.eye(extent + 1, extent, dtype=computed_in(source.output.dtype))
    }  # and a row of zeros
    if (region := _region(source, axis)) is not None:
        inputs["roi"] = np.asarray([0, region[0], 1, region[1]], np.float32)
    if scale is not None:
        inputs["scales"] = np.asarray([1.0, scale], np.float32)
    elif (policy := source.text("keep_aspect_ratio_policy", "stretch")) != "stretch":
        inputs |= _keeping_aspect_ratio(source, axis, inputs["x"], policy, region)
        attributes |= {"keep_aspect_ratio_policy": policy, "axes": [1, 2]}
    else:
        inputs["sizes"] = np.asarray([extent + 1, wanted], np.int64)
    try:
        resized = _evaluated(inputs, attributes, max(source.opset, 11))
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, KeyError) as error:
        raise source.refuse(f"resizing axis {axis} from {extent} to {wanted} fails: {error}") from error
    resized = resized[..., 0] if resized.ndim > 2 else resized
    if resized.shape != (extent + 1, wanted):
        raise source.refuse(f"resizing axis {axis} from {extent} gives {resized.shape[1]}, expected {wanted}")
    outside = resized[-1] != 0.0
    return (resized[:-1] - outside).T.astype(np.float64), outside


def _keeping_aspect_ratio(
    source: Source, axis: int, unit: Array, policy: str, region: Sequence[float] | None
) -> dict[str, Array]:
    """Inputs for a node whose axes all have the scale of one of them: that one stands third in the data.

    Raises:
        ModelError: the policy is unknown, or the data would be too large.
    """
    if policy not in ("not_larger", "not_smaller"):
        raise source.invalid(f"keep_aspect_ratio_policy {policy!r} is unknown")
    sizes = dict(zip(_named_axes(source), source.known_integers(3, "sizes") or (), strict=True))
    scales = [Fraction(size, source.input(0).shape[own]) for own, size in sizes.items()]
    scale = min(scales) if policy == "not_larger" else max(scales)
    if unit.size * scale.denominator > MATRIX_ELEMENTS:
        raise source.refuse(f"resizing axis {axis} by {scale} takes too large a matrix")
    inputs = {
        "x": unit[..., None].repeat(scale.denominator, axis=2),
        "sizes": np.asarray([sizes[axis], scale.numerator], np.int64),
    }
    if region is not None:
        inputs["roi"] = np.asarray([region[0], 0, region[1], 1], np.float32)
    return inputs


def _evaluated(inputs: Mapping[str, Array], attributes: Mapping[str, Any], opset: int) -> Array:
    """A Resize node with these inputs through ONNX's reference evaluator."""
    import onnx

    names = ["x", *(name if name in inputs else "" for name in ("roi", "scales", "sizes"))]
    while not names[-1]:
        names.pop()
    node = onnx.helper.make_node("Resize", names, ["y"], **attributes)
    return np.asarray(run_node(node, inputs, {"": opset})[0])


def _named_axes(source: Source) -> list[int]:
    """The axes that the node's numbers are for, in their order."""
    rank = source.input(0).rank
    return [item % rank for item in source.integers("axes", ()) or range(rank)]


def _region(source: Source, axis: int) -> tuple[float, float] | None:
    """The part of the axis that tf_crop_and_resize resizes: where it starts and ends."""
    if source.op == "Upsample" or source.opset < 11:
        return None
    region = source.known(1, "region")
    if region is None or not region.size:
        return None
    axes = _named_axes(source)
    flat, at = region.ravel(), axes.index(axis)
    return float(flat[at]), float(flat[len(axes) + at])


def _scale(source: Source, axis: int) -> float | None:
    """The factor that the node names for an axis; None where it names sizes."""
    if source.op == "Upsample" and source.opset < 9:
        scales: Array | None = np.asarray(source.attributes.get("scales", ()), np.float64)
    else:
        scales = source.known(1 if source.op == "Upsample" or source.opset < 11 else 2, "scales")
    if scales is None or not scales.size:
        return None
    return float(scales.ravel()[_named_axes(source).index(axis)])


def depth_to_space(source: Source, build: GraphBuilder) -> None:
    """DepthToSpace: channels become pixels; mode DCR takes the block first, CRD the channels."""
    n, c, h, w = source.input(0).shape
    size = source.integer("blocksize", 1)
    depth = c // (size * size)
    split, perm = (n, size, size, depth, h, w), (0, 3, 4, 1, 5, 2)
    if _block_mode(source) == "CRD":
        split, perm = (n, depth, size, size, h, w), (0, 1, 4, 2, 5, 3)
    _rearrange(source, build, split, perm)


def space_to_depth(source: Source, build: GraphBuilder) -> None:
    """SpaceToDepth: pixels become channels, the place in the block first (DCR) or the old channel (CRD)."""
    n, c, h, w = source.input(0).shape
    size = source.integer("blocksize", 1)
    perm = (0, 3, 5, 1, 2, 4) if _block_mode(source) == "DCR" else (0, 1, 3, 5, 2, 4)
    _rearrange(source, build, (n, c, h // size, size, w // size, size), perm)


def _block_mode(source: Source) -> str:
    mode = source.text("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        raise source.invalid(f"mode must be DCR or CRD, found {mode!r}")
    return mode


def _rearrange(source: Source, build: GraphBuilder, split: tuple[int, ...], perm: tuple[int, ...]) -> None:
    nodes = Emitter(source, build)
    name = nodes.transposed(nodes.shaped(source.input(0).name, split), perm)
    source.emit(build, "Reshape", [name])


_RESIZE = {
    *("antialias", "axes", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside"),
    *("extrapolation_value", "keep_aspect_ratio_policy", "mode", "nearest_mode"),
}

IMPORTERS: dict[str, Importer] = {
    "Expand": Importer(expand, dtypes=VALUES),
    "Tile": Importer(tile, dtypes=VALUES),
    "Resize": Importer(resize, _RESIZE, NUMBERS, folds=True),
    "Upsample": Importer(resize, {"mode", "scales"}, folds=True),
    "DepthToSpace": Importer(depth_to_space, {"blocksize", "mode"}, VALUES),
    "SpaceToDepth": Importer(space_to_depth, {"blocksize", "mode"}, VALUES),
}
