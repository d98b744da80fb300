"""Convolutions of volumes [n, depth, rows, columns, c] that are ones of images.

A kernel of 1 along the depth sees every slice for itself, as if it were an image of the batch; one of 1 along
rows and columns sees all pixels of a slice alike. The channels lie together in memory, so joining the
dimensions moves nothing. R(2+1)D (Tran et al., 2018) consists of such kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from toolkit.model.graph import Array, Attribute, Node
from toolkit.model.shapes import merged_shape

DEPTH, ROWS, COLUMNS = range(3)  # the dimensions of a kernel


class AsImages(msgspec.Struct, frozen=True):
    """Which dimensions of a volume are joined: those of each dimension of the image, and of the kernel that
    one which is 1 and goes."""

    joined: tuple[tuple[int, ...], ...]
    gone: int

    def shape(self, volume: Sequence[int]) -> tuple[int, ...]:
        """The shape [n, rows, columns, c] of a volume."""
        return merged_shape(volume, self.joined)

    def attributes(self, node: Node) -> dict[str, Attribute]:
        """Those of the convolution, of the dimensions that are kept; pads before all, then behind all."""
        kept = [dimension for dimension in (DEPTH, ROWS, COLUMNS) if dimension != self.gone]
        behind = [3 + dimension for dimension in kept]
        found: dict[str, Attribute] = dict(node.attributes)
        for name in ("kernel", "strides", "dilations", "pads"):
            given = node.integers(name)
            found[name] = tuple(given[place] for place in (*kept, *(behind if name == "pads" else ())))
        return found

    def weight(self, volume: Array) -> Array:
        """The weights [g, kernel..., ci, co], [kernel..., ci, co] or depthwise [kernel..., c] of an image."""
        grouped = volume.ndim == 6
        return volume.squeeze(self.gone + grouped)


_SLICES: Final = AsImages(((0, 1), (2,), (3,), (4,)), DEPTH)
_PIXELS: Final = AsImages(((0,), (1,), (2, 3), (4,)), COLUMNS)


def as_images(node: Node) -> AsImages | None:
    """How a convolution of volumes is one of images; None where its window goes along too many dimensions."""
    if _sees_alike(node, DEPTH):
        return _SLICES
    return _PIXELS if _sees_alike(node, ROWS) and _sees_alike(node, COLUMNS) else None


def _sees_alike(node: Node, dimension: int) -> bool:
    """Whether the window sees one element at a time along a dimension, and each of them once."""
    pads = node.integers("pads")
    once = node.integers("kernel")[dimension] == node.integers("strides")[dimension] == 1
    return once and pads[dimension] == pads[3 + dimension] == 0
