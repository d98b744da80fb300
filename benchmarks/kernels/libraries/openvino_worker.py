"""OpenVINO on the CPU in float32: python -m benchmarks.kernels.libraries.openvino_worker THREADS

nchw: the request as the ONNX model has it, with any reorder to OpenVINO's own layout; nhwc: the same with
images handed over channels last.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.kernels.inference import Network
from benchmarks.kernels.libraries.onnx_models import onnx_model
from benchmarks.kernels.worker import Library, Variant, serve
from benchmarks.kernels.workloads import Array, Image, Workload, channels_last

ov: Any = importlib.import_module("openvino")  # there in this library's own environment only


IMAGE_RANK = 4


class OpenVino(Library):
    """See worker.Library."""

    def __init__(self, threads: int) -> None:
        self._core = ov.Core()
        self._arrays: list[Array] = []  # a shared tensor does not keep its array alive
        self._settings = {
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "f32",
        }

    def facts(self) -> dict[str, str]:
        return {"openvino": ov.__version__}

    def open(self, workload: Workload, left: Array, right: Array) -> Sequence[Variant]:
        content = onnx_model(workload, right)
        if not isinstance(workload.of, Image):
            return [self._variant("row_major", self._core.read_model(content), [left, right])]
        last, _ = channels_last(workload.of, left, right)
        return self._both_layouts(content, left, last)

    def open_network(self, network: Network, data: Array) -> Sequence[Variant]:
        if data.ndim == network.arrays()[1].ndim == IMAGE_RANK:
            return self._both_layouts(network.model, data, np.ascontiguousarray(data.transpose(0, 2, 3, 1)))
        return [self._variant("nchw", self._core.read_model(network.model), [data])]

    def _both_layouts(self, model: str | bytes, first: Array, last: Array) -> Sequence[Variant]:
        """An image to an image, with channels first and with channels last at both ends."""
        steps = ov.preprocess.PrePostProcessor(self._core.read_model(model))
        for end in (steps.input(), steps.output()):
            end.tensor().set_layout(ov.Layout("NHWC"))
            end.model().set_layout(ov.Layout("NCHW"))
        return [
            self._variant("nchw", self._core.read_model(model), [first]),
            self._variant("nhwc", steps.build(), [last], lambda output: output.transpose(0, 3, 1, 2)),
        ]

    def close(self) -> None:
        self._arrays.clear()

    def _variant(
        self,
        name: str,
        model: Any,
        arrays: Sequence[Array],
        documented: Callable[[Array], Array] = lambda output: output,
    ) -> Variant:
        request = self._core.compile_model(model, "CPU", self._settings).create_infer_request()
        for position, array in enumerate(arrays[: len(model.inputs)]):
            self._arrays.append(array)
            request.set_input_tensor(position, ov.Tensor(array, shared_memory=True))
        return Variant(name, request.infer, lambda: documented(np.array(request.get_output_tensor(0).data)))


if __name__ == "__main__":
    serve(OpenVino(int(sys.argv[1])))
