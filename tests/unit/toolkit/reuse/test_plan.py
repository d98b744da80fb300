"""Plans of reuse: who begins with whose program, in which order, and for how many trials."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.unit.toolkit.reuse.operators import RESNET50, conv, product
from toolkit.explore.neighbourhood.loops import MajorLoops
from toolkit.reuse.plan.bridges import one_hop_bridges, reusable
from toolkit.reuse.plan.expected_trials import expected_cpu_rounds
from toolkit.reuse.plan.reuse_plan import Candidate, ReuseOptions, ReusePlan, plan_reuse

LARGE, MIDDLE, SMALL = product(1, 64, 64, 64), product(1, 32, 64, 64), product(1, 16, 32, 64)
FREE = ReuseOptions(trials=400, worth=0.0)


def plan(*candidates: Candidate, options: ReuseOptions = FREE) -> ReusePlan:
    return plan_reuse(candidates, options, expected_cpu_rounds)


def parents(found: ReusePlan) -> dict[int, int | None]:
    return {step.position: step.parent for step in found.steps}


def test_one_operator_is_searched_and_the_others_reuse() -> None:
    found = plan(
        *(
            Candidate(name, loops, 0.3, False)
            for name, loops in zip("abc", (LARGE, MIDDLE, SMALL), strict=True)
        )
    )
    searched = [step for step in found.steps if step.parent is None]
    assert len(searched) == 1 and searched[0].trials == 400
    assert len(found.steps) == 3
    assert found.trials < 400 + 2 * 100


def test_programs_are_there_before_they_are_reused() -> None:
    sizes = [Candidate(str(item), conv(*item), 0.05, False) for item in RESNET50]
    found = plan_reuse(sizes, FREE, expected_cpu_rounds)
    seen: set[int] = set()
    for generation in found.generations:
        assert all(step.parent is None or step.parent in seen for step in generation)
        seen |= {step.position for step in generation}
    assert seen == set(range(20))
    assert sum(step.parent is None for step in found.steps) == 8  # as in the paper, without bridges


def test_what_is_tuned_costs_nothing_and_is_reused() -> None:
    found = plan(Candidate("old", LARGE, 0.0, True), Candidate("new", SMALL, 1.0, False))
    assert parents(found) == {1: 0}
    assert found.trials == expected_cpu_rounds(SMALL, LARGE)


def test_an_operator_without_loops_or_relatives_is_searched() -> None:
    alone = Candidate("b", conv(8, 8, 8, 3), 0.3, False)
    found = plan(Candidate("a", LARGE, 0.5, False), alone, Candidate("c", None, 0.2, False))
    assert parents(found) == {0: None, 1: None, 2: None}


def test_operators_of_one_kind_with_other_loops_do_not_reuse_each_other() -> None:
    """Depthwise and grouped convolutions are convolutions too, with a loop less or more."""
    depthwise = replace(LARGE, reduce=(), split=None, inputs=())
    assert not reusable(LARGE, depthwise) and not reusable(depthwise, LARGE)
    found = plan(Candidate("a", LARGE, 0.5, False), Candidate("b", depthwise, 0.5, False))
    assert parents(found) == {0: None, 1: None}


def test_latency_has_a_price() -> None:
    """An operator that is nearly the whole model is searched where trials are cheap, whatever reuse saves."""
    pair = (Candidate("small", SMALL, 0.01, False), Candidate("large", LARGE, 0.99, False))
    cheapest = parents(plan(*pair, options=ReuseOptions(trials=200, worth=0.0)))
    assert sorted(parent is None for parent in cheapest.values()) == [False, True]
    found = parents(plan(*pair, options=ReuseOptions(trials=200, worth=1000.0)))
    assert found == {0: 1, 1: None}


def test_a_small_space_is_not_given_more_trials_than_it_has_points() -> None:
    found = plan(Candidate("a", None, 1.0, False, most=6.0))
    assert found.trials == 6.0


@pytest.mark.parametrize("one, other", [(SMALL, LARGE), (LARGE, SMALL), (MIDDLE, LARGE)])
def test_reuse_is_expected_to_take_a_few_dozen_trials(one: MajorLoops, other: MajorLoops) -> None:
    assert reusable(one, other)
    assert 24 <= expected_cpu_rounds(one, other) <= 44


def test_nothing_to_tune_is_an_empty_plan() -> None:
    assert plan(Candidate("old", LARGE, 1.0, True)).generations == ()


WIDE, DEEP, TALL = product(1, 16, 256, 64), product(1, 16, 64, 256), product(1, 64, 64, 64)
COMMON = product(1, 16, 64, 64)


def wide_deep_tall(*, bridge: bool, worth: float = 0.0, trials: int = 400, known: bool = False) -> ReusePlan:
    """Three operators of which none can reuse another, and what is common to all of them."""
    asked = [
        Candidate(name, loops, 0.3, False) for name, loops in zip("wdt", (WIDE, DEEP, TALL), strict=True)
    ]
    bridges = [Candidate("b", COMMON, 0.0, known, bridge=True)] if bridge else []
    return plan(*asked, *bridges, options=ReuseOptions(trials, worth))


def test_a_bridge_is_tuned_where_that_saves_trials() -> None:
    assert parents(wide_deep_tall(bridge=False)) == {0: None, 1: None, 2: None}
    found = wide_deep_tall(bridge=True)
    assert parents(found) == {0: None, 3: 0, 1: 3, 2: 3}  # the bridge begins with one that is searched
    assert [[step.position for step in generation] for generation in found.generations] == [[0], [3], [1, 2]]
    assert found.trials < wide_deep_tall(bridge=False).trials == 1200


def test_a_bridge_that_does_not_pay_is_left_out() -> None:
    for found in (wide_deep_tall(bridge=True, worth=1000.0), wide_deep_tall(bridge=True, trials=40)):
        assert parents(found) == {0: None, 1: None, 2: None}


def test_a_bridge_of_the_records_costs_nothing() -> None:
    found = wide_deep_tall(bridge=True, known=True, trials=60)
    assert parents(found) == {0: 3, 1: 3, 2: 3}


@pytest.mark.slow
def test_bridges_make_resnet_50_cheaper() -> None:
    loops = [conv(*item) for item in RESNET50]
    asked = [Candidate(str(number), item, 0.05, False) for number, item in enumerate(loops)]
    extents = one_hop_bridges([item.extents for item in loops])
    bridges = [
        Candidate("bridge", conv(o, h, i, k), 0.0, False, bridge=True) for _, o, h, _, i, k, _ in extents
    ]
    without, found = plan(*asked), plan(*asked, *bridges)
    assert found.trials < 0.6 * without.trials
    used = [step for step in found.steps if step.position >= len(asked)]
    assert 0 < len(used) < len(bridges)
    assert all(any(other.parent == step.position for other in found.steps) for step in used)
