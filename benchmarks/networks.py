"""Well-known networks as ONNX files with seeded random weights, written with the onnx package alone.

    python benchmarks/networks.py resnet18 resnet18.onnx --seed 0

dcgan (the generator for 64x64 images), mobilenet_v1, mobilenet_v2, mobilenet_v3, resnet18, bert (encoder
layers on embedded tokens) and yolo (backbone, neck and heads in the manner of YOLOv8), as common exporters
write them. Weights are scaled so that activations keep about their magnitude (He et al., 2015); the same seed
gives the same bytes. `size` scales a network down for tests.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Array = NDArray[Any]
OPSET = 17


@dataclass
class Network:
    """A network under construction. Methods append nodes and return the name of their result."""

    rng: np.random.Generator
    nodes: list[Any] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    channels: dict[str, int] = field(default_factory=dict)  # of images, by name

    def add(self, op: str, inputs: Sequence[str], channels: int = 0, **attributes: Any) -> str:
        """One node with one output."""
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        self.channels[name] = channels or self.channels.get(inputs[0], 0)
        return name

    def constant(self, array: Array | Sequence[float] | float, dtype: str = "float32") -> str:
        """A weight of the model."""
        name = f"weight_{len(self.weights)}"
        self.weights[name] = np.asarray(array, dtype)
        return name

    def normal(self, shape: Sequence[int], inputs: int, gain: float = 2.0) -> str:
        """Weights that keep the magnitude of what `inputs` products each sum up."""
        return self.constant(self.rng.normal(0.0, np.sqrt(gain / inputs), tuple(shape)))

    def small(self, count: int) -> str:
        """A bias."""
        return self.constant(self.rng.normal(0.0, 0.1, count))

    def batch_norm(self, data: str, scale: tuple[float, float] = (0.5, 1.5)) -> str:
        """Batch normalization with statistics as after training."""
        count = self.channels[data]
        scales, shift, mean = (
            self.constant(self.rng.uniform(*scale, count)),
            self.small(count),
            self.small(count),
        )
        parameters = [scales, shift, mean, self.constant(self.rng.uniform(0.5, 1.5, count))]
        return self.add("BatchNormalization", [data, *parameters], epsilon=1e-5)

    def conv(self, data: str, co: int, k: int, stride: int = 1, group: int = 1, bias: bool = False) -> str:
        """A square convolution with "same" padding."""
        ci = self.channels[data]
        inputs = [data, self.normal((co, ci // group, k, k), ci // group * k * k)]
        inputs += [self.small(co)] if bias else []
        window = {"kernel_shape": [k, k], "strides": [stride, stride], "pads": [k // 2] * 4}
        return self.add("Conv", inputs, co, **window, group=group)

    def conv_norm(self, data: str, co: int, k: int, stride: int = 1, group: int = 1) -> str:
        """Convolution and batch normalization."""
        return self.batch_norm(self.conv(data, co, k, stride, group))

    def relu6(self, data: str) -> str:
        """Clip to 0..6, as MobileNets do."""
        return self.add("Clip", [data, self.constant(0.0), self.constant(6.0)])

    def silu(self, data: str) -> str:
        """x * sigmoid(x), in two nodes as exporters write it."""
        return self.add("Mul", [data, self.add("Sigmoid", [data])])

    def linear(self, data: str, inputs: int, outputs: int) -> str:
        """[..., inputs] to [..., outputs], as MatMul and Add."""
        product = self.add("MatMul", [data, self.normal((inputs, outputs), inputs, 1.0)])
        return self.add("Add", [self.small(outputs), product])

    def classifier(self, data: str, classes: int) -> str:
        """Global mean, one matrix product, softmax."""
        count = self.channels[data]
        flat = self.add("Flatten", [self.add("GlobalAveragePool", [data])], axis=1)
        weight = self.normal((classes, count), count, 1.0)
        scores = self.add("Gemm", [flat, weight, self.small(classes)], transB=1)
        return self.add("Softmax", [scores], axis=1)


def dcgan(net: Network, size: int = 64) -> tuple[str, tuple[int, ...]]:
    """The generator of Radford et al., 2015; `size` is the number of channels before the image."""
    net.channels["input"] = 100
    data = "input"
    for position, co in enumerate((8 * size, 4 * size, 2 * size, size, 3)):
        ci, stride = net.channels[data], 1 if position == 0 else 2
        taps = 1 if position == 0 else 4
        window = {"kernel_shape": [4, 4], "strides": [stride, stride], "pads": [min(position, 1)] * 4}
        data = net.add("ConvTranspose", [data, net.normal((ci, co, 4, 4), ci * taps)], co, **window)
        data = net.add("Tanh", [data]) if co == 3 else net.add("Relu", [net.batch_norm(data)])
    return data, (1, 100, 1, 1)


def mobilenet_v1(net: Network, size: int = 224) -> tuple[str, tuple[int, ...]]:
    """Howard et al., 2017; `size` is the image's."""
    net.channels["input"] = 3
    data = net.add("Relu", [net.conv_norm("input", 32, 3, 2)])
    blocks = (
        (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)
    )  # fmt: skip
    for co, stride in blocks:
        ci = net.channels[data]
        data = net.add("Relu", [net.conv_norm(data, ci, 3, stride, ci)])
        data = net.add("Relu", [net.conv_norm(data, co, 1)])
    return net.classifier(data, 1000), (1, 3, size, size)


def mobilenet_v2(net: Network, size: int = 224) -> tuple[str, tuple[int, ...]]:
    """Sandler et al., 2018; `size` is the image's."""
    net.channels["input"] = 3
    data = net.relu6(net.conv_norm("input", 32, 3, 2))
    blocks = (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
        (6, 320, 1, 1),
    )  # fmt: skip
    for expand, co, repeats, first_stride in blocks:
        for position in range(repeats):
            stride = first_stride if position == 0 else 1
            ci, inner = net.channels[data], data
            wide = expand * ci
            if expand > 1:
                inner = net.relu6(net.conv_norm(inner, wide, 1))
            inner = net.relu6(net.conv_norm(inner, wide, 3, stride, wide))
            inner = net.batch_norm(net.conv(inner, co, 1), (0.1, 0.5) if ci == co else (0.5, 1.5))
            data = net.add("Add", [data, inner]) if stride == 1 and ci == co else inner
    data = net.relu6(net.conv_norm(data, 1280, 1))
    return net.classifier(data, 1000), (1, 3, size, size)


def mobilenet_v3(net: Network, size: int = 224) -> tuple[str, tuple[int, ...]]:
    """The small one of Howard et al., 2019: squeeze and excitation, hard swish; `size` is the image's."""
    net.channels["input"] = 3
    data = net.add("HardSwish", [net.conv_norm("input", 16, 3, 2)])
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
    return net.classifier(data, 1000), (1, 3, size, size)


def resnet18(net: Network, size: int = 224) -> tuple[str, tuple[int, ...]]:
    """He et al., 2016; `size` is the image's."""
    net.channels["input"] = 3
    data = net.add("Relu", [net.conv_norm("input", 64, 7, 2)])
    data = net.add("MaxPool", [data], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for co, first_stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for stride in (first_stride, 1):
            inner = net.add("Relu", [net.conv_norm(data, co, 3, stride)])
            inner = net.batch_norm(net.conv(inner, co, 3), (0.1, 0.5))
            if net.channels[data] != co:
                data = net.conv_norm(data, co, 1, stride)
            data = net.add("Relu", [net.add("Add", [inner, data])])
    return net.classifier(data, 1000), (1, 3, size, size)


def bert(net: Network, size: int = 128) -> tuple[str, tuple[int, ...]]:
    """Two encoder layers of Devlin et al., 2018, on embedded tokens; `size` is the sequence's length.

    Hidden size 256 in 4 heads, padding masked away at the last quarter of the sequence.
    """
    hidden, heads, tokens = 256, 4, size
    each = hidden // heads
    mask = net.constant(
        np.where(np.arange(tokens) < tokens - tokens // 4, 0.0, -10000.0).reshape(1, 1, 1, -1)
    )
    split = net.constant([1, tokens, heads, each], "int64")
    merged = net.constant([1, tokens, hidden], "int64")

    def in_heads(data: str, perm: list[int]) -> str:
        return net.add(
            "Transpose", [net.add("Reshape", [net.linear(data, hidden, hidden), split])], perm=perm
        )

    def normalized(data: str) -> str:
        scale = net.constant(net.rng.uniform(0.5, 1.5, hidden))
        return net.add("LayerNormalization", [data, scale, net.small(hidden)], axis=-1, epsilon=1e-12)

    data = normalized("input")
    for _ in range(2):
        query, value = in_heads(data, [0, 2, 1, 3]), in_heads(data, [0, 2, 1, 3])
        key = in_heads(data, [0, 2, 3, 1])
        scores = net.add("Div", [net.add("MatMul", [query, key]), net.constant(np.sqrt(each))])
        weights = net.add("Softmax", [net.add("Add", [scores, mask])], axis=-1)
        context = net.add("Transpose", [net.add("MatMul", [weights, value])], perm=[0, 2, 1, 3])
        context = net.linear(net.add("Reshape", [context, merged]), hidden, hidden)
        data = normalized(net.add("Add", [context, data]))
        inner = net.linear(data, hidden, 4 * hidden)
        half = net.add("Erf", [net.add("Div", [inner, net.constant(np.sqrt(2.0))])])
        half = net.add("Mul", [inner, net.add("Add", [half, net.constant(1.0)])])
        inner = net.linear(net.add("Mul", [half, net.constant(0.5)]), 4 * hidden, hidden)
        data = normalized(net.add("Add", [inner, data]))
    return data, (1, tokens, hidden)


def yolo(net: Network, size: int = 160) -> tuple[str, tuple[int, ...]]:
    """Two scales of features, joined and split as in YOLOv8; `size` is the image's, a multiple of 32."""
    net.channels["input"] = 3

    def block(data: str, co: int, k: int, stride: int = 1) -> str:
        return net.silu(net.conv_norm(data, co, k, stride))

    def halves(data: str, co: int) -> str:
        """C2f: one half goes through a bottleneck, and everything is joined again."""
        data = block(data, co, 1)
        names = [f"{data}_{part}" for part in range(2)]
        sizes = net.constant([co // 2, co // 2], "int64")
        net.nodes.append(helper.make_node("Split", [data, sizes], names, name=f"{data}_split", axis=1))
        net.channels |= dict.fromkeys(names, co // 2)
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
        return net.add("Reshape", [scores, net.constant([1, outputs, -1], "int64")])

    fine = halves(block(block(block("input", 16, 3, 2), 32, 3, 2), 64, 3, 2), 64)
    coarse = pooled(halves(block(block(fine, 96, 3, 2), 128, 3, 2), 128), 128)
    factors = net.constant([1.0, 1.0, 4.0, 4.0])
    nearest: dict[str, Any] = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    wide = net.add("Resize", [coarse, "", factors], mode="nearest", **nearest)
    joined = halves(net.add("Concat", [wide, fine], 128 + 64, axis=1), 64)
    scores = net.add("Concat", [head(joined, 24), head(coarse, 24)], axis=2)
    return net.add("Sigmoid", [scores]), (1, 3, size, size)


NETWORKS: dict[str, Callable[..., tuple[str, tuple[int, ...]]]] = {
    function.__name__: function
    for function in (bert, dcgan, mobilenet_v1, mobilenet_v2, mobilenet_v3, resnet18, yolo)
}


def write(name: str, output: Path, seed: int, size: int | None = None) -> Path:
    """Write a network to `output` and return it; `size` as the network's function says, None for its own."""
    net = Network(np.random.default_rng(seed))
    result, shape = NETWORKS[name](net, size) if size else NETWORKS[name](net)
    graph = helper.make_graph(
        net.nodes,
        name,
        [helper.make_tensor_value_info("input", onnx.TensorProto.FLOAT, list(shape))],
        [helper.make_tensor_value_info(result, onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, weight) for weight, array in net.weights.items()],
    )
    opsets = [helper.make_opsetid("", OPSET)]
    model = onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    onnx.checker.check_model(model, full_check=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(model.SerializeToString(deterministic=True))
    return output


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("network", choices=sorted(NETWORKS))
    parser.add_argument("output", type=Path, help="where to write the model")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights (default 0)")
    parser.add_argument(
        "--size", type=int, help="of the image, the sequence or the channels (default: usual)"
    )
    arguments = parser.parse_args()
    print(write(arguments.network, arguments.output, arguments.seed, arguments.size))


if __name__ == "__main__":
    main()
