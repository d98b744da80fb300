"""numpy in float32: python -m benchmarks.kernels.libraries.numpy_worker THREADS

What somebody without a kernel library would write. taps: one matrix product (depthwise: one scaling) for each
place of the kernel; patches: all of them gathered for a single product. Images are NHWC. The baseline of
shapes that nobody has tuned for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from benchmarks.kernels.worker import Library, Variant, serve
from benchmarks.kernels.workloads import Array, Image, Workload, channels_last


class Numpy(Library):
    """See worker.Library."""

    def facts(self) -> dict[str, str]:
        return {
            "numpy": np.__version__,
            "OpenBLAS core": os.environ.get("OPENBLAS_CORETYPE", "its own choice"),
        }

    def open(self, workload: Workload, left: Array, right: Array) -> Sequence[Variant]:
        of = workload.of
        if not isinstance(of, Image):
            product = np.empty(of.shapes[2], np.float32)
            return [_variant("matmul", partial(np.matmul, left, right, out=product), lambda output: output)]
        (data,), weight = channels_last(of, left, right)
        functions = (
            {"taps": _transposed} if of.family == "transposed" else {"taps": _taps, "patches": _patches}
        )
        return [
            _variant(
                name, partial(function, of, data, weight), lambda output: output.transpose(2, 0, 1)[None]
            )
            for name, function in functions.items()
        ]


def _variant(name: str, call: Callable[[], Array], documented: Callable[[Array], Array]) -> Variant:
    return Variant(name, call, lambda: documented(call()))


def _padded(of: Image, data: Array) -> Array:
    return np.pad(data, ((of.pad, of.pad), (of.pad, of.pad), (0, 0)))


def _taps(of: Image, data: Array, weight: Array) -> Array:
    """data [h, w, ci], weight [kh, kw, ci, co] (depthwise: [kh, kw, c])."""
    padded, span = _padded(of, data), of.stride * (of.output_size - 1) + 1
    result = np.zeros((of.output_size, of.output_size, of.outputs), np.float32)
    for y, x in np.ndindex(of.kernel, of.kernel):
        seen = padded[y : y + span : of.stride, x : x + span : of.stride]
        result += seen * weight[y, x] if of.family == "depthwise" else seen @ weight[y, x]
    return result


def _patches(of: Image, data: Array, weight: Array) -> Array:
    """The convolution of `_taps` by patches [oh, ow, ci, kh, kw], a view that is copied when it is summed."""
    view = sliding_window_view(_padded(of, data), (of.kernel, of.kernel), axis=(0, 1))
    view = view[:: of.stride, :: of.stride]
    if of.family == "depthwise":
        return np.asarray(np.einsum("yxckl,klc->yxc", view, weight))
    rows = view.transpose(0, 1, 3, 4, 2).reshape(of.output_size**2, -1)
    return np.asarray(rows @ weight.reshape(-1, of.outputs)).reshape(of.output_size, of.output_size, -1)


def _transposed(of: Image, data: Array, weight: Array) -> Array:
    """data [h, w, ci], weight [kh, kw, ci, co]: every pixel adds its multiple of the kernel."""
    whole, span = of.output_size + 2 * of.pad, of.stride * (of.size - 1) + 1
    result = np.zeros((whole, whole, of.outputs), np.float32)
    for y, x in np.ndindex(of.kernel, of.kernel):
        result[y : y + span : of.stride, x : x + span : of.stride] += data @ weight[y, x]
    return result[of.pad : of.pad + of.output_size, of.pad : of.pad + of.output_size]


if __name__ == "__main__":
    serve(Numpy())
