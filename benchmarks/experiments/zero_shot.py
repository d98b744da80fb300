"""How well a global model orders an operator that it has never seen: the table of representation transfer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from benchmarks.experiments.cells import Store, code_digest
from benchmarks.experiments.landscapes import POOL, TABLE, Landscape, open_landscape
from benchmarks.experiments.methods import REPRESENTATIONS, Method
from benchmarks.experiments.results import rounded
from benchmarks.experiments.source import Source, global_model, source_digest
from benchmarks.experiments.studies import CONVS, NO_SOURCE, Study, possible
from benchmarks.harness.statistics import rank_correlation, top_recall

TOP: Final = 64
TARGETS: Final = tuple(f"{TABLE} {name}" for name in ("C9", "M1024")) + tuple(
    f"{POOL} {name}" for name in ("C7", "C8", "C9")
)
SOURCE: Final = Source(CONVS)


def zero_shot(work: Path, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Rank correlation and top-64 recall of every representation on every target, before any trial there."""
    asked = Study("zero shot", "", "", "", TARGETS, tuple(REPRESENTATIONS), (), source=SOURCE)
    study, notes = possible(asked, work, without)
    rows = []
    if not any(note.startswith(NO_SOURCE) for note in notes):
        for name in study.landscapes:
            landscape = open_landscape(name, work)
            rows += [_row(landscape, method, work) for method in study.methods]
    return {"source": SOURCE.text, "top": TOP, "rows": rows, "notes": notes}


def _row(landscape: Landscape, method: Method, work: Path) -> dict[str, Any]:
    description = {
        "zero shot": f"{landscape.kind} {landscape.name}",
        "configurations": landscape.digest,
        "method": method.described(),
        "measurements": source_digest(SOURCE, work),
        "code": code_digest(),
    }
    store = Store(work)
    found = store.read(description)
    if found is None:
        rows = landscape.matrix(method.features)
        known = global_model(SOURCE, method.model, method.features, rows.shape[1], work)
        scores = known.model.predict(known.padded(rows)).tolist()
        costs_s = landscape.costs_s.tolist()
        found = {
            "rank_correlation": rounded(rank_correlation(scores, costs_s)),
            "top_recall": rounded(top_recall(scores, costs_s, TOP)),
            "by_chance": rounded(min(1.0, TOP / len(costs_s))),
        }
        store.write(description, found)
    return {"target": landscape.name, "kind": landscape.kind, "method": method.label, **found}
