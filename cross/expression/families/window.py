"""The sliding window that convolutions and poolings share."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cross.errors import ExpressionError


class Window(msgspec.Struct, frozen=True):
    """Strides, padding and dilation over the image dimensions; the kernel's size comes from the operator.

    `strides` and `dilations` have one entry per image dimension (two unless said otherwise), `pads` has those
    before every dimension, then those behind: (top, left, bottom, right), as in ONNX; negative padding is
    refused.
    """

    strides: tuple[int, ...] = (1, 1)
    pads: tuple[int, ...] = (0, 0, 0, 0)
    dilations: tuple[int, ...] = (1, 1)

    def __post_init__(self) -> None:
        if min(self.pads) < 0 or min(self.strides) < 1 or min(self.dilations) < 1:
            raise ExpressionError(
                f"window: expected pads >= 0, strides >= 1 and dilations >= 1, found pads {self.pads}, "
                f"strides {self.strides}, dilations {self.dilations}"
            )
        rank = len(self.strides)
        if len(self.dilations) != rank or len(self.pads) != 2 * rank:
            raise ExpressionError(
                f"window: expected one stride, one dilation and two pads per image dimension, found strides "
                f"{self.strides}, dilations {self.dilations}, pads {self.pads}"
            )

    @property
    def rank(self) -> int:
        """How many image dimensions it slides over."""
        return len(self.strides)

    @property
    def before(self) -> tuple[int, ...]:
        """Padding in front of each dimension: (top, left)."""
        return self.pads[: self.rank]

    @property
    def after(self) -> tuple[int, ...]:
        """Padding behind each dimension: (bottom, right)."""
        return self.pads[self.rank :]

    def output(self, image: Sequence[int], kernel: Sequence[int]) -> tuple[int, ...]:
        """Output extents for an unpadded image, for example (height, width).

        Raises:
            ExpressionError: the window is larger than the padded image, or of another rank.
        """
        if not len(image) == len(kernel) == self.rank:
            raise ExpressionError(
                f"window: expected an image and a kernel of {self.rank} dimensions, found {tuple(image)} and "
                f"{tuple(kernel)}"
            )
        extents = tuple(
            (image[i] + self.before[i] + self.after[i] - (kernel[i] - 1) * self.dilations[i] - 1)
            // self.strides[i]
            + 1
            for i in range(self.rank)
        )
        if min(extents) < 1:
            raise ExpressionError(
                f"window: kernel {tuple(kernel)} with dilations {self.dilations} does not fit into the image "
                f"{tuple(image)} with "
                f"pads {self.pads}"
            )
        return extents
