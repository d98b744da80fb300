"""Reuse as a search: what it asks for, on spaces of every kind that programs come from."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

from boards.board import load
from cross.expression import Operator, compute, maximum, placeholder
from cross.expression.families.conv import conv2d, depthwise_conv
from cross.expression.families.dense import dense
from cross.expression.families.elementwise import apply
from cross.expression.families.norm import softmax
from cross.expression.families.window import Window
from cross.expression.language.terms import cast
from cross.schedule import Configuration, ScheduleSpace, cpu_space, gpu_space
from tests.quick import others_slow
from tests.targets import AVX2 as TARGET
from toolkit.explore.baselines import RandomProposer
from toolkit.explore.distinct import DistinctPrograms
from toolkit.explore.in_turn import InTurn
from toolkit.explore.neighbourhood.cpu import (
    exchanged_factors,
    other_decisions,
    other_tiles,
    untuned_rounds,
    within_algorithm,
)
from toolkit.explore.neighbourhood.loops import main_stage
from toolkit.explore.neighbourhood.tile_shapes import BLOCK, REGISTER, points, tile_sizes, tiled_reduction
from toolkit.explore.proposer import Proposer
from toolkit.explore.rounds import RoundsProposer
from toolkit.explore.space import Identify
from toolkit.reuse.rounds.program import Program
from toolkit.reuse.rounds.proposer import called_for, reuse_proposer


def conv(size: int, channels: int, filters: int, name: str = "Y") -> Operator:
    data, weight = placeholder((1, size, size, channels), "X"), placeholder((3, 3, channels, filters), "W")
    output = conv2d(data, weight, Window(pads=(1, 1, 1, 1)), name=name)
    return Operator("conv2d", (data, weight), output, constants=frozenset({1}))


def depthwise(size: int, channels: int) -> Operator:
    data, weight = placeholder((1, size, size, channels), "X"), placeholder((3, 3, channels), "W")
    output = depthwise_conv(data, weight, Window(pads=(1, 1, 1, 1)), name="Y")
    return Operator("depthwise", (data, weight), output, constants=frozenset({1}))


def product(rows: int, columns: int) -> Operator:
    left, right = placeholder((rows, 96), "A"), placeholder((96, columns), "B")
    return Operator("dense", (left, right), dense(left, right, name="Y"), constants=frozenset({1}))


def activation(size: int) -> Operator:
    data = placeholder((size, 33), "A")
    output = compute((size, 33), lambda i, j: maximum(data[i, j], 0.0), name="Y")
    return Operator("relu", (data,), output)


PAIRS = {
    "convolution and Winograd": (conv(28, 32, 48), conv(14, 32, 48, "Z")),
    "depthwise": (depthwise(28, 48), depthwise(14, 32)),
    "product": (product(128, 96), product(64, 48)),
    "elementwise": (activation(64), activation(16)),
}


def spaces(names: str) -> tuple[ScheduleSpace, ScheduleSpace]:
    one, other = PAIRS[names]
    return cpu_space(one, TARGET), cpu_space(other, TARGET)


def tuned(space: ScheduleSpace, seed: int) -> Program:
    return Program(space, space.configuration(space.sample(np.random.default_rng(seed), 1)[0]))


def cost_s(space: ScheduleSpace, rows: np.ndarray) -> np.ndarray:
    """A landscape without meaning, but the same for everybody."""
    return 1.0 + (space.ids(rows) % np.uint64(997)).astype(np.float64)


def followed(
    space: ScheduleSpace, reused: Program, then: Proposer, programs: Identify | None = None
) -> InTurn:
    """Reuse, then another search."""
    none = np.zeros((0, len(space.knobs)), np.int64)
    return InTurn(space, none, [reuse_proposer(space, reused, programs, waits=False), then])


def run(proposer: Proposer, space: ScheduleSpace, asks: int, n: int = 8) -> np.ndarray:
    rows = [np.zeros((0, len(space.knobs)), np.int64)]
    for _ in range(asks):
        rows.append(proposer.ask(n))
        proposer.tell(rows[-1], cost_s(space, rows[-1]))
    return np.concatenate(rows)


@pytest.mark.parametrize("names", PAIRS)
@pytest.mark.parametrize("seed", others_slow(range(3), 0))
def test_asks_for_valid_and_distinct_configurations_and_ends(names: str, seed: int) -> None:
    space, source = spaces(names)
    reused = tuned(source, seed)
    rows = run(reuse_proposer(space, reused), space, asks=40)
    assert 4 <= len(rows) <= 150
    assert space.valid(rows).all()
    assert len(set(space.ids(rows).tolist())) == len(rows)
    assert np.array_equal(rows, run(reuse_proposer(space, reused), space, asks=40))


def test_an_operator_as_large_reuses_the_very_program() -> None:
    space = cpu_space(conv(28, 32, 48), TARGET)
    reused = tuned(cpu_space(conv(28, 32, 48, "Z"), TARGET), 1)
    first = called_for(space, reused)
    assert first[0].tolist() == list(reused.configuration.indices)


def test_the_algorithm_of_the_reused_program_is_kept() -> None:
    """Or that with the next smaller tiles: F(5x5,3x3) is worth nothing for 28 rows, which 4 divides."""
    space, source = spaces("convolution and Winograd")
    assert len(source.defaults()) == len(space.defaults()) + 1
    for default in source.defaults():
        rows = called_for(space, Program(source, default))
        assert set(rows[:, 0].tolist()) == {min(default.indices[0], len(space.defaults()) - 1)}


def test_tiles_keep_to_the_size_of_the_reused_ones() -> None:
    """Register tiles stay near: the register file is the same. Blocks lie in ETO's range for them."""
    space, source = (cpu_space(item, TARGET, winograd=False) for item in PAIRS["convolution and Winograd"])
    reused = tuned(source, 5)
    tiles, source_tiles = tiled_reduction(space), tiled_reduction(source)
    assert tiles is not None and source_tiles is not None
    wanted = tile_sizes(source_tiles, reused.row)
    found = [tile_sizes(tiles, row) for row in called_for(space, reused)[1:]]
    assert found
    register, block = points(wanted, REGISTER), points(wanted, BLOCK)
    assert all(1 / 1.7 <= points(sizes, REGISTER) / register <= 1.7 for sizes in found)
    increase = (28 * 28) / (14 * 14)
    assert all(block / 1.3 - 2 <= points(sizes, BLOCK) <= 1.3 * increase * block + 2 for sizes in found)


def test_of_register_tiles_of_one_size_the_one_with_the_fewest_loads_is_taken() -> None:
    """For C = A @ B, 4 rows by 3 vectors take 7 loads a step, 12 rows by one vector 13."""
    space, source = (cpu_space(product(96, 96), TARGET) for _ in range(2))
    tiles = tiled_reduction(space)
    assert tiles is not None
    names = {axis.name: axis for axis in tiles.space}
    row = space.batch([space.default()])[0]
    rows_axis, vector_axis = tiles.space
    for axis, size in ((rows_axis, 4), (vector_axis, 24)):
        row[axis.column] = next(
            index for index, choice in enumerate(axis.choices.tolist()) if choice == [1, 1, size]
        )
    reused = Program(source, space.configuration(row))
    found = [tile_sizes(tiles, item) for item in called_for(space, reused)]
    assert found[0][rows_axis.name][2] == 4 and found[0][vector_axis.name][2] == 24
    shapes = {tuple(sizes[name][2] for name in names) for sizes in found}
    assert all(rows <= 12 and columns >= 8 for rows, columns in shapes)


@pytest.mark.parametrize("names", PAIRS)
def test_later_rounds_change_one_knob_or_exchange_factors_of_two_axes(names: str) -> None:
    space, _ = spaces(names)
    best = space.batch([space.default()])[0]
    changes = (other_decisions, other_tiles, exchanged_factors)
    decisions, tiles, exchanged = (within_algorithm(space, change)(best) for change in changes)
    single = np.concatenate([decisions, tiles])
    assert len(single)
    assert ((single != best).sum(axis=1) == 1).all()
    assert ((exchanged != best).sum(axis=1) <= 2).all()


def test_register_tiles_that_exchange_factors_keep_their_size() -> None:
    """Of 4 rows by 16 columns one doubles where the other halves."""
    space = cpu_space(product(96, 96), TARGET)
    tiles = tiled_reduction(space)
    assert tiles is not None
    row = space.batch([space.default()])[0]
    for axis, size in zip(tiles.space, (4, 16), strict=True):
        row[axis.column] = axis.choices.tolist().index([1, 1, size])
    found = [tile_sizes(tiles, item) for item in exchanged_factors(space, row)]
    shapes = {tuple(sizes[axis.name][2] for axis in tiles.space) for sizes in found}
    assert {(2, 32), (8, 8)} <= shapes


def test_without_a_program_the_fastest_untuned_one_is_reused() -> None:
    space, _ = spaces("convolution and Winograd")
    untuned = space.batch(space.defaults())
    proposer = RoundsProposer(space, partial(untuned_rounds, space))
    first = proposer.ask(64)
    assert np.array_equal(first[: len(untuned)], untuned)
    costs_s = np.full(len(first), 9.0)
    costs_s[: len(untuned)] = np.arange(len(untuned), 0.0, -1.0)
    proposer.tell(first, costs_s)
    rows = run(proposer, space, asks=1, n=64)
    assert set(rows[:, 0].tolist()) == {int(untuned[-1, 0])}


def test_the_first_batch_of_a_space_with_one_untuned_program_has_its_tiles() -> None:
    space, _ = spaces("depthwise")
    rows = RoundsProposer(space, partial(untuned_rounds, space)).ask(8)
    assert len(rows) == 8
    tiles = tiled_reduction(space)
    assert tiles is not None
    assert len({points(tile_sizes(tiles, row), BLOCK) for row in rows}) > 2


def test_afterwards_the_search_goes_on_and_knows_everything() -> None:
    space, source = spaces("product")
    reused = tuned(source, 0)
    alone = len(run(reuse_proposer(space, reused), space, asks=40))
    then = RandomProposer(space, np.random.default_rng(0))
    rows = run(followed(space, reused, then), space, asks=40)
    assert len(rows) > alone
    assert len(set(space.ids(rows).tolist())) == len(rows)


def test_the_search_that_follows_may_repeat_programs() -> None:
    """Not asking for what it asks for would look like its end."""
    space, source = spaces("product")
    then = RandomProposer(space, np.random.default_rng(0))
    proposer = followed(space, tuned(source, 0), then, lambda rows: np.zeros(len(rows), np.uint64))
    rows = run(proposer, space, asks=20)
    assert len(rows) >= 19 * 8
    assert len(set(space.ids(rows).tolist())) == len(rows)


def test_a_batch_may_be_asked_for_while_another_is_measured() -> None:
    space, source = spaces("depthwise")
    then = RandomProposer(space, np.random.default_rng(0))
    proposer = followed(space, tuned(source, 2), then)
    asked = [proposer.ask(8) for _ in range(6)]
    assert all(len(rows) for rows in asked)
    together = np.concatenate(asked)
    assert len(set(space.ids(together).tolist())) == len(together)


@pytest.mark.parametrize("names", PAIRS)
def test_asked_ahead_of_the_costs_it_asks_for_the_same(names: str) -> None:
    """A round waits for the costs of the one before: it is around the fastest program of that."""
    space, source = spaces(names)
    in_turn = run(reuse_proposer(space, tuned(source, 2)), space, asks=40)
    proposer = reuse_proposer(space, tuned(source, 2))
    ahead, running = [], proposer.ask(8)
    while len(running):
        following = proposer.ask(8)
        proposer.tell(running, cost_s(space, running))
        ahead.append(running)
        running = following if len(following) else proposer.ask(8)
    found = np.concatenate(ahead)
    assert np.array_equal(found[: len(in_turn)], in_turn[: len(found)])
    assert len(in_turn) <= len(found) < len(in_turn) + 16, "a batch more may be asked for before the end"


@pytest.mark.parametrize("names", PAIRS)
@pytest.mark.parametrize("seed", others_slow(range(3), 0))
@pytest.mark.parametrize("share", [0.3, 0.7, 1.0])
def test_what_one_run_measured_another_does_not_ask_for(names: str, seed: int, share: float) -> None:
    """Also where many configurations make one program: repetitions are in no records."""
    space, source = spaces(names)

    def programs(rows: np.ndarray) -> np.ndarray:
        coarse = rows.copy()
        coarse[:, 1:-1] -= coarse[:, 1:-1] % 2
        return space.ids(coarse)

    def run_with(known: np.ndarray) -> np.ndarray:
        reuse = reuse_proposer(space, tuned(source, seed), programs=programs)
        proposer = DistinctPrograms(space, reuse, programs, np.random.default_rng(0))
        proposer.tell(known, 1.0 + (programs(known) % np.uint64(997)))
        measured = [known]
        while len(rows := proposer.ask(8)):
            proposer.tell(rows, 1.0 + (programs(rows) % np.uint64(997)))
            measured.append(rows)
        return np.concatenate(measured)

    none = np.zeros((0, len(space.knobs)), np.int64)
    whole = run_with(none)
    assert len(set(programs(whole).tolist())) == len(whole) > 3
    known = whole[: round(share * len(whole))]
    again = run_with(known)
    assert set(space.ids(whole).tolist()) <= set(space.ids(again).tolist())
    assert len(again) < len(whole) + (8 if share < 1.0 else 1)


def test_nothing_but_failures_ends_too() -> None:
    space, source = spaces("product")
    proposer = reuse_proposer(space, tuned(source, 0))
    for _ in range(60):
        rows = proposer.ask(8)
        proposer.tell(rows, np.full(len(rows), np.nan))
    assert len(proposer.ask(8)) == 0


def test_gpu_programs_are_reused_knob_by_knob() -> None:
    target = load("pocl").target()
    space, source = gpu_space(conv(28, 32, 48), target), gpu_space(conv(14, 32, 48), target)
    rows = run(reuse_proposer(space, tuned(source, 3)), space, asks=30)
    assert len(rows) > 8 and space.valid(rows).all()


def test_a_program_of_another_kind_gives_what_its_knobs_share() -> None:
    space, source = cpu_space(conv(28, 32, 48), TARGET), cpu_space(activation(16), TARGET)
    first = called_for(space, Program(source, Configuration(source.default().indices)))
    assert space.valid(first).all()
    assert math.prod(first.shape) > 0


def test_loops_are_those_of_the_reduction_where_its_operand_has_as_many_elements() -> None:
    data = placeholder((1, 4, 128, 128), "X", "uint8")
    scaled = apply(lambda x: cast("float32", x) * 0.03, data, "scaled")
    space = cpu_space(Operator("softmax", (data,), softmax(scaled, 3)), TARGET)
    stage = tiled_reduction(space)
    assert stage is not None and stage.reduction is not None
    assert stage.reduction.name == main_stage(space.program).name
    rows = RoundsProposer(space, partial(untuned_rounds, space)).ask(8)
    assert len(rows) > 1 and space.valid(rows).all()
