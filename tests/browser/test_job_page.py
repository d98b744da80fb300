"""The page of a job as a reader has it: drawn, sorted, on a phone, light and dark, usable by everybody."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.experiments.page import page as experiments_page
from tests.browser.conftest import Browser
from tests.jobs import finished, job_in, recorded
from toolkit.model_job.job_file import JobFile
from toolkit.report.job_page import write_job_page

pytestmark = pytest.mark.slow

CHARTS = {
    "by-trials", "by-seconds", "roofline", "runs", "predicted", "spent", "stages", "memory", "heat", "clock",
}  # fmt: skip
MARKS = "return document.querySelectorAll(arguments[0]).length"
TABLE = "[...document.querySelectorAll('table')].find(one => one.caption.textContent === arguments[0])"
COLUMN = f"return [...{TABLE}.tBodies[0].rows].map(row => row.cells[arguments[1]].textContent)"
PRESS = f"{TABLE}.querySelectorAll('th button')[arguments[1]].click()"
OUTSIDE = (
    "return [...document.querySelectorAll('.chart svg')]"
    ".filter(one => one.getBoundingClientRect().right > innerWidth).map(one => one.parentElement.id)"
)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobFile:
    folder = tmp_path_factory.mktemp("job")
    return finished(recorded(job_in(folder)), folder)


@pytest.fixture(scope="module")
def page(job: JobFile) -> str:
    return write_job_page(job, Path(job.records).with_name("page.html")).as_uri()


def test_every_chart_is_drawn_and_nothing_of_a_hostile_model_runs(browser: Browser, page: str) -> None:
    browser.open(page)
    drawn = browser.run("return [...document.querySelectorAll('.chart')].map(one => [one.id, one.innerHTML])")
    assert {name for name, _ in drawn} == CHARTS
    assert all("<svg" in svg and "role-mark" in svg for _, svg in drawn)
    assert browser.run("return window.hacked") is None
    assert browser.run("return document.images.length") == 0
    assert browser.complaints() == []


def test_a_choice_changes_both_curves(browser: Browser, page: str) -> None:
    browser.open(page)
    drawn = "return ['by-trials', 'by-seconds'].map(id => document.getElementById(id).innerHTML)"
    before = browser.run(drawn)
    browser.run("const s = document.querySelector('select'); s.selectedIndex = 2;"
                "s.dispatchEvent(new Event('change', {bubbles: true}))")  # fmt: skip
    browser.wait("return arguments[0].every((svg, n) => svg !== "
                 "document.getElementById(['by-trials', 'by-seconds'][n]).innerHTML)", before)  # fmt: skip
    assert browser.complaints() == []


def test_columns_sort_by_value_both_ways(browser: Browser, page: str) -> None:
    browser.open(page)
    table, after = "Operators of the model", 5
    assert browser.run(COLUMN, table, after) == ["1.000 ms", "1.500 ms"]
    browser.run(PRESS, table, after)
    assert browser.run(COLUMN, table, after) == ["1.500 ms", "1.000 ms"]
    assert browser.run("return document.querySelector('th[aria-sort]').ariaSort") == "descending"
    browser.run(PRESS, table, after)
    assert browser.run(COLUMN, table, after) == ["1.000 ms", "1.500 ms"]
    browser.run(PRESS, table, 1)  # names, from A to Z
    assert browser.run(COLUMN, table, 0) == ["2", "1"]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_it_fits_is_readable_and_usable_by_everybody(
    browser: Browser, page: str, width: int, theme: str
) -> None:
    browser.open(page, width=width, theme=theme)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run(OUTSIDE) == []
    light = browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert light == (theme == "light")
    text = "const t = document.querySelector('.chart svg text'); return getComputedStyle(t).fill"
    assert browser.run(text) == browser.run("return getComputedStyle(document.body).color")
    assert browser.violations() == []
    assert browser.complaints() == []


def test_the_page_of_the_studies_is_drawn_by_the_same_means(browser: Browser, tmp_path: Path) -> None:
    ones = [1.0, 2.0]
    method = {"label": "GBT", "mean": ones, "low": ones, "high": ones, "seconds": ones, "by_time": ones}
    figure = {"estimate": 1.0, "low": 0.9, "high": 1.1}
    family = {
        "name": "conv2d", "pairs": 2, "throughput": figure, "speedup": figure, "near_speedup": figure,
        "trials_reused": 20, "trials_searched": 90, "trials_near": 50,
        "paper": {"throughput": 1.1, "speedup": 3.0},
    }  # fmt: skip
    results = {
        "about": "a < b", "studies": [], "zero_shot": {"rows": [], "notes": [], "top": 0},
        "live": {"goals": [], "operators": [{"name": "C6", "methods": [method]}]},
        "reuse": {"pairs": {"families": [family], "all": None, "trials": 90}, "sets": []},
    }  # fmt: skip
    (tmp_path / "experiments.html").write_text(experiments_page(results))
    browser.open((tmp_path / "experiments.html").as_uri(), width=360)
    assert browser.run(MARKS, ".chart svg .role-mark path") >= 4
    assert browser.run("return document.documentElement.scrollWidth") <= 360
    assert browser.violations() == []
    assert browser.complaints() == []
