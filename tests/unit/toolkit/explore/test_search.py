"""Searches by name: presets, refusals, and real spaces of several algorithms that are searched to the end."""

from __future__ import annotations

import numpy as np
import pytest

from boards.board import load
from cross.expression import Operator, compute, placeholder, sigmoid
from cross.expression.families.conv import conv2d
from cross.expression.families.window import Window
from cross.loopnest.program import Programs
from cross.schedule.alternatives import AlternativeSpaces
from cross.schedule.choose import space_of
from cross.schedule.cpu_sketch import cpu_space
from tests.targets import AVX2 as TARGET
from toolkit.errors import InputError
from toolkit.explore.annealing import PAPER, WIDE, AnnealingOptions
from toolkit.explore.names import TUNERS
from toolkit.explore.search import (
    NETWORK_CHAINS,
    SearchOptions,
    affordable,
    annealing_options,
    make_proposer,
)
from toolkit.explore.space import components, enumerated
from toolkit.features.context import ContextFeatures


def small_conv() -> Operator:
    """8x8, 16 -> 16 channels, 3x3: Winograd's algorithms apply."""
    data, weight = placeholder((1, 8, 8, 16), "data"), placeholder((3, 3, 16, 16), "weight")
    output = conv2d(data, weight, Window(pads=(1, 1, 1, 1)), name="conv")
    return Operator("conv", (data, weight), output, constants=frozenset({1}))


def test_presets_and_what_replaces_their_numbers() -> None:
    assert annealing_options() == WIDE == SearchOptions().annealing
    assert annealing_options("paper") == PAPER
    assert (PAPER.chains, PAPER.steps, PAPER.epsilon) == (128, 500, 0.05)
    changed = annealing_options("paper", alpha=0.25, spare=4.0, epsilon=0.0)
    assert (changed.alpha, changed.spare, changed.epsilon, changed.chains) == (0.25, 4.0, 0.0, 128)


def test_networks_score_fewer_chains_and_trees_as_many_as_asked() -> None:
    assert affordable(SearchOptions()) == WIDE
    assert affordable(SearchOptions(cost_model="treegru")).chains == NETWORK_CHAINS < WIDE.chains
    assert affordable(SearchOptions(cost_model="treegru", annealing=PAPER)) == PAPER


@pytest.mark.parametrize(
    ("preset", "numbers", "said"),
    [
        ("tvm", {}, "unknown preset 'tvm': expected one of wide, paper"),
        ("wide", {"alpha": -1.0}, "expected alpha >= 0, .* found alpha -1"),
        ("wide", {"spare": 0.5}, "lambda >= 1 .* lambda 0.5"),
        ("wide", {"epsilon": 2.0}, "epsilon between 0 and 1, .* epsilon 2"),
        ("wide", {"epsilon": float("nan")}, "epsilon nan"),
    ],
)
def test_impossible_options_are_refused(preset: str, numbers: dict[str, float], said: str) -> None:
    with pytest.raises(InputError, match=said):
        annealing_options(preset, **numbers)


def test_a_configuration_chooses_nothing_for_other_algorithms() -> None:
    space = cpu_space(small_conv(), TARGET)
    assert isinstance(space, AlternativeSpaces)
    rows = space.sample(np.random.default_rng(0), 30)
    chosen = components(space, rows)
    for row, made in zip(rows, chosen, strict=True):
        part = space.part_of(row).space
        assert (made >= 0).sum() == 1 + len(part.knobs)
        assert np.array_equal(row[made >= 0], made[made >= 0]) and (row[made < 0] == 0).all()
    part = space.parts[0].space
    rows = part.sample(np.random.default_rng(0), 4)
    assert np.array_equal(components(part, rows), rows)


def test_a_space_of_several_algorithms_is_enumerated_algorithm_by_algorithm() -> None:
    space = cpu_space(small_conv(), TARGET)
    assert isinstance(space, AlternativeSpaces)
    assert space.size == sum(part.space.size for part in space.parts)
    blocks = enumerated(space)
    first = next(blocks)
    assert (first[:, 0] == 0).all() and space.valid(first).all()


@pytest.mark.parametrize("tuner", TUNERS)
def test_a_real_space_is_searched_to_its_end(tuner: str) -> None:
    whole = cpu_space(small_conv(), TARGET)
    space = whole.restricted(
        {knob.name: knob.choices[: 1 + knob.name.endswith("c")] for knob in whole.knobs[1:]}
    )
    assert isinstance(space, AlternativeSpaces) and len(space.parts) == 3
    points = np.concatenate(list(enumerated(space)))
    features = ContextFeatures(Programs(space))
    proposer = make_proposer(space, features, np.random.default_rng(0), SearchOptions(tuner=tuner))
    asked = []
    while len(batch := proposer.ask(16)):
        proposer.tell(batch, 1e-3 + 1e-4 * batch.sum(axis=1))
        asked.append(batch)
    found = space.ids(np.concatenate(asked)).tolist()
    assert len(set(found)) == len(found)
    assert sorted(found) == sorted(space.ids(points).tolist())


@pytest.mark.parametrize("tuner", TUNERS)
def test_one_element_on_one_core_leaves_nothing_to_choose(tuner: str) -> None:
    data = placeholder((1, 1), "data")
    operator = Operator("sigmoid", (data,), compute((1, 1), lambda i, j: sigmoid(data[i, j]), name="sigmoid"))
    space = cpu_space(operator, TARGET)
    assert space.knobs == () and space.size == 1
    assert Programs(space).nest(space.default()) == Programs(space).nest(space.parse({}))
    features = ContextFeatures(Programs(space))
    proposer = make_proposer(space, features, np.random.default_rng(0), SearchOptions(tuner=tuner))
    batch = proposer.ask(16)
    assert batch.shape == (1, 0)
    proposer.tell(batch, np.array([1e-6]))
    assert proposer.ask(16).shape == (0, 0)


@pytest.mark.parametrize("tuner", TUNERS)
def test_gpu_programs_are_searched_as_others_are(tuner: str) -> None:
    """What threads cost here is a function of the program: who learns it finds better ones."""
    space = space_of(small_conv(), load("pocl").target(), winograd=False)
    features = ContextFeatures(Programs(space))
    annealing = AnnealingOptions(chains=64, steps=6)
    options = SearchOptions(tuner=tuner, annealing=annealing)
    proposer = make_proposer(space, features, np.random.default_rng(0), options)
    found: list[np.ndarray] = []
    for _ in range(4):
        batch = proposer.ask(16)
        assert len(batch) == 16 and space.valid(batch).all()
        values = space.values(batch)
        costs = 1.0 / (values["conv.c.4"] * np.minimum(values["conv.x.2"] * values["conv.c.2"], 32))
        proposer.tell(batch, costs)
        found.append(costs)
    assert len({tuple(row) for row in proposer.ask(16)}) == 16
    if tuner == "annealing":
        assert np.mean(found[-1]) < 0.5 * np.mean(found[0])
