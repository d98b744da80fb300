"""What a network costs beside its kernels: loading, the first run, copies, and the time between kernels.

    python -m benchmarks.between_kernels --only resnet18,mobilenet_v2 --threads 1,2

Each network is built with the schedules that need no measurement and run through the C interface in a
process that has loaded nothing else. Loading: mapping the library and making an instance. Kernels: the sum of
the times of kernel calls in runs with a clock around each, over runs without one, in turn; copies likewise.
Outside: what the kernels of their fastest run leave of the fastest run without clocks.
Faults: pages that the first run touches and does not find mapped.
"""

from __future__ import annotations

import ctypes
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness.command import Asked, finished, names, numbers, program
from benchmarks.harness.place import board_with
from benchmarks.harness.text import aligned
from benchmarks.kernels.loaded import ALIGNMENT_BYTES
from benchmarks.kernels.networks import NAMES, chosen_networks
from benchmarks.networks import write
from toolkit.bundle.build import BuiltModel, build
from toolkit.bundle.model_plan import Step, leaves
from toolkit.measure.builder import Builder
from toolkit.model.distinct import distinct_operators
from toolkit.model.load import adapted, load_model
from toolkit.model_job.confirm import Winner
from toolkit.model_job.kernels import TunedOperator, plan_model
from toolkit.tuning.on_board import open_task
from toolkit.tuning.progress import TuningResult
from toolkit.tuning.time_breakdown import TimeBreakdown

ALONE = "--alone"
COMPILE_S = 120.0
GOALS = "goals: kernels >= 0.97, outside <= 0.02, first/warm <= 1.5, loading resnet18 <= 30 ms"


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one network: seconds of loading and of the first run, with its faults of pages; of each later run
    without clocks, and in turn with them: those of its kernels and of its copies."""

    load_s: float
    first_s: float
    first_faults: int
    warm_s: tuple[float, ...]
    kernels_s: tuple[float, ...]
    copies_s: tuple[float, ...]

    def row(self) -> list[str]:
        """The figures as text: medians, and in brackets the quartiles of ratios."""
        warm = statistics.median(self.warm_s)
        parts = [own / whole for own, whole in zip(self.kernels_s, self.warm_s, strict=True)]
        low, middle, high = statistics.quantiles(parts, n=4, method="inclusive")
        copies = statistics.median(self.copies_s) / warm
        return [
            f"{1e3 * self.load_s:.2f}", f"{1e3 * self.first_s:.2f}", f"{1e3 * warm:.2f}",
            f"{self.first_s / warm:.2f}", str(self.first_faults),
            f"{middle:.3f} ({low:.3f}-{high:.3f})", f"{1 - min(self.kernels_s) / min(self.warm_s):.3f}",
            f"{copies:.4f}",
        ]  # fmt: skip


def untuned(model: Path, threads: int, workers: int) -> BuiltModel:
    """A model for so many cores of this machine, by the schedules that need no measurement."""
    board, target = board_with(threads)
    graph = adapted(load_model(model), target)
    found = []
    for item in distinct_operators(graph):
        task = open_task(item.name, item.operator, board, target)
        result = TuningResult(task.name, None, None, task.flops, 0, (), 0, TimeBreakdown(), TimeBreakdown())
        found.append(TunedOperator(task, result, Winner(task.programs.space.default(), None, None)))
    with Builder(target, workers=workers, timeout_s=COMPILE_S) as builder:
        return build(plan_model(graph, found, builder, target), target)


def measured(built: BuiltModel, runs: int) -> Costs:
    """The model's costs in a process of its own."""
    kernels = [isinstance(step, Step) for step, _ in leaves(built.plan.steps)]
    sizes = [[spec.size_bytes for spec in specs] for specs in (built.plan.inputs, built.plan.outputs)]
    with tempfile.TemporaryDirectory(prefix="tfb-between-") as folder:
        library = Path(folder) / "model.so"
        library.write_bytes(built.code)
        asked = json.dumps({"library": str(library), "sizes": sizes, "kernels": kernels, "runs": runs})
        command = [sys.executable, "-m", "benchmarks.between_kernels", ALONE, asked]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Costs(**json.loads(done.stdout))


def _run_alone(library: str, sizes: Sequence[Sequence[int]], kernels: Sequence[bool], runs: int) -> Costs:
    """In this process. Inputs are zeros: where the weights are random, so are the layers' values."""
    arrays = [[_zeros(size) for size in some] for some in sizes]
    pointers = [(ctypes.c_void_p * len(some))(*(array.ctypes.data for array in some)) for some in arrays]
    both = (ctypes.c_void_p * sum(map(len, arrays)))(*(item.ctypes.data for some in arrays for item in some))
    instance = ctypes.c_void_p()
    start = time.perf_counter()
    loaded = ctypes.CDLL(library)
    _succeeded("create", loaded.tfb_model_create(ctypes.byref(instance)))
    load_s = time.perf_counter() - start

    def run() -> None:
        _succeeded("run", loaded.tfb_model_run(instance, *pointers))

    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    first_s = _seconds(run)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    spent_ns = (ctypes.c_int64 * len(kernels))()
    # pool and workspace are the instance's first two members (toolkit/bundle/model.c)
    pool, workspace = (ctypes.c_void_p * 2).from_address(instance.value or 0)
    steps = loaded.tfb_model_steps
    warm, own, copied = [], [], []
    for _ in range(runs):
        run()  # both begin with the caches as a run leaves them
        warm.append(_seconds(run))
        ctypes.memset(spent_ns, 0, ctypes.sizeof(spent_ns))
        _succeeded("steps", steps(both, ctypes.c_void_p(workspace), ctypes.c_void_p(pool), spent_ns))
        own.append(1e-9 * sum(spent for spent, kernel in zip(spent_ns, kernels, strict=True) if kernel))
        copied.append(
            1e-9 * sum(spent for spent, kernel in zip(spent_ns, kernels, strict=True) if not kernel)
        )
    loaded.tfb_model_destroy(instance)
    return Costs(load_s, first_s, faults, tuple(warm), tuple(own), tuple(copied))


def _seconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _succeeded(what: str, status: int) -> None:
    if status:
        raise RuntimeError(f"{what} returned {status}, expected 0")


def _zeros(size_bytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Memory at a multiple of the alignment, its pages there."""
    raw = np.full(size_bytes + ALIGNMENT_BYTES, 0, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + size_bytes]


def _networks(asked: Asked) -> None:
    head = ["network", "threads", "load ms", "first ms", "warm ms", "first/warm", "faults"]
    rows = [[*head, "kernels", "outside", "copies"]]
    with tempfile.TemporaryDirectory(prefix="tfb-between-") as folder:
        for name in chosen_networks(asked.only):
            model = write(name, Path(folder) / f"{name}.onnx", 0, asked.size)
            for threads in asked.threads:
                costs = measured(untuned(model, threads, asked.workers), asked.runs)
                rows.append([name, str(threads), *costs.row()])
                print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    print("\n".join([*aligned(rows), GOALS]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = program("between_kernels", __doc__)
    parser.add_argument("--only", type=names, default=[], metavar="NAMES", help=", ".join(NAMES))
    parser.add_argument("--threads", type=numbers, default=[1, 2], metavar="COUNTS", help="default 1,2")
    parser.add_argument("--runs", type=int, default=40, help="pairs of runs (default 40)")
    parser.add_argument("--workers", type=int, default=2, help="processes that compile (default 2)")
    parser.add_argument(
        "--size", type=int, help="of the image, the sequence or the channels (default: usual)"
    )
    parser.add_argument(ALONE, metavar="JSON", help="one built model, in this process")
    given = parser.parse_args(arguments)
    if given.alone:
        print(json.dumps(asdict(_run_alone(**json.loads(given.alone)))))
        return 0
    return finished(parser, arguments, _networks)


if __name__ == "__main__":
    sys.exit(main())
