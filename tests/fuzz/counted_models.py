"""Drawers of operators whose outputs have a size that depends on data; none, some and all elements count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx

if TYPE_CHECKING:
    from tests.fuzz.operator_models import Draft


def places(draft: Draft) -> None:
    """Of NonZero."""
    shape = draft.shape(1, 4)
    kept = draft.rng.random(shape) < draft.pick(0.0, 0.3, 1.0)
    draft.input(np.where(kept, draft.data(shape), np.float32(0)))
    draft.output_dtype = onnx.TensorProto.INT64


def slices(draft: Draft) -> None:
    """Of Compress: with a condition that is too short, and along an axis or of all elements."""
    shape = draft.shape(1, 3)
    extent = int(np.prod(shape))
    if draft.chance(0.7):
        axis = int(draft.rng.integers(0 if draft.opset < 11 else -len(shape), len(shape)))
        draft.attributes["axis"], extent = axis, shape[axis]
    condition = draft.rng.random(max(1, extent - int(draft.pick(0, 0, 2)))) < draft.pick(0.0, 0.5, 1.0)
    draft.input(draft.data(shape))
    (draft.input if draft.chance(0.7) else draft.weight)(condition)


def kinds(draft: Draft) -> None:
    """Of Unique: few different elements; slices along an axis only in order."""
    shape = draft.shape(1, 3)
    draft.input(draft.rng.integers(-1, draft.pick(0, 2, 9), shape).astype(np.float32) * draft.pick(1, 1e30))
    draft.attributes["sorted"] = int(draft.pick(0, 1))
    if draft.chance(0.7):
        draft.attributes["axis"] = int(draft.rng.integers(-len(shape), len(shape)))
    draft.outputs, draft.more_dtypes = 4, (onnx.TensorProto.INT64,) * 3


def boxes(draft: Draft) -> None:
    """Of NonMaxSuppression: scores that are equal, corners in any order, thresholds known or not."""
    images, classes, count = (int(draft.pick(*choices)) for choices in ((1, 2), (1, 3), (1, 4, 9)))
    draft.input(draft.rng.uniform(0, 3, (images, count, 4)).astype(np.float32))
    draft.input(draft.rng.integers(0, 6, (images, classes, count)).astype(np.float32) / np.float32(7))
    draft.weight(np.asarray([draft.pick(1, 3, 20)], np.int64))
    (draft.weight if draft.chance() else draft.input)(np.asarray([draft.pick(0.0, 0.2, 0.6)], np.float32))
    if draft.chance(0.7):
        (draft.weight if draft.chance() else draft.input)(np.asarray([draft.pick(0.3, 0.99)], np.float32))
    if draft.chance():
        draft.attributes["center_point_box"] = int(draft.pick(0, 1))
    draft.output_dtype = onnx.TensorProto.INT64
