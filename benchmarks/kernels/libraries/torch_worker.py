"""PyTorch on the CPU (oneDNN, MKL): python -m benchmarks.kernels.libraries.torch_worker THREADS

nchw, channels_last, matmul: the public functions, which lay the weight out again in each call. prepacked: the
operators that torch.compile's freezing emits: oneDNN with the weight laid out once for this input's shape.
Networks: see torch_networks.py.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.kernels.inference import Network
from benchmarks.kernels.libraries.network_steps import network_steps
from benchmarks.kernels.libraries.torch_networks import network_calls
from benchmarks.kernels.worker import Library, Variant, serve
from benchmarks.kernels.workloads import Array, Image, Product, Workload

torch: Any = importlib.import_module("torch")  # there in this library's own environment only


class Torch(Library):
    """See worker.Library."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)

    def facts(self) -> dict[str, str]:
        onednn = [line for line in torch.__config__.show().splitlines() if "DNN" in line and "v" in line]
        return {"torch": torch.__version__, "onednn": onednn[0].strip(" -") if onednn else "unknown"}

    def open(self, workload: Workload, left: Array, right: Array) -> Sequence[Variant]:
        x, w = torch.from_numpy(left), torch.from_numpy(right)
        calls = (*public_calls(workload.of, x, w), *_prepacked(workload.of, x, w))
        return [Variant(name, call, output_of(call)) for name, call in calls]

    def open_network(self, network: Network, data: Array) -> Sequence[Variant]:
        calls = network_calls(network_steps(Path(network.model)), torch.from_numpy(data))
        return [Variant(name, call, output_of(call)) for name, call in calls]


Calls = Iterator[tuple[str, Callable[[], Any]]]


def output_of(call: Callable[[], Any]) -> Callable[[], Array]:
    """What reads a call's result, in the layout of workloads.py."""

    def output() -> Array:
        result: Array = call().contiguous().cpu().numpy()
        return result

    return output


def public_calls(of: Image | Product, x: Any, w: Any) -> Calls:
    """The public functions on tensors of any device, images in both of their layouts."""
    if not isinstance(of, Image):
        yield "matmul", lambda: torch.matmul(x, w)
        return
    for name, layout in (("nchw", torch.contiguous_format), ("channels_last", torch.channels_last)):
        yield name, _convolution(of, *(tensor.to(memory_format=layout) for tensor in (x, w)))


def _convolution(of: Image, data: Any, weight: Any) -> Callable[[], Any]:
    if of.family == "transposed":
        transposed = torch.nn.functional.conv_transpose2d
        return lambda: transposed(data, weight, stride=of.stride, padding=of.pad)
    conv2d, groups = torch.nn.functional.conv2d, _groups(of)
    return lambda: conv2d(data, weight, None, of.stride, of.pad, 1, groups)


def _groups(of: Image) -> int:
    return of.inputs if of.family == "depthwise" else 1


def _prepacked(of: Image | Product, x: Any, w: Any) -> Calls:
    """oneDNN's operators on a weight that is laid out once, where there is one for it."""
    mkldnn = torch.ops.mkldnn
    if of.family == "dense":
        packed = mkldnn._reorder_linear_weight(w.T.contiguous(), x.shape[0])
        yield "prepacked", lambda: mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    elif isinstance(of, Image) and of.family != "transposed":
        window = ([of.pad] * 2, [of.stride] * 2, [1, 1], _groups(of))
        packed = mkldnn._reorder_convolution_weight(w, *window, list(x.shape))
        last, pointwise = x.to(memory_format=torch.channels_last), mkldnn._convolution_pointwise
        yield "prepacked", lambda: pointwise(last, packed, None, *window, "none", [], "")


if __name__ == "__main__":
    serve(Torch(int(sys.argv[1])))
