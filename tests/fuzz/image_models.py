"""Drawers of operators that read images between their elements or name places in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

if TYPE_CHECKING:
    from tests.fuzz.operator_models import Draft


def places_of_pooling(draft: Draft, data: Any) -> None:
    """Also the places of the largest elements, of which there are several in a window."""
    draft.outputs, draft.more_dtypes = 2, (onnx.TensorProto.INT64,)
    draft.attributes["storage_order"] = int(draft.pick(0, 1))
    draft.input(np.sign(data) * np.float32(3) + np.round(np.clip(data, -2, 2)))


def unpooling(draft: Draft) -> None:
    """Each element has a place in its own window, and windows may overlap."""
    rank = draft.pick(1, 2, 2, 3)
    image = [int(draft.pick(1, 2, 4)) for _ in range(rank)]
    kernel, strides = ([int(draft.pick(1, 2, 3)) for _ in range(rank)] for _ in "ks")
    pads = [int(draft.pick(0, 0, extent - 1)) // 2 for extent in kernel]
    whole = [
        (extent - 1) * s + k - 2 * pad for extent, s, k, pad in zip(image, strides, kernel, pads, strict=True)
    ]
    if min(whole) < 1:
        pads, whole = [0] * rank, [(e - 1) * s + k for e, s, k in zip(image, strides, kernel, strict=True)]
    shape = (2, int(draft.pick(1, 3)), *image)
    axes = []
    for d in range(rank):
        start = (np.arange(image[d]) * strides[d] - pads[d]).reshape(
            [-1 if e == d else 1 for e in range(rank)]
        )
        axes.append(np.clip(start + draft.rng.integers(0, kernel[d], shape), 0, whole[d] - 1))
    plane = np.arange(shape[0] * shape[1]).reshape(shape[:2] + (1,) * rank) + np.zeros(shape, np.int64)
    places = np.ravel_multi_index((plane, *axes), (shape[0] * shape[1], *whole))
    draft.input(draft.data(shape, 3e38))
    (draft.input if draft.chance() else draft.weight)(places)
    draft.attributes = {"kernel_shape": kernel, "strides": strides, "pads": [*pads, *pads]}
    if draft.chance(0.3):
        draft.weight(np.asarray([*shape[:2], *(e + int(draft.pick(0, 1)) for e in whole)], np.int64))


def sampling(draft: Draft) -> None:
    rank = draft.pick(1, 2, 2, 3) if draft.opset >= 20 else 2
    image, output = ([int(draft.pick(1, 2, 3, 7)) for _ in range(rank)] for _ in "io")
    batch = int(draft.pick(1, 2))
    linear, cubic = ("linear", "cubic") if draft.opset >= 20 else ("bilinear", "bicubic")
    draft.attributes = {
        "mode": draft.pick("nearest", linear, cubic),
        "padding_mode": draft.pick("zeros", "border", "reflection"),
        "align_corners": int(draft.pick(0, 1)),
    }
    draft.input(draft.data((batch, int(draft.pick(1, 3)), *image), 1e30))
    reach = draft.pick(1.0, 1.5, 5.0)
    draft.input(draft.rng.uniform(-reach, reach, (batch, *output, rank)).astype(np.float32))


def deformed(draft: Draft) -> None:
    choices = ((1, 2, 3), (1, 2), (1, 2), (0, 1))
    kernel, strides, dilations, pads = ([int(draft.pick(*own)) for _ in "yx"] for own in choices)
    image = [int(draft.pick(5, 6, 8)) for _ in "yx"]
    output = [
        (e + 2 * p - (k - 1) * d - 1) // s + 1
        for e, p, k, d, s in zip(image, pads, kernel, dilations, strides, strict=True)
    ]
    group, parts, batch = (int(draft.pick(1, 2)) for _ in range(3))
    taps, channels, outer = kernel[0] * kernel[1], 2 * group * parts, 3 * group
    draft.attributes = {"kernel_shape": kernel, "strides": strides, "dilations": dilations}
    draft.attributes |= {"pads": [*pads, *pads], "group": group, "offset_group": parts}
    draft.input(draft.data((batch, channels, *image), 1e15))
    draft.weight(draft.data((outer, channels // group, *kernel), 1e15))
    draft.input(draft.rng.uniform(-2.5, 2.5, (batch, parts * taps * 2, *output)).astype(np.float32))
    if draft.chance():
        draft.weight(draft.data((outer,), 0))
    else:
        draft.absent()
    if draft.chance():
        draft.input(draft.rng.uniform(0, 1, (batch, parts * taps, *output)).astype(np.float32))


def regions(draft: Draft) -> None:
    """Of RoiAlign: some reach beyond the image, and some are very small."""
    image = [int(draft.pick(1, 4, 9)) for _ in "yx"]
    batch, count = 2, int(draft.pick(1, 4))
    draft.attributes = {
        "mode": draft.pick("avg", "max"),
        "output_height": int(draft.pick(1, 2, 3)),
        "output_width": int(draft.pick(1, 3)),
        "sampling_ratio": int(draft.pick(0, 0, 1, 2, 3)),
        "spatial_scale": float(draft.pick(1.0, 0.5, 0.125)),
    }
    if draft.opset >= 16:
        draft.attributes["coordinate_transformation_mode"] = draft.pick("half_pixel", "output_half_pixel")
    draft.input(draft.data((batch, int(draft.pick(1, 3)), *image), 1e30))
    corners = draft.rng.uniform(-2, 12, (count, 2, 2)) / draft.attributes["spatial_scale"]
    draft.input(np.sort(corners, axis=1).reshape(count, 4).astype(np.float32))
    (draft.input if draft.chance() else draft.weight)(draft.rng.integers(0, batch, count))


def pooled_regions(draft: Draft) -> None:
    """Of MaxRoiPool: as `regions`, with their images in front of their corners."""
    batch, count = 2, int(draft.pick(1, 4))
    scale = float(draft.pick(1.0, 0.5, 0.125))
    draft.attributes = {
        "pooled_shape": [int(draft.pick(1, 2, 3)), int(draft.pick(1, 3))],
        "spatial_scale": scale,
    }
    draft.input(draft.data((batch, int(draft.pick(1, 3)), *(int(draft.pick(1, 4, 9)) for _ in "yx")), 1e30))
    corners = np.sort(draft.rng.uniform(-2, 12, (count, 2, 2)), axis=1).reshape(count, 4) / scale
    draft.input(np.c_[draft.rng.integers(0, batch, count), corners].astype(np.float32))
