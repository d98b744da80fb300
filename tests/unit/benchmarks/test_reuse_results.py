"""What is kept of pairs, and how the page shows it."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
import vl_convert

from benchmarks.experiments.reuse_section import pair_figures, pair_rows, set_figures, set_rows
from benchmarks.reuse.pairs import Outcome
from benchmarks.reuse.results import keep, kept, outcomes, pair_results
from benchmarks.reuse.set_table import Outcome as SetOutcome
from benchmarks.reuse.set_table import keep_outcomes, set_outcomes

TRIALS = 400
SERIES = ("here: CPU, learned search", "the paper: P100, Ansor")


def labels(figure: str) -> list[str]:
    """What the bars of a chart say to whoever cannot see them."""
    drawn = ElementTree.fromstring(figure).iter()
    return [item.get("aria-label", "") for item in drawn if item.get("aria-roledescription") == "bar"]


def _outcome(family: str, seed: int, throughput: float, speedup: float) -> Outcome:
    return Outcome(
        family, seed, 1e-3, 1e-3 / throughput, 2e-3, 200, 100, 40, 10.0 * speedup, 5.0 * speedup, 10.0
    )


def _keep(folder: Path, outcome: Outcome) -> None:
    keep(folder / f"{outcome.family}-{outcome.seed}-{TRIALS}.json", outcome)


def test_outcomes_are_read_back_in_order(tmp_path: Path) -> None:
    made = [_outcome("conv2d", 0, 0.9, 4.0), _outcome("conv2d", 1, 1.1, 6.0), _outcome("norm", 0, 1.0, 2.0)]
    for outcome in reversed(made):
        _keep(tmp_path, outcome)
    assert outcomes(tmp_path, TRIALS) == made
    assert outcomes(tmp_path, 100) == []


def test_another_version_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / f"conv2d-0-{TRIALS}.json"
    path.write_text('{"version": 99}')
    assert kept(path) is None


@pytest.mark.slow
def test_the_figures_show_ours_beside_the_paper_s(tmp_path: Path) -> None:
    for outcome in (_outcome("conv2d", 0, 0.9, 4.0), _outcome("conv2d", 1, 1.1, 6.0)):
        _keep(tmp_path, outcome)
    found = pair_results(tmp_path, TRIALS)
    (family,) = found["families"]
    assert family["throughput"]["estimate"] == pytest.approx(1.0)
    assert family["speedup"]["estimate"] == pytest.approx(5.0)
    assert family["near_speedup"]["estimate"] == pytest.approx(2.5)
    assert family["paper"] == {"throughput": 1.068, "speedup": 2.2}
    for figure, values in zip(pair_figures(found), ((1.0, 1.068), (5.0, 2.2)), strict=True):
        drawn = labels(vl_convert.vegalite_to_svg(figure))
        assert [
            f"x: conv2d; times: {value:g}; of: {name}" for value, name in zip(values, SERIES, strict=True)
        ] == drawn
    _, rows = pair_rows(found)
    assert [row[0] for row in rows] == ["conv2d", "all"]


def test_sets_are_kept_and_drawn(tmp_path: Path) -> None:
    made = [
        SetOutcome("bert-base", 5, "search", 2000, 100.0, 1e-3),
        SetOutcome("bert-base", 5, "reuse-one-hop", 500, 25.0, 2e-3),
    ]
    keep_outcomes(tmp_path, TRIALS, made)
    found = set_outcomes(tmp_path, TRIALS)
    assert [(item["method"], item["time"], item["speed"]) for item in found] == [
        ("search", 1.0, 1.0), ("reuse-one-hop", 0.25, 0.5),
    ]  # fmt: skip
    assert set_outcomes(tmp_path, 7) == []
    for figure, ours in zip(set_figures(found), (0.5, 4), strict=True):
        drawn = labels(vl_convert.vegalite_to_svg(figure))
        assert drawn[0] == f"x: bert-base; times: {ours}; of: reuse, one-hop bridges"
        assert len(drawn) == 2  # and the paper's
    _, rows = set_rows(found)
    assert [row[2] for row in rows] == ["search", "reuse, one-hop bridges"]


def test_without_pairs_there_is_nothing_to_show(tmp_path: Path) -> None:
    assert pair_results(tmp_path / "none", TRIALS)["families"] == []
