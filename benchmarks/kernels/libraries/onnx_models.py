"""A workload as an ONNX model of one node, its weight an initializer. Needs the package onnx."""

from __future__ import annotations

import importlib
from typing import Any

from benchmarks.kernels.workloads import Array, Image, Workload

OPSET = 17
IR_VERSION = 8


def onnx_model(workload: Workload, weight: Array) -> bytes:
    """The serialized model: input "x" (and "w" where both operands vary), output "y"."""
    onnx: Any = importlib.import_module("onnx")  # not needed to import this file
    helper = onnx.helper
    left, right, output = workload.of.shapes
    values = [("x", left)]
    initializers = [onnx.numpy_helper.from_array(weight, "w")]
    if workload.of.family == "batch_matmul":
        values.append(("w", right))
        initializers = []
    graph = helper.make_graph(
        [_node(helper, workload)],
        workload.name,
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in values],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, output)],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = IR_VERSION
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def _node(helper: Any, workload: Workload) -> Any:
    of = workload.of
    if not isinstance(of, Image):
        return helper.make_node("MatMul", ["x", "w"], ["y"])
    window = {"kernel_shape": [of.kernel] * 2, "strides": [of.stride] * 2, "pads": [of.pad] * 4}
    if of.family == "transposed":
        return helper.make_node("ConvTranspose", ["x", "w"], ["y"], **window)
    groups = of.inputs if of.family == "depthwise" else 1
    return helper.make_node("Conv", ["x", "w"], ["y"], group=groups, **window)
