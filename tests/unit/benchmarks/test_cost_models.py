"""The comparison of cost models: its measures of ranking, and a run on the small recorded space."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from benchmarks.cost_models import judged, main, of_table, same_operator
from benchmarks.harness.statistics import rank_correlation


def test_the_correlation_is_spearmans_also_with_ties() -> None:
    rng = np.random.default_rng(0)
    scores, costs_s = rng.integers(0, 9, 60).astype(np.float32), rng.integers(1, 7, 60).astype(np.float64)
    assert rank_correlation(scores, costs_s) == pytest.approx(spearmanr(scores, -costs_s)[0])


def test_recall_counts_the_fastest_among_the_best_scored() -> None:
    costs_s = np.arange(1.0, 65.0)
    scores = -costs_s.astype(np.float32)
    assert judged(scores, costs_s)[1] == 1.0
    scores[[0, 1]] = -100.0  # of the fastest eighth, two are rated last
    assert judged(scores, costs_s)[1] == 0.75
    assert judged(-scores, costs_s)[1] == 0.25  # and then only those two are found


@pytest.mark.slow
def test_a_model_that_learns_beats_one_that_does_not() -> None:
    data = of_table("tiny")
    ((learnt, found),) = same_operator("gbt", data, 0)
    ((chance, _),) = same_operator("random", data, 0)
    assert learnt > 0.5 > chance and found > 0.2


@pytest.mark.slow
def test_the_table_has_a_line_for_each_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--table", "tiny", "--models", "gbt,random"]) == 0
    first, _, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("1 tiny: 2")
    assert [line.split()[0] for line in lines] == ["gbt", "random"]
    assert main(["compare"]) == 2
