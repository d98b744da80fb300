"""Models with chosen layers quantized, by onnxruntime.quantization: its ranges, its QDQ form.

A *layer* is a node that computes on integers, with the activation behind it. What only moves data (Reshape,
Transpose, MaxPool ...) follows its neighbours and is no layer of its own.
"""

from __future__ import annotations

import copy
import logging
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np

from toolkit.errors import InputError
from toolkit.model.onnx_file import check_onnx, opsets_of, read_onnx
from toolkit.quantization.samples import InputSpec, Samples
from toolkit.quantization.sessions import Refusing

Calibration = Literal["minmax", "entropy", "percentile"]
Activations = Literal["uint8", "int8"]

COMPUTING: Final = frozenset({
    "Add", "AveragePool", "Concat", "Conv", "ConvTranspose", "Gemm", "GlobalAveragePool", "LeakyRelu",
    "MatMul", "Mul", "Resize", "Sigmoid", "Softmax",
})  # fmt: skip
_ACTIVATIONS: Final = frozenset({"Clip", "Relu"})
_MOVING: Final = frozenset({
    "Flatten", "MaxPool", "Pad", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze",
})  # fmt: skip
OPERATORS: Final = sorted(COMPUTING | _ACTIVATIONS | _MOVING)
"""What is quantized: what this tool computes on integers, and what keeps them as they are."""

NARROW: Final = 63
"""The largest narrow weight: sums of four of its products with signed bytes fit 16 bits (4 * 63 * 128), which
saves widening sums on cores without dot products."""
_ERRORS, _WARNINGS = 3, 2  # severities of ONNX Runtime's log, of which the second is its own choice
AXES_OPSET: Final = 13  # the first in which weights have a scale for each channel
_REDUCED: Final = 64  # the magnitude that ONNX Runtime's reduce_range scales the largest weight to


class Scheme(msgspec.Struct, frozen=True):
    """How numbers become integers; the defaults are those of the command."""

    calibration: Calibration = "minmax"
    activations: Activations = "uint8"
    per_channel: bool = True
    narrow: bool = False


class Layer(msgspec.Struct, frozen=True):
    """A node that computes, by its name, and the nodes and the value that it ends with."""

    name: str
    operator: str
    nodes: tuple[str, ...]
    output: str


def prepared(path: Path) -> Any:
    """The model (onnx.ModelProto) simplified by ONNX Runtime, shapes inferred, with a name for every node.

    Raises ModelError, InputError.
    """
    import onnx.version_converter
    from onnxruntime.quantization import quant_pre_process

    check_onnx(path, read_onnx(path)[0])
    with (
        tempfile.TemporaryDirectory(prefix="quantize.") as folder,
        _quiet(),
        Refusing(f"cannot prepare {path}"),
    ):
        given = onnx.load(str(path))
        if opsets_of(given)[""] < AXES_OPSET:
            given = onnx.version_converter.convert_version(given, AXES_OPSET)
        weights = {item.name for item in given.graph.initializer}
        inputs = [item for item in given.graph.input if item.name not in weights]
        given.graph.ClearField("input")  # weights are inputs, too, in files before IR version 4
        given.graph.input.extend(inputs)
        cleaned, simplified = Path(folder, "cleaned.onnx"), Path(folder, "simplified.onnx")
        cleaned.write_bytes(given.SerializeToString())
        quant_pre_process(str(cleaned), str(simplified), skip_symbolic_shape=True)
        model = onnx.load(str(simplified))
    _rename_added(model, weights)
    _flatten_biases(model)
    names: set[str] = set()
    for number, node in enumerate(model.graph.node):
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            raise InputError(f"{path}: expected a network of floats, found one that is quantized already")
        node.name = node.name or next(filter(None, node.output))
        if node.name in names:
            node.name = f"{node.name}#{number}"
        names.add(node.name)
    return model


def _rename_added(model: Any, weights: Collection[str]) -> None:
    """Give the weights that ONNX Runtime added names that it does not give.

    Where it simplifies the model once more, it adds others, and refuses the model if their names are taken
    (1.32: the shapes behind a MatMul and an Add that it makes a Gemm).
    """
    tensors = model.graph.initializer
    kept = {*weights, *(item.name for item in model.graph.output)}
    added = {item.name: f"{item.name}_simplified" for item in tensors if item.name not in kept}
    for item in tensors:
        item.name = added.get(item.name, item.name)
    _rename(model.graph, added)


def _flatten_biases(model: Any) -> None:
    """Give each Gemm whose bias is one row of a matrix a vector.

    ONNX Runtime takes one element of the bias for each column, and stops over a row (1.32).
    """
    import onnx

    tensors = {item.name: item for item in model.graph.initializer}
    for number, node in enumerate(model.graph.node):
        bias = tensors.get(node.input[2]) if node.op_type == "Gemm" and len(node.input) > 2 else None
        if bias is not None and len(bias.dims) == 2 and bias.dims[0] == 1:
            vector = onnx.TensorProto()
            vector.CopyFrom(bias)
            vector.name = f"{bias.name}_vector{number}"
            vector.dims[:] = bias.dims[1:]
            model.graph.initializer.append(vector)
            node.input[2] = vector.name


def _rename(graph: Any, names: Mapping[str, str]) -> None:
    """Rename values of a graph (onnx.GraphProto) that it and the graphs in it read."""
    for item in graph.value_info:
        item.name = names.get(item.name, item.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else ())):
                _rename(inner, names)


def inputs_of(model: Any) -> list[InputSpec]:
    """The inputs of an onnx.ModelProto that are no weights."""
    import onnx

    weights = {item.name for item in model.graph.initializer}
    found = []
    for item in model.graph.input:
        if item.name not in weights:
            tensor = item.type.tensor_type
            shape = tuple(size.dim_value if size.HasField("dim_value") else None for size in tensor.shape.dim)
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            found.append(InputSpec(item.name, shape, str(dtype)))
    return found


def layers_of(model: Any) -> list[Layer]:
    """What can be quantized, or left in floats, on its own."""
    readers: dict[str, list[Any]] = {}
    for node in model.graph.node:
        for item in node.input:
            readers.setdefault(item, []).append(node)
    outputs = {item.name for item in model.graph.output}
    found = []
    for node in model.graph.node:
        if node.op_type not in COMPUTING or node.domain:
            continue
        nodes, value = [node.name], node.output[0]
        behind = readers.get(value, [])
        if len(behind) == 1 and behind[0].op_type in _ACTIVATIONS and value not in outputs:
            nodes.append(behind[0].name)
            value = behind[0].output[0]
        found.append(Layer(node.name, node.op_type, tuple(nodes), value))
    return found


class Quantizer:
    """Makes quantized models of one model of floats, whose ranges it knows.

    `tell` is called after each sample. Raises InputError: ONNX Runtime cannot calibrate the model.
    """

    def __init__(self, model: Any, samples: Samples, scheme: Scheme, tell: Callable[[], None]) -> None:
        import onnxruntime.quantization as ort
        from onnxruntime.quantization.quant_utils import (
            save_and_reload_model_with_shape_infer,
            update_opset_version,
        )

        self._scheme = scheme
        self._types = {"uint8": ort.QuantType.QUInt8, "int8": ort.QuantType.QInt8}
        with _quiet(), Refusing("cannot quantize the model"), tempfile.TemporaryDirectory() as folder:
            known = save_and_reload_model_with_shape_infer(model)
            self._model = update_opset_version(known, self._types["int8"])
            path = Path(folder, "float.onnx")
            path.write_bytes(self._model.SerializeToString())
            calibrator = ort.create_calibrator(
                path, OPERATORS, str(Path(folder, "augmented.onnx")),
                calibrate_method=_method(scheme.calibration), extra_options={"symmetric": False},
            )  # fmt: skip
            calibrator.collect_data(_Reader(samples, tell))
            self._ranges = calibrator.compute_data()

    def quantized(self, layers: Sequence[Layer], *, alone: bool = False) -> Any:
        """The model with these layers on integers (onnx.ModelProto); `alone`: and nothing else."""
        import onnx
        import onnxruntime.quantization as ort

        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        kept = {name for layer in layers for name in layer.nodes}
        left_out = [name for layer in layers_of(model) for name in layer.nodes if name not in kept]
        with _quiet(), Refusing("cannot quantize the model"):
            quantizer = ort.QDQQuantizer(
                model, self._scheme.per_channel, self._scheme.narrow, self._types["int8"],
                self._types[self._scheme.activations], copy.deepcopy(self._ranges),
                sorted(kept) if alone else [], left_out, OPERATORS, self._options(model),
            )  # fmt: skip
            quantizer.quantize_model()
            quantizer.model.topological_sort()
            return quantizer.model.model

    def _options(self, model: Any) -> dict[str, Any]:
        options: dict[str, Any] = {"QDQOpTypePerChannelSupportToAxis": {"MatMul": -1}}
        if self._scheme.narrow:
            options["TensorQuantOverrides"] = _narrowed(model, per_channel=self._scheme.per_channel)
        return options


def _narrowed(model: Any, *, per_channel: bool) -> dict[str, list[dict[str, Any]]]:
    """Ranges of weights, a little wider than they are, of which `reduce_range` makes at most NARROW."""
    import onnx

    tensors = {item.name: item for item in model.graph.initializer}
    found: dict[str, list[dict[str, Any]]] = {}
    for node in model.graph.node:
        axis = {"Conv": 0, "ConvTranspose": 1, "Gemm": 1, "MatMul": -1}.get(node.op_type)
        if axis is None or node.input[1] not in tensors:
            continue
        if node.op_type == "Gemm" and any(item.name == "transB" and item.i for item in node.attribute):
            axis = 0
        weights = onnx.numpy_helper.to_array(tensors[node.input[1]])
        by_channel = per_channel and weights.ndim > 1
        others = (
            tuple(range(weights.ndim)) if not by_channel else tuple(np.delete(np.arange(weights.ndim), axis))
        )
        largest = np.atleast_1d(np.abs(weights).max(others)) * np.float32(_REDUCED / NARROW)
        place = {"axis": axis % weights.ndim} if by_channel else {}
        found[node.input[1]] = [{**place, "rmin": -item, "rmax": item} for item in largest]
    return found


def _method(name: Calibration) -> Any:
    from onnxruntime.quantization import CalibrationMethod

    kinds = CalibrationMethod.MinMax, CalibrationMethod.Entropy, CalibrationMethod.Percentile
    return dict(zip(("minmax", "entropy", "percentile"), kinds, strict=True))[name]


class _Reader:
    """The samples as ONNX Runtime's calibrators ask for them."""

    def __init__(self, samples: Samples, tell: Callable[[], None]) -> None:
        self._rest, self._tell = iter(samples), tell

    def get_next(self) -> Any:
        found = next(self._rest, None)
        if found is not None:
            self._tell()
        return found


@contextmanager
def _quiet() -> Iterator[None]:
    """ONNX Runtime's advice for those who call it themselves is not for who calls this."""
    import onnxruntime

    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)
    onnxruntime.set_default_logger_severity(_ERRORS)
    try:
        yield
    finally:
        root.setLevel(before)
        onnxruntime.set_default_logger_severity(_WARNINGS)
