"""What the words of `toolkit tune` become."""

from __future__ import annotations

import click
import pytest

from toolkit import TuneOptions
from toolkit.cli.tune import tune, tune_options
from toolkit.model_job.options import DEFAULT_TRIALS


def options(*words: str) -> TuneOptions:
    return tune_options(tune.make_context("tune", ["m.onnx", "--board", "host", *words]).params)


@pytest.mark.parametrize(
    ("words", "trials", "total", "seconds"),
    [
        ((), DEFAULT_TRIALS, None, None),
        (("--trials", "5"), 5, None, None),
        (("--total-trials", "500"), None, 500, None),
        (("--budget", "20m"), None, None, 1200.0),
        (("--budget", "0s"), None, None, 0.0),
    ],
)
def test_one_budget_at_a_time(
    words: tuple[str, ...], trials: int | None, total: int | None, seconds: float | None
) -> None:
    found = options(*words)
    assert (found.trials, found.total, found.seconds) == (trials, total, seconds)
    assert found.tuning.early_stop is False


def test_two_budgets_are_refused() -> None:
    with pytest.raises(click.UsageError, match="--trials, --total-trials and --budget exclude each other"):
        options("--trials", "5", "--budget", "20m")


def test_early_stop_and_features() -> None:
    found = options("--early-stop", "--features", "relation")
    assert found.tuning.early_stop and found.tuning.search.features == "relation"
    assert options().tuning.search.features == ""


def test_options_that_the_tuner_does_not_read_are_refused() -> None:
    with pytest.raises(click.UsageError, match="--tuner random reads no --prior, --alpha: leave that out"):
        options("--tuner", "random", "--alpha", "1", "--prior", "p.tfbm")
    with pytest.raises(click.UsageError, match="--tuner annealing reads no --bridges"):
        options("--bridges", "all")
    assert options("--tuner", "reuse", "--bridges", "all", "--alpha", "1").bridges == "all"
