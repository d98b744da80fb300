"""The table of `python -m benchmarks.reuse select`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks.kernels.columns import aligned
from benchmarks.reuse.select import HOPS, Selection, select, slowest_step_s
from benchmarks.reuse.sets import operator_set, union

UNION = "all together"
HEAD = (
    *("set", "operators", "bridges", "how many", "used", "searched", "trials"),
    *("seconds", "made", "costs", "tree"),
)


def print_selections(names: Sequence[str], *, as_json: bool) -> None:
    """Select every set and their union with no, one-hop and all bridges, and print a line for each."""
    sets = {name: operator_set(name) for name in names}
    if len(names) > 1:
        sets[UNION] = union(tuple(names))
    step_s, slowest = slowest_step_s(union(tuple(names)))
    found = {
        (name, bridges): select(operators, bridges) for name, operators in sets.items() for bridges in HOPS
    }
    if as_json:
        lines = [
            {"set": name, "operators": len(sets[name]), "hops": hops, **asdict(selection)}
            for (name, hops), selection in found.items()
        ]
        print(json.dumps({"selections": lines, "slowest_step_s": step_s}, indent=1))
        return
    rows = [_row(name, len(sets[name]), bridges, selection) for (name, bridges), selection in found.items()]
    for line in aligned([HEAD, *rows]):
        print(line)
    print(f"slowest step of block shapes, all sizes at once: {step_s * 1e3:.1f} ms, {slowest.layer}")


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
