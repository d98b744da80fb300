"""Tuned GPU kernels against the vendor's libraries: C1 to C12, the 1024-cubed and BERT's matrix products.

    python -m benchmarks.gpu_peers --board h200-here.toml --python PATH/OF/AN/ENVIRONMENT/bin/python

Each operator is tuned with --trials (400), in float32, through the board's runtime. PyTorch with cuDNN and
cuBLAS, TF32 off, runs in a process of its own here, under --python, an environment with a CUDA build of it.
So this is to be started on the machine with the GPU, whose board file is a copy of boards/h200.toml with
`kind = "local"` and no host under [link]. Both sides are then timed in turn, round by round: ours by the
driver's events, theirs as one graph of many launches.

Printed: GFLOP/s, the ratio of the speeds (the median of the rounds, with the lowest and the highest), their
geometric mean, trials a second and the board's busy share; --json keeps all of it with the versions and the
device. Everything measured in the search is kept in --work: the same command goes on where it was stopped.

Without such a GPU, `--board pocl --device cpu` goes the same way; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.experiments.collect import Progress
from benchmarks.kernels.columns import aligned
from benchmarks.kernels.expressions import operator as workload_operator
from benchmarks.kernels.processes import Contender, LibraryFailed, LibraryProcess
from benchmarks.kernels.workloads import WORKLOADS
from boards.board import load
from boards.description import Board
from boards.errors import BoardError
from boards.target import Target
from toolkit.errors import ToolkitError
from toolkit.measure.builder import Builder
from toolkit.measure.fit import fitted
from toolkit.measure.live import LiveRunner
from toolkit.measure.session import Session, open_session
from toolkit.model_job.confirm import confirming
from toolkit.records import Records
from toolkit.tuning.on_board import BoardOptions, open_job, tune_on_board
from toolkit.tuning.progress import Budget, TuningResult

OPERATORS: Final = tuple(name for name in WORKLOADS if name[0] in "CMB")
RESULTS_VERSION: Final = 1
ROUNDS: Final = 7
BATCHES: Final = 5
BATCH_S: Final = 0.02
OPEN_S: Final = 300.0
TURN_S: Final = 60.0
WAIT_S: Final = 1800.0  # for whoever measures on this board now
INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True)
class Place:
    """Where kernels are tuned and timed, and who they are compared with."""

    board: Board
    target: Target
    session: Session
    peer: LibraryProcess


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


def compared(place: Place, name: str, trials: int, work: Path) -> Compared:
    """Tune what is left of an operator's trials, then time it and the peer's in turn.

    Raises LibraryFailed, ToolkitError; ValueError where nothing that was tuned ran.
    """
    operator = workload_operator(WORKLOADS[name])
    with Records(work / f"{place.board.name}-{place.target.name}-{name}.db") as records:
        (result,) = tune_on_board(
            [(name, operator)],
            place.board,
            place.session,
            records,
            Budget(trials),
            options=BoardOptions(target=place.target),
            on_event=Progress(name),
        )
    ours_s, peers_s = _in_turn(place, name, result)
    return Compared(
        operator=name,
        flops=operator.flops,
        ours_s=ours_s,
        peers_s=peers_s,
        trials=result.trials,
        failed=result.failures,
        trials_per_s=result.trials / result.spent.wall_s,
        busy_share=result.spent.busy_share,
    )


def _in_turn(
    place: Place, name: str, result: TuningResult
) -> tuple[tuple[float, ...], dict[str, tuple[float, ...]]]:
    """Seconds of the search's winner and of every variant of the peer."""
    if result.best is None:
        raise ValueError(f"{name}: none of {result.trials} programs ran without failure")
    _, programs = open_job(name, workload_operator(WORKLOADS[name]), place.board, place.target)
    row = programs.space.batch([programs.space.parse(result.best.configuration)])
    timing = confirming(place.board)
    opened = place.peer.ask({"do": "open", "workload": WORKLOADS[name].described()}, timeout_s=OPEN_S)
    ours_s: list[float] = []
    peers_s: dict[str, list[float]] = {item["name"]: [] for item in opened["variants"]}
    works = {item["name"]: item["work"] or WORKLOADS[name].flops for item in opened["variants"]}
    with Builder(place.target, workers=1) as builder:
        runner = LiveRunner(programs, builder, place.session, timing)
        for _ in range(ROUNDS):
            runner = runner.afresh(timing)
            (measured,) = runner.prepare(row)
            ours_s.append(measured.cost_s)
            for variant, seconds in peers_s.items():
                request = {"do": "time", "variant": variant, "batches": BATCHES, "batch_s": BATCH_S}
                answer = place.peer.ask(request, timeout_s=TURN_S)
                share = WORKLOADS[name].flops / works[variant]
                seconds.append(share * min(answer["kept"] or answer["disturbed"]))
    place.peer.ask({"do": "close"}, timeout_s=TURN_S)
    return tuple(ours_s), {variant: tuple(seconds) for variant, seconds in peers_s.items()}


# ------------------------------------------------------------------------------------------- reporting

HEAD: Final = (
    "operator",
    "ours",
    "theirs",
    "variant",
    "ratio",
    "lowest",
    "highest",
    "trials/s",
    "busy",
    "failed",
)


def lines(results: Sequence[Compared]) -> Iterator[str]:
    """The table, and the geometric mean of the ratios."""
    yield from aligned([HEAD, *map(_row, results)])
    medians = [statistics.median(item.ratios) for item in results]
    mean = np.exp(np.mean(np.log(medians)))
    yield f"geometric mean of {len(medians)}: {mean:.3f}, lowest {min(medians):.3f}"


def _row(item: Compared) -> list[str]:
    best = min(item.peers_s, key=lambda variant: min(item.peers_s[variant]))
    ratios = item.ratios
    return [
        item.operator,
        f"{item.flops / min(item.ours_s) / 1e9:.0f}",
        f"{item.flops / min(item.peers_s[best]) / 1e9:.0f}",
        best,
        f"{statistics.median(ratios):.3f}",
        f"{min(ratios):.3f}",
        f"{max(ratios):.3f}",
        f"{item.trials_per_s:.1f}",
        f"{item.busy_share:.0%}",
        str(item.failed),
    ]


def report(place: Place, facts: dict[str, str], results: Sequence[Compared]) -> dict[str, Any]:
    """Everything, for a file."""
    return {
        "version": RESULTS_VERSION,
        "board": place.board.name,
        "target": place.target.key,
        "peer": facts,
        "operators": [asdict(item) | {"ratios": item.ratios} for item in results],
    }


# --------------------------------------------------------------------------------------------- command


def main(arguments: Sequence[str] | None = None) -> int:
    """Tune, time and print; returns the exit code."""
    asked = _parser().parse_args(arguments)
    asked.work.mkdir(parents=True, exist_ok=True)
    arguments_of_peer = (asked.device,) if asked.module == TORCH else ()
    peer = LibraryProcess(Contender("peer", asked.module, asked.python, arguments_of_peer), 1)
    results = []
    try:
        facts = peer.ask({"do": "hello"}, timeout_s=TURN_S)["facts"]
        board = load(asked.board)
        with open_session(board, wait_s=WAIT_S, holder="benchmarks.gpu_peers") as session:
            place = Place(board, fitted(session, board.target(asked.target)), session, peer)
            for name in asked.operators:
                results.append(compared(place, name, asked.trials, asked.work))
    except (ToolkitError, BoardError) as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except (LibraryFailed, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: what is measured is kept, the same command goes on from there", file=sys.stderr)
        return INTERRUPTED
    finally:
        peer.close()
    print(f"{board.title}, target {place.target.key}; " + ", ".join(f"{key} {facts[key]}" for key in facts))
    print("GFLOP/s, float32")
    for line in lines(results):
        print(line)
    if asked.json:
        asked.json.write_text(json.dumps(report(place, facts, results), indent=1) + "\n")
    return 0


TORCH: Final = "benchmarks.kernels.libraries.torch_gpu_worker"
NUMPY: Final = "benchmarks.kernels.libraries.numpy_worker"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--board", default="h200")
    parser.add_argument("--target", help="one of the board's; default: the one with the highest estimate")
    parser.add_argument(
        "--operators", type=lambda text: text.split(","), default=list(OPERATORS), help="separated by commas"
    )
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="of the peer's environment")
    parser.add_argument("--module", default=TORCH, choices=(TORCH, NUMPY), help="the peer")
    parser.add_argument("--device", default="cuda", help="what PyTorch calls it")
    parser.add_argument("--work", type=Path, default=Path("build/gpu_peers"))
    parser.add_argument("--json", type=Path, help="write everything here")
    return parser


if __name__ == "__main__":
    sys.exit(main())
