"""Untuned networks of two checkouts of this project: the time before over the time after.

    git worktree add /tmp/before COMMIT
    python -m benchmarks.before_after /tmp/before --only mobilenet_v1,squeezenet --threads 1,2

Each network is built by the schedules that need no measurement, in a process that imports the other checkout,
and in one that imports this. Both libraries are then loaded here and run through the C interface on the same
inputs, in random turn, each after a run of its own that brings its weights into the caches. Printed are the
median of the ratios of neighbouring runs with their quartiles, the ratio of the fastest runs, and medians.
Outputs that differ by more than APART of the largest end it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness.command import Asked, finished, names, numbers, program
from benchmarks.harness.place import HOST, board_with, level_of
from benchmarks.harness.text import aligned
from benchmarks.kernels.loaded import LoadedModel
from benchmarks.kernels.loaded import aligned as in_cache_lines
from benchmarks.kernels.networks import NAMES, chosen_networks
from benchmarks.kernels.turn import Call
from benchmarks.kernels.workloads import Array
from benchmarks.networks import write

HERE = Path(__file__).resolve().parents[1]
APART = 1e-3  # of float32: sums in another order, as other tiles have them, are some 1e-6 apart
BUILDER = """
import json, sys
from pathlib import Path
from benchmarks.between_kernels import untuned
model, threads, workers, board, folder = sys.argv[1:]
built = untuned(Path(model), int(threads), int(workers), board)
Path(folder, "model.so").write_bytes(built.code)
both = built.plan.inputs, built.plan.outputs
specs = [[(list(spec.shape), spec.dtype) for spec in some] for some in both]
Path(folder, "specs.json").write_text(json.dumps(specs))
"""


Spec = tuple[Sequence[int], str]  # shape and dtype


@dataclass(frozen=True, slots=True)
class Built:
    """A network's library, loaded: a call of it, and what the call writes."""

    model: LoadedModel
    call: Call
    outputs: list[Array]

    @classmethod
    def load(cls, folder: Path, cores: Sequence[int], rng: np.random.Generator) -> Built:
        """`of` what `build` wrote into a folder."""
        inputs, outputs = json.loads((folder / "specs.json").read_text())
        return cls.of((folder / "model.so").read_bytes(), inputs, outputs, cores, rng)

    @classmethod
    def of(
        cls,
        code: bytes,
        inputs: Sequence[Spec],
        outputs: Sequence[Spec],
        cores: Sequence[int],
        rng: np.random.Generator,
    ) -> Built:
        """A library on inputs that the generator draws.

        Raises:
            RuntimeError: the instance cannot be made, or its first run fails.
        """
        drawn, written = ([_filled(shape, dtype, rng) for shape, dtype in some] for some in (inputs, outputs))
        model = LoadedModel(code, cores)
        return cls(model, model.inference(drawn, written), written)

    def seconds(self) -> float:
        """Of one run."""
        start_s = time.perf_counter()
        self.call()
        return time.perf_counter() - start_s


def _filled(shape: Sequence[int], dtype: str, rng: np.random.Generator) -> Array:
    """Normal numbers of a dtype of floats, zeros of others: they may be places in a table."""
    plain = np.zeros(shape, dtype)
    if plain.dtype.kind == "f":
        plain[...] = rng.standard_normal(shape)
    return in_cache_lines(plain)


def build(checkout: Path, model: Path, threads: int, asked: Asked, folder: Path) -> None:
    """Write an untuned library of a model and its specs into a folder, by the code of a checkout.

    Raises:
        ValueError: that code could not build it; the message has the end of what it said.
    """
    folder.mkdir()
    command = [sys.executable, "-P", "-c", BUILDER, str(model), str(threads), str(asked.workers), asked.board]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(
        [*command, str(folder)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ValueError(f"{checkout} could not build {model.name}: {done.stderr.strip()[-400:]}")


def in_turn(some: Sequence[Built], seconds: float, rng: np.random.Generator) -> list[list[float]]:
    """Seconds of the runs of each, as many of one as of any other, in random turn for so long."""
    found: list[list[float]] = [[] for _ in some]
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s or len(found[0]) < 2:
        for number in rng.permutation(len(some)):
            some[number].call()
            found[number].append(some[number].seconds())
    return found


def row(name: str, threads: int, before_s: Sequence[float], after_s: Sequence[float]) -> list[str]:
    """A line of the table: the ratio with its quartiles, that of the fastest runs, and medians."""
    medians = [f"{1e3 * statistics.median(some):.3f}" for some in (before_s, after_s)]
    fastest = min(before_s) / min(after_s)
    figures = [ratio(before_s, after_s), f"{fastest:.3f}", *medians, str(len(before_s))]
    return [name, str(threads), *figures]


def ratio(above_s: Sequence[float], below_s: Sequence[float]) -> str:
    """The median of the ratios of neighbouring runs, and their quartiles."""
    ratios = [above / below for above, below in zip(above_s, below_s, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"{middle:.3f} [{low:.3f}, {high:.3f}]"


def check_alike(before: Built, after: Built) -> None:
    """Compare what the last runs of two libraries wrote.

    Raises:
        ValueError: an output differs by more than APART of its largest element.
    """
    for own, other in zip(after.outputs, before.outputs, strict=True):
        largest = float(np.abs(other.astype(np.float64)).max(initial=0.0))
        apart = float(np.abs(own.astype(np.float64) - other.astype(np.float64)).max(initial=0.0))
        if not apart <= APART * largest:
            raise ValueError(f"outputs are {apart:.3g} apart, expected at most {APART} of {largest:.3g}")


def _networks(asked: Asked) -> None:
    level_of(asked.board)  # refuses a board whose programs do not run here
    if not (asked.before / "benchmarks" / "between_kernels.py").is_file():
        raise ValueError(f"{asked.before}: expected a checkout of this project, found no benchmarks in it")
    rng, cores = np.random.default_rng(asked.seed), os.sched_getaffinity(0)
    rows = [["network", "threads", "before / after", "fastest", "before ms", "after ms", "pairs"]]
    with tempfile.TemporaryDirectory(prefix="tfb-before-after-") as folder:
        for name in chosen_networks(asked.only):
            model = write(name, Path(folder) / f"{name}.onnx", 0, asked.size)
            for threads in asked.threads:
                folders = [Path(folder) / f"{name}-{threads}-{which}" for which in ("before", "after")]
                for checkout, made in zip((asked.before.resolve(), HERE), folders, strict=True):
                    build(checkout, model, threads, asked, made)
                used = board_with(threads, asked.board)[1].cores
                pair = [Built.load(made, used, np.random.default_rng(asked.seed)) for made in folders]
                before_s, after_s = in_turn(pair, asked.seconds, rng)
                check_alike(*pair)
                for built in pair:
                    built.model.close()
                os.sched_setaffinity(0, cores)  # an instance of several threads pins the one that makes it
                rows.append(row(name, threads, before_s, after_s))
                print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    print("\n".join(aligned(rows)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = program("before_after", __doc__)
    parser.add_argument("before", type=Path, metavar="CHECKOUT", help="of another commit")
    parser.add_argument("--only", type=names, default=[], metavar="NAMES", help=", ".join(NAMES))
    parser.add_argument("--threads", type=numbers, default=[1, 2], metavar="COUNTS", help="default 1,2")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each pair in turn (default 8)")
    parser.add_argument("--board", default=HOST, help=f"or a level of it: host:x86-64-v3 (default {HOST})")
    parser.add_argument("--workers", type=int, default=2, help="processes that compile (default 2)")
    parser.add_argument("--size", type=int, help="of the image, the sequence or the channels")
    parser.add_argument("--seed", type=int, default=0)
    return finished(parser, arguments, _networks)


if __name__ == "__main__":
    sys.exit(main())
