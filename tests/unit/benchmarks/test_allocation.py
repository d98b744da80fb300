"""The comparison of both ways to share trials out: deterministic, and a part of what there is to find."""

from __future__ import annotations

import pytest

from benchmarks.allocation import OPERATORS, latency_s, line, weights_of
from benchmarks.replay import open_replay
from toolkit.tuning.progress import Budget


@pytest.mark.slow
def test_the_same_models_find_the_same_latencies() -> None:
    replays = {"tiny": open_replay("tiny")}
    first = line(replays, 24, 2)
    assert first == line(replays, 24, 2)
    allocated, equal = map(float, first.split()[1:3])
    assert 0.0 < allocated <= 1.0 and 0.0 < equal <= 1.0


@pytest.mark.slow
def test_all_trials_find_the_fastest() -> None:
    replay = open_replay("tiny")
    weights = weights_of(0)
    assert set(weights) == set(OPERATORS) and len(set(weights.values())) > 1
    least_s = weights["tiny"] * replay.best_s
    found_s = latency_s({"tiny": replay}, weights, Budget(total=len(replay.table)), 0)
    assert abs(found_s / least_s - 1.0) < 1e-6
