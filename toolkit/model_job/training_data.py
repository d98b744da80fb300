"""From records to what a cost model is trained on across operators and targets (AutoTVM, section 4: D').

Every record key is a group: an operator on a target, in one schedule space. Its space is built again from the
operator's description and recognized by its key; what cannot be built again is left out, and said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from boards.board import board_names, load
from boards.description import Board
from boards.target import Target
from cross.errors import ExpressionError, ScheduleError
from cross.expression.language.description import from_json
from cross.expression.language.operator import Operator
from cross.loopnest.program import Programs
from cross.schedule.choose import space_of
from cross.schedule.space import Configuration, ScheduleSpace
from toolkit.cost_model.model_file import FeatureFacts, TrainedOperator
from toolkit.features.choose import make_features
from toolkit.records import RecordKey, Records, TuningRecord
from toolkit.tuning.on_board import target_key


class LeftOut(msgspec.Struct, frozen=True):
    """Records of one key that cannot be learnt from, and why."""

    operator_key: str
    target_key: str
    records: int
    reason: str


class TrainingData(msgspec.Struct, frozen=True):
    """Features float32 [N, F], seconds [N] (NaN: failed) and group [N] of N records, and their origin."""

    features: NDArray[np.float32]
    costs_s: NDArray[np.float64]
    groups: NDArray[np.int64]
    facts: FeatureFacts
    operators: tuple[TrainedOperator, ...]
    left_out: tuple[LeftOut, ...]
    first_s: float
    last_s: float


_Known = list[tuple[RecordKey, int, ScheduleSpace]]
"""Keys with the number of their records and their space."""


def training_data(records: Records, kind: str, boards: Sequence[Board] = ()) -> TrainingData:
    """Everything that the records teach, as features of this kind.

    boards: take the records of these only; none: of every board whose file ships with the tool. Of CPU and
    GPU programs together, those with more records are taken. No rows when nothing is left. Raises InputError
    for unknown features, RecordsError.
    """
    operators = _operators(records)
    known: _Known = []
    left_out: list[LeftOut] = []
    for key, count in records.keys():  # noqa: SIM118 - not a mapping
        if boards and board_name(key) not in {board.name for board in boards}:
            continue
        found = _space(key, operators, boards)
        if isinstance(found, str):
            left_out.append(LeftOut(key.operator_key, key.target_key, count, found))
        else:
            known.append((key, count, found))
    known, others = _of_one_vocabulary(known)
    tables: list[NDArray[np.float32]] = []
    groups: list[list[TuningRecord]] = []
    facts = FeatureFacts(kind, 0)
    for key, _, space in known:
        features = make_features(kind, Programs(space))
        kept, rows = _parsed(space, records.for_key(key))
        tables.append(features(space.batch(rows)))
        groups.append(kept)
        facts = FeatureFacts(kind, max(facts.width, features.width), getattr(features, "channels", 0))
    # Where columns are missing rows end in zeros, as trees with fewer loops do.
    padded = [np.pad(table, ((0, 0), (0, facts.width - table.shape[1]))) for table in tables]
    costs = [np.nan if record.cost_s is None else record.cost_s for group in groups for record in group]
    times = [record.timestamp_s for group in groups for record in group]
    return TrainingData(
        features=np.concatenate([np.zeros((0, facts.width), np.float32), *padded]),
        costs_s=np.array(costs, dtype=np.float64),
        groups=np.repeat(np.arange(len(groups)), [len(group) for group in groups]).astype(np.int64),
        facts=facts,
        operators=tuple(
            TrainedOperator(
                space.operator.name,
                key.operator_key,
                key.target_key,
                len(group),
                sum(record.cost_s is None for record in group),
            )
            for (key, _, space), group in zip(known, groups, strict=True)
        ),
        left_out=(*left_out, *others),
        first_s=min(times, default=0.0),
        last_s=max(times, default=0.0),
    )


def _of_one_vocabulary(known: _Known) -> tuple[_Known, list[LeftOut]]:
    """The records of CPU programs or those of GPU programs, whichever are more: their features differ."""
    counts: Counter[bool] = Counter()
    for _, count, space in known:
        counts[space.target.kind == "cpu"] += count
    of_cpus = counts[True] >= counts[False]
    fewer, more = ("GPU", "CPU") if of_cpus else ("CPU", "GPU")
    reason = (
        f"it is of {fewer} programs, most records are of {more} programs: a model reads one kind; keep the "
        "records of the two in files of their own"
    )
    kept, left_out = [], []
    for key, count, space in known:
        if (space.target.kind == "cpu") == of_cpus:
            kept.append((key, count, space))
        else:
            left_out.append(LeftOut(key.operator_key, key.target_key, count, reason))
    return kept, left_out


def _operators(records: Records) -> dict[str, list[Operator]]:
    """The described operators by key, without descriptions that cannot be read or do not have that key."""
    found: dict[str, list[Operator]] = {}
    for line in records.operators():
        try:
            operator = from_json(line.description)
        except ExpressionError:
            continue
        if operator.key == line.operator_key:
            found.setdefault(line.operator_key, []).append(operator)
    return found


def board_name(key: RecordKey) -> str:
    """The board that the records of a key were measured on."""
    return key.target_key.partition(":")[0]


def _space(
    key: RecordKey, operators: dict[str, list[Operator]], boards: Sequence[Board]
) -> ScheduleSpace | str:
    """The schedule space of a key, or why there is none."""
    if key.operator_key not in operators:
        return "the store does not describe the operator: run `toolkit tune` on its model once more"
    targets = _targets(board_name(key), boards)
    target = next((item for name, item in targets if target_key(name, item) == key.target_key), None)
    if target is None:
        return (
            f"no target of board {board_name(key)} is the one that was measured: train on the machine that "
            "measured, or name the board's file with --board"
        )
    for operator in operators[key.operator_key]:
        for winograd in (True, False):
            space = space_of(operator, target, winograd=winograd)
            if space.key == key.space_key:
                return space
    return "an earlier version of the tool built its schedule space: tune again to have new records"


def _targets(name: str, boards: Sequence[Board]) -> Iterator[tuple[str, Target]]:
    """The targets of the boards of this name, CPUs on all of their cores or only on the first ones."""
    known = [board for board in boards if board.name == name]
    if not known and name in board_names():
        known = [load(name)]
    for board in known:
        for target in board.targets:
            if target.kind != "cpu":
                yield board.name, target
                continue
            for threads in range(target.threads, 0, -1):
                yield board.name, msgspec.structs.replace(target, cores=target.cores[:threads])


def _parsed(
    space: ScheduleSpace, records: list[TuningRecord]
) -> tuple[list[TuningRecord], list[Configuration]]:
    """The records whose configuration the space can read, and the configurations."""
    kept, rows = [], []
    for record in records:
        try:
            rows.append(space.parse(record.configuration))
        except ScheduleError:
            continue
        kept.append(record)
    return kept, rows
