"""Other libraries on one quantized convolution, each in a process of its own: the operator as a QDQ file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.kernels.inference import Network
from benchmarks.kernels.processes import LibraryFailed, LibraryProcess, contenders
from benchmarks.kernels.rounds import OPEN_S, TURN_S
from benchmarks.kernels.workloads import Array, Workload

NAMES: Final = ("openvino", "litert")
WRONG: Final = 0.01
"""Of the largest output: more than two steps of 8 bits."""


@dataclass(slots=True)
class Rivals:
    """Running libraries, and why others have no figure."""

    processes: list[LibraryProcess]
    left_out: dict[str, str] = field(default_factory=dict)

    def open(
        self, workload: Workload, model: Any, data: Array, want: Array, folder: Path
    ) -> list[RivalVariant]:
        """The ways in which libraries compute a QDQ model (onnx.ModelProto) of one input and one output."""
        path, arrays = folder / "qdq.onnx", folder / "data.npz"
        path.write_bytes(model.SerializeToString())
        np.savez(arrays, input=data, output=want)
        network = Network(
            workload.name, str(path), str(arrays), "", workload.text, workload.flops, workload.bytes_once
        )
        found = []
        for process in self.processes:
            name = process.contender.name
            try:
                answer = process.ask({"do": "open", "workload": network.described()}, timeout_s=OPEN_S)
            except LibraryFailed as error:
                self.left_out[name] = str(error)
                continue
            for variant in answer["variants"]:
                if variant["error"] > WRONG:
                    self.left_out[f"{name} {variant['name']}"] = f"wrong by {variant['error']:.1e}"
                else:
                    found.append(RivalVariant(process, variant["name"]))
            process.wait_until_quiet()
        return found


@dataclass(frozen=True, slots=True)
class RivalVariant:
    """A way in which a library computes a model."""

    process: LibraryProcess
    name: str

    @property
    def library(self) -> str:
        """The library's name."""
        return self.process.contender.name

    def seconds(self, batch_s: float) -> float:
        """Of a call, over calls of a batch; its threads are quiet again afterwards."""
        request = {"do": "time", "variant": self.name, "batches": 1, "batch_s": batch_s}
        answer = self.process.ask(request, timeout_s=TURN_S)
        self.process.wait_until_quiet()
        return float(min([*answer["kept"], *answer["disturbed"]]))


@contextmanager
def running(peers: Path, threads: int, names: Sequence[str] = NAMES) -> Iterator[Rivals]:
    """The libraries of these names, until the block ends."""
    everybody = [item for item in contenders(peers, (), names) if item.name in names]
    processes = [LibraryProcess(item, threads) for item in everybody]
    try:
        yield Rivals(processes)
    finally:
        for process in processes:
            process.close()
