"""Where the search of an operator begins, by its options and the kind of its target."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from boards.board import load
from cross.expression import Operator, placeholder
from cross.expression.families.dense import dense
from cross.loopnest import program
from toolkit.explore.neighbourhood.cpu import untuned_rounds
from toolkit.explore.proposer import Proposer
from toolkit.explore.rounds import RoundsProposer
from toolkit.explore.search import SearchOptions
from toolkit.tuning.on_board import begins_untuned, open_task

CPU, GPU = load("rpi3b"), load("jetson-nano")


def product() -> Operator:
    left, right = placeholder((64, 96), "A"), placeholder((96, 48), "B")
    return Operator("dense", (left, right), dense(left, right, name="Y"), constants=frozenset({1}))


def test_annealing_on_a_cpu_begins_around_the_untuned_program() -> None:
    task = open_task("product", product(), CPU, CPU.target())
    space = task.programs.space
    assert task.rounds is not None and not task.rounds_alone
    untuned = space.batch(space.defaults())

    def asked(proposer: Proposer) -> np.ndarray:
        proposer.tell(untuned, np.full(len(untuned), 1e-3))
        return proposer.ask(16)

    found = asked(task.rounds())
    assert len(found)
    assert np.array_equal(found, asked(RoundsProposer(space, partial(untuned_rounds, space))))


def test_opening_a_task_lowers_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports and models of records open tasks that nobody searches."""
    lowered: list[object] = []
    right = program.Programs.parametric
    monkeypatch.setattr(program.Programs, "parametric", lambda *given: lowered.append(given) or right(*given))
    task = open_task("product", product(), CPU, CPU.target())
    assert not lowered
    assert task.features.width > 0 and lowered


def test_what_the_search_has_bound_is_not_bound_again_to_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[object] = []
    right = program.bind
    monkeypatch.setattr(program, "bind", lambda *given: bound.append(given) or right(*given))
    task = open_task("product", product(), CPU, CPU.target())
    assert task.identify is not None
    rows = task.space.sample(np.random.default_rng(0), 16)
    task.identify(rows)
    before = len(bound)
    for row in rows:
        task.programs.nest(task.space.configuration(row))
    assert len(bound) == before > 0


@pytest.mark.parametrize(
    "search",
    [
        SearchOptions(first="random"),
        SearchOptions(tuner="genetic"),
        SearchOptions(tuner="random"),
        SearchOptions(prior=Path("x86-64-avx512")),
    ],
)
def test_other_searches_begin_by_themselves(search: SearchOptions) -> None:
    assert not begins_untuned(search, CPU.target())


def test_on_a_gpu_an_untuned_program_says_little() -> None:
    gpu = next(target for target in GPU.targets if target.kind == "cuda")
    assert not begins_untuned(SearchOptions(), gpu)
    assert begins_untuned(SearchOptions(), CPU.target())
