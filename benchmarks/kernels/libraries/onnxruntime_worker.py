"""ONNX Runtime on the CPU: python -m benchmarks.kernels.libraries.onnxruntime_worker THREADS

extended: NCHW kernels; all: the blocked NCHWc layout where there is one, with its reorders at both ends;
precise: like all, of a quantized network, whose sums of products of bytes then do not saturate without VNNI.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from benchmarks.kernels.inference import Network
from benchmarks.kernels.libraries.onnx_models import onnx_model
from benchmarks.kernels.worker import Library, Variant, serve
from benchmarks.kernels.workloads import Array, Workload

ort: Any = importlib.import_module("onnxruntime")  # there in this library's own environment only

BLOCKED = ("conv", "depthwise")
PRECISE = {"session.x64quantprecision": "1"}


class OnnxRuntime(Library):
    """See worker.Library."""

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def facts(self) -> dict[str, str]:
        return {"onnxruntime": ort.__version__}

    def open(self, workload: Workload, left: Array, right: Array) -> Sequence[Variant]:
        model = onnx_model(workload, right)
        levels = {"extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED}
        if workload.of.family in BLOCKED:
            levels["all"] = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        return [self._variant(name, model, level, [left, right]) for name, level in levels.items()]

    def open_network(self, network: Network, data: Array) -> Sequence[Variant]:
        model = Path(network.model).read_bytes()
        settings: dict[str, dict[str, str]] = {"all": {}}
        if network.float_library:
            settings["precise"] = PRECISE
        level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        return [self._variant(name, model, level, [data], entries) for name, entries in settings.items()]

    def _variant(
        self,
        name: str,
        model: bytes,
        level: Any,
        arrays: Sequence[Array],
        entries: Mapping[str, str] = MappingProxyType({}),
    ) -> Variant:
        options = ort.SessionOptions()
        for key, value in entries.items():
            options.add_session_config_entry(key, value)
        options.intra_op_num_threads, options.inter_op_num_threads = self._threads, 1
        options.graph_optimization_level = level
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        for node, array in zip(session.get_inputs(), arrays, strict=False):
            binding.bind_ortvalue_input(node.name, ort.OrtValue.ortvalue_from_numpy(array))
        (output,) = session.get_outputs()
        value = ort.OrtValue.ortvalue_from_numpy(np.zeros(output.shape, np.float32))
        binding.bind_ortvalue_output(output.name, value)
        return Variant(name, lambda: session.run_with_iobinding(binding), value.numpy)


if __name__ == "__main__":
    serve(OnnxRuntime(int(sys.argv[1])))
