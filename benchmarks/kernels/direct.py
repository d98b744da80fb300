"""Tuning without Winograd's algorithms: a search of its own in the space that lacks them.

The two spaces share programs. What was measured in the larger one is a measurement in the smaller one too: it
is recorded there, with the larger space's key, and counts as a trial.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from cross.schedule.alternatives import ALGORITHM
from cross.schedule.space import Configuration, ScheduleSpace
from toolkit.records import RecordKey, Records

FROM_SPACE = "from_space"


def algorithm(space: ScheduleSpace, configuration: Configuration) -> str:
    """The name of the algorithm that computes a configuration; "direct" where there is only one."""
    return space.part_of(space.batch([configuration])[0]).label


def share_records(
    larger: ScheduleSpace,
    smaller: ScheduleSpace,
    records: Records,
    keys: tuple[RecordKey, RecordKey],
    most: int,
) -> int:
    """Record in the smaller space (second key) what was measured in the larger one, until it has `most`
    records. Returns how many are new; those that it knows are left alone."""
    source, destination = keys
    known = records.for_key(destination)
    seen = {smaller.parse(record.configuration) for record in known}
    added = 0
    for record in records.for_key(source):
        described = translated(larger, smaller, record.configuration)
        if described is None or len(known) + added >= most:
            continue
        configuration = smaller.parse(described)
        if configuration not in seen:
            seen.add(configuration)
            records.add(
                msgspec.structs.replace(
                    record,
                    space_key=destination.space_key,
                    configuration=described,
                    facts={**record.facts, FROM_SPACE: source.space_key},
                    trial=len(known) + added,
                )
            )
            added += 1
    return added


def translated(
    larger: ScheduleSpace, smaller: ScheduleSpace, described: Mapping[str, Any]
) -> dict[str, Any] | None:
    """A described configuration in the words of another space; None where that space lacks its program."""
    source = larger.parts[described.get(ALGORITHM, [0])[0]]
    choices = {name: value for name, value in described.items() if name != ALGORITHM}
    for part in smaller.parts:
        if part.space.key == source.space.key:
            return choices if part.number is None else {ALGORITHM: [part.number], **choices}
    return None
