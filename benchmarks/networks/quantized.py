"""Networks of 8-bit integers in the forms that three exporters write, and with operators on integers.

    python -m benchmarks.networks resnet50 resnet50-int8.onnx --quantized pytorch

onnxruntime   its quantizer: uint8 activations, int8 weights by channel, int32 biases
pytorch       torch.onnx of a PT2E network: int8 activations, int8 weights by channel, biases of floats, every
              Relu written out
tensorflow    tf2onnx: uint8 activations, channels last, transposes around each operator, int8 weights as a
              whole [kh, kw, ci, co] behind a transpose, int32 biases
qoperator     QLinearConv, QGemm, QLinearAdd and others instead of operators on floats: what onnxruntime makes
              of the first form

Ranges are calibrated on drawn samples; the scales of all three are found by onnxruntime.quantization.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from toolkit.quantization.quantizer import Quantizer, Scheme, inputs_of, layers_of, prepared
from toolkit.quantization.samples import ImageScale, read_samples

SAMPLES: Final = 4
SCHEMES: Final = {
    "onnxruntime": Scheme(),
    "pytorch": Scheme(activations="int8"),
    "tensorflow": Scheme(per_channel=False),
    "qoperator": Scheme(),
}
_TO_LAST, _TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def quantize_as(exporter: str, source: Path, output: Path, seed: int) -> Path:
    """Write the network of floats at `source` to `output` as an exporter would."""
    floats = prepared(source)
    rng, specs = np.random.default_rng(seed), inputs_of(floats)
    for spec in specs:
        folder = output.parent / f"{output.stem}-samples" / spec.name
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(SAMPLES):
            shape = [extent or 1 for extent in spec.shape]
            data = rng.normal(0, 1, shape) if spec.dtype == "float32" else rng.integers(0, 100, shape)
            np.save(folder / f"{number}.npy", data.astype(spec.dtype))
    samples = read_samples(output.parent / f"{output.stem}-samples", specs, ImageScale(), SAMPLES)
    quantizer = Quantizer(floats, samples, SCHEMES[exporter], lambda: None)
    model = quantizer.quantized(layers_of(floats))
    if exporter == "pytorch":
        _with_float_biases(model)
    elif exporter == "tensorflow":
        _with_channels_last(model)
    model = onnx.shape_inference.infer_shapes(model)
    onnx.checker.check_model(model, full_check=True)
    output.write_bytes(model.SerializeToString(deterministic=True))
    if exporter == "qoperator":
        _with_integer_operators(output)
    return output


def _with_integer_operators(path: Path) -> None:
    """The file as onnxruntime optimizes it, whatever the machine."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    optimized = path.with_suffix(".optimized.onnx")
    options.optimized_model_filepath = str(optimized)
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    optimized.replace(path)


def _with_float_biases(model: Any) -> None:
    """Biases as the floats that their int32 stand for."""
    tensors = {item.name: item for item in model.graph.initializer}
    makers = {node.output[0]: node for node in model.graph.node}
    for node in list(model.graph.node):
        maker = (
            makers.get(node.input[2]) if node.op_type in ("Conv", "Gemm") and len(node.input) > 2 else None
        )
        if maker is not None and maker.op_type == "DequantizeLinear":
            integers, scale = (numpy_helper.to_array(tensors[name]) for name in maker.input[:2])
            name = f"{node.name}.bias"
            model.graph.initializer.append(
                numpy_helper.from_array((integers * scale).astype(np.float32), name)
            )
            node.input[2] = name


def _with_channels_last(model: Any) -> None:
    """Quantized images and weights of convolutions with channels last, and a transpose to and from each."""
    tensors = {item.name: item for item in model.graph.initializer}
    ranks = _ranks(model)
    nodes: list[Any] = []
    weights = {node.input[1] for node in model.graph.node if node.op_type == "Conv"}
    for node in model.graph.node:
        image = ranks.get(node.input[0]) == 4 and not node.input[0].startswith(tuple(tensors))
        if node.op_type == "QuantizeLinear" and image:
            moved = f"{node.input[0]}/last"
            nodes.append(_transpose(node.input[0], moved, _TO_LAST))
            node.input[0] = moved
            nodes.append(node)
        elif node.op_type == "DequantizeLinear" and (image or node.output[0] in weights):
            result = node.output[0]
            node.output[0] = f"{result}/last"
            nodes += [node, _transpose(node.output[0], result, _TO_FIRST if image else (3, 2, 0, 1))]
            if not image:
                stored = tensors[node.input[0]]
                data = numpy_helper.to_array(stored).transpose(2, 3, 1, 0)
                stored.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(data), stored.name))
        else:
            nodes.append(node)
    model.graph.ClearField("node")
    model.graph.node.extend(nodes)
    del model.graph.value_info[:]


def _ranks(model: Any) -> Mapping[str, int]:
    inferred = onnx.shape_inference.infer_shapes(model).graph
    values = (*inferred.input, *inferred.value_info, *inferred.output)
    return {item.name: len(item.type.tensor_type.shape.dim) for item in values}


def _transpose(data: str, result: str, order: tuple[int, ...]) -> Any:
    return helper.make_node("Transpose", [data], [result], name=result, perm=order)
