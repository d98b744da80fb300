"""What can be said of a kernel without running it: its inner loop, spills, and cycles by models.

`static_table` has a line for each kernel, `static_text` is one kernel in full. Cycles are predictions: they
know no caches, and every line with one names its model.
"""

from __future__ import annotations

from collections.abc import Sequence

from cross.inspection.cpu_loops import CodeReport, LoopReport
from cross.inspection.instructions import Kind
from toolkit.report.columns import named, table
from toolkit.report.tables import NOTHING


def static_table(kernels: Sequence[tuple[str, CodeReport]]) -> str:
    """The hottest loop of each named kernel, and what the first model predicts for it."""
    headers = [
        "kernel",
        "model",
        "multiply-adds",
        "instructions",
        "share",
        "bytes/flop",
        "spills",
        "code bytes",
    ]
    headers += ["cycles", "cycles/fma", "% of peak"]
    rows = []
    for name, report in kernels:
        hot = report.hot
        if hot is None:
            rows.append([name, NOTHING, *[NOTHING] * (len(headers) - 2)])
            continue
        best = hot.predictions[0] if hot.predictions else None
        row = [
            name,
            best.model if best else NOTHING,
            str(hot.fma),
            str(hot.instructions),
            f"{hot.fma_share:.2f}",
        ]
        row.append(f"{hot.load_bytes / hot.flops:.2f}" if hot.flops else NOTHING)
        row += [str(hot.spills), _bytes(hot.code_bytes)]
        row.append(f"{best.cycles:.1f}" if best else NOTHING)
        row.append(f"{best.cycles / hot.fma:.2f}" if best and hot.fma else NOTHING)
        rows.append([*row, f"{100 * best.peak_share:.0f}" if best else NOTHING])
    return table(headers, rows, left=2)


def static_text(name: str, report: CodeReport) -> str:
    """One kernel: where its time goes, what an iteration is made of, what models say."""
    hot = report.hot
    target = report.target
    title = f"{name} for {target.name} ({target.cpu})"
    if hot is None:
        return f"{title}: no loop"
    cache = (
        NOTHING
        if hot.code_bytes is None
        else f"{hot.code_bytes} bytes, {hot.code_bytes / target.l1i_bytes:.1%}"
    )
    facts = [
        ("hottest loop", f"{hot.label} of {hot.function}, at depth {hot.depth}"),
        ("an iteration", f"{hot.instructions} instructions, {hot.flops} operations"),
        *((f"  {kind.value}", str(hot.counts[kind])) for kind in Kind if kind in hot.counts),
        ("share of multiply-adds", f"{hot.fma_share:.0%}"),
        ("loaded, stored", f"{hot.load_bytes} bytes, {hot.store_bytes} bytes"),
        ("elements loaded for all lanes", str(hot.element_loads)),
        ("spills of vectors, of scalars", f"{hot.vector_spills}, {hot.scalar_spills}"),
        ("code of the loop", f"{cache} of the first-level instruction cache"),
        *(
            (f"by {item.model}", f"{item.cycles:.1f} cycles, {item.peak_share:.0%} of peak")
            for item in hot.predictions
        ),
        ("other loops that spill vectors", _names(report.loops[1:])),
    ]
    return "\n".join([title, *(f"  {line}" for line in named(facts))])


def static_content(kernels: Sequence[tuple[str, CodeReport]]) -> dict[str, object]:
    """The reports of several kernels as data, for `documents.document`."""
    return {"kernels": [{"name": name, **_content(report)} for name, report in kernels]}


def _content(report: CodeReport) -> dict[str, object]:
    hot = report.hot
    if hot is None:
        return {"target": report.target.key, "hot": None}
    found: dict[str, object] = {
        field: getattr(hot, field)
        for field in LoopReport.__struct_fields__
        if field not in ("lines", "line_cycles")
    }
    found["counts"] = {kind.value: count for kind, count in hot.counts.items()}
    found["fma_share"] = hot.fma_share
    return {"target": report.target.key, "hot": found}


def _names(loops: Sequence[LoopReport]) -> str:
    return ", ".join(f"{loop.label} of {loop.function}" for loop in loops if loop.vector_spills) or "none"


def _bytes(value: int | None) -> str:
    return NOTHING if value is None else str(value)
