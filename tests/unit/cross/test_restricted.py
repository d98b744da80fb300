"""A space with some choices of its knobs only: the same programs under other indices."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.replay.operators import operator
from cross.errors import ScheduleError
from cross.loopnest.program import Programs
from cross.schedule.cpu_sketch import cpu_space
from cross.schedule.space import ScheduleSpace
from tests.targets import AVX2 as TARGET


@pytest.fixture(scope="module", name="space", params=["several algorithms", "one"])
def _space(request: pytest.FixtureRequest) -> ScheduleSpace:
    return cpu_space(operator("tiny"), TARGET, winograd=request.param != "one")


def halved(space: ScheduleSpace) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Every second choice of each knob, in reverse: no index keeps its meaning."""
    return {knob.name: knob.choices[::-2] for knob in space.knobs if knob.name != "algorithm"}


def test_its_configurations_are_configurations_of_the_whole(space: ScheduleSpace) -> None:
    reduced = space.restricted(halved(space))
    assert reduced.key != space.key
    rows = reduced.sample(np.random.default_rng(0), 40)
    rows = np.concatenate([rows, reduced.mutate(np.random.default_rng(1), rows)])
    assert len(rows) == 80 and reduced.valid(rows).all()
    there = [reduced.describe(reduced.configuration(row)) for row in rows]
    whole = [space.parse(described) for described in there]
    assert space.valid(space.batch(whole)).all()
    own, same = Programs(reduced), Programs(space)
    for row, configuration in zip(rows[::8], whole[::8], strict=True):
        assert own.nest(reduced.configuration(row)) == same.nest(configuration)


def test_the_untuned_program_is_the_nearest_one_left(space: ScheduleSpace) -> None:
    reduced = space.restricted(halved(space))
    assert reduced.valid(reduced.batch(reduced.defaults())).all()
    assert space.restricted({}).default() == space.default()


def test_labels_stay_with_their_choices(space: ScheduleSpace) -> None:
    knob = next(knob for knob in space.knobs if knob.labels and knob.name != "algorithm")
    reduced = space.restricted({knob.name: knob.choices[1:]})
    (kept,) = (other for other in reduced.knobs if other.name == knob.name)
    assert (kept.choices, kept.labels) == (knob.choices[1:], knob.labels[1:])


def test_what_the_space_has_not_is_refused(space: ScheduleSpace) -> None:
    name = space.knobs[-1].name
    with pytest.raises(ScheduleError, match=r"\[7777\] is none of its \d+ choices"):
        space.restricted({name: [(7777,)]})
    with pytest.raises(ScheduleError, match="unknown knobs magic"):
        space.restricted({"magic": [(1,)]})
    with pytest.raises(ScheduleError, match="has no choice"):
        space.restricted({name: []})
