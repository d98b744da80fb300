"""Networks of images and videos: dcgan to yolo as published, weights seeded."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.networks.builder import Array, Network

R2PLUS1D_BLOCKS = tuple(
    (ci, co, co // ci, ci * co * 27 // (ci * 9 + co * 3))
    for ci, co in ((64, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256), (256, 512), (512, 512))
)
"""Of R(2+1)D-18, a block each: channels in and out, stride, and the width between 2-D and 1-D kernels, which
keeps the number of weights of the first 3-D kernel; both pairs of a block have it in the common code."""

SWIN_WINDOW, SWIN_SHIFT = 7, 3  # tokens: the side of a window, and by how much every second one is moved


def dcgan(net: Network, size: int = 64) -> str:
    """The generator of Radford et al., 2015; `size` is the number of channels before the image."""
    data = net.input(1, 100, 1, 1)
    for position, co in enumerate((8 * size, 4 * size, 2 * size, size, 3)):
        ci, stride = net.channels[data], 1 if position == 0 else 2
        taps = 1 if position == 0 else 4
        window = {"kernel_shape": [4, 4], "strides": [stride, stride], "pads": [min(position, 1)] * 4}
        data = net.add("ConvTranspose", [data, net.normal((ci, co, 4, 4), ci * taps)], co, **window)
        data = net.add("Tanh", [data]) if co == 3 else net.add("Relu", [net.batch_norm(data)])
    return data


def mobilenet_v1(net: Network, size: int = 224) -> str:
    """Howard et al., 2017; `size` is the image's."""
    image = net.input(1, 3, size, size)
    data = net.add("Relu", [net.conv_norm(image, 32, 3, 2)])
    blocks = (
        (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)
    )  # fmt: skip
    for co, stride in blocks:
        ci = net.channels[data]
        data = net.add("Relu", [net.conv_norm(data, ci, 3, stride, ci)])
        data = net.add("Relu", [net.conv_norm(data, co, 1)])
    return net.classifier(data, 1000)


def mobilenet_v2(net: Network, size: int = 224) -> str:
    """Sandler et al., 2018; `size` is the image's."""
    image = net.input(1, 3, size, size)
    data = net.relu6(net.conv_norm(image, 32, 3, 2))
    blocks = (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
        (6, 320, 1, 1),
    )  # fmt: skip
    for expand, co, repeats, first_stride in blocks:
        for position in net.blocks(repeats):
            stride = first_stride if position == 0 else 1
            ci, inner = net.channels[data], data
            wide = expand * ci
            if expand > 1:
                inner = net.relu6(net.conv_norm(inner, wide, 1))
            inner = net.relu6(net.conv_norm(inner, wide, 3, stride, wide))
            inner = net.batch_norm(net.conv(inner, co, 1), (0.1, 0.5) if ci == co else (0.5, 1.5))
            data = net.add("Add", [data, inner]) if stride == 1 and ci == co else inner
    data = net.relu6(net.conv_norm(data, 1280, 1))
    return net.classifier(data, 1000)


def mobilenet_v3(net: Network, size: int = 224) -> str:
    """The small one of Howard et al., 2019: squeeze and excitation, hard swish; `size` is the image's."""
    image = net.input(1, 3, size, size)
    data = net.add("HardSwish", [net.conv_norm(image, 16, 3, 2)])
    blocks = (
        # kernel, expanded, output, squeeze, hard swish, stride
        *((3, 16, 16, True, False, 2), (3, 72, 24, False, False, 2), (3, 88, 24, False, False, 1)),
        *((5, 96, 40, True, True, 2), (5, 240, 40, True, True, 1), (5, 120, 48, True, True, 1)),
        *((5, 288, 96, True, True, 2), (5, 576, 96, True, True, 1)),
    )
    for k, wide, co, squeezes, swishes, stride in blocks:
        ci, act = net.channels[data], "HardSwish" if swishes else "Relu"
        inner = net.add(act, [net.conv_norm(data, wide, 1)]) if wide != ci else data
        inner = net.add(act, [net.conv_norm(inner, wide, k, stride, wide)])
        if squeezes:
            mean = net.add("ReduceMean", [inner], axes=[2, 3], keepdims=1)
            gate = net.add("Relu", [net.conv(mean, max(8, wide // 4), 1, bias=True)])
            gate = net.add("HardSigmoid", [net.conv(gate, wide, 1, bias=True)], alpha=1 / 6, beta=0.5)
            inner = net.add("Mul", [inner, gate])
        inner = net.batch_norm(net.conv(inner, co, 1), (0.1, 0.5) if ci == co else (0.5, 1.5))
        data = net.add("Add", [data, inner]) if stride == 1 and ci == co else inner
    data = net.add("HardSwish", [net.conv_norm(data, 576, 1)])
    return net.classifier(data, 1000)


def efficientnet_b0(net: Network, size: int = 224) -> str:
    """Tan and Le, 2019: squeeze and excitation by a quarter of a block's input; `size` is the image's."""
    data = net.silu(net.conv_norm(net.input(1, 3, size, size), 32, 3, 2))
    blocks = (
        # expansion, kernel, output, repeats, stride
        *((1, 3, 16, 1, 1), (6, 3, 24, 2, 2), (6, 5, 40, 2, 2), (6, 3, 80, 3, 2), (6, 5, 112, 3, 1)),
        *((6, 5, 192, 4, 2), (6, 3, 320, 1, 1)),
    )
    for expand, k, co, repeats, first_stride in blocks:
        for block in net.blocks(repeats):
            stride = 1 if block else first_stride
            ci = net.channels[data]
            wide = expand * ci
            inner = net.silu(net.conv_norm(data, wide, 1)) if expand > 1 else data
            inner = net.silu(net.conv_norm(inner, wide, k, stride, wide))
            mean = net.add("GlobalAveragePool", [inner])
            gate = net.conv(net.silu(net.conv(mean, ci // 4, 1, bias=True)), wide, 1, bias=True)
            inner = net.add("Mul", [inner, net.add("Sigmoid", [gate])])
            inner = net.batch_norm(net.conv(inner, co, 1), (0.1, 0.5) if ci == co else (0.5, 1.5))
            data = net.add("Add", [data, inner]) if stride == 1 and ci == co else inner
    return net.classifier(net.silu(net.conv_norm(data, 1280, 1)), 1000)


def squeezenet(net: Network, size: int = 224) -> str:
    """Version 1.1 of Iandola et al., 2016; `size` is the image's."""
    window: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2]}
    data = net.add("Relu", [net.window(net.input(1, 3, size, size), 64, (3, 3), (2, 2))])
    for fires in (((16, 64), (16, 64)), ((32, 128), (32, 128)), ((48, 192), (48, 192), (64, 256), (64, 256))):
        data = net.add("MaxPool", [data], **window)
        for narrow, wide in fires:
            data = net.add("Relu", [net.conv(data, narrow, 1, bias=True)])
            parts = [net.add("Relu", [net.conv(data, wide, k, bias=True)]) for k in (1, 3)]
            data = net.add("Concat", parts, 2 * wide, axis=1)
    data = net.add("GlobalAveragePool", [net.add("Relu", [net.conv(data, 1000, 1, bias=True)])])
    return net.add("Softmax", [net.add("Flatten", [data], axis=1)], axis=1)


def resnet18(net: Network, size: int = 224) -> str:
    """He et al., 2016; `size` is the image's."""
    image = net.input(1, 3, size, size)
    data = net.add("Relu", [net.conv_norm(image, 64, 7, 2)])
    data = net.add("MaxPool", [data], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for co, first_stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for stride in (first_stride, 1):
            inner = net.add("Relu", [net.conv_norm(data, co, 3, stride)])
            inner = net.batch_norm(net.conv(inner, co, 3), (0.1, 0.5))
            if net.channels[data] != co:
                data = net.conv_norm(data, co, 1, stride)
            data = net.add("Relu", [net.add("Add", [inner, data])])
    return net.classifier(data, 1000)


def resnet50(net: Network, size: int = 224) -> str:
    """He et al., 2016, with the stride in the 3x3 convolution; `size` is the image's."""
    image = net.input(1, 3, size, size)
    data = net.add("Relu", [net.conv_norm(image, 64, 7, 2)])
    data = net.add("MaxPool", [data], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for co, blocks, first_stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in net.blocks(blocks):
            stride = 1 if block else first_stride
            inner = net.add("Relu", [net.conv_norm(data, co, 1)])
            inner = net.add("Relu", [net.conv_norm(inner, co, 3, stride)])
            inner = net.batch_norm(net.conv(inner, 4 * co, 1), (0.1, 0.5))
            if net.channels[data] != 4 * co:
                data = net.conv_norm(data, 4 * co, 1, stride)
            data = net.add("Relu", [net.add("Add", [inner, data])])
    return net.classifier(data, 1000)


def yolo(net: Network, size: int = 160) -> str:
    """Two scales of features, joined and split as in YOLOv8; `size` is the image's, a multiple of 32."""
    image = net.input(1, 3, size, size)

    def block(data: str, co: int, k: int, stride: int = 1) -> str:
        return net.silu(net.conv_norm(data, co, k, stride))

    def halves(data: str, co: int) -> str:
        """C2f: one half goes through a bottleneck, and everything is joined again."""
        sizes = net.constant([co // 2, co // 2], "int64")
        names = net.several("Split", [block(data, co, 1), sizes], 2, co // 2, axis=1)
        inner = net.add("Add", [block(block(names[1], co // 2, 3), co // 2, 3), names[1]])
        return block(net.add("Concat", [*names, inner], 3 * (co // 2), axis=1), co, 1)

    def pooled(data: str, co: int) -> str:
        """SPPF: three poolings, one on the other."""
        parts = [block(data, co // 2, 1)]
        window: dict[str, Any] = {"kernel_shape": [5, 5], "strides": [1, 1], "pads": [2] * 4}
        for _ in range(3):
            parts.append(net.add("MaxPool", parts[-1:], **window))
        return block(net.add("Concat", parts, 2 * co, axis=1), co, 1)

    def head(data: str, outputs: int) -> str:
        """Scores of every pixel as columns."""
        scores = net.conv(block(data, 32, 3), outputs, 1, bias=True)
        return net.reshape(scores, 1, outputs, -1)

    fine = halves(block(block(block(image, 16, 3, 2), 32, 3, 2), 64, 3, 2), 64)
    coarse = pooled(halves(block(block(fine, 96, 3, 2), 128, 3, 2), 128), 128)
    factors = net.constant([1.0, 1.0, 4.0, 4.0])
    nearest: dict[str, Any] = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    wide = net.add("Resize", [coarse, "", factors], mode="nearest", **nearest)
    joined = halves(net.add("Concat", [wide, fine], 128 + 64, axis=1), 64)
    scores = net.add("Concat", [head(joined, 24), head(coarse, 24)], axis=2)
    return net.add("Sigmoid", [scores])


def dqn(net: Network, size: int = 84) -> str:
    """The Q network of Mnih et al., 2015: four frames, 18 actions; `size` is the frames'."""
    data = net.input(1, 4, size, size)
    for co, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
        data = net.add("Relu", [net.window(data, co, (kernel, kernel), (stride, stride))])
        size = (size - kernel) // stride + 1
    data = net.add("Relu", [net.linear(net.add("Flatten", [data]), 64 * size * size, 512)])
    return net.linear(data, 512, 18)


def r2plus1d_18(net: Network, size: int = 112) -> str:
    """Tran et al., 2018, for 16 frames: every 3-D kernel is a 2-D and a 1-D one; `size` is the frames'."""

    def pair(data: str, co: int, middle: int, kernel: int, strides: tuple[int, int]) -> str:
        flat, deep = (1, kernel, kernel), (3, 1, 1)
        pads = (0, kernel // 2, kernel // 2)
        data = net.window(data, middle, flat, (1, strides[0], strides[0]), pads, bias=False)
        data = net.add("Relu", [net.batch_norm(data)])
        data = net.window(data, co, deep, (strides[1], 1, 1), (1, 0, 0), bias=False)
        return net.batch_norm(data)

    data = net.add("Relu", [pair(net.input(1, 3, 16, size, size), 64, 45, 7, (2, 1))])
    for _, co, stride, middle in R2PLUS1D_BLOCKS:
        inner = net.add("Relu", [pair(data, co, middle, 3, (stride, stride))])
        inner = pair(inner, co, middle, 3, (1, 1))
        if stride > 1:
            data = net.batch_norm(net.window(data, co, (1, 1, 1), (stride,) * 3, bias=False))
        data = net.add("Relu", [net.add("Add", [inner, data])])
    return net.classifier(data, 400)


def resnest50(net: Network, size: int = 224) -> str:
    """ResNeSt-50 2s1x64d (Zhang et al., 2020): split attention over two halves; `size` is the image's."""
    half: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}

    def act(data: str, co: int, k: int, stride: int = 1, group: int = 1) -> str:
        return net.add("Relu", [net.conv_norm(data, co, k, stride, group)])

    def attention(data: str, co: int) -> str:
        """The sum of two halves of the channels, each weighed by what their mean over the image says."""
        data = act(data, 2 * co, 3, 1, 2)
        parts = net.several("Split", [data, net.constant([co, co], "int64")], 2, co, axis=1)
        mean = net.add("GlobalAveragePool", [net.add("Add", parts)])
        gate = net.conv(act(mean, max(co // 2, 32), 1), 2 * co, 1, bias=True)
        gate = net.add("Softmax", [net.reshape(gate, 1, 2, co)], axis=1)
        gate = net.reshape(gate, 1, 2 * co, 1, 1)
        gates = net.several("Split", [gate, net.constant([co, co], "int64")], 2, co, axis=1)
        return net.add("Add", [net.add("Mul", list(pair)) for pair in zip(parts, gates, strict=True)])

    data = act(act(act(net.input(1, 3, size, size), 32, 3, 2), 32, 3), 64, 3)
    data = net.add("MaxPool", [data], **half)
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        for block in net.blocks(blocks):
            inner = attention(act(data, width, 1), width)
            if not block:
                if stage:
                    inner = net.add("AveragePool", [inner], **half, count_include_pad=1)
                    data = net.add("AveragePool", [data], kernel_shape=[2, 2], strides=[2, 2])
                data = net.conv_norm(data, 4 * width, 1)
            inner = net.batch_norm(net.conv(inner, 4 * width, 1), (0.1, 0.5))
            data = net.add("Relu", [net.add("Add", [inner, data])])
    return net.classifier(data, 1000)


def ssd(net: Network, size: int = 160) -> tuple[str, ...]:
    """The head of SSD (Liu et al., 2016) over two scales: boxes [1, n, 4], scores [1, classes, n], and which
    boxes stay, at most 10 of a class: [m, 3] as NonMaxSuppression gives them.

    Boxes are decoded from anchors: centre and extent as fractions of the image. `size` is the image's.
    """
    classes, shapes = 20, ((0.2, 0.2), (0.3, 0.15), (0.15, 0.3))
    data = net.input(1, 3, size, size)
    for co in (16, 32, 64):
        data = net.add("Relu", [net.conv_norm(data, co, 3, 2)])
    maps = [data, net.add("Relu", [net.conv_norm(data, 128, 3, 2)])]
    boxes: list[str] = []
    scores: list[str] = []
    anchors = []
    for number, image in enumerate(maps):
        side = size >> (3 + number)
        for outputs, found in ((4, boxes), (classes, scores)):
            columns = net.transpose(net.conv(image, len(shapes) * outputs, 3, bias=True), 0, 2, 3, 1)
            found.append(net.reshape(columns, 1, -1, outputs))
        centres = (np.arange(side) + 0.5) / side
        y, x, shape = np.meshgrid(centres, centres, range(len(shapes)), indexing="ij")
        sides = np.asarray(shapes)[shape.ravel()] * (number + 1)
        anchors.append(np.concatenate([np.stack([y.ravel(), x.ravel()], 1), sides], 1))
    known = np.concatenate(anchors)[None]
    offsets = net.add("Concat", boxes, axis=1)
    moved, grown = net.several("Split", [offsets, net.constant([2, 2], "int64")], 2, axis=2)
    scaled = net.add("Mul", [moved, net.constant(0.1 * known[..., 2:])])
    centre = net.add("Add", [scaled, net.constant(known[..., :2])])
    grown = net.add("Exp", [net.add("Mul", [grown, net.constant(0.2)])])
    reach = net.add("Mul", [grown, net.constant(0.5 * known[..., 2:])])
    corners = net.add("Concat", [net.add(op, [centre, reach]) for op in ("Sub", "Add")], axis=2)
    score = net.add("Sigmoid", [net.add("Concat", scores, axis=1)])
    score = net.transpose(score, 0, 2, 1)
    limits = [net.constant([10], "int64"), net.constant([0.45]), net.constant([0.75])]
    return corners, score, net.add("NonMaxSuppression", [corners, score, *limits])


def swin(net: Network, size: int = 96) -> str:
    """Swin-S (Liu et al., 2021) for images of 224x224, exported with old operators: about 1,500 nodes.

    Attention inside windows of 7x7 tokens, every second time shifted by 3; `size` is the width of the first
    stage, a multiple of 3.
    """
    data = net.window(net.input(1, 3, 224, 224), size, (4, 4), (4, 4))
    data, side, width = _written_out_norm(net, net.transpose(data, 0, 2, 3, 1), size), 56, size
    for stage, blocks in enumerate((2, 2, 18, 2)):
        if stage:  # neighbours side by side
            rows = [net.add("Slice", [data, *_every_second(net, 1, at)]) for at in (0, 1)]
            parts = [net.add("Slice", [row, *_every_second(net, 2, at)]) for at in (0, 1) for row in rows]
            data = _written_out_norm(net, net.add("Concat", parts, axis=3), 4 * width)
            data = net.add("MatMul", [data, net.normal((4 * width, 2 * width), 4 * width, 1.0)])
            side, width = side // 2, 2 * width
        for block in net.blocks(blocks):
            shifted = block % 2 == 1 and side > SWIN_WINDOW
            inner = _window_attention(
                net, _written_out_norm(net, data, width), 3 << stage, shifted, (side, width)
            )
            data = net.add("Add", [data, inner])
            inner = net.gelu(net.linear(_written_out_norm(net, data, width), width, 4 * width))
            data = net.add("Add", [data, net.linear(inner, 4 * width, width)])
    mean = net.add("ReduceMean", [_written_out_norm(net, data, width)], axes=[1, 2], keepdims=0)
    return net.linear(mean, width, 1000)


def _written_out_norm(net: Network, data: str, width: int) -> str:
    """Layer normalization in nine nodes."""
    centred = net.add("Sub", [data, net.add("ReduceMean", [data], axes=[-1])])
    square = net.add("ReduceMean", [net.add("Pow", [centred, net.constant(2.0)])], axes=[-1])
    root = net.add("Sqrt", [net.add("Add", [square, net.constant(1e-5)])])
    normal = net.add("Div", [centred, root])
    scaled = net.add("Mul", [normal, net.constant(net.rng.uniform(0.5, 1.5, width))])
    return net.add("Add", [scaled, net.small(width)])


def _window_attention(net: Network, data: str, heads: int, shifted: bool, shape: tuple[int, int]) -> str:
    """Attention among the tokens of each window; `shape` are side and width of the image of tokens."""
    (side, width), window, tokens = shape, SWIN_WINDOW, SWIN_WINDOW**2
    count, each = side // window, width // heads
    data = _rolled(net, data, SWIN_SHIFT) if shifted else data
    data = net.reshape(data, 1, count, window, count, window, width)
    data = net.reshape(net.transpose(data, 0, 1, 3, 2, 4, 5), -1, tokens, width)
    parts = net.reshape(net.linear(data, width, 3 * width), -1, tokens, 3, heads, each)
    parts = net.transpose(parts, 2, 0, 3, 1, 4)
    query, key, value = (net.add("Gather", [parts, net.constant(part, "int64")], axis=0) for part in range(3))
    query = net.add("Mul", [query, net.constant(each**-0.5)])
    scores = net.add("MatMul", [query, net.transpose(key, 0, 1, 3, 2)])
    bias = net.constant(net.rng.normal(0.0, 0.1, (1, heads, tokens, tokens)))
    scores = net.add("Add", [scores, bias])
    if shifted:
        scores = net.add("Add", [scores, net.constant(_shift_mask(side))])
    found = net.add("MatMul", [net.add("Softmax", [scores], axis=-1), value])
    found = net.linear(net.reshape(net.transpose(found, 0, 2, 1, 3), -1, tokens, width), width, width)
    found = net.reshape(found, 1, count, count, window, window, width)
    found = net.reshape(net.transpose(found, 0, 1, 3, 2, 4, 5), 1, side, side, width)
    return _rolled(net, found, side - SWIN_SHIFT) if shifted else found


def _rolled(net: Network, data: str, by: int) -> str:
    """Rows and columns moved in a circle."""
    for axis in (1, 2):
        parts = [
            net.add("Slice", [data, *(net.constant([at], "int64") for at in (start, end, axis))])
            for start, end in ((by, 1 << 30), (0, by))
        ]
        data = net.add("Concat", parts, axis=axis)
    return data


def _shift_mask(side: int) -> Array:
    """-100 where two tokens of a window were not neighbours before the shift: [windows, 1, 49, 49]."""
    window, place = SWIN_WINDOW, np.arange(side)
    part = (place >= side - window).astype(int) + (place >= side - SWIN_SHIFT)
    regions = (3 * part[:, None] + part).reshape(side // window, window, side // window, window)
    regions = regions.transpose(0, 2, 1, 3).reshape(-1, 1, window * window)
    return np.where(regions[:, :, :, None] == regions[:, :, None, :], 0.0, -100.0)


def _every_second(net: Network, axis: int, start: int) -> list[str]:
    """The inputs of a Slice behind the data."""
    return [net.constant([at], "int64") for at in (start, 1 << 30, axis, 2)]
