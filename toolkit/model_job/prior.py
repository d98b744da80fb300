"""Train a cost model on records of many operators and targets, to start other searches from: a prior."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from boards.description import Board
from toolkit.cost_model.choose import make_cost_model
from toolkit.cost_model.model_file import FeatureFacts, Provenance, SavedModel, save
from toolkit.cost_model.names import DEFAULT, PRIOR_MODELS, TREE_MODELS
from toolkit.errors import InputError
from toolkit.features.names import SHARED
from toolkit.model_job.options import DEFAULT_RECORDS
from toolkit.model_job.training_data import LeftOut, board_name, training_data
from toolkit.records import Records
from toolkit.version import TOOL_VERSION


class PriorReport(msgspec.Struct, frozen=True):
    """What was trained and written. `left_out`: records that could not be learnt from."""

    path: Path
    name: str
    features: FeatureFacts
    provenance: Provenance
    left_out: tuple[LeftOut, ...]

    @property
    def records(self) -> int:
        """Records that the model was trained on."""
        return sum(operator.records for operator in self.provenance.operators)


def train_prior(
    output: Path | str,
    *,
    records: Path | str = DEFAULT_RECORDS,
    boards: Sequence[Board] = (),
    cost_model: str = DEFAULT,
    features: str = "",
    seed: int = 0,
    tell: Callable[[str], None] = lambda _: None,
) -> PriorReport:
    """Train a cost model on a records file and write it to `output`; `tell` gets a line as each step begins.

    boards: learn from their records only; none: from all. features: one of toolkit.features.names.SHARED;
    empty: what suits the model. Raises InputError when names do not fit or there is nothing to learn from,
    RecordsError, OutputError, MissingExtra.
    """
    kind = features or ("tree" if cost_model in TREE_MODELS else "relation")
    if cost_model not in PRIOR_MODELS:
        raise InputError(f"a prior cannot be {cost_model!r}: expected one of {', '.join(PRIOR_MODELS)}")
    if kind not in SHARED or (kind == "tree") != (cost_model in TREE_MODELS):
        raise InputError(
            f"a prior that is {cost_model} cannot read {kind} features: expected tree features for "
            f"{', '.join(TREE_MODELS)}, relation or flattened ones for the others"
        )
    with Records(records, read_only=True) as store:
        tell(f"reading {len(store)} records of {records}")
        data = training_data(store, kind, boards)
        measured = sorted({board_name(key) for key, _ in store.keys()})  # noqa: SIM118 - not a mapping
    if not len(data.costs_s):
        none = (
            f"none are of {', '.join(board.name for board in boards)}, only of {', '.join(measured)}: "
            "name one of these with --board, or leave it out"
        )
        reasons = "; ".join(sorted({item.reason for item in data.left_out})) or none
        raise InputError(f"no records in {records} to learn from: {reasons}")
    tell(f"fitting {cost_model} to {len(data.costs_s)} of them")
    model = make_cost_model(cost_model, seed, channels=data.facts.channels, patient=True)
    model.fit(data.features, data.costs_s, data.groups)
    provenance = Provenance(data.operators, TOOL_VERSION, seed, data.first_s, data.last_s)
    path = save(output, SavedModel(cost_model, model, data.facts, provenance))
    return PriorReport(path, cost_model, data.facts, provenance, data.left_out)
