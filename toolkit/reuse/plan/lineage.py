"""Which operator's tuning began with whose program, as the records say."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from toolkit.records import Records
from toolkit.records.lines import BRIDGE, REUSED


class Descent(msgspec.Struct, frozen=True):
    """An operator on a target: `reuses` is the key of the operator whose program its search began with, empty
    for none; `best_s` seconds of its fastest program, None where nothing ran without failure. `bridge`: no
    model has it, it was tuned to be reused."""

    operator: str
    operator_key: str
    target_key: str
    reuses: str
    trials: int
    best_s: float | None
    gflops: float
    bridge: bool = False


def lineage(records: Records) -> list[Descent]:
    """Every operator that was tuned, in the order of the store."""
    described = records.described()
    found = []
    for key, count in records.keys():  # noqa: SIM118 - not a mapping
        best = records.best(key)
        seconds = best.cost_s if best else None
        operator = described.get(key.operator_key)
        facts = [record.facts for record in records.for_key(key)]
        reused = {str(known.get(REUSED, "")) for known in facts} - {""}
        found.append(
            Descent(
                operator=operator.name if operator else key.operator_key,
                operator_key=key.operator_key,
                target_key=key.target_key,
                reuses=min(reused, default=""),
                trials=count,
                best_s=seconds,
                gflops=operator.flops / seconds / 1e9 if operator and seconds else 0.0,
                bridge=bool(facts) and all(known.get(BRIDGE) for known in facts),
            )
        )
    return found


def lineage_tree(descents: Iterable[Descent]) -> str:
    """The lineage as text: for each target one tree for every operator that was tuned without reuse."""
    listed = list(descents)
    lines = []
    for target in dict.fromkeys(item.target_key for item in listed):
        mine = [item for item in listed if item.target_key == target]
        lines.append(target)
        for root in _roots(mine):
            lines += _drawn(root, mine, "  ", "  ", frozenset({root.operator_key}))
    return "\n".join(line.replace("\n", "\\n") for line in lines)


def _roots(listed: list[Descent]) -> list[Descent]:
    """Operators that were tuned without reuse, and the first one of each ring that reuses each other."""
    known = {item.operator_key: item for item in listed}
    found = set()
    for item in listed:
        line = [item]
        while line[-1].reuses in known and known[line[-1].reuses] not in line:
            line.append(known[line[-1].reuses])
        ring = line[line.index(known[line[-1].reuses]) :] if line[-1].reuses in known else line[-1:]
        found.add(min(ring, key=listed.index))
    return sorted(found, key=listed.index)


def _drawn(item: Descent, all_of: list[Descent], head: str, rest: str, above: frozenset[str]) -> list[str]:
    name = f"{item.operator} (bridge)" if item.bridge else item.operator
    lines = [f"{head}{name}  {item.operator_key}  {item.trials} trials  {_speed(item)}"]
    below = [
        child for child in all_of if child.reuses == item.operator_key and child.operator_key not in above
    ]
    for child in below:
        last = child is below[-1]
        lines += _drawn(
            child,
            all_of,
            rest + ("└─ " if last else "├─ "),
            rest + ("   " if last else "│  "),
            above | {child.operator_key},
        )
    return lines


def _speed(item: Descent) -> str:
    if item.best_s is None:
        return "nothing ran"
    return f"{item.gflops:.1f} GFLOP/s" if item.gflops else f"{item.best_s * 1e6:.2f} µs"
