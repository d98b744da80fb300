"""What the machine can do at best, in the same rounds: python -m benchmarks.kernels.machine_worker THREADS

Also: --board BOARD.

fma: multiply-adds in registers. read: reading a working set of the workload's size, which says what the cache
level that it fits in delivers. launch: a parallel loop with nothing to do, where there are several threads.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from benchmarks.harness.place import HOST, board_with
from benchmarks.kernels.inference import Network
from benchmarks.kernels.loaded import LoadedCode, aligned
from benchmarks.kernels.machine_code import LAUNCH, READ, machine_code
from benchmarks.kernels.worker import Library, Variant, serve
from benchmarks.kernels.workloads import Array, Workload
from toolkit.measure.peak import SYMBOL


class Machine(Library):
    """See worker.Library."""

    def __init__(self, threads: int, board: str = HOST) -> None:
        self._target = board_with(threads, board)[1]
        self._loaded: list[LoadedCode] = []

    def facts(self) -> dict[str, str]:
        return {"vector_bytes": str(self._target.vector_bytes), "target": self._target.key}

    def open(self, workload: Workload, left: Array, right: Array) -> Sequence[Variant]:
        return self._opened(workload.bytes_once)

    def open_network(self, network: Network, data: Array) -> Sequence[Variant]:
        return self._opened(network.bytes_once)

    def close(self) -> None:
        while self._loaded:
            self._loaded.pop().close()

    def _opened(self, bytes_once: int) -> list[Variant]:
        several = self._target.threads > 1
        made = machine_code(self._target, bytes_once)
        loaded = LoadedCode(made.code, self._target.cores)
        self._loaded.append(loaded)
        start = [aligned(np.linspace(0.0, 2.0, made.fma_elements, dtype=np.float32)) for _ in range(2)]
        data = aligned(np.full(made.working_set_bytes // 4, 1e-9, np.float32))
        launch = [Variant("launch", loaded.kernel(LAUNCH, [data]), None, 1.0)] if several else []
        return [
            Variant("fma", loaded.kernel(SYMBOL, start), None, made.fma_flops),
            Variant("read", loaded.kernel(READ, [data]), None, made.read_bytes),
            *launch,
        ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("threads", type=int)
    parser.add_argument("--board", default=HOST)
    asked = parser.parse_args()
    serve(Machine(asked.threads, asked.board))
