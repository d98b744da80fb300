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
from benchmarks.kernels.worker import Variant, serve
from benchmarks.kernels.workloads import Array, Image, Workload

torch: Any = importlib.import_module("torch")  # there in this library's own environment only


class Torch:
    """See worker.Library."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)

    def facts(self) -> dict[str, str]:
        onednn = [line for line in torch.__config__.show().splitlines() if "DNN" in line and "v" in line]
        return {"torch": torch.__version__, "onednn": onednn[0].strip(" -") if onednn else "unknown"}

    def open(self, workload: Workload, left: Array, right: Array) -> Sequence[Variant]:
        x, w = torch.from_numpy(left), torch.from_numpy(right)
        of = workload.of
        if not isinstance(of, Image):
            calls = _products(of.family == "dense", x, w)
        elif of.family == "transposed":
            calls = _transposed(of, x, w)
        else:
            calls = _convolutions(of, x, w)
        return [Variant(name, call, _output(call)) for name, call in calls]

    def open_network(self, network: Network, data: Array) -> Sequence[Variant]:
        name, steps = network_steps(Path(network.model))
        calls = network_calls(name, steps, torch.from_numpy(data))
        return [Variant(name, call, _output(call)) for name, call in calls]

    def close(self) -> None:
        pass


Calls = Iterator[tuple[str, Callable[[], Any]]]


def _output(call: Callable[[], Any]) -> Callable[[], Array]:
    def output() -> Array:
        result: Array = call().contiguous().numpy()
        return result

    return output


def _channels_last(*tensors: Any) -> tuple[Any, ...]:
    return tuple(tensor.to(memory_format=torch.channels_last) for tensor in tensors)


def _convolutions(of: Image, x: Any, w: Any) -> Calls:
    stride, pad, dilation = [of.stride] * 2, [of.pad] * 2, [1, 1]
    groups = of.inputs if of.family == "depthwise" else 1
    conv2d, mkldnn = torch.nn.functional.conv2d, torch.ops.mkldnn
    xl, wl = _channels_last(x, w)
    packed = mkldnn._reorder_convolution_weight(w, pad, stride, dilation, groups, list(x.shape))
    pointwise = mkldnn._convolution_pointwise
    yield "nchw", lambda: conv2d(x, w, None, stride, pad, dilation, groups)
    yield "channels_last", lambda: conv2d(xl, wl, None, stride, pad, dilation, groups)
    yield "prepacked", lambda: pointwise(xl, packed, None, pad, stride, dilation, groups, "none", [], "")


def _transposed(of: Image, x: Any, w: Any) -> Calls:
    function = torch.nn.functional.conv_transpose2d
    xl, wl = _channels_last(x, w)
    yield "nchw", lambda: function(x, w, stride=of.stride, padding=of.pad)
    yield "channels_last", lambda: function(xl, wl, stride=of.stride, padding=of.pad)


def _products(constant: bool, x: Any, w: Any) -> Calls:
    yield "matmul", lambda: torch.matmul(x, w)
    if constant:
        mkldnn = torch.ops.mkldnn
        packed = mkldnn._reorder_linear_weight(w.T.contiguous(), x.shape[0])
        yield "prepacked", lambda: mkldnn._linear_pointwise(x, packed, None, "none", [], "")


if __name__ == "__main__":
    serve(Torch(int(sys.argv[1])))
