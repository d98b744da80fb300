"""PyTorch on a GPU (cuDNN, cuBLAS): python -m benchmarks.kernels.libraries.torch_gpu_worker THREADS [DEVICE]

float32 without TF32, cuDNN's algorithm chosen by its own benchmark. A call is LAUNCHES of the operator that
wait for the GPU once; on CUDA they are one graph, so that Python's own time does not count. DEVICE is what
PyTorch calls it (default: cuda); "cpu" shows that this works where there is none.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from benchmarks.kernels.libraries.torch_worker import output_of, public_calls
from benchmarks.kernels.worker import Library, Variant, serve
from benchmarks.kernels.workloads import Array, Workload

torch: Any = importlib.import_module("torch")  # there in this library's own environment only

LAUNCHES: Final = 32
WARM_LAUNCHES: Final = 3


class TorchGpu(Library):
    """See worker.Library."""

    def __init__(self, threads: int, device: str) -> None:
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        self._device = torch.device(device)

    def facts(self) -> dict[str, str]:
        if self._device.type != "cuda":
            return {"torch": torch.__version__, "device": str(self._device)}
        return {
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(self._device),
            "cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version()),
            "TF32": "off",
        }

    def open(self, workload: Workload, left: Array, right: Array) -> Sequence[Variant]:
        x, w = (torch.from_numpy(array).to(self._device) for array in (left, right))
        work = float(LAUNCHES * workload.flops)
        return [
            Variant(name, self._launched(function), output_of(function), work, {"launches": LAUNCHES})
            for name, function in public_calls(workload.of, x, w)
        ]

    def close(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _launched(self, function: Callable[[], Any]) -> Callable[[], object]:
        """LAUNCHES of a function, and the wait for their end."""
        if self._device.type != "cuda":
            return lambda: [function() for _ in range(LAUNCHES)]
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_LAUNCHES):
                function()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(LAUNCHES):
                function()

        def call() -> None:
            graph.replay()
            torch.cuda.synchronize(self._device)

        return call


if __name__ == "__main__":
    serve(TorchGpu(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "cuda"))
