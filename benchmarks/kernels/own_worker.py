"""Our kernels: python -m benchmarks.kernels.own_worker THREADS --records FILE [--finalists N]

tuned: the best recorded configuration. The fastest few records are measured again in turn before the rounds,
and the winner goes into them: a record may owe its rank to the moment in which it was taken. default: the
schedule that needs no measurement.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.kernels.expressions import documented, operands, operator
from benchmarks.kernels.host import board_with
from benchmarks.kernels.loaded import LoadedCode, aligned
from benchmarks.kernels.turn import Call, take_turn
from benchmarks.kernels.worker import Variant, serve
from benchmarks.kernels.workloads import Array, Workload
from cross.compile import Kernel, compile
from cross.schedule.space import Configuration, ScheduleSpace
from toolkit.jobs import open_job
from toolkit.model_job.confirm import finalists
from toolkit.records import RecordKey, Records
from toolkit.version import TOOL_VERSION

FINAL_ROUNDS = 5
FINAL_BATCH_S = 0.005


class OwnKernels:
    """See worker.Library."""

    def __init__(self, threads: int, records: Path, finalists: int) -> None:
        self._board, self._target = board_with(threads)
        self._records, self._finalists = records, finalists
        self._loaded: list[LoadedCode] = []

    def facts(self) -> dict[str, str]:
        return {"tune-for-board": TOOL_VERSION, "records": str(self._records), "target": self._target.key}

    def open(self, workload: Workload, left: Array, right: Array) -> Sequence[Variant]:
        job, programs = open_job(workload.name, operator(workload), self._board, self._target)
        space = programs.space
        recorded = self._recorded(space, job.key)
        configurations = list(recorded) or [space.default()]
        nests = [(f"k{number}", programs.nest(item)) for number, item in enumerate(configurations)]
        artifact = compile(nests, self._target)
        loaded = LoadedCode(artifact.code, self._target.cores)
        self._loaded.append(loaded)
        inputs = operands(workload, left, right)
        kernels = [_prepared(kernel, workload, loaded, inputs) for kernel in artifact.kernels]
        default = kernels[configurations.index(space.default())]
        tuned = [_fastest(kernels)] if recorded else []
        return [
            Variant(name, call, output)
            for name, (call, output) in zip(("default", "tuned"), [default, *tuned], strict=False)
        ]

    def close(self) -> None:
        while self._loaded:
            self._loaded.pop().close()

    def _recorded(self, space: ScheduleSpace, key: RecordKey) -> list[Configuration]:
        """The configurations of the fastest records and the default one; none where nothing is recorded."""
        if not self._records.exists():
            return []
        with Records(self._records, read_only=True) as records:
            return list(finalists(space, records, key, self._finalists))


Prepared = tuple[Call, Callable[[], Array]]


def _prepared(kernel: Kernel, workload: Workload, loaded: LoadedCode, inputs: Sequence[Array]) -> Prepared:
    """The call of a kernel on operands packed as it wants them, and its output, NaN until it is written."""
    *arguments, result = kernel.arguments
    arrays = [
        aligned(array if argument.packing is None else argument.packing.apply(array))
        for argument, array in zip(arguments, inputs, strict=True)
    ]
    output = aligned(np.full(result.shape, np.nan, np.float32))
    call = loaded.kernel(kernel.symbol, [*arrays, output], kernel.workspace_bytes)
    return call, lambda: documented(workload, output)


def _fastest(kernels: Sequence[Prepared]) -> Prepared:
    """The kernel with the best median over rounds in which each had a batch, relative to the round's best."""
    times_s = np.zeros((FINAL_ROUNDS, len(kernels)))
    for each in times_s:
        for position, (call, _) in enumerate(kernels):
            turn = take_turn(call, batches=1, batch_s=FINAL_BATCH_S)
            each[position] = min(turn.kept or turn.disturbed)
    return kernels[int(np.argmin(np.median(times_s / times_s.min(axis=1, keepdims=True), axis=0)))]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("threads", type=int)
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--finalists", type=int, default=4)
    asked = parser.parse_args()
    serve(OwnKernels(asked.threads, asked.records, asked.finalists))
