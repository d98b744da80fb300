"""Tuned GPU kernels against the vendor's libraries: C1 to C12, the 1024-cubed and BERT's matrix products.

    toolkit boards new here.toml --local
    python -m benchmarks.gpu_peers --board here.toml --python PATH/OF/AN/ENVIRONMENT/bin/python

Each operator is tuned with --trials (400), in float32, through the board's runtime. PyTorch with cuDNN and
cuBLAS, TF32 off, runs in a process of its own here, under --python, an environment with a CUDA build of it.
So this is to be started on the machine with the GPU. Both sides are then timed in turn, round by round: ours
by the driver's events, theirs as one graph of many launches.

Printed: GFLOP/s, the ratio of the speeds (the median of the rounds, with the lowest and the highest), their
geometric mean, trials a second and the board's busy share; --json keeps all of it with the versions and the
device. Everything measured in the search is kept in --work: the same command goes on where it was stopped.

Without such a GPU, `--board pocl --device cpu` goes the same way; its figures mean nothing.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.harness.command import Asked, finished, names, program
from benchmarks.harness.documents import write
from benchmarks.harness.place import Place, fastest, open_place
from benchmarks.harness.text import aligned
from benchmarks.kernels.expressions import operator as workload_operator
from benchmarks.kernels.processes import Contender, LibraryProcess
from benchmarks.kernels.rounds import OPEN_S, TURN_S
from benchmarks.kernels.workloads import WORKLOADS
from boards.board import load
from toolkit.measure.live import LiveRunner
from toolkit.model_job.confirm import confirming
from toolkit.records import Records
from toolkit.tuning.progress import Budget

OPERATORS: Final = tuple(name for name in WORKLOADS if name[0] in "CMB")
RESULTS_VERSION: Final = 1
ROUNDS: Final = 7
TURN: Final = {"batches": 5, "batch_s": 0.02}
TORCH: Final = "benchmarks.kernels.libraries.torch_gpu_worker"
NUMPY: Final = "benchmarks.kernels.libraries.numpy_worker"
HEAD: Final = (
    "operator", "ours", "theirs", "variant", "ratio", "lowest", "highest", "trials/s", "busy", "failed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Compared:
    """An operator: seconds per call of ours and of the peer's variants, round by round, and the search."""

    operator: str
    flops: int
    ours_s: tuple[float, ...]
    peers_s: dict[str, tuple[float, ...]]
    trials: int
    failed: int
    trials_per_s: float
    busy_share: float

    @property
    def ratios(self) -> list[float]:
        """Our speed over that of the peer's best variant, round by round."""
        rounds = zip(self.ours_s, *self.peers_s.values(), strict=True)
        return [min(peers_s) / ours_s for ours_s, *peers_s in rounds]


def compared(place: Place, peer: LibraryProcess, name: str, trials: int, work: Path) -> Compared:
    """Tune what is left of an operator's trials, then time it and the peer's variants in turn.

    Raises ToolkitError; ValueError where nothing that was tuned ran.
    """
    workload = WORKLOADS[name]
    operator, timing = workload_operator(workload), confirming(place.board)
    with Records(work / f"{place.board.name}-{place.target.name}-{name}.db") as records:
        (result,) = place.tuned([(name, operator)], records, Budget(trials))
        programs, recorded = place.recorded(name, operator, records)
    best = fastest(programs.space, recorded)
    if not best:
        raise ValueError(f"{name}: none of {result.trials} programs ran without failure")
    variants = peer.ask({"do": "open", "workload": workload.described()}, timeout_s=OPEN_S)["variants"]
    shares = {item["name"]: operator.flops / (item["work"] or operator.flops) for item in variants}
    ours_s: list[float] = []
    peers_s: dict[str, list[float]] = {variant: [] for variant in shares}
    runner = LiveRunner(programs, place.builder, place.session, timing)
    for _ in range(ROUNDS):
        (measured,) = runner.afresh(timing).prepare(programs.space.batch(best))
        ours_s.append(measured.cost_s)
        for variant, share in shares.items():
            turn = peer.ask({"do": "time", "variant": variant, **TURN}, timeout_s=TURN_S)
            peers_s[variant].append(share * min(turn["kept"] or turn["disturbed"]))
    peer.ask({"do": "close"}, timeout_s=TURN_S)
    return Compared(
        operator=name,
        flops=operator.flops,
        ours_s=tuple(ours_s),
        peers_s={variant: tuple(seconds) for variant, seconds in peers_s.items()},
        trials=result.trials,
        failed=result.failures,
        trials_per_s=result.trials / result.spent.wall_s,
        busy_share=result.spent.busy_share,
    )


def lines(results: Sequence[Compared]) -> Iterator[str]:
    """The table, and the geometric mean of the ratios."""
    yield from aligned([HEAD, *map(_row, results)])
    medians = [statistics.median(item.ratios) for item in results]
    mean = statistics.geometric_mean(medians)
    yield f"geometric mean of {len(medians)}: {mean:.3f}, lowest {min(medians):.3f}"


def _row(item: Compared) -> list[str]:
    best = min(item.peers_s, key=lambda variant: min(item.peers_s[variant]))
    ratios = item.ratios
    return [
        item.operator,
        *(f"{item.flops / min(seconds) / 1e9:.0f}" for seconds in (item.ours_s, item.peers_s[best])),
        best,
        *(f"{figure:.3f}" for figure in (statistics.median(ratios), min(ratios), max(ratios))),
        f"{item.trials_per_s:.1f}",
        f"{item.busy_share:.0%}",
        str(item.failed),
    ]


def run(asked: Asked) -> None:
    """Tune, time and print."""
    asked.work.mkdir(parents=True, exist_ok=True)
    device = (asked.device,) if asked.module == TORCH else ()
    peer = LibraryProcess(Contender("peer", asked.module, asked.python, device), 1)
    try:
        facts = peer.ask({"do": "hello"}, timeout_s=TURN_S)["facts"]
        board = load(asked.board)
        with open_place(board, board.target(asked.target), "gpu_peers") as place:
            results = [compared(place, peer, name, asked.trials, asked.work) for name in asked.operators]
    finally:
        peer.close()
    print(f"{board.title}, target {place.target.key}; " + ", ".join(f"{key} {facts[key]}" for key in facts))
    print("GFLOP/s, float32", *lines(results), sep="\n")
    if asked.json:
        operators = [asdict(item) | {"ratios": item.ratios} for item in results]
        known = {"board": board.name, "target": place.target.key, "peer": facts, "operators": operators}
        write({"version": RESULTS_VERSION, **known}, asked.json)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = program("gpu_peers", __doc__)
    add = parser.add_argument
    add("--board", default="h200")
    add("--target", help="one of the board's; default: the one with the highest estimate")
    add("--operators", type=names, default=list(OPERATORS), help="separated by commas")
    add("--trials", type=int, default=400)
    add("--python", type=Path, default=Path(sys.executable), help="of the peer's environment")
    add("--module", default=TORCH, choices=(TORCH, NUMPY), help="the peer")
    add("--device", default="cuda", help="what PyTorch calls it")
    add("--work", type=Path, default=Path("build/gpu_peers"))
    add("--json", type=Path, help="write everything here")
    return finished(parser, arguments, run)


if __name__ == "__main__":
    sys.exit(main())
