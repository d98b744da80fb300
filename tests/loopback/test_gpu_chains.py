"""Networks whose groups are one launch each on a GPU: by the CUDA driver, kernels run as C on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boards.board import load
from cross.codegen.c import gpu_code
from device_runtime.drivers.cuda_driver import CudaDevice
from device_runtime.protocol import GpuModule
from tests.cuda_on_cpu import Driver
from tests.loopback.test_control_gpu import check
from tests.model_libraries import kernels, run_on_device
from tests.onnx_models import Array, model, node, random_inputs, save
from toolkit.bundle.assemble import assemble
from toolkit.model.load import adapted, load_model

JETSON = load("jetson-nano").target("gpu")
RNG = np.random.default_rng(52)


def weight(*shape: int) -> Array:
    return RNG.uniform(-1.0, 1.0, shape).astype(np.float32)


def bottleneck(stride: int) -> Any:
    """Expanded, convolved channel by channel, narrow again and, where it fits, added to what came in. Layouts
    are another launch at either end."""
    weights = {
        "e": weight(96, 16, 1, 1),
        "d": weight(96, 1, 3, 3),
        "b": weight(96),
        "p": weight(16, 96, 1, 1),
    }
    bounds = {"low": np.float32(0.0), "high": np.float32(6.0)}
    nodes = [
        node("Conv", ["x", "e"], "expanded"),
        node("Relu", ["expanded"], "first"),
        node("Conv", ["first", "d", "b"], "convolved", group=96, pads=[1, 1, 1, 1], strides=[stride, stride]),
        node("Clip", ["convolved", "low", "high"], "second"),
        node("Conv", ["second", "p"], "narrow" if stride == 1 else "y"),
    ]
    if stride == 1:
        nodes.append(node("Add", ["narrow", "x"], "y"))
    return model(nodes, {"x": (1, 16, 13, 14)}, ["y"], weights | bounds)


def attention() -> Any:
    """Of two heads, with what stands before and behind it; only keys are moved, by a launch of their own."""
    tokens, heads, width = 18, 2, 12
    channels = heads * width
    weights: dict[str, Any] = {f"w{name}": weight(channels, channels) for name in "qkvo"}
    weights |= {f"b{name}": weight(channels) for name in "qkvo"}
    weights |= {"scale": weight(channels), "shift": weight(channels)}
    weights |= {"by_heads": np.array([1, tokens, heads, width]), "flat": np.array([1, tokens, channels])}
    nodes = []
    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            node("MatMul", ["x", f"w{name}"], f"m{name}"),
            node("Add", [f"m{name}", f"b{name}"], f"a{name}"),
            node("Reshape", [f"a{name}", "by_heads"], f"r{name}"),
            node("Transpose", [f"r{name}"], f"h{name}", perm=perm),
        ]
    nodes += [
        node("MatMul", ["hq", "hk"], "scores"),
        node("Softmax", ["scores"], "shares", axis=-1),
        node("MatMul", ["shares", "hv"], "mixed"),
        node("Transpose", ["mixed"], "turned", perm=[0, 2, 1, 3]),
        node("Reshape", ["turned", "flat"], "rows"),
        node("MatMul", ["rows", "wo"], "projected"),
        node("Add", ["projected", "bo"], "shifted"),
        node("Add", ["shifted", "x"], "sum"),
        node("LayerNormalization", ["sum", "scale", "shift"], "y"),
    ]
    return model(nodes, {"x": (1, tokens, channels)}, ["y"], weights)


@pytest.mark.slow
@pytest.mark.parametrize(
    "proto, launches",
    [(bottleneck(1), 4), (bottleneck(2), 4), (attention(), 7)],
    ids=["bottleneck", "strided bottleneck", "attention"],
)
def test_networks_equal_onnxruntime(
    proto: Any, launches: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_code, "compiled", lambda program, target: program.source.encode())
    graph = adapted(load_model(save(tmp_path, proto)), JETSON)
    plan = assemble(graph, kernels(graph, target=JETSON), JETSON)
    modules = [GpuModule.from_bytes(item.code) for item in plan.kernels]
    started = [len(kernel.launches) for module in modules for kernel in module.kernels.values()]
    assert started == [1] * launches
    given = random_inputs(graph, RNG)
    check(graph, run_on_device(CudaDevice(Driver(tmp_path), None), plan, given), proto, given)
