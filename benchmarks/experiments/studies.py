"""The studies of section 6 of the AutoTVM paper, as data: what is compared with what, where."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.experiments.collected import NARROW, runs
from benchmarks.experiments.landscapes import POOL, TABLE, open_landscape
from benchmarks.experiments.methods import (
    ACQUISITIONS,
    GBT,
    GBT_REGRESSION,
    GENETIC,
    GENETIC_X2,
    LAMBDAS,
    RANDOM,
    RANDOM_X2,
    REPRESENTATIONS,
    TRANSFER,
    TREEGRU,
    TREEGRU_REGRESSION,
    Method,
    transferred,
)
from benchmarks.experiments.source import Source, available
from toolkit.errors import ReplayError

Pair = tuple[Method, Method]
NO_SOURCE: Final = "No transfer"
"""How the note begins that a study has no source of global models."""
COLLECT: Final = "python -m benchmarks.experiments collect"

TABLES: Final = (f"{TABLE} C6", f"{TABLE} C9", f"{TABLE} M1024")
CONVS: Final = ("C1", "C2", "C3", "C4", "C5", "C6")
NO_TRANSFER: Final = replace(GBT, name="no transfer", label="GBT, no transfer")
TRANSFERRED: Final = tuple(map(transferred, REPRESENTATIONS))
RELATION: Final = transferred(REPRESENTATIONS[2])


@dataclass(frozen=True, slots=True)
class Study:
    """One figure: `methods` on `landscapes` for `trials`, and the `pairs` that are compared."""

    name: str
    figure: str
    title: str
    question: str
    landscapes: tuple[str, ...]
    methods: tuple[Method, ...]
    pairs: tuple[Pair, ...]
    trials: int = 256
    source: Source | None = None


def against(methods: tuple[Method, ...], other: Method) -> tuple[Pair, ...]:
    """Every method against one."""
    return tuple((method, other) for method in methods if method != other)


STUDIES: Final = (
    Study(
        "models",
        "Fig. 4",
        "Learned search, genetic and random search",
        "Does a statistical cost model find faster programs in as many trials? ×2 methods measure two "
        "programs in each trial.",
        TABLES,
        (GBT, TREEGRU, GENETIC, GENETIC_X2, RANDOM, RANDOM_X2),
        (*against((GBT, TREEGRU, GENETIC), RANDOM), (GBT, RANDOM_X2), (GBT, GENETIC), (GBT, GENETIC_X2)),
    ),
    Study(
        "objectives",
        "Fig. 5",
        "Rank and regression objectives",
        "Is it better to learn the order of run times (eq. 2) than the run times?",
        TABLES,
        (GBT, GBT_REGRESSION, TREEGRU, TREEGRU_REGRESSION),
        ((GBT, GBT_REGRESSION), (TREEGRU, TREEGRU_REGRESSION)),
    ),
    Study(
        "diversity",
        "Fig. 6",
        "Diversity-aware selection",
        "Does it help to choose a diverse batch (eq. 3) from the top λb candidates?",
        TABLES,
        LAMBDAS,
        against(LAMBDAS, LAMBDAS[0]),
    ),
    Study(
        "uncertainty",
        "Fig. 7",
        "Acquisition functions",
        "Does the disagreement of five bootstrapped regression models guide the search better than the mean?",
        TABLES,
        ACQUISITIONS,
        against(ACQUISITIONS, ACQUISITIONS[0]),
    ),
    Study(
        "transfer",
        "Fig. 8",
        "Transfer from C1-C6 to C7, C8 and C9",
        "Does a global model of other operators find fast programs earlier? Here among the programs that "
        "live runs measured; how it does in the full space is under the goals.",
        (f"{POOL} C7", f"{POOL} C8", f"{POOL} C9"),
        (TRANSFER, NO_TRANSFER, RANDOM),
        ((TRANSFER, NO_TRANSFER), (NO_TRANSFER, RANDOM)),
        trials=128,
        source=Source(CONVS),
    ),
    Study(
        "within",
        "Fig. 9a",
        "Representations within an operator",
        "What should a model see of a program of the operator it was trained on?",
        TABLES,
        (GBT, *REPRESENTATIONS),
        against((*REPRESENTATIONS, GBT), REPRESENTATIONS[0]),
    ),
    Study(
        "shapes",
        "Fig. 9b",
        "Representations across shapes: C1-C6 to C9 and C7",
        "Which representation carries over to another shape of the same operator type?",
        (f"{TABLE} C9", f"{POOL} C7"),
        (*TRANSFERRED, NO_TRANSFER),
        against(TRANSFERRED, NO_TRANSFER),
        trials=128,
        source=Source(CONVS),
    ),
    Study(
        "types",
        "Fig. 9c",
        "Representations across operator types: C1-C6 to a matrix product",
        "Which representation carries over from convolutions to a 1024³ matrix product?",
        (f"{TABLE} M1024",),
        (*TRANSFERRED, NO_TRANSFER),
        against(TRANSFERRED, NO_TRANSFER),
        trials=128,
        source=Source(CONVS),
    ),
    Study(
        "targets",
        "Fig. 9d",
        "Representations across targets: 128-bit vectors to this machine's own",
        "Does what was learnt from C1-C6 in code with 128-bit vectors (x86-64-v2) carry over to C7 in this "
        "machine's own code? Both run on one core of the same machine; it stands in for two boards.",
        (f"{POOL} C7", f"{TABLE} C9"),
        (RELATION, transferred(REPRESENTATIONS[1]), NO_TRANSFER),
        against((RELATION, transferred(REPRESENTATIONS[1])), NO_TRANSFER),
        trials=128,
        source=Source(CONVS, NARROW),
    ),
)

QUICK: Final = tuple(
    replace(
        study,
        landscapes=(f"{TABLE} tiny",),
        methods=tuple(method for method in study.methods if method.features != "tree"),
        pairs=tuple(pair for pair in study.pairs if not any(method.features == "tree" for method in pair)),
        trials=64,
    )
    for study in STUDIES
    if study.source is None
)


def possible(study: Study, work: Path, without: tuple[str, ...] = ()) -> tuple[Study, list[str]]:
    """The part of a study that can run with what is there, and a sentence for everything else.

    without: cost models to leave out.
    """
    notes = []
    landscapes = []
    for name in study.landscapes:
        missing = _missing(name, work)
        notes += [missing] if missing else []
        landscapes += [] if missing else [name]
    methods = [method for method in study.methods if available(method.model)]
    if len(methods) < len(study.methods):
        notes.append("TreeGRU models did not run: jax is not installed (extra [neural]).")
    asked = [method for method in methods if method.model not in without]
    if len(asked) < len(methods):
        notes.append(f"Left out as asked: {', '.join(item.label for item in methods if item not in asked)}.")
    if study.source is not None:
        known = {run.operator for run in runs(work, study.source.operators, study.source.target)}
        if absent := [name for name in study.source.operators if name not in known]:
            notes.append(
                f"{NO_SOURCE}: nothing was collected for {', '.join(absent)} ({study.source.target}); run "
                f"`{COLLECT}`."
            )
            asked = [method for method in asked if not method.transfer]
    pairs = tuple(pair for pair in study.pairs if all(method in asked for method in pair))
    return replace(study, landscapes=tuple(landscapes), methods=tuple(asked), pairs=pairs), notes


def _missing(landscape: str, work: Path) -> str:
    """Why a landscape cannot be searched; empty where it can."""
    kind, operator = landscape.split(" ")
    if kind == POOL:
        return "" if runs(work, (operator,)) else f"{operator}: nothing collected; run `{COLLECT}`."
    try:
        open_landscape(landscape, work)
    except ReplayError as error:  # no table, or one of another space
        return f"{operator}: {error}"
    return ""
