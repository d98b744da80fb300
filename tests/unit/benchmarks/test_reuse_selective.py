"""Selective Tuning: who is tuned, whose programs the others replay, and that these are valid programs."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from benchmarks.harness.operators import Convolution, Product
from benchmarks.reuse.selective import SIMILAR, replayed, replaying, representatives, similarity
from benchmarks.reuse.sets import operator_set
from boards.board import load
from cross.schedule.choose import space_of
from cross.schedule.space import ScheduleSpace
from toolkit.explore.neighbourhood.loops import MajorLoops, major_loops
from toolkit.reuse.rounds.program import Program


def loops_of(layer: Convolution | Product) -> MajorLoops:
    return major_loops(layer.operator(), layer.form)


def space(layer: Convolution | Product, *, winograd: bool = False) -> ScheduleSpace:
    target = load("host").target()
    return space_of(
        layer.operator(), msgspec.structs.replace(target, cores=target.cores[:1]), winograd=winograd
    )


def test_similarity_is_the_part_of_tile_sizes_in_common() -> None:
    small, large = loops_of(Product(1, 8, 8, 8)), loops_of(Product(1, 16, 8, 8))
    assert similarity(small, small) == similarity(small, large) == 1.0
    assert similarity(large, small) == pytest.approx(13 / 14)  # 1 + 4 + 4 + 4 of 1 + 5 + 4 + 4 sizes
    assert similarity(small, loops_of(Convolution("conv1d", (8,), 8, 8, (1,), (1,), (0,)))) == 0.0


@pytest.mark.parametrize("name", ["resnet-50", "mobilenet-v2", "bert-base"])
def test_every_operator_is_tuned_or_replays_one_that_is_similar(name: str) -> None:
    loops = [item.loops for item in operator_set(name)]
    found = representatives(loops)
    tuned = [position for position, other in enumerate(found) if other is None]
    assert 0 < len(tuned) < len(loops)
    for position, other in enumerate(found):
        if other is not None:
            assert other in tuned
            best = max(similarity(loops[position], loops[number]) for number in tuned)
            assert similarity(loops[position], loops[other]) == best >= SIMILAR


def test_a_program_is_replayed_knob_by_knob() -> None:
    source, target = space(Product(1, 32, 64, 48)), space(Product(1, 64, 64, 48))
    rng = np.random.default_rng(0)
    program = Program(source, source.configuration(source.sample(rng, 1)[0]))
    rows = replayed(target, program)
    assert rows.shape == (1, len(target.knobs)) and target.valid(rows).all()
    same = replayed(source, program)
    assert (same == program.row).all()


def test_only_the_replayed_programs_are_asked_for() -> None:
    source, target = space(Product(1, 32, 64, 48)), space(Product(1, 64, 64, 48))
    programs = [
        Program(source, source.configuration(row)) for row in source.sample(np.random.default_rng(1), 3)
    ]
    search = replaying(target, programs)
    first = search.ask(2)
    second = search.ask(8)
    assert 1 <= len(first) + len(second) <= 3
    search.tell(np.concatenate([first, second]), np.ones(len(first) + len(second)))
    assert len(search.ask(8)) == 0


def test_programs_of_an_algorithm_stay_with_it() -> None:
    small, large = (
        space(Convolution("conv2d", (12, 12), 8, outputs, (3, 3), (1, 1), (1, 1)), winograd=True)
        for outputs in (8, 16)
    )
    for row in small.sample(np.random.default_rng(2), 4):
        rows = replayed(large, Program(small, small.configuration(row)))
        assert all(large.configuration(found).indices[0] == row[0] for found in rows)
