"""The layers of the networks in ETO's Table 2, in running order, derived from their published definitions.

Each function walks a network as it was published and lists the layers that the paper tunes: convolutions of
CNNs, matrix products of transformers (harness/operators.py).
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.harness.operators import Convolution, Form, Layer, Product
from benchmarks.networks.images import R2PLUS1D_BLOCKS

RESNET_STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))  # (blocks, width)
MOBILENET_BLOCKS = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)
)  # fmt: skip
"""(expansion, channels, repeats, stride), Table 2 of the MobileNetV2 paper."""


def resnet50(batch: int = 1) -> list[Layer]:
    """ResNet-50 as first published (He et al., 2016, Table 1): the first 1x1 of a block has the stride."""
    found = [_square(224, 3, 64, 7, 2)]
    size, channels = 56, 64
    for stage, (blocks, width) in enumerate(RESNET_STAGES):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            after = size // stride
            found += [
                _square(size, channels, width, 1, stride),
                _square(after, width, width, 3),
                _square(after, width, 4 * width, 1),
            ]
            if not block:
                found.append(_square(size, channels, 4 * width, 1, stride))
            size, channels = after, 4 * width
    return [replace(layer, batch=batch) for layer in found]


def mobilenet_v2() -> list[Layer]:
    """MobileNetV2 at width 1 (Sandler et al., 2018); the classifier is a convolution of one pixel."""
    found: list[Layer] = [_square(224, 3, 32, 3, 2)]
    size, channels = 112, 32
    for expansion, outputs, repeats, first_stride in MOBILENET_BLOCKS:
        for repeat in range(repeats):
            stride = 1 if repeat else first_stride
            hidden = expansion * channels
            if expansion > 1:
                found.append(_square(size, channels, hidden, 1))
            found.append(_square(size, hidden, hidden, 3, stride, form="depthwise"))
            size //= stride
            found.append(_square(size, hidden, outputs, 1))
            channels = outputs
    return [*found, _square(size, channels, 1280, 1), _square(1, 1280, 1000, 1)]


def resnest50() -> list[Layer]:
    """ResNeSt-50 2s1x64d (Zhang et al., 2020): deep stem, radix 2, pooling for strides.

    A split-attention block is a 3x3 convolution in two groups to twice the width, and two 1x1 convolutions
    of one pixel that weigh the halves.
    """
    found: list[Layer] = [_square(224, 3, 32, 3, 2), _square(112, 32, 32, 3), _square(112, 32, 64, 3)]
    size, channels = 56, 64
    for stage, (blocks, width) in enumerate(RESNET_STAGES):
        for block in range(blocks):
            after = size // 2 if stage and not block else size
            between = max(2 * width // 4, 32)
            found += [
                _square(size, channels, width, 1),
                _square(size, width, 2 * width, 3, form="grouped"),
                _square(1, width, between, 1),
                _square(1, between, 2 * width, 1),
                _square(after, width, 4 * width, 1),
            ]
            if not block:
                found.append(_square(after, channels, 4 * width, 1))
            size, channels = after, 4 * width
    return found


def inception_resnet_1d() -> list[Layer]:
    """Inception-ResNet-V2 (Szegedy et al., 2017, with the widths of its published code) in one dimension.

    A signal of 299 elements, the side of the published image (the paper names no length); the pairs of
    1x7 and 7x1 kernels keep their one long side each.
    """
    stem = _signal((299, 3, 32, 3, 2, 0), (149, 32, 32, 3, 1, 0), (147, 32, 64, 3), (73, 64, 80, 1))
    stem += _signal((73, 80, 192, 3, 1, 0))
    mixed_5b = _signal((35, 192, 96, 1), (35, 192, 48, 1), (35, 48, 64, 5), (35, 192, 64, 1))
    mixed_5b += _signal((35, 64, 96, 3), (35, 96, 96, 3), (35, 192, 64, 1))
    block35 = _signal((35, 320, 32, 1), (35, 320, 32, 1), (35, 32, 32, 3), (35, 320, 32, 1))
    block35 += _signal((35, 32, 48, 3), (35, 48, 64, 3), (35, 128, 320, 1))
    mixed_6a = _signal((35, 320, 384, 3, 2, 0), (35, 320, 256, 1), (35, 256, 256, 3))
    mixed_6a += _signal((35, 256, 384, 3, 2, 0))
    block17 = _signal((17, 1088, 192, 1), (17, 1088, 128, 1), (17, 128, 160, 7), (17, 160, 192, 7))
    block17 += _signal((17, 384, 1088, 1))
    mixed_7a = _signal((17, 1088, 256, 1), (17, 256, 384, 3, 2, 0), (17, 1088, 256, 1))
    mixed_7a += _signal((17, 256, 288, 3, 2, 0), (17, 1088, 256, 1), (17, 256, 288, 3))
    mixed_7a += _signal((17, 288, 320, 3, 2, 0))
    block8 = _signal((8, 2080, 192, 1), (8, 2080, 192, 1), (8, 192, 224, 3), (8, 224, 256, 3))
    block8 += _signal((8, 448, 2080, 1))
    last = _signal((8, 2080, 1536, 1))
    return [*stem, *mixed_5b, *block35 * 10, *mixed_6a, *block17 * 20, *mixed_7a, *block8 * 10, *last]


def r2plus1d_18() -> list[Layer]:
    """R(2+1)D-18 (Tran et al., 2018) for 16 frames of 112x112: every 3-D kernel is a 2-D and a 1-D one."""
    found = [_video((16, 112, 112), 3, 45, (1, 7, 7), (1, 2, 2)), _video((16, 56, 56), 45, 64, (3, 1, 1))]
    video = (16, 56, 56)
    for inputs, outputs, stride, middle in R2PLUS1D_BLOCKS:
        flat = (video[0], video[1] // stride, video[2] // stride)
        after = (video[0] // stride, *flat[1:])
        found += [
            _video(video, inputs, middle, (1, 3, 3), (1, stride, stride)),
            _video(flat, middle, outputs, (3, 1, 1), (stride, 1, 1)),
            _video(after, outputs, middle, (1, 3, 3)),
            _video(after, middle, outputs, (3, 1, 1)),
        ]
        if stride > 1:
            found.append(_video(video, inputs, outputs, (1, 1, 1), (2, 2, 2)))
        video = after
    return found


def dcgan() -> list[Layer]:
    """The generator of DCGAN (Radford et al., 2016) as its common code has it: 100 numbers to 3x64x64."""
    first = Convolution("transposed", (1, 1), 100, 512, (4, 4), (1, 1), (0, 0))
    widths = (512, 256, 128, 64, 3)
    return [
        first,
        *(
            Convolution("transposed", (4 << i, 4 << i), widths[i], widths[i + 1], (4, 4), (2, 2), (1, 1))
            for i in range(4)
        ),
    ]


def bert(*, large: bool = False, batch: int = 1, tokens: int = 128) -> list[Layer]:
    """BERT-Base (12 layers, 768 wide, 12 heads) or Large (24, 1024, 16) (Devlin et al., 2019).

    A layer: query, key, value and output projections, scores and context of every head, and two products
    of the feed-forward part, four times as wide. Projections see the tokens of the whole batch as rows.
    """
    layers, width, heads = (24, 1024, 16) if large else (12, 768, 12)
    rows, head = batch * tokens, width // heads
    layer: list[Layer] = [
        *[Product(1, rows, width, width)] * 4,
        Product(1, rows, 4 * width, width),
        Product(1, rows, width, 4 * width),
        Product(batch * heads, tokens, tokens, head),
        Product(batch * heads, tokens, head, tokens),
    ]
    return layer * layers


def _square(
    size: int, inputs: int, outputs: int, kernel: int, stride: int = 1, form: Form = "conv2d"
) -> Convolution:
    """A 2-D convolution that keeps the size, but for its stride; a grouped one has two groups."""
    pads = (kernel // 2,) * 2
    groups = 2 if form == "grouped" else 1
    return Convolution(form, (size,) * 2, inputs, outputs, (kernel,) * 2, (stride,) * 2, pads, groups=groups)


def _signal(*layers: tuple[int, ...]) -> list[Layer]:
    """1-D convolutions from (size, inputs, outputs, kernel[, stride, padding])."""
    found: list[Layer] = []
    for size, inputs, outputs, kernel, *more in layers:
        stride, pad = more or (1, kernel // 2)
        found.append(Convolution("conv1d", (size,), inputs, outputs, (kernel,), (stride,), (pad,)))
    return found


def _video(
    image: tuple[int, int, int],
    inputs: int,
    outputs: int,
    kernel: tuple[int, int, int],
    strides: tuple[int, int, int] = (1, 1, 1),
) -> Layer:
    pads = tuple(extent // 2 for extent in kernel)
    return Convolution("conv3d", image, inputs, outputs, kernel, strides, pads)
