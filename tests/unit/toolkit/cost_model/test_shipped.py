"""The priors that come with the tool: readable today, found by name, and worth something."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.harness.statistics import rank_correlation
from benchmarks.replay import open_replay
from toolkit.cli.model import model
from toolkit.cost_model.shipped import find_prior, load_prior, shipped_priors
from toolkit.errors import CostModelError
from toolkit.explore.search import SearchOptions, make_proposer, search_features
from toolkit.features.choose import make_features


@pytest.mark.parametrize("name", sorted(shipped_priors()))
def test_a_shipped_prior_ranks_the_programs_of_a_small_operator(name: str) -> None:
    """That it reads today's features is part of it: when they change, it must be trained again."""
    saved, replay = load_prior(name), open_replay("tiny")
    rows = make_features(saved.features.kind, replay.programs)(replay.table.batch)
    scores = saved.model.predict(rows).tolist()
    assert rank_correlation(scores, replay.table.costs_s.tolist()) > 0.5


@pytest.mark.parametrize("name", sorted(shipped_priors()))
def test_a_search_takes_one_by_its_name(name: str) -> None:
    """It was trained on programs of this operator too, and so knows good ones before anything is measured."""
    replay, options = open_replay("M1024"), SearchOptions(prior=Path(name))
    features = search_features(options, replay.programs)
    rows = make_proposer(replay.space, features, np.random.default_rng(0), options).ask(8)
    costs_s = [item.cost_s for item in replay.runner.prepare(rows)]
    assert np.nanmedian(costs_s) < 1.3 * replay.best_s < np.nanmedian(replay.table.costs_s)


def test_a_file_of_the_user_goes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = next(iter(shipped_priors()))
    assert find_prior(name) == shipped_priors()[name]
    Path(name).write_bytes(b"mine")
    assert find_prior(name) == Path(name)


def test_an_unknown_name_says_where_names_are_listed() -> None:
    with pytest.raises(CostModelError, match="toolkit model list"):
        load_prior("cortex-z80")


def test_they_are_listed() -> None:
    shown = CliRunner().invoke(model, ["list"])
    assert shown.exit_code == 0
    listed = CliRunner().invoke(model, ["list", "--json"])
    assert [item["name"] for item in json.loads(listed.output)["models"]] == list(shipped_priors())
    assert all(name in shown.output for name in shipped_priors())
