"""`python -m benchmarks.reuse sets`: operator sets tuned by every method, their winners timed in turn."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.kernels.columns import aligned
from benchmarks.reuse.set_runs import SEARCH, Machine, Run, open_tasks, run
from benchmarks.reuse.sets import SetOperator, operator_set
from benchmarks.timed_in_turn import timed_in_turn
from toolkit.model_job.options import TuneOptions
from toolkit.records import Records

RESULTS_VERSION: Final = 1
OUTCOMES: Final = "-outcomes.json"
HEAD: Final = (
    "set", "operators", "method", "trials", "seconds", "of the search", "latency ms", "speed of the search"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """A set tuned by a method: `latency_s` is the sum over operators of count times seconds of the winner,
    timed again in turn with those of the other methods; `seconds` and `trials` are those of the tuning."""

    name: str
    operators: int
    method: str
    trials: int
    seconds: float
    latency_s: float


def measure_set(machine: Machine, name: str, methods: Sequence[str], limit: int | None) -> list[Outcome]:
    """Tune a set by each method, the search first, and time the winners. With `limit` only the operators
    with the most work."""
    operators = _heaviest(operator_set(name), limit)
    name = name if limit is None else f"{name}-{limit}"
    runs: dict[str, Run] = {}
    for method in dict.fromkeys((SEARCH, *methods)):
        started_s = time.monotonic()
        runs[method] = run(machine, name, operators, method)
        _say(f"{name}: {method}, {runs[method].trials} trials in {runs[method].seconds:.0f} s "
             f"({time.monotonic() - started_s:.0f} s now)")  # fmt: skip
    started_s = time.monotonic()
    latencies_s = _latencies_s(machine, name, operators, runs)
    _say(f"{name}: winners timed again in {time.monotonic() - started_s:.0f} s")
    return [
        Outcome(name, len(operators), method, found.trials, found.seconds, latencies_s[method])
        for method, found in runs.items()
    ]


def keep_outcomes(folder: Path, trials: int, outcomes: Sequence[Outcome]) -> None:
    """Write a set's outcomes, searches with so many trials, where `set_outcomes` finds them."""
    path = folder / f"{outcomes[0].name}-{trials}{OUTCOMES}"
    lines = [{**asdict(item), **_relative(item, outcomes)} for item in outcomes]
    path.write_text(json.dumps({"version": RESULTS_VERSION, "trials": trials, "outcomes": lines}, indent=1))


def set_outcomes(folder: Path, trials: int) -> list[dict[str, Any]]:
    """The outcomes of every set that is kept in a folder, as plain data, in order of names."""
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob(f"*-{trials}{OUTCOMES}")):
        content = json.loads(path.read_text())
        if content.get("version") == RESULTS_VERSION and content["trials"] == trials:
            found += content["outcomes"]
    return found


def print_outcomes(outcomes: Sequence[Outcome], *, as_json: bool) -> None:
    """The table, relative to the search of each set."""
    if as_json:
        lines = [{**asdict(item), **_relative(item, outcomes)} for item in outcomes]
        print(json.dumps({"version": RESULTS_VERSION, "outcomes": lines}, indent=1))
        return
    rows = []
    for item in outcomes:
        relative = _relative(item, outcomes)
        rows.append([
            item.name, str(item.operators), item.method, str(item.trials), f"{item.seconds:.0f}",
            f"{relative['time']:.3f}", f"{item.latency_s * 1e3:.3f}", f"{relative['speed']:.3f}",
        ])  # fmt: skip
    for line in aligned([HEAD, *rows]):
        print(line)


def _relative(item: Outcome, outcomes: Sequence[Outcome]) -> Mapping[str, float]:
    """Tuning time and speed of the winners as parts of those of the search of the same set."""
    search = next(other for other in outcomes if (other.name, other.method) == (item.name, SEARCH))
    return {"time": item.seconds / search.seconds, "speed": search.latency_s / item.latency_s}


def _heaviest(operators: Sequence[SetOperator], limit: int | None) -> tuple[SetOperator, ...]:
    if limit is None:
        return tuple(operators)
    by_work = sorted(operators, key=lambda item: -item.count * item.operator.flops)
    return tuple(by_work[:limit])


def _latencies_s(
    machine: Machine, name: str, operators: Sequence[SetOperator], runs: Mapping[str, Run]
) -> dict[str, float]:
    """Seconds of one run of the set by each method's winners; what is timed is kept."""
    total = dict.fromkeys(runs, 0.0)
    with Records(machine.work / f"{name}-timed.db") as records:
        tasks = open_tasks(machine, operators, records, TuneOptions())
    for position, (item, task) in enumerate(zip(operators, tasks, strict=True)):
        space = task.programs.space
        winners = [found.winners[position] for found in runs.values()]
        described = [space.describe(winner) for winner in winners]
        path = machine.work / f"{name}-{item.operator.key}-timed.json"
        seconds = _kept(path, described)
        if seconds is None:
            seconds = timed_in_turn(task.programs, winners, machine.board, machine.session, machine.builder)
            kept = {"version": RESULTS_VERSION, "winners": described, "seconds": seconds}
            path.write_text(json.dumps(kept, indent=1))
        for method, spent_s in zip(runs, seconds, strict=True):
            total[method] += item.count * spent_s
    return total


def _kept(path: Path, winners: Sequence[Any]) -> list[float] | None:
    """Seconds of just these winners, timed earlier."""
    if not path.is_file():
        return None
    content = json.loads(path.read_text())
    if content.get("version") != RESULTS_VERSION or content["winners"] != json.loads(json.dumps(winners)):
        return None
    found: list[float] = content["seconds"]
    return found


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
