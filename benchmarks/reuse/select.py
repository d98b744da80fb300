"""Who reuses whom in the operator sets, by the paper's measure: expected trials alone (ETO, Table 2).

Operators of different kinds never reuse each other: each kind is a graph of its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Final, get_args

import numpy as np

from benchmarks.harness.text import aligned
from benchmarks.reuse.sets import SetOperator, operator_set, union
from cross.schedule.tiles import divisors
from toolkit.explore.neighbourhood.footprint import touched_lines
from toolkit.explore.neighbourhood.loops import MajorLoops
from toolkit.reuse.graph.arborescence import Costs
from toolkit.reuse.graph.steiner import steiner_tree
from toolkit.reuse.names import Hops
from toolkit.reuse.plan.bridge_operator import bridge_operators
from toolkit.reuse.plan.bridges import reusable
from toolkit.reuse.plan.expected_trials import expected_trials
from toolkit.reuse.rounds.block_shape import GPU_LINE_BYTES, block_shapes, staged_steps
from toolkit.reuse.rounds.gpu_threads import Staging, thread_costs, thread_shapes

BACKEND_TRIALS: Final = 1000.0
"""Trials of an operator that reuses nothing, as in the paper."""

HOPS: Final = get_args(Hops)
BLOCK: Final = 4096
THREADS: Final = 256


@dataclass(frozen=True, slots=True)
class Selection:
    """The choice for a set: `trials` expected in all, `searched` operators that reuse nothing, and `used` of
    the `bridges`. Seconds of making bridges, of estimating costs and of finding the tree."""

    bridges: int
    used: int
    searched: int
    trials: float
    made_s: float
    costs_s: float
    tree_s: float

    @property
    def seconds(self) -> float:
        """What the whole choice takes: making the graph, its costs, and the tree."""
        return self.made_s + self.costs_s + self.tree_s


def select(operators: Sequence[SetOperator], hops: Hops) -> Selection:
    """The cheapest choice with these bridges."""
    kinds = dict.fromkeys(item.kind for item in operators)
    parts = [_select([item for item in operators if item.kind == kind], hops) for kind in kinds]
    return Selection(*map(sum, zip(*map(astuple, parts), strict=True)))


def _select(operators: Sequence[SetOperator], hops: Hops) -> Selection:
    times_s = [time.perf_counter()]
    loops = [item.loops for item in operators]
    found = bridge_operators([(item.operator, item.loops) for item in operators], hops)
    loops += [bridge.loops for bridge in found]
    times_s.append(time.perf_counter())
    costs = choice_graph(loops)
    times_s.append(time.perf_counter())
    tree = steiner_tree(costs, range(1, len(operators) + 1))
    times_s.append(time.perf_counter())
    made_s, costs_s, tree_s = np.diff(times_s).tolist()
    return Selection(
        bridges=len(found),
        used=sum(node > len(operators) for _, node in tree.arcs),
        searched=sum(source == 0 for source, _ in tree.arcs),
        trials=tree.cost,
        made_s=made_s,
        costs_s=costs_s,
        tree_s=tree_s,
    )


def choice_graph(loops: Sequence[MajorLoops]) -> Costs:
    """Expected trials, float64 [N + 1, N + 1]: node 0 is the backend tuner, inf where nothing is reusable."""
    costs = np.full((len(loops) + 1, len(loops) + 1), np.inf)
    costs[0, 1:] = BACKEND_TRIALS
    for position, target in enumerate(loops, start=1):
        for number, source in enumerate(loops, start=1):
            if reusable(target, source):
                costs[number, position] = expected_trials(target, source)
    return costs


def slowest_step_s(
    operators: Sequence[SetOperator], step: Callable[[MajorLoops], float]
) -> tuple[float, SetOperator]:
    """Most seconds that a step of Algorithm 1 takes for any operator; and whose."""
    return max(((step(item.loops), item) for item in operators), key=lambda pair: pair[0])


def block_step_s(loops: MajorLoops) -> float:
    """Seconds of weighing all shapes of all block sizes (GetBShape)."""
    shapes = block_shapes(loops).shapes
    started_s = time.perf_counter()
    touched_lines(loops, shapes, GPU_LINE_BYTES)
    return time.perf_counter() - started_s


def thread_step_s(loops: MajorLoops) -> float:
    """Seconds of weighing all splits of a block of about BLOCK points between about THREADS (GetTShape)."""
    table = block_shapes(loops)
    nearest = int(np.abs(np.log(table.sizes / BLOCK)).argmin())
    block = tuple(table.shapes[nearest].tolist())
    threads = min(
        divisors(int(table.sizes[nearest])), key=lambda count: max(count / THREADS, THREADS / count)
    )
    started_s = time.perf_counter()
    shapes = thread_shapes(block, threads)
    thread_costs(loops, block, shapes, Staging(staged_steps(loops, 1)))
    return time.perf_counter() - started_s


# ------------------------------------------------------------------------------------------------ the table

STEPS: Final = {
    "shapes of blocks of all sizes": block_step_s,
    f"splits of a block of about {BLOCK} points between about {THREADS} threads": thread_step_s,
}
UNION: Final = "all together"
HEAD: Final = (
    *("set", "operators", "bridges", "how many", "used", "searched", "trials"),
    *("seconds", "made", "costs", "tree"),
)


def print_selections(names: Sequence[str], *, as_json: bool) -> None:
    """Select every set and their union with no, one-hop and all bridges, and print a line for each."""
    everything = union(tuple(names))
    sets = {name: operator_set(name) for name in names}
    if len(names) > 1:
        sets[UNION] = everything
    steps = {name: slowest_step_s(everything, step) for name, step in STEPS.items()}
    found = {(name, hops): select(operators, hops) for name, operators in sets.items() for hops in HOPS}
    if as_json:
        lines = [
            {"set": name, "operators": len(sets[name]), "hops": hops, **asdict(selection)}
            for (name, hops), selection in found.items()
        ]
        slowest_s = {name: step_s for name, (step_s, _) in steps.items()}
        print(json.dumps({"selections": lines, "slowest_step_s": slowest_s}, indent=1))
        return
    rows = [
        [
            name, str(len(sets[name])), hops, str(item.bridges), str(item.used), str(item.searched),
            f"{item.trials:.1f}", f"{item.seconds:.2f}",
            *(f"{part / item.seconds:.0%}" for part in (item.made_s, item.costs_s, item.tree_s)),
        ]
        for (name, hops), item in found.items()
    ]  # fmt: skip
    print("\n".join(aligned([HEAD, *rows])))
    for name, (step_s, slowest) in steps.items():
        print(f"slowest step, {name}: {step_s * 1e3:.1f} ms, {slowest.layer}")
