"""What limits an operator that falls short, from the roofline and from the winner's machine code."""

from __future__ import annotations

from benchmarks.kernels.ratios import Standing

AT_THE_ROOF = 0.85
AS_MODELLED = 0.85
"""Of what models allow the inner loop: a kernel that reaches so much of it has no time to win elsewhere."""


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
    loop = facts.get("loop_peak_share")
    if not isinstance(loop, float):
        return of_roof
    share = f"multiply-adds are {float(facts['fma_share']):.0%} of its instructions"
    if found.peak.median >= AS_MODELLED * loop:
        return f"{of_roof}: the inner loop, {share}, a model allows it {loop:.2f} of the peak"
    return f"{of_roof}: outside the inner loop, or its data; a model allows the loop {loop:.2f} of the peak"
