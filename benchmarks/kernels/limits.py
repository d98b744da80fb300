"""What limits an operator that falls short, from the roofline and from the winner's machine code."""

from __future__ import annotations

from benchmarks.kernels.ratios import Standing

AT_THE_ROOF = 0.85
MOST_LOADS = 1.0  # for a multiply-add: what processors read while they do one
LEAST_SHARE = 0.3  # of the instructions: what leaves the other units time for the rest


def limit(found: Standing) -> str:
    """One phrase; empty where the machine itself was not measured."""
    if found.peak is None or found.roof is None:
        return ""
    of_roof = f"{found.roof.median:.2f} of the roof ({found.bound})"
    if found.roof.median >= AT_THE_ROOF:
        return f"{of_roof}: at the machine's limit"
    if found.bound == "memory":
        return f"{of_roof}: moving operands, which costs more than the arithmetic"
    facts = found.ours.facts
    if facts.get("spills"):
        return f"{of_roof}: {facts['spills']:g} spills in the inner loop"
    algorithm = facts.get("algorithm", "direct")
    if algorithm != "direct":
        return f"{of_roof}: the transforms of {algorithm} beside its products"
    if "fma_share" not in facts:
        return of_roof
    share, loads = float(facts["fma_share"]), float(facts["loads_per_fma"])
    loop = f"{share:.0%} multiply-adds, {loads:.1f} loads for each"
    if loads > MOST_LOADS:
        return f"{of_roof}: the inner loop's loads ({loop})"
    if share < LEAST_SHARE:
        return f"{of_roof}: the inner loop's other instructions ({loop})"
    return f"{of_roof}: outside the inner loop, or its data on the way ({loop})"
