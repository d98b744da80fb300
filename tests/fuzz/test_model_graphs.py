"""Random small networks: import, layout and fusion must not change what onnxruntime computes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.onnx_models import model, node, onnxruntime_values, random_inputs, save, worst_layer_error
from toolkit.model.load import load_model
from toolkit.model.memory import plan_memory
from toolkit.model.reference import run_reference


@dataclass
class Network:
    """A network under construction: value name -> shape."""

    draw: Callable[[Any], Any]
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    nodes: list[Any] = field(default_factory=list)
    weights: dict[str, Any] = field(default_factory=dict)

    def pick(self, rank: int | None = None) -> str:
        names = [name for name, shape in self.shapes.items() if rank is None or len(shape) == rank]
        return str(self.draw(st.sampled_from(names)))

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        seed = len(self.weights)
        self.weights[name] = np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)
        return name

    def constant(self, *values: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(values, np.int64)
        return name

    def numbers(self, *values: float) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(values, np.float32)
        return name

    def add(self, op: str, inputs: list[str], shape: tuple[int, ...], **attributes: Any) -> None:
        name = f"v{len(self.nodes)}"
        self.nodes.append(node(op, inputs, name, **attributes))
        self.shapes[name] = shape


def conv(net: Network) -> None:
    data = net.pick(4)
    n, c, h, w = net.shapes[data]
    co, k = net.draw(st.integers(1, 5)), net.draw(st.sampled_from([1, 3]))
    inputs = [data, net.weight(co, c, k, k)]
    if net.draw(st.booleans()):
        inputs.append(net.weight(co))
    net.add("Conv", inputs, (n, co, h, w), pads=[k // 2] * 4)


def depthwise(net: Network) -> None:
    data = net.pick(4)
    n, c, h, w = net.shapes[data]
    net.add("Conv", [data, net.weight(c, 1, 3, 3), net.weight(c)], (n, c, h, w), pads=[1] * 4, group=c)


def grouped(net: Network) -> None:
    data = net.pick(4)
    n, c, h, w = net.shapes[data]
    if c % 2 == 0:
        net.add("Conv", [data, net.weight(c, c // 2, 1, 1), net.weight(c)], (n, c, h, w), group=2)


def transposed(net: Network) -> None:
    data = net.pick(4)
    n, c, h, w = net.shapes[data]
    groups = net.draw(st.sampled_from([1, 1, c]))
    k, s = net.draw(st.sampled_from([1, 2, 3, 4])), net.draw(st.sampled_from([1, 2, 3]))
    p = net.draw(st.integers(0, (k - 1) // 2))
    inputs = [data, net.weight(c, 2 if groups == 1 else 1, k, k)]
    co = 2 if groups == 1 else c
    if net.draw(st.booleans()):
        inputs.append(net.weight(co))
    shape = tuple((extent - 1) * s + k - 2 * p for extent in (h, w))
    if min(shape) > 0 and max(shape) < 20:
        net.add("ConvTranspose", inputs, (n, co, *shape), strides=[s, s], pads=[p] * 4, group=groups)


def resize(net: Network) -> None:
    data = net.pick(4)
    n, c, h, w = net.shapes[data]
    if max(h, w) < 10:
        scales = net.numbers(1, 1, 2, 3)
        mode = net.draw(st.sampled_from(["nearest", "linear"]))
        net.add("Resize", [data, "", scales], (n, c, 2 * h, 3 * w), mode=mode)


def instance_norm(net: Network) -> None:
    data = net.pick(4)
    c = net.shapes[data][1]
    # a large epsilon keeps images of one element well conditioned
    net.add("InstanceNormalization", [data, net.weight(c), net.weight(c)], net.shapes[data], epsilon=0.5)


def batch_norm(net: Network) -> None:
    data = net.pick(4)
    c = net.shapes[data][1]
    variance = net.weight(c)
    net.weights[variance] = net.weights[variance] ** 2 + np.float32(0.5)
    parameters = [net.weight(c), net.weight(c), net.weight(c), variance]
    net.add("BatchNormalization", [data, *parameters], net.shapes[data])


def unary(net: Network) -> None:
    data = net.pick()
    net.add(net.draw(st.sampled_from(["Relu", "Neg", "Tanh", "Sigmoid"])), [data], net.shapes[data])


def binary(net: Network) -> None:
    left = net.pick()
    shape = net.shapes[left]
    same = [name for name, other in net.shapes.items() if other == shape]
    op = net.draw(st.sampled_from(["Add", "Sub", "Mul"]))
    net.add(op, [left, net.draw(st.sampled_from(same))], shape)


def broadcast(net: Network) -> None:
    data = net.pick()
    shape = net.shapes[data]
    kept = net.draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
    small = tuple(extent if keep else 1 for extent, keep in zip(shape, kept, strict=True))
    start = net.draw(st.integers(0, len(shape)))
    own = small[start:] if all(extent == 1 for extent in small[:start]) else small
    operands = [data, net.weight(*own)]
    if net.draw(st.booleans()):
        operands.reverse()
    net.add(net.draw(st.sampled_from(["Add", "Sub", "Mul"])), operands, shape)


def pool(net: Network) -> None:
    data = net.pick(4)
    op = net.draw(st.sampled_from(["MaxPool", "AveragePool"]))
    net.add(op, [data], net.shapes[data], kernel_shape=[3, 3], pads=[1, 1, 1, 1])


def global_pool(net: Network) -> None:
    data = net.pick(4)
    net.add("GlobalAveragePool", [data], (*net.shapes[data][:2], 1, 1))


def transpose(net: Network) -> None:
    data = net.pick()
    shape = net.shapes[data]
    perm = net.draw(st.permutations(range(len(shape))))
    net.add("Transpose", [data], tuple(shape[axis] for axis in perm), perm=list(perm))


def reshape(net: Network) -> None:
    data = net.pick()
    extents = [extent for extent in net.shapes[data] if extent > 1] or [1]
    choice = net.draw(st.sampled_from(["merge", "units", "split"]))
    if choice == "merge" and len(extents) > 1:
        at = net.draw(st.integers(0, len(extents) - 2))
        extents[at : at + 2] = [extents[at] * extents[at + 1]]
    if choice == "split" and extents[-1] % 2 == 0:
        extents[-1:] = [2, extents[-1] // 2]
    while len(extents) < 4:
        extents.insert(net.draw(st.integers(0, len(extents))), 1)
    net.add("Reshape", [data, net.constant(*extents)], tuple(extents))


def concat(net: Network) -> None:
    data = net.pick()
    shape = net.shapes[data]
    axis = net.draw(st.integers(0, len(shape) - 1))
    rest = [(*o[:axis], *o[axis + 1 :]) for o in net.shapes.values()]
    fits = [
        name
        for name, other in zip(net.shapes, rest, strict=True)
        if other == (*shape[:axis], *shape[axis + 1 :])
    ]
    other = net.draw(st.sampled_from(fits))
    if len(net.shapes[other]) == len(shape):
        extent = shape[axis] + net.shapes[other][axis]
        net.add("Concat", [data, other], (*shape[:axis], extent, *shape[axis + 1 :]), axis=axis)


def reduce(net: Network) -> None:
    data = net.pick()
    shape = net.shapes[data]
    axis = net.draw(st.integers(0, len(shape) - 1))
    net.add("ReduceMax", [data], (*shape[:axis], 1, *shape[axis + 1 :]), axes=[axis])


def softmax(net: Network) -> None:
    data = net.pick()
    net.add("Softmax", [data], net.shapes[data], axis=net.draw(st.integers(0, len(net.shapes[data]) - 1)))


def pad(net: Network) -> None:
    data = net.pick(4)
    n, c, h, w = net.shapes[data]
    net.add("Pad", [data, net.constant(0, 0, 1, 0, 0, 0, 0, 1)], (n, c, h + 1, w + 1))


def cut(net: Network) -> None:
    data = net.pick()
    shape = net.shapes[data]
    axis = net.draw(st.integers(0, len(shape) - 1))
    if shape[axis] > 1:
        bounds = [net.constant(1), net.constant(shape[axis]), net.constant(axis)]
        net.add("Slice", [data, *bounds], (*shape[:axis], shape[axis] - 1, *shape[axis + 1 :]))


STEPS = [
    *(transposed, resize, instance_norm),
    *(conv, depthwise, grouped, batch_norm, unary, binary, broadcast, pool, global_pool, transpose),
    *(reshape, concat, reduce, softmax, pad, cut),
]


@st.composite
def networks(draw: Any) -> Any:
    """A model with two inputs, up to fourteen nodes and up to three outputs."""
    net = Network(draw)
    shape = tuple(draw(st.tuples(st.just(1), st.integers(1, 6), st.integers(1, 6), st.integers(1, 6))))
    net.shapes = {"x": shape, "y": shape}
    for step in draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=14)):
        step(net)
    if not net.nodes:
        net.add("Relu", ["x"], shape)
    made = [name for name in net.shapes if name not in ("x", "y")]
    outputs = draw(st.lists(st.sampled_from(made), max_size=2))
    outputs = list(dict.fromkeys([made[-1], *outputs]))
    return model(net.nodes, {"x": shape, "y": shape}, outputs, net.weights, opset=13)


@pytest.mark.slow
@given(proto=networks())
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_random_network_equals_onnxruntime(proto: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        graph = load_model(save(Path(folder), proto))
    inputs = random_inputs(graph)
    worst, _ = worst_layer_error(graph, proto, inputs)
    assert worst < 1e-4
    got, want = run_reference(graph, inputs), onnxruntime_values(proto, inputs, graph.outputs)
    for name in graph.outputs:
        assert got[name].shape == want[name].shape
        scale = max(float(np.abs(want[name]).max()), 1e-30)
        assert float(np.abs(got[name] - want[name]).max()) <= 1e-4 * scale
    memory = plan_memory(graph)
    assert memory.arena_bytes >= memory.lower_bound_bytes
