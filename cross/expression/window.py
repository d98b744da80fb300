"""The sliding window that convolutions and poolings share."""

from __future__ import annotations

from dataclasses import dataclass

from cross.errors import ExpressionError

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Window:
    """Strides, padding and dilation over (height, width); the kernel's size comes from the operator.

    `pads` is (top, left, bottom, right), as in ONNX; negative padding is refused.
    """

    strides: Pair = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: Pair = (1, 1)

    def __post_init__(self) -> None:
        if min(self.pads) < 0 or min(self.strides) < 1 or min(self.dilations) < 1:
            raise ExpressionError(
                f"window: expected pads >= 0, strides >= 1 and dilations >= 1, found pads {self.pads}, "
                f"strides {self.strides}, dilations {self.dilations}"
            )

    @property
    def before(self) -> Pair:
        """Padding in front: (top, left)."""
        return self.pads[0], self.pads[1]

    @property
    def after(self) -> Pair:
        """Padding behind: (bottom, right)."""
        return self.pads[2], self.pads[3]

    def output(self, image: Pair, kernel: Pair) -> Pair:
        """Output (height, width) for an unpadded image of (height, width).

        Raises:
            ExpressionError: the window is larger than the padded image.
        """
        extents = tuple(
            (image[i] + self.before[i] + self.after[i] - (kernel[i] - 1) * self.dilations[i] - 1)
            // self.strides[i]
            + 1
            for i in range(2)
        )
        if min(extents) < 1:
            raise ExpressionError(
                f"window: kernel {kernel} with dilations {self.dilations} does not fit into the image "
                f"{image} with "
                f"pads {self.pads}"
            )
        return extents[0], extents[1]
