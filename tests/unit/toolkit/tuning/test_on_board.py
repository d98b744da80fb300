"""Where the search of an operator begins, by its options and the kind of its target."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from boards.board import load
from cross.expression import Operator, placeholder
from cross.expression.families.dense import dense
from toolkit.explore.neighbourhood.cpu import untuned_rounds
from toolkit.explore.proposer import Proposer
from toolkit.explore.rounds import RoundsProposer
from toolkit.explore.search import SearchOptions
from toolkit.tuning.on_board import begins_untuned, open_job

CPU, GPU = load("rpi3b"), load("jetson-nano")


def product() -> Operator:
    left, right = placeholder((64, 96), "A"), placeholder((96, 48), "B")
    return Operator("dense", (left, right), dense(left, right, name="Y"), constants=frozenset({1}))


def test_annealing_on_a_cpu_begins_around_the_untuned_program() -> None:
    job, programs = open_job("product", product(), CPU, CPU.target())
    space = programs.space
    assert job.rounds is not None and not job.rounds_alone
    untuned = space.batch(space.defaults())

    def asked(proposer: Proposer) -> np.ndarray:
        proposer.tell(untuned, np.full(len(untuned), 1e-3))
        return proposer.ask(16)

    found = asked(job.rounds())
    assert len(found)
    assert np.array_equal(found, asked(RoundsProposer(space, partial(untuned_rounds, space))))


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
