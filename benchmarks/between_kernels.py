"""What a network costs beside its kernels: loading, the first run, copies, and the time between kernels.

    python -m benchmarks.between_kernels --only resnet18,mobilenet_v2 --threads 1,2
    python -m benchmarks.between_kernels --only resnet18 --threads 1,2 --layers 10

Each network is built with the schedules that need no measurement and run through the C interface in a
process that has loaded nothing else. Loading: mapping the library and making an instance. Kernels: the sum of
the times of kernel calls in runs with a clock around each, over runs without one, in turn; copies likewise.
Outside: what the kernels of their fastest run leave of the fastest run without clocks.
Faults: pages that the first run touches and does not find mapped.
Rested: a run after REST_S in which this process slept, as one that answers now and then finds its core; what
the first run takes longer than that, loading could spare it.
With --layers each network's slowest layers follow: medians of their kernels' times in such runs, their share
of the sum, the rate, and how many times as fast they are with the last number of threads as with the first.
Branches (of several threads, beside 1): a bound on what a schedule of kernels over cores could save of a run,
which gives branches to different cores. A kernel that no other may run beside takes what it takes; any other
at least its time on one thread, shared by all.
"""

from __future__ import annotations

import ctypes
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness.command import Asked, finished, names, numbers, program
from benchmarks.harness.place import HOST, board_with, level_of
from benchmarks.harness.text import aligned
from benchmarks.kernels.loaded import ALIGNMENT_BYTES
from benchmarks.kernels.networks import NAMES, chosen_networks
from benchmarks.networks import write
from toolkit.bundle.build import BuiltModel, build
from toolkit.bundle.model_plan import Step, leaves
from toolkit.measure.builder import Builder
from toolkit.model.distinct import distinct_operators
from toolkit.model.graph import Graph, Group
from toolkit.model.load import adapted, load_model
from toolkit.model_job.confirm import Winner
from toolkit.model_job.kernels import TunedOperator, plan_model
from toolkit.tuning.on_board import open_task
from toolkit.tuning.progress import TuningResult
from toolkit.tuning.time_breakdown import TimeBreakdown

ALONE = "--alone"
COMPILE_S = 120.0
REST_S, RESTS = 0.05, 9  # choices: from 0.01 on a run took longer than a warm one, of 0.1 and 0.5 as of 0.05
GOALS = "goals: kernels >= 0.97, outside <= 0.02, first/warm <= 1.5, loading resnet18 <= 30 ms"


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one network: seconds of loading and of the first run, with its faults of pages; of each later run
    without clocks, and in turn with them: those of its kernels and of its copies; of runs after a rest."""

    load_s: float
    first_s: float
    first_faults: int
    warm_s: tuple[float, ...]
    kernels_s: tuple[float, ...]
    copies_s: tuple[float, ...]
    rested_s: tuple[float, ...]
    steps_s: tuple[float, ...] = ()
    """Medians of each kernel and copy, in order."""

    def row(self) -> list[str]:
        """The figures as text: medians, and in brackets the quartiles of ratios."""
        warm = statistics.median(self.warm_s)
        parts = [own / whole for own, whole in zip(self.kernels_s, self.warm_s, strict=True)]
        low, middle, high = statistics.quantiles(parts, n=4, method="inclusive")
        copies = statistics.median(self.copies_s) / warm
        return [
            f"{1e3 * self.load_s:.2f}", f"{1e3 * self.first_s:.2f}", f"{1e3 * warm:.2f}",
            f"{self.first_s / warm:.2f}", f"{statistics.median(self.rested_s) / warm:.2f}",
            str(self.first_faults),
            f"{middle:.3f} ({low:.3f}-{high:.3f})", f"{1 - min(self.kernels_s) / min(self.warm_s):.3f}",
            f"{copies:.4f}",
        ]  # fmt: skip


def untuned(model: Path, threads: int, workers: int, board_name: str = HOST) -> BuiltModel:
    """A model for so many cores of this machine, by the schedules that need no measurement."""
    board, target = board_with(threads, board_name)
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
    warm, own, copied, each = [], [], [], []
    for _ in range(runs):
        run()  # both begin with the caches as a run leaves them
        warm.append(_seconds(run))
        ctypes.memset(spent_ns, 0, ctypes.sizeof(spent_ns))
        _succeeded("steps", steps(both, ctypes.c_void_p(workspace), ctypes.c_void_p(pool), spent_ns))
        own.append(1e-9 * sum(spent for spent, kernel in zip(spent_ns, kernels, strict=True) if kernel))
        copied.append(
            1e-9 * sum(spent for spent, kernel in zip(spent_ns, kernels, strict=True) if not kernel)
        )
        each.append([1e-9 * spent for spent in spent_ns])
    rested = []
    for _ in range(RESTS):
        time.sleep(REST_S)
        rested.append(_seconds(run))
    loaded.tfb_model_destroy(instance)
    medians = tuple(statistics.median(step) for step in zip(*each, strict=True))
    return Costs(load_s, first_s, faults, tuple(warm), tuple(own), tuple(copied), tuple(rested), medians)


def layer_seconds(built: BuiltModel, costs: Costs) -> dict[str, float]:
    """The time of each layer; of a loop around it all times together."""
    own: dict[str, float] = {}
    for (step, _), spent_s in zip(leaves(built.plan.steps), costs.steps_s, strict=True):
        if isinstance(step, Step):
            own[step.layer] = own.get(step.layer, 0.0) + spent_s
    return own


def layer_work(built: BuiltModel) -> dict[str, tuple[float, str]]:
    """By layer: operations of all times that its kernel runs, and the operator."""
    kernels = {kernel.symbol: kernel.provenance for kernel in built.plan.kernels}
    return {
        step.layer: (math.prod(counts) * kernels[step.symbol].flops, kernels[step.symbol].operator)
        for step, counts in leaves(built.plan.steps)
        if isinstance(step, Step)
    }


def alike(one: BuiltModel, costs: Costs, other: BuiltModel) -> dict[str, float]:
    """Seconds of the layers of `one` that compute what they compute in `other`: other threads may mean other
    chains, and a chain has the name of its last layer."""
    work = layer_work(other)
    own = layer_work(one)
    return {
        layer: spent_s
        for layer, spent_s in layer_seconds(one, costs).items()
        if own[layer] == work.get(layer)
    }


def layer_rows(found: Sequence[tuple[int, BuiltModel, Costs]], most: int) -> list[list[str]]:
    """The `most` slowest layers, as text; by number of threads, the first of which says which are slowest.

    A layer is what one kernel computes for nodes of one name; of a loop around it all times together.
    """
    first = found[0][1]
    seconds = [alike(built, costs, first) for _, built, costs in found]
    work = layer_work(first)
    slowest = sorted(seconds[0], key=lambda layer: -seconds[0][layer])[:most]
    times = [f"ms x{threads}" for threads, _, _ in found]
    rows = [["layer", *times, "share", "GFLOP/s", "faster" if len(found) > 1 else "", "operator"]]
    for layer in slowest:
        own_s = [item.get(layer, math.nan) for item in seconds]
        flops, operator = work[layer]
        share, rate = own_s[0] / sum(seconds[0].values()), 1e-9 * flops / own_s[0]
        faster = f"{own_s[0] / own_s[-1]:.2f}" if len(found) > 1 else ""
        each = [f"{1e3 * item:.3f}" for item in own_s]
        rows.append([layer, *each, f"{share:.3f}", f"{rate:.1f}", faster, operator])
    return rows


def branch_share(
    graph: Graph, alone: Mapping[str, float], together: Mapping[str, float], threads: int
) -> float:
    """The largest part of a run's time that kernels could take less, if those that wait for nothing of each
    other ran on different cores.

    alone, together: seconds of each layer on one thread and on so many. Layers of one of the two alone, which
    are cut into other chains, and those of loops and branches of control flow are left as they are.
    """
    before: dict[str, set[str]] = {}  # by value: the layers that it waits for, its own too
    needed: dict[str, set[str]] = {}  # by layer
    for step in graph.steps:
        waited: set[str] = set().union(*(before.get(graph.root(name), set()) for name in step.inputs))
        if isinstance(step, Group):
            needed[step.name] = waited = {step.name, *waited}
        outputs = (step.output,) if isinstance(step, Group) else step.outputs
        for name in map(graph.root, outputs):
            before[name] = before.get(name, set()) | waited  # others may have written parts of it
    saved_s = 0.0
    for layer in needed.keys() & alone.keys() & together.keys():
        beside = any(layer not in needed[other] and other not in needed[layer] for other in needed)
        saved_s += max(0.0, together[layer] - alone[layer] / threads) if beside else 0.0
    return saved_s / sum(together.values())


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
    level_of(asked.board)  # refuses a board whose programs do not run here
    head = ["network", "threads", "load ms", "first ms", "warm ms", "first/warm", "rested/warm", "faults"]
    rows = [[*head, "kernels", "outside", "copies", "branches"]]
    with tempfile.TemporaryDirectory(prefix="tfb-between-") as folder:
        for name in chosen_networks(asked.only):
            model = write(name, Path(folder) / f"{name}.onnx", 0, asked.size)
            found = []
            for threads in asked.threads:
                built = untuned(model, threads, asked.workers, asked.board)
                costs = measured(built, asked.runs)
                found.append((threads, built, costs))
                share = "-"
                if threads > 1 == found[0][0]:
                    graph = adapted(load_model(model), board_with(threads, asked.board)[1])
                    alone = alike(*found[0][1:], built)
                    share = f"{branch_share(graph, alone, layer_seconds(built, costs), threads):.3f}"
                rows.append([name, str(threads), *costs.row(), share])
                print("  ".join(rows[-1]), file=sys.stderr, flush=True)
            if asked.layers:
                print("\n".join([name, *aligned(layer_rows(found, asked.layers))]), flush=True)
    print("\n".join([*aligned(rows), GOALS]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = program("between_kernels", __doc__)
    parser.add_argument("--only", type=names, default=[], metavar="NAMES", help=", ".join(NAMES))
    parser.add_argument("--threads", type=numbers, default=[1, 2], metavar="COUNTS", help="default 1,2")
    parser.add_argument("--board", default=HOST, help=f"or a level of it: host:x86-64-v3 (default {HOST})")
    parser.add_argument("--runs", type=int, default=40, help="pairs of runs (default 40)")
    parser.add_argument("--layers", type=int, default=0, metavar="N", help="of each network the N slowest")
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
