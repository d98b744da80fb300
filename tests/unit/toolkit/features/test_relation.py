"""Relation, tree and configuration features by hand, and what they must not depend on."""

from __future__ import annotations

import numpy as np
import pytest

from boards.board import load
from cross.expression import Operator, placeholder
from cross.expression.families.conv import conv2d
from cross.expression.families.dense import dense
from cross.expression.families.window import Window
from cross.loopnest import Programs
from cross.loopnest.nodes import LoopKind, LoopNest
from cross.schedule import cpu_space
from tests.nests import argument, loop, nest, store, times
from tests.nests import load as element
from tests.plain_features import plain_relation, plain_totals
from toolkit.features.chain import main_chain
from toolkit.features.choose import make_features
from toolkit.features.relation import BETAS, RELATIONS, RelationFeatures, fixed_features
from toolkit.features.slots import SLOTS
from toolkit.features.tree import CHANNELS, TreeFeatures
from toolkit.features.vocabulary import CPU

TARGET = load("host").target()


def _outer_product() -> LoopNest:
    """C[i, j] = A[i] * B[j] for 4 x 8, the inner loop vectorized."""
    a, b, c = argument("A", (4,), "input"), argument("B", (8,), "input"), argument("C", (4, 8), "output")
    inner = store(c, ("i", "j"), times(element(a, "i"), element(b, "j")))
    return nest((a, b, c), loop("i", 4, loop("j", 8, inner, LoopKind.VECTORIZED)))


def _curve(row: list[float], relation: str, slot: str) -> list[float]:
    start = len(fixed_features(CPU)) + (RELATIONS.index(relation) * len(SLOTS) + SLOTS.index(slot)) * len(
        BETAS
    )
    return row[start : start + len(BETAS)]


def test_relations_of_an_outer_product() -> None:
    """Of B the statement touches 1 element, the inner loop 8, both loops the same 8, four times each."""
    row = plain_relation(_outer_product())
    reuse = _curve(row, "reuse | touch", "read2")
    assert reuse[:4] == [0.0, 0.0, 0.0, 2.0]  # below 16 elements: both loops, 32 iterations over 8 elements
    assert set(reuse[4:]) == {2.0}
    touch = _curve(row, "touch | reuse", "read2")
    assert touch[0] == pytest.approx(np.log2(1 + 8))  # reuse below 2: the inner loop
    outer = _curve(row, "top_down | touch", "read2")
    assert outer[:4] == pytest.approx([np.log2(33)] * 3 + [1.0])  # all 8 elements are gone through once
    inner = _curve(row, "touch | top_down", "read2")
    assert inner[:3] == pytest.approx([np.log2(9)] * 3)  # 4 times around: 8 elements
    assert inner[-1] == 1.0  # 32 times around: one element
    assert not any(_curve(row, relation, "others")[0] for relation in RELATIONS)


def test_arithmetic_is_counted_for_its_dtype() -> None:
    names = plain_totals(_outer_product())
    counted = dict(zip(RelationFeatures(_programs(_matmul())).names, names, strict=False))
    assert counted["float32 operations"] == pytest.approx(np.log2(33))
    assert counted["float64 operations"] == counted["int32 operations"] == 0.0


def _matmul() -> Operator:
    left, right = placeholder((24, 32), "A"), placeholder((32, 48), "B")
    return Operator("matmul", (left, right), dense(left, right), frozenset({1}))


def _convolution() -> Operator:
    data, weight = placeholder((1, 12, 12, 16), "X"), placeholder((3, 3, 16, 32), "W")
    output = conv2d(data, weight, Window(pads=(1, 1, 1, 1)), name="conv")
    return Operator("conv", (data, weight), output, frozenset({1}))


def _programs(operator: Operator) -> Programs:
    return Programs(cpu_space(operator, TARGET))


def test_the_products_stand_for_a_winograd_convolution() -> None:
    programs = _programs(_convolution())
    structures = list(programs.space.structures())
    assert {structure[0] for structure in structures} == {0, 1, 2}
    for structure in structures:
        chain = main_chain(programs.parametric(structure).nest)
        assert len(chain.accesses) == 3
        assert chain.accesses[0].buffer == chain.store.buffer
        if structure[0] > 0:
            assert chain.store.buffer.name == "conv.products.acc"


@pytest.mark.slow
def test_all_choices_can_be_told_apart_within_an_operator() -> None:
    """No two configurations look alike to the model that searches."""
    programs = _programs(_convolution())
    batch = np.unique(programs.space.sample(np.random.default_rng(0), 2000), axis=0)
    for kind in ("context", "configuration"):
        table = make_features(kind, programs)(batch)
        assert len(np.unique(table, axis=0)) == len(batch)


@pytest.mark.slow
def test_parents_come_before_their_children_in_a_tree() -> None:
    programs = _programs(_convolution())
    extract = TreeFeatures(programs)
    batch = programs.space.sample(np.random.default_rng(1), 200)
    tree = extract(batch).reshape(len(batch), extract.loops, extract.channels)
    exists, parent, variable = (tree[:, :, CHANNELS.index(name)] for name in ("exists", "parent", "variable"))
    assert set(np.unique(exists)) == {0.0, 1.0}
    assert (np.diff(exists, axis=1) <= 0).all()  # rows that are there come first
    there = exists > 0
    assert (parent[there] < np.broadcast_to(np.arange(extract.loops), parent.shape)[there]).all()
    assert (parent[:, 0] == -1).all() and (parent[there] >= -1).all()
    assert variable[there].max() < len(extract.variables)
    assert not tree[~there].any()
    same = (programs.structures(batch) == programs.structures(batch)[0]).all(axis=1)
    assert same.sum() > 1 and (np.ptp(parent[same], axis=0) == 0).all()
