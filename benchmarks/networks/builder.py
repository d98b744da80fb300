"""Networks under construction: layers as common exporters write them, with seeded random weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper

Array = NDArray[Any]


@dataclass
class Network:
    """A network under construction. Methods append nodes and return the name of their result."""

    rng: np.random.Generator
    most_blocks: int | None = None  # that follow each other and are equal but for their weights
    inputs: dict[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)  # shape and dtype
    nodes: list[Any] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    channels: dict[str, int] = field(default_factory=dict)  # of images, by name

    def blocks(self, count: int) -> range:
        """The numbers of equal blocks in a row, of which the network has `count`."""
        return range(count if self.most_blocks is None else min(count, self.most_blocks))

    def input(self, *shape: int, name: str = "input", dtype: str = "float32") -> str:
        """An input of the network; the second dimension of an image is its channels."""
        self.inputs[name] = (shape, dtype)
        self.channels[name] = shape[1] if len(shape) > 1 else 0
        return name

    def add(self, op: str, inputs: Sequence[str], channels: int = 0, **attributes: Any) -> str:
        """One node with one output."""
        return self.several(op, inputs, 1, channels, **attributes)[0]

    def several(
        self, op: str, inputs: Sequence[str], count: int, channels: int = 0, **attributes: Any
    ) -> list[str]:
        """One node with so many outputs."""
        name = f"{op.lower()}_{len(self.nodes)}"
        names = [name] if count == 1 else [f"{name}_{number}" for number in range(count)]
        self.nodes.append(helper.make_node(op, list(inputs), names, name=name, **attributes))
        self.channels |= dict.fromkeys(names, channels or self.channels.get(inputs[0], 0))
        return names

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
        return self.window(data, co, (k, k), (stride, stride), (k // 2, k // 2), group, bias)

    def window(
        self,
        data: str,
        co: int,
        kernel: Sequence[int],
        strides: Sequence[int],
        pads: Sequence[int] | None = None,
        group: int = 1,
        bias: bool = True,
    ) -> str:
        """A convolution over any number of dimensions; `pads` on either side, None for none."""
        ci, pads = self.channels[data], pads or [0] * len(kernel)
        inputs = [data, self.normal((co, ci // group, *kernel), ci // group * int(np.prod(kernel)))]
        inputs += [self.small(co)] if bias else []
        attributes = {"kernel_shape": list(kernel), "strides": list(strides), "pads": [*pads, *pads]}
        return self.add("Conv", inputs, co, **attributes, group=group)

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

    def layer_norm(self, data: str, hidden: int, epsilon: float = 1e-5) -> str:
        """Layer normalization of the last dimension."""
        scale = self.constant(self.rng.uniform(0.5, 1.5, hidden))
        return self.add("LayerNormalization", [data, scale, self.small(hidden)], axis=-1, epsilon=epsilon)

    def gelu(self, data: str) -> str:
        """x * (erf(x / sqrt(2)) + 1) / 2, in five nodes as exporters write it."""
        half = self.add("Erf", [self.add("Div", [data, self.constant(np.sqrt(2.0))])])
        half = self.add("Mul", [data, self.add("Add", [half, self.constant(1.0)])])
        return self.add("Mul", [half, self.constant(0.5)])

    def reshape(self, data: str, *shape: int) -> str:
        """To a shape in which one dimension may be -1."""
        return self.add("Reshape", [data, self.constant(shape, "int64")])

    def transpose(self, data: str, *perm: int) -> str:
        """Dimension i of the result is dimension perm[i] of the data."""
        return self.add("Transpose", [data], perm=list(perm))

    def recurrent(self, op: str, data: str, features: int, hidden: int, *states: str) -> list[str]:
        """LSTM or GRU on [steps, 1, features]: the states of all steps [steps, 1, hidden], and the last."""
        gates = {"LSTM": 4, "GRU": 3}[op]
        weights = [
            self.normal((1, gates * hidden, features), features, 1.0),
            self.normal((1, gates * hidden, hidden), hidden, 1.0),
            self.constant(self.rng.normal(0.0, 0.1, (1, 2 * gates * hidden))),
        ]
        own: dict[str, Any] = {"linear_before_reset": 1} if op == "GRU" else {}
        inputs = [data, *weights, "", *states] if states else [data, *weights]
        found = self.several(op, inputs, 3 if op == "LSTM" else 2, hidden_size=hidden, **own)
        return [self.add("Squeeze", [found[0], self.constant([1], "int64")]), *found[1:]]

    def classifier(self, data: str, classes: int) -> str:
        """Global mean, one matrix product, softmax."""
        count = self.channels[data]
        flat = self.add("Flatten", [self.add("GlobalAveragePool", [data])], axis=1)
        weight = self.normal((classes, count), count, 1.0)
        scores = self.add("Gemm", [flat, weight, self.small(classes)], transB=1)
        return self.add("Softmax", [scores], axis=1)
