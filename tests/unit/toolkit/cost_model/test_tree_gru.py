"""TreeGRU: the equations of the paper, learning from trees, and nothing read of missing rows."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import kendalltau

from boards.board import load
from boards.target import Target
from tests.synthetic_trees import CHANNELS, LOOPS, tree_features
from tests.targets import AVX2
from toolkit.cost_model.base import Objective
from toolkit.cost_model.choose import make_cost_model
from toolkit.cost_model.tree_gru import TOGETHER, TrainingOptions, TreeGRU, blocks
from toolkit.cost_model.tree_input import Scale, TreeReader, measured_scale, padded_depth, trees
from toolkit.cost_model.tree_network import NetworkShape, initial_parameters, network
from toolkit.errors import InputError, MissingExtra
from toolkit.features.tree import channels
from toolkit.features.vocabulary import vocabulary_for

FEATURES = tree_features(400)
TABLE = FEATURES.reshape(400, LOOPS, CHANNELS)
COSTS_S = np.exp(0.2 * (TABLE[:, :, 4] * TABLE[:, :, 5]).sum(axis=1)).astype(np.float64)
"""The lengths of the loops with the first annotation decide, wherever they stand."""
QUICK = TrainingOptions(fewest_steps=100, most_steps=100, rate=5e-3)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def by_hand(parameters: dict[str, np.ndarray], rows: np.ndarray, inputs: np.ndarray, hidden: int) -> float:
    """One program, loop by loop, with the memory written out: rows [L, CHANNELS], inputs [L, C]."""
    states: dict[int, np.ndarray] = {}
    memory = np.zeros((parameters["scatter"].shape[1], hidden))
    for place in reversed(range(int(rows[:, 0].sum()))):
        children = [state for child, state in states.items() if rows[child, 1] == place]
        below = np.sum(children, axis=0) if children else np.zeros(hidden)
        embedded = np.maximum(inputs[place] @ parameters["embed"] + parameters["embed_bias"], 0.0)
        received = np.split(embedded @ parameters["input"] + parameters["input_bias"], 3)
        recurrent = np.split(below @ parameters["state"], 3)
        reset, update = sigmoid(received[0] + recurrent[0]), sigmoid(received[1] + recurrent[1])
        states[place] = (1 - update) * np.tanh(received[2] + reset * recurrent[2]) + update * below
        memory += softmax(parameters["scatter"].T @ states[place])[:, None] * states[place][None, :]
    return float((memory * parameters["score"].T).sum())


@pytest.mark.slow
def test_the_network_computes_the_equations_of_the_paper() -> None:
    reader, shape = TreeReader(CHANNELS, False), NetworkShape(CHANNELS - 3, embedding=7, hidden=6, slots=5)
    parameters = initial_parameters(shape, np.random.default_rng(0))
    scale = measured_scale(reader, FEATURES)
    found = network("rank", 0.0).score(parameters, *trees(reader, scale, FEATURES[:5], padded_depth(LOOPS)))
    for program in range(5):
        inputs = (TABLE[program, :, 3:] - scale.center) / scale.deviation
        expected = by_hand(parameters, TABLE[program], inputs, 6)
        assert float(found[program]) == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "vanilla"), [("rank", False), ("regression", True)])
def test_unseen_programs_are_ranked(objective: Objective, vanilla: bool) -> None:
    model = TreeGRU(CHANNELS, objective, vanilla=vanilla, options=QUICK)
    model.fit(FEATURES[:300], COSTS_S[:300])
    tau = kendalltau(model.predict(FEATURES[300:]), -COSTS_S[300:])[0]
    assert tau > (0.85 if objective == "rank" else 0.5)


@pytest.mark.slow
def test_scores_do_not_depend_on_what_else_is_scored_or_on_missing_rows() -> None:
    model = TreeGRU(CHANNELS, options=TrainingOptions(fewest_steps=4, most_steps=4))
    model.fit(FEATURES[:50], COSTS_S[:50])
    scores = model.predict(FEATURES[:70])
    assert model.predict(FEATURES[30:40]) == pytest.approx(scores[30:40], abs=1e-5)
    deeper = np.concatenate([FEATURES[:70], np.zeros((70, 9 * CHANNELS), np.float32)], axis=1)
    assert model.predict(deeper) == pytest.approx(scores, abs=1e-5)


def test_what_the_network_reads() -> None:
    reader = TreeReader(CHANNELS, False)
    depth = padded_depth(LOOPS)
    read = trees(reader, Scale(np.zeros(9, np.float32), np.ones(9, np.float32)), FEATURES[:3], depth)
    loops = TABLE[:3].transpose(1, 0, 2)
    assert depth == 16 and read.context.shape == (16, 3, 9)
    assert np.array_equal(read.context[:LOOPS], loops[:, :, 3:])
    assert np.array_equal(read.exists[:LOOPS], loops[:, :, 0]) and not read.exists[LOOPS:].any()
    assert (read.parent[0] == depth).all() and (read.parent[LOOPS:] == depth).all()
    inside = loops[:, :, 1] * (read.exists[:LOOPS] > 0)
    assert np.array_equal(read.parent[1:6], inside[1:6])
    with pytest.raises(ValueError, match="expected a multiple of that many columns, found 13"):
        reader.depths(np.zeros((2, 13), np.float32))


def test_a_training_batch_holds_blocks_of_one_group() -> None:
    groups = np.repeat([0, 1, 2], [500, 3, 100])
    rows = blocks(groups, np.random.default_rng(0), 1000).reshape(-1, TOGETHER)
    assert rows.size >= 1000
    assert all(len(set(groups[block])) == 1 for block in rows)
    assert len(set(rows[groups[rows[:, 0]] == 0].ravel())) > 400


def test_without_jax_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    network.cache_clear()
    with pytest.raises(MissingExtra, match=r"pip install 'tune-for-board\[neural\]'") as caught:
        make_cost_model("treegru", 0, channels=CHANNELS)
    assert caught.value.exit_code == 2
    network.cache_clear()


def test_a_tree_model_needs_tree_features() -> None:
    with pytest.raises(InputError, match="treegru needs features of kind tree"):
        make_cost_model("treegru", 0)
    with pytest.raises(InputError, match="unknown cost model 'forest': expected one of gbt, gbt-regression"):
        make_cost_model("forest", 0)


@pytest.mark.parametrize("target", [AVX2, load("pocl").target()], ids=["cpu", "gpu"])
def test_the_text_of_a_loop_is_its_length_and_annotation(target: Target) -> None:
    words = vocabulary_for(target)
    reader = TreeReader(len(channels(words)), vanilla=True)
    numbered = np.arange(reader.channels, dtype=np.float32)
    read = [channels(words)[int(number)] for number in reader.read(numbered)]
    assert read == ["length", *(kind.name.lower() for kind in words.kinds)]
    assert len(read) == reader.inputs
