"""LiteRT (TensorFlow Lite) with XNNPACK: python -m benchmarks.kernels.libraries.litert_worker THREADS

Images are handed over channels last, networks' inputs too.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kernels.inference import Network
from benchmarks.kernels.libraries.litert_models import litert_model
from benchmarks.kernels.libraries.litert_networks import litert_network
from benchmarks.kernels.libraries.network_steps import network_steps
from benchmarks.kernels.libraries.quantized_steps import moved_down, moved_up
from benchmarks.kernels.worker import Library, Variant, serve
from benchmarks.kernels.workloads import Array, Image, Workload

litert: Any = importlib.import_module("ai_edge_litert.interpreter")  # in this library's environment only


class LiteRt(Library):
    """See worker.Library."""

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def facts(self) -> dict[str, str]:
        return {"ai-edge-litert": importlib.metadata.version("ai-edge-litert")}

    def open(self, workload: Workload, left: Array, right: Array) -> Sequence[Variant]:
        model = litert_model(workload, left, right)
        interpreter, output = self._interpreter(model.content, model.inputs)

        def documented() -> Array:
            result = output()
            return result.transpose(0, 3, 1, 2) if isinstance(workload.of, Image) else result

        return [Variant("xnnpack", interpreter.invoke, documented if model.comparable else None)]

    def open_network(self, network: Network, data: Array) -> Sequence[Variant]:
        steps = network_steps(Path(network.model))
        model = litert_network(steps)
        given = np.ascontiguousarray(data.transpose(model.input_axes))
        if given.dtype in (np.uint8, np.int8):
            given = moved_down(given).astype(np.int8)
        elif given.dtype != np.float32:
            given = given.astype(np.int32)
        interpreter, output = self._interpreter(model.content, [given])

        def run() -> None:
            interpreter.reset_all_variables()  # the states of recurrent layers
            interpreter.invoke()

        def documented() -> Array:
            found = output().transpose(model.output_axes)
            return moved_up(found) if steps.dtypes[1] == "uint8" else found

        return [Variant("xnnpack", run, documented)]

    def _interpreter(self, content: bytes, arrays: Sequence[Array]) -> tuple[Any, Callable[[], Array]]:
        """An interpreter with its inputs set, and what reads its output."""
        interpreter = litert.Interpreter(model_content=content, num_threads=self._threads)
        interpreter.allocate_tensors()
        for details, array in zip(interpreter.get_input_details(), arrays, strict=True):
            interpreter.set_tensor(details["index"], array)
        (output,) = interpreter.get_output_details()
        return interpreter, lambda: interpreter.get_tensor(output["index"])


if __name__ == "__main__":
    serve(LiteRt(int(sys.argv[1])))
