"""Well-known networks as ONNX files with seeded random weights, written with the onnx package alone.

    python -m benchmarks.networks resnet18 resnet18.onnx --seed 0

images.py and sequences.py have the networks, as common exporters write them; builder.py has their layers.
Weights are scaled so that activations keep about their magnitude (He et al., 2015); the same seed gives the
same bytes. `size` and `most_blocks` scale a network down for tests.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from benchmarks.networks import images, sequences
from benchmarks.networks.builder import Network

OPSET = 17

NETWORKS: dict[str, Callable[..., str | tuple[str, ...]]] = {
    function.__name__: function
    for function in (
        *(images.dcgan, images.dqn, images.efficientnet_b0, images.mobilenet_v1, images.mobilenet_v2),
        *(images.mobilenet_v3, images.r2plus1d_18, images.resnest50, images.resnet18, images.resnet50),
        *(images.squeezenet, images.ssd, images.swin, images.yolo),
        *(sequences.bert, sequences.conformer, sequences.gru_spotter, sequences.lstm_lm),
        *(sequences.transformer, sequences.vad, sequences.vit_tiny),
    )
}


def write(
    name: str, output: Path, seed: int, size: int | None = None, most_blocks: int | None = None
) -> Path:
    """Write a network to `output` and return it.

    `size`: as the network's function says, None for its own. `most_blocks`: how many equal blocks may follow
    each other, None for all.
    """
    net = Network(np.random.default_rng(seed), most_blocks)
    found = NETWORKS[name](net, size) if size else NETWORKS[name](net)
    results = (found,) if isinstance(found, str) else found
    kinds = {dtype: helper.np_dtype_to_tensor_dtype(np.dtype(dtype)) for dtype in ("float32", "int64")}
    graph = helper.make_graph(
        net.nodes,
        name,
        [
            helper.make_tensor_value_info(item, kinds[dtype], list(shape))
            for item, (shape, dtype) in net.inputs.items()
        ],
        [helper.make_empty_tensor_value_info(item) for item in results],
        [numpy_helper.from_array(array, weight) for weight, array in net.weights.items()],
    )
    opsets = [helper.make_opsetid("", OPSET)]
    model = onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    onnx.checker.check_model(model, full_check=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(model.SerializeToString(deterministic=True))
    return output
