"""The page and its sentences: well formed, self-contained, honest about ties, the same bytes every time."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import vl_convert

from benchmarks.experiments.__main__ import main
from benchmarks.experiments.sentences import finding, listed, verdict
from toolkit.report.charts import COLOURS, Series, Spec, curves

SVG = "{http://www.w3.org/2000/svg}"


def _compared(of: str, estimate: float, low: float, high: float, verdict: str) -> dict[str, Any]:
    ratio = {"estimate": estimate, "low": low, "high": high}
    return {
        "method": "GBT", "other": "random", "of": of, "trial": 64, "ratio": ratio, "pairs": 10,
        "verdict": verdict,
    }  # fmt: skip


def test_a_difference_and_a_tie_in_words() -> None:
    speed = _compared("speed", 1.124, 1.081, 1.17, "better")
    assert verdict(speed) == "GBT found programs 1.12 times as fast as random did (1.081 to 1.17)"
    trials = _compared("trials", 0.98, 0.8, 1.2, "tie")
    said = finding([speed, trials], ["C6", "C9"], 64)
    assert said.startswith("On C6 and C9, after 64 trials: GBT found programs 1.12 times")
    assert "1.020 times as many trials until 98% of the fastest, a tie (0.833 to 1.25)" in said


def test_needing_more_trials_is_said_as_such() -> None:
    slower = _compared("trials", 0.5, 0.4, 0.625, "worse")
    assert "it needed 2 times as many trials until 98% of the fastest (1.6 to 2.5)" in verdict(slower)


def test_nothing_is_claimed_from_few_seeds() -> None:
    few = _compared("speed", 3.0, 2.0, 4.0, "too few")
    assert "too few seeds to tell" in verdict(few)
    assert finding([], [], 64) == "Nothing was compared: see the notes."


def test_names_are_listed() -> None:
    assert [listed(names) for names in (["C6"], ["C6", "C9"], ["C6", "C7", "C8"], [])] == [
        "C6", "C6 and C9", "C6, C7 and C8", "nothing",
    ]  # fmt: skip


def _drawn(chart: Spec) -> ElementTree.Element:
    return ElementTree.fromstring(vl_convert.vegalite_to_svg(chart))


def _line(label: str, y: list[float]) -> Series:
    return Series(label, range(1, len(y) + 1), y, [value * 0.9 for value in y], [value * 1.1 for value in y])


@pytest.mark.parametrize(
    ("y", "lowest"), [([0.0, 1.0], 0.0), ([90.0, 97.0], 76.2), ([30.0, 97.0], 0.0), ([5.0, 5.0], 4.4)]
)
def test_the_axis_begins_at_zero_unless_that_is_far_below(y: list[float], lowest: float) -> None:
    band, _ = curves("C6", "trials", "GFLOP/s", [_line("GBT", y)])["layer"]
    assert band["encoding"]["y"]["scale"]["domainMin"] == pytest.approx(lowest, abs=4.0)


def test_a_chart_is_well_formed_and_draws_inside_its_frame() -> None:
    line = _line("a < b & c", [0.0, 5.0, 8.0, 9.0])
    drawn = _drawn(curves("C6", "trials", "GFLOP/s", [line], best=9.5))
    (curve,) = [
        path
        for path in drawn.iter(f"{SVG}path")
        if path.get("stroke") == COLOURS[0] and path.get("fill") is None
    ]
    points = [tuple(map(float, pair.split(","))) for pair in re.findall(r"[\d.]+,[\d.]+", curve.get("d", ""))]
    assert len(points) == 4
    _, _, width, height = map(float, drawn.get("viewBox", "").split())
    assert all(0 <= px <= width and 0 <= py <= height for px, py in points)
    assert [py for _, py in points] == sorted((py for _, py in points), reverse=True)  # higher is up
    texts = {text.text for text in drawn.iter(f"{SVG}text")}
    assert {"a < b & c", "trials", "GFLOP/s"} <= texts


class _Outside(HTMLParser):
    """Collects whatever a page would load, and checks that its elements nest."""

    VOID = ("meta", "br", "link", "img")

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.open: list[str] = []
        self.tables = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [str(value) for name, value in attrs if name in ("src", "href")]
        self.tables += tag == "table"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """<line/> has nothing to close."""
        self.loaded += [str(value) for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _run(work: Path, output: Path) -> bytes:
    asked = ["run", "models", "objectives", "--quick", "--trials", "24", "--seeds", "2", "--workers", "1"]
    assert main([*asked, "--work", str(work), "--output", str(output)]) == 0
    return (output / "experiments.json").read_bytes()


@pytest.mark.slow
def test_the_page_holds_everything_and_its_figures_are_the_same_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = _run(tmp_path / "work", tmp_path / "a")
    assert "searches" in capsys.readouterr().err
    resumed = _run(tmp_path / "work", tmp_path / "b")
    assert "searches" not in capsys.readouterr().err  # nothing was searched again
    fresh = _run(tmp_path / "other", tmp_path / "c")
    assert first == resumed == fresh
    results = json.loads(first)
    assert [study["name"] for study in results["studies"]] == ["models", "objectives"]
    (tiny,) = results["studies"][0]["landscapes"]
    for method in tiny["methods"]:
        assert len(method["mean"]) == 24
        assert all(low <= mean <= high for low, mean, high in _bands(method))
        assert method["mean"] == sorted(method["mean"])
        assert max(method["mean"]) <= tiny["best_gflops"]
    html = _Outside()
    html.feed((tmp_path / "a" / "experiments.html").read_text())
    assert not html.open and not html.loaded
    assert html.tables >= 4


def _bands(method: dict[str, Any]) -> list[tuple[float, float, float]]:
    return list(zip(method["low"], method["mean"], method["high"], strict=True))
