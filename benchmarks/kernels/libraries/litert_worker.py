"""LiteRT (TensorFlow Lite) with XNNPACK: python -m benchmarks.kernels.libraries.litert_worker THREADS"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.kernels.inference import Network
from benchmarks.kernels.libraries.litert_models import litert_model
from benchmarks.kernels.worker import Variant, serve
from benchmarks.kernels.workloads import Array, Image, Workload

litert: Any = importlib.import_module("ai_edge_litert.interpreter")  # in this library's environment only


class LiteRt:
    """See worker.Library."""

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def facts(self) -> dict[str, str]:
        return {"ai-edge-litert": importlib.metadata.version("ai-edge-litert")}

    def open(self, workload: Workload, left: Array, right: Array) -> Sequence[Variant]:
        model = litert_model(workload, left, right)
        interpreter = litert.Interpreter(model_content=model.content, num_threads=self._threads)
        interpreter.allocate_tensors()
        for details, array in zip(interpreter.get_input_details(), model.inputs, strict=True):
            interpreter.set_tensor(details["index"], array)
        (output,) = interpreter.get_output_details()

        def documented() -> Array:
            result: Array = interpreter.get_tensor(output["index"])
            return result.transpose(0, 3, 1, 2) if isinstance(workload.of, Image) else result

        return [Variant("xnnpack", interpreter.invoke, documented if model.comparable else None)]

    def open_network(self, network: Network, data: Array) -> Sequence[Variant]:
        return []

    def close(self) -> None:
        pass


if __name__ == "__main__":
    serve(LiteRt(int(sys.argv[1])))
