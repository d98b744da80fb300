"""ncnn on the CPU in float32: python -m benchmarks.kernels.libraries.ncnn_worker THREADS

Networks only, converted by its own converter, pnnx, which drops the batch of one. The input is handed over
anew in every call, as its interface has it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kernels.inference import Network
from benchmarks.kernels.worker import Library, Variant, serve
from benchmarks.kernels.workloads import Array, Workload

ncnn: Any = importlib.import_module("ncnn")  # there in this library's own environment only
CONVERT_S = 240.0
HALF = ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_storage")


class Ncnn(Library):
    """See worker.Library."""

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def facts(self) -> dict[str, str]:
        return {name: importlib.metadata.version(name) for name in ("ncnn", "pnnx")}

    def open(self, workload: Workload, left: Array, right: Array) -> Sequence[Variant]:
        return []

    def open_network(self, network: Network, data: Array) -> Sequence[Variant]:
        net = ncnn.Net()
        net.opt.num_threads, net.opt.use_vulkan_compute = self._threads, False
        for setting in HALF:
            setattr(net.opt, setting, False)
        with tempfile.TemporaryDirectory() as folder:
            stem = _converted(Path(network.model), data, Path(folder))
            if net.load_param(f"{stem}.param") or net.load_model(f"{stem}.bin"):
                raise RuntimeError("the converted network cannot be loaded")
        given = np.ascontiguousarray(data[0] if data.dtype == np.float32 else data[0].astype(np.int32))
        (first,), (last,) = net.input_names(), net.output_names()

        def run() -> Any:
            extractor = net.create_extractor()
            extractor.input(first, ncnn.Mat(given))
            status, found = extractor.extract(last)
            if status:
                raise RuntimeError(f"the network returned {status}, expected 0")
            return found

        _, expected = network.arrays()
        return [Variant("cpu", run, lambda: np.array(run()).reshape(expected.shape))]


def _converted(model: Path, data: Array, folder: Path) -> Path:
    """The network in ncnn's form, below `folder`; where its files begin.

    Raises:
        RuntimeError: the converter fails; the text has its last words.
    """
    (folder / "net.onnx").write_bytes(model.read_bytes())
    kind = "f32" if data.dtype == np.float32 else "i64"
    shape = ",".join(str(extent) for extent in data.shape)
    (pnnx,) = (item for item in importlib.metadata.files("pnnx") or [] if item.match("pnnx/pnnx"))
    told = subprocess.run(
        [str(pnnx.locate()), "net.onnx", f"inputshape=[{shape}]{kind}", "fp16=0"],
        cwd=folder, capture_output=True, text=True, timeout=CONVERT_S, check=False,
    )  # fmt: skip
    if told.returncode or not (folder / "net.ncnn.bin").exists():
        raise RuntimeError(f"pnnx ended with {told.returncode}: {(told.stdout + told.stderr)[-300:]}")
    return folder / "net.ncnn"


if __name__ == "__main__":
    serve(Ncnn(int(sys.argv[1])))
