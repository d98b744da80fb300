"""Our kernels and bundles: python -m benchmarks.kernels.own_worker THREADS --records FILE

Also: --finalists N, --floats, --board BOARD.

tuned: the best recorded configuration. direct: the best one without Winograd's algorithms, where those are
a choice. default: the schedule that needs no measurement. bundle: a network, end to end; with --floats as it
was before it was quantized. The fastest few
records are measured again in turn before the rounds, and the winner goes into them: a record may owe its rank
to the moment in which it was taken.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness.place import HOST, board_with
from benchmarks.kernels.direct import algorithm
from benchmarks.kernels.expressions import documented, operands, operator
from benchmarks.kernels.inference import Network
from benchmarks.kernels.loaded import LoadedCode, LoadedModel, aligned
from benchmarks.kernels.turn import Call, take_turn
from benchmarks.kernels.worker import Library, Variant, serve
from benchmarks.kernels.workloads import FLOAT_BYTES, Array, Workload
from cross.compile import Kernel, compile
from cross.inspection.cpu_loops import inspect
from cross.loopnest.program import Programs
from cross.schedule.space import Configuration
from toolkit.model_job.confirm import finalists
from toolkit.records import Records
from toolkit.tuning.on_board import open_task
from toolkit.version import TOOL_VERSION

ROOT = Path(__file__).parents[2]
FINAL_ROUNDS = 5
FINAL_BATCH_S = 0.005


@dataclass(frozen=True, slots=True)
class _Field:
    """The configurations of one space that stand to be measured again; `trials` are recorded in it."""

    programs: Programs
    configurations: tuple[Configuration, ...]
    trials: int


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A kernel on its operands, and what reads its output, NaN until it is written."""

    configuration: Configuration
    call: Call
    output: Callable[[], Array]


class OwnKernels(Library):
    """See worker.Library."""

    def __init__(
        self, threads: int, records: Path, finalists: int, *, floats: bool = False, board: str = HOST
    ) -> None:
        self._board, self._target = board_with(threads, board)
        self._records, self._finalists, self._floats = records, finalists, floats
        self._loaded: list[LoadedCode | LoadedModel] = []

    def facts(self) -> dict[str, str]:
        count = 0
        if self._records.exists():
            with Records(self._records, read_only=True) as records:
                count = len(records)
        known = {"records": str(self._records), "measurements": str(count), "target": self._target.key}
        return {"tune-for-board": TOOL_VERSION, "code": code_digest(), **known}

    def open(self, workload: Workload, left: Array, right: Array) -> Sequence[Variant]:
        field = self._field(workload, winograd=True)
        fields, direct = [field], self._field(workload, winograd=False)
        tuned = field.trials or direct.trials  # the default is a direct one
        if tuned and direct.programs.space.key != field.programs.space.key:
            fields.append(direct)
        prepared, *others = self._prepared(fields, workload, operands(workload, left, right))
        default = field.programs.space.default()
        untuned = next(item for item in prepared if item.configuration == default)
        variants = [self._variant("default", field, untuned)]
        if field.trials:
            variants.append(self._variant("tuned", field, _fastest(prepared)))
        return [*variants, *(self._variant("direct", direct, _fastest(found)) for found in others)]

    def open_network(self, network: Network, data: Array) -> Sequence[Variant]:
        _, expected = network.arrays()
        output = aligned(np.full(expected.shape, np.nan, np.float32))
        library = network.float_library if self._floats else network.library
        loaded = LoadedModel(Path(library).read_bytes(), self._target.cores)
        self._loaded.append(loaded)
        return [Variant("bundle", loaded.inference([aligned(data)], [output]), lambda: output)]

    def close(self) -> None:
        while self._loaded:
            self._loaded.pop().close()

    def _field(self, workload: Workload, *, winograd: bool) -> _Field:
        """The configurations of the fastest records and the default one; that alone without records."""
        of = operator(workload)
        task = open_task(workload.name, of, self._board, self._target, winograd=winograd)
        programs = task.programs
        space = programs.space
        if not self._records.exists():
            return _Field(programs, (space.default(),), 0)
        with Records(self._records, read_only=True) as records:
            trials = len(records.for_key(task.key))
            found = tuple(finalists(space, records, task.key, self._finalists)) or (space.default(),)
        return _Field(programs, found, trials)

    def _prepared(
        self, fields: Sequence[_Field], workload: Workload, inputs: Sequence[Array]
    ) -> list[list[_Prepared]]:
        """Every configuration of each field compiled, on operands packed as it wants them.

        All are in one shared object, for the sake of its thread pool: the caller of a second one is pinned to
        a single core already, where no pool would spin.
        """
        nests = [
            (f"k{number}_{position}", field.programs.nest(configuration))
            for number, field in enumerate(fields)
            for position, configuration in enumerate(field.configurations)
        ]
        artifact = compile(nests, self._target)
        loaded = LoadedCode(artifact.code, self._target.cores)
        self._loaded.append(loaded)
        kernels = iter(artifact.kernels)
        return [
            [_prepared(item, next(kernels), workload, loaded, inputs) for item in field.configurations]
            for field in fields
        ]

    def _variant(self, name: str, field: _Field, prepared: _Prepared) -> Variant:
        """The winner with what its machine code says: see cross.inspection.cpu_loops."""
        configuration = prepared.configuration
        facts: dict[str, str | float] = {
            "algorithm": algorithm(field.programs.space, configuration),
            "trials": field.trials,
        }
        nest = field.programs.nest(configuration)
        hot = inspect("kernel", nest, self._target, predict=False).hot
        if hot is not None and hot.fma:
            folded_bytes = FLOAT_BYTES * hot.element_loads
            loads = hot.element_loads + (hot.load_bytes - folded_bytes) / self._target.vector_bytes
            facts |= {
                "spills": hot.spills,
                "fma_share": hot.fma_share,
                "loads_per_fma": loads / hot.fma,
            }
        return Variant(name, prepared.call, prepared.output, facts=facts)


def code_digest() -> str:
    """Twelve hex digits of the sources that our kernels come from: other code makes other kernels."""
    digest = hashlib.sha256()
    for room in ("boards", "cross", "toolkit"):
        for path in sorted((ROOT / room).rglob("*")):
            if path.suffix in (".py", ".c", ".h", ".toml"):
                digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _prepared(
    configuration: Configuration,
    kernel: Kernel,
    workload: Workload,
    loaded: LoadedCode,
    inputs: Sequence[Array],
) -> _Prepared:
    *arguments, result = kernel.arguments
    arrays = [
        aligned(array if argument.packing is None else argument.packing.apply(array))
        for argument, array in zip(arguments, inputs, strict=True)
    ]
    output = aligned(np.full(result.shape, np.nan, np.float32))
    call = loaded.kernel(kernel.symbol, [*arrays, output], kernel.workspace_bytes)
    return _Prepared(configuration, call, lambda: documented(workload, output))


def _fastest(kernels: Sequence[_Prepared]) -> _Prepared:
    """The kernel with the best median over rounds in which each had a batch, relative to the round's best."""
    times_s = np.zeros((FINAL_ROUNDS, len(kernels)))
    for each in times_s:
        for position, kernel in enumerate(kernels):
            turn = take_turn(kernel.call, batches=1, batch_s=FINAL_BATCH_S)
            each[position] = min(turn.kept or turn.disturbed)
    return kernels[int(np.argmin(np.median(times_s / times_s.min(axis=1, keepdims=True), axis=0)))]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("threads", type=int)
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--finalists", type=int, default=4)
    parser.add_argument("--floats", action="store_true")
    parser.add_argument("--board", default=HOST)
    asked = parser.parse_args()
    serve(OwnKernels(asked.threads, asked.records, asked.finalists, floats=asked.floats, board=asked.board))
