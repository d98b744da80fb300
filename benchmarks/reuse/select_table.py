"""The table of `python -m benchmarks.reuse select`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks.kernels.columns import aligned
from benchmarks.reuse.select import (
    BLOCK,
    HOPS,
    THREADS,
    Selection,
    block_step_s,
    select,
    slowest_step_s,
    thread_step_s,
)
from benchmarks.reuse.sets import operator_set, union

STEPS = {
    "shapes of blocks of all sizes": block_step_s,
    f"splits of a block of about {BLOCK} points between about {THREADS} threads": thread_step_s,
}
UNION = "all together"
HEAD = (
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
    found = {
        (name, bridges): select(operators, bridges) for name, operators in sets.items() for bridges in HOPS
    }
    if as_json:
        lines = [
            {"set": name, "operators": len(sets[name]), "hops": hops, **asdict(selection)}
            for (name, hops), selection in found.items()
        ]
        slowest_s = {name: step_s for name, (step_s, _) in steps.items()}
        print(json.dumps({"selections": lines, "slowest_step_s": slowest_s}, indent=1))
        return
    rows = [_row(name, len(sets[name]), bridges, selection) for (name, bridges), selection in found.items()]
    for line in aligned([HEAD, *rows]):
        print(line)
    for name, (step_s, slowest) in steps.items():
        print(f"slowest step, {name}: {step_s * 1e3:.1f} ms, {slowest.layer}")


def _row(name: str, operators: int, bridges: str, found: Selection) -> list[str]:
    shares = (part / found.seconds for part in (found.made_s, found.costs_s, found.tree_s))
    return [
        name,
        str(operators),
        bridges,
        str(found.bridges),
        str(found.used),
        str(found.searched),
        f"{found.trials:.1f}",
        f"{found.seconds:.2f}",
        *(f"{share:.0%}" for share in shares),
    ]
