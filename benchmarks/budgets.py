"""What a job of so much time finds of the speed that many trials find, both from an empty store.

    python -m benchmarks.budgets --only mobilenet_v2,resnet18 --threads 2 [--prior NAME|FILE]

Each network is tuned with --trials of every operator (measurements are kept: the same call goes on from
there), and by a job (`tune --budget`) of each of the times --seconds, with an empty store of its own. With
--prior the jobs of --prior-seconds begin with that model. The bundles that come out, and the network untuned,
are then run through the C interface in random turn on the same inputs. Printed is what each job took, which
of many trials is what was left of them, and the speed of its bundle over that of many trials: the median of
the ratios of neighbouring runs with their quartiles. Outputs that differ from those of the untuned network
end it.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from benchmarks.before_after import Built, Spec, check_alike, in_turn, ratio
from benchmarks.between_kernels import untuned
from benchmarks.harness.command import Asked, finished, names, numbers, program
from benchmarks.harness.place import HOST, board_with, level_of
from benchmarks.harness.statistics import NEAR
from benchmarks.harness.text import aligned
from benchmarks.kernels.networks import MODEL_SEED, NAMES, Place, bundled, chosen_networks
from benchmarks.networks import write
from toolkit.bundle.manifest import CpuVariant, TensorSpec
from toolkit.explore.search import SearchOptions
from toolkit.model_job.options import TuneOptions
from toolkit.tuning.operator_search import TuningOptions

FOLDER = Path("build/budgets")
MANY, UNTUNED = "many trials", "untuned"


def jobs(asked: Asked) -> dict[str, TuneOptions]:
    """What is compared, by name, many trials first."""
    plain = TuningOptions(seed=asked.seed)
    found = {MANY: TuneOptions(trials=asked.trials, tuning=plain)}
    found |= {f"{given} s": TuneOptions(seconds=given, tuning=plain) for given in asked.seconds}
    if asked.prior is not None:
        begun = TuningOptions(search=SearchOptions(prior=asked.prior), seed=asked.seed)
        for given in asked.prior_seconds:
            found[f"{given} s, prior"] = TuneOptions(seconds=given, tuning=begun)
    return found


def specs(found: Iterable[TensorSpec]) -> list[Spec]:
    """Shapes and dtypes."""
    return [(item.shape, item.dtype) for item in found]


def rows(name: str, threads: int, asked: Asked) -> Iterator[list[str]]:
    """The table of one network."""
    rng, cores = np.random.default_rng(asked.seed), os.sched_getaffinity(0)
    model = write(name, asked.folder / f"{name}.onnx", MODEL_SEED, asked.size)
    used = board_with(threads, asked.board)[1].cores
    plain = untuned(model, threads, os.cpu_count() or 1, asked.board)
    made = {UNTUNED: (plain.code, specs(plain.plan.inputs), specs(plain.plan.outputs))}
    spent = {}
    for job, options in jobs(asked).items():
        with tempfile.TemporaryDirectory(prefix="tfb-budgets-") as folder:
            kept = asked.folder / f"{name}-{threads}-{asked.seed}.db"
            records = kept if job == MANY else Path(folder) / "records.db"
            options = replace(options, records=records, output=Path(folder) / "model.tfb")
            report, bundle = bundled(model, threads, options, Place(asked.folder, asked.size, asked.board))
            variant, content = bundle.variant(), bundle.manifest
            assert isinstance(variant, CpuVariant)
            code = bundle.read_part(variant.library)
            made[job] = code, specs(content.inputs), specs(content.outputs)
            spent[job] = [f"{report.wall_s:.0f}", str(report.trials)]
    loaded = [Built.of(*item, used, np.random.default_rng(asked.seed)) for item in made.values()]
    seconds = dict(zip(made, in_turn(loaded, asked.measure, rng), strict=True))
    for item in loaded:
        check_alike(loaded[0], item)
        item.model.close()
    os.sched_setaffinity(0, cores)  # an instance of several threads pins the one that makes it
    for job, own in seconds.items():
        median = f"{1e3 * statistics.median(own):.3f}"
        yield [name, str(threads), job, *spent.get(job, ("-", "-")), median, ratio(seconds[MANY], own)]


def _budgets(asked: Asked) -> None:
    level_of(asked.board)  # refuses a board whose programs do not run here
    asked.folder.mkdir(parents=True, exist_ok=True)
    table = [["network", "threads", "job", "s", "trials", "ms", f"speed over {MANY} (goal {NEAR})"]]
    for name in chosen_networks(asked.only):
        for threads in asked.threads:
            for row in rows(name, threads, asked):
                table.append(row)
                print("  ".join(row), file=sys.stderr, flush=True)
    print("\n".join(aligned(table)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = program("budgets", __doc__)
    default = ["mobilenet_v2", "resnet18"]
    parser.add_argument("--only", type=names, default=default, metavar="NAMES", help=", ".join(NAMES))
    parser.add_argument("--threads", type=numbers, default=[2], metavar="COUNTS", help="default 2")
    parser.add_argument("--trials", type=int, default=400, help="of each operator, at most (default 400)")
    parser.add_argument("--seconds", type=numbers, default=[90], help="of jobs (default 90)")
    parser.add_argument(
        "--prior", help="a model that jobs begin with: a file, or a name of toolkit model list"
    )
    parser.add_argument("--prior-seconds", type=numbers, default=[45], help="of those (default 45)")
    parser.add_argument("--measure", type=float, default=15.0, help="seconds of runs in turn (default 15)")
    parser.add_argument("--board", default=HOST, help=f"or a level of it: host:x86-64-v3 (default {HOST})")
    parser.add_argument("--size", type=int, help="of the image, the sequence or the channels")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"for what is kept (default {FOLDER})")
    return finished(parser, arguments, _budgets)


if __name__ == "__main__":
    sys.exit(main())
