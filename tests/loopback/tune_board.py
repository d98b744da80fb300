"""A board file of this machine with folders of its own, for the commands; and a small network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from tests.onnx_models import Array, model, node, save

HOST = """
name = "host"
title = "This machine"
description = "This machine, with a device folder of its own."
sources = ["a test"]
probed = true

[link]
kind = "local"
device_dir = "{folder}"

[measure]
repeat = 1
min_repeat_ms = 0.1
"""

EMULATED = """
name = "emulated-a53"
title = "Emulated"
description = "aarch64 under qemu, with a device folder of its own."
sources = ["a test"]
memory_bytes = 1073741824
emulated = true

[link]
kind = "emulator"
command = ["{{qemu}}", "-cpu", "cortex-a53", "-L", "{{sysroot}}", "{{python}}", "-I"]
device_dir = "{folder}"

[measure]
repeat = 1
min_repeat_ms = 0.0
timeout_s = 120.0

[[targets]]
name = "cpu"
kind = "cpu"
triple = "aarch64-unknown-linux-gnu"
cpu = "cortex-a53"
features = ["+neon"]
cores = [0, 1]
l2_bytes = 524288
clock_hz = 1.2e9
flops_per_cycle = 8
"""

POCL = """
name = "pocl"
title = "PoCL"
description = "OpenCL on this machine's CPU, with a device folder of its own."
sources = ["a test"]
probed = true

[link]
kind = "local"
device_dir = "{folder}"

[measure]
repeat = 1
min_repeat_ms = 0.1
timeout_s = 60.0

[[targets]]
name = "opencl"
kind = "opencl"
device = "Portable Computing Language"
l2_bytes = 262144
clock_hz = 2.0e9
flops_per_cycle = 16

[targets.gpu]
max_threads_per_block = 4096
max_block_dims = [4096, 4096, 4096]
shared_memory_bytes = 65536
registers_per_block = 0
warp_size = 1
compute_units = 1
vector_float_lanes = 8
"""


def board_file(folder: Path, text: str = HOST) -> Path:
    """Writes the board file into `folder`; the device folder is beside it."""
    path = folder / "board.toml"
    path.write_text(text.format(folder=folder / "device"))
    return path


def small_network() -> Any:
    """conv 3x3/2 - relu - conv 1x1 - add what it reads - relu - mean - gemm - softmax; batch open."""
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> Array:
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    nodes = [
        node("Conv", ["x", "w1", "b1"], "c1", pads=[1, 1, 1, 1], strides=[2, 2], kernel_shape=[3, 3]),
        node("Relu", ["c1"], "r1"),
        node("Conv", ["r1", "w2"], "c2"),
        node("Add", ["c2", "r1"], "s"),
        node("Relu", ["s"], "r2"),
        node("GlobalAveragePool", ["r2"], "g"),
        node("Flatten", ["g"], "f"),
        node("Gemm", ["f", "w4", "b4"], "d", transB=1),
        node("Softmax", ["d"], "y", axis=1),
    ]
    weights = {
        "w1": weight(8, 3, 3, 3), "b1": weight(8), "w2": weight(8, 8, 1, 1),
        "w4": weight(7, 8), "b4": weight(7),
    }  # fmt: skip
    return model(nodes, {"x": ("N", 3, 14, 14)}, ["y"], weights)


def related_convolutions() -> Any:
    """Three convolutions whose loops compare: one may begin with the program of another."""
    rng = np.random.default_rng(1)
    shapes = {"w1": (16, 8, 3, 3), "w2": (32, 16, 3, 3), "w3": (32, 32, 3, 3)}
    weights = {name: rng.standard_normal(shape).astype(np.float32) * 0.1 for name, shape in shapes.items()}
    nodes = [
        node("Conv", ["x", "w1"], "c1", pads=[1, 1, 1, 1]),
        node("Conv", ["c1", "w2"], "c2", pads=[1, 1, 1, 1]),
        node("Conv", ["c2", "w3"], "y", pads=[1, 1, 1, 1]),
    ]
    return model(nodes, {"x": (1, 8, 14, 14)}, ["y"], weights)


def crossing_convolutions() -> Any:
    """Three convolutions none of which may begin with the program of another: what one has more of in one
    loop it has less of in another."""
    rng = np.random.default_rng(2)
    shapes = {"w1": (32, 8, 3, 3), "w2": (8, 32, 3, 3), "w3": (16, 8, 5, 5)}
    weights = {name: rng.standard_normal(shape).astype(np.float32) * 0.1 for name, shape in shapes.items()}
    nodes = [
        node("Conv", ["x", "w1"], "c1", pads=[1, 1, 1, 1]),
        node("Conv", ["c1", "w2"], "c2", pads=[1, 1, 1, 1]),
        node("Conv", ["c2", "w3"], "y", pads=[2, 2, 2, 2]),
    ]
    return model(nodes, {"x": (1, 8, 10, 10)}, ["y"], weights)


def write_network(folder: Path) -> Path:
    """The small network as a file."""
    return save(folder, small_network(), "small.onnx")


def onnxruntime_outputs(data: Array) -> Array:
    """What onnxruntime makes of the small network."""
    session = onnxruntime.InferenceSession(small_network().SerializeToString())
    return np.asarray(session.run(None, {"x": data})[0])
