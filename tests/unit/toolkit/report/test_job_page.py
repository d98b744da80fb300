"""The page of a job: its figures, and that it runs and loads nothing but its own two scripts."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from scipy.stats import spearmanr

from boards.files import write_sealed
from tests.jobs import HOSTILE, TRIALS, finished, job_in, record, recorded
from toolkit.errors import InputError
from toolkit.model_job.job_file import JobFile, JobLog, job_files, latest_job, read_job
from toolkit.model_job.options import StageDone, TuneOptions
from toolkit.records import Records
from toolkit.report.charts import steps
from toolkit.report.job_data import MOST_POINTS, JobData, Step, job_data, thinned
from toolkit.report.job_page import job_page, write_job_page
from toolkit.report.page import Chart, Text, chart_specs, page, update


def data_of(job: JobFile) -> JobData:
    with Records(job.records, read_only=True) as records:
        return job_data(job, records)


class Elements(HTMLParser):
    """Every element with its attributes, the text of scripts, the cells of tables; elements must nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.cells: list[str] = []
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag == "td":
            self.cells.append("")
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        if self.open and self.open[-1] == "td":
            self.cells[-1] += data


def test_figures_of_operators_and_of_the_whole(tmp_path: Path) -> None:
    data = data_of(recorded(job_in(tmp_path)))
    first, second = data.operators
    assert (first.before_s, first.after_s, first.trials) == (4e-3, 1e-3, 6)
    assert [(reason.kind, reason.count) for reason in first.reasons] == [("timeout", 1)]
    assert first.steps == (Step(1, 1.0, 4e-3), Step(3, 3.0, 2e-3), Step(5, 5.0, 1e-3), Step(6, 6.0, 1e-3))
    assert second.model_s == 2e-3
    assert data.whole[0] == Step(1, 1.0, pytest.approx(3 * 4e-3))
    assert data.whole[-1] == Step(12, 12.0, pytest.approx(3 * 1e-3))
    assert data.spent.wall_s == 12.0 and data.samples[-1].celsius == 45.0


def test_the_rank_correlation_is_spearman_s(tmp_path: Path) -> None:
    """Of the trials that one fit ranked; a higher score is a shorter time."""
    (first, _) = data_of(recorded(job_in(tmp_path))).operators
    ranked = [(ms, -score) for ms, score in TRIALS if score is not None]
    expected = spearmanr([ms for ms, _ in ranked], [score for _, score in ranked]).statistic
    assert first.rank_correlation == pytest.approx(expected) and 0.0 < expected < 1.0


def test_a_job_of_which_every_trial_failed_has_a_page(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    with Records(job.records) as records:
        records.add(*(record(of, trial, None) for of in job.operators for trial in range(2)))
    data = data_of(job)
    assert data.whole == () and all(item.after_s is None for item in data.operators)
    html = job_page(data)
    assert "4, 4 of them failed" in html and "No trial has succeeded yet." in html


def test_a_finished_job_has_the_times_of_its_report(tmp_path: Path) -> None:
    data = data_of(finished(recorded(job_in(tmp_path)), tmp_path))
    assert [item.after_s for item in data.operators] == [1e-3, 1.5e-3]
    cells = Elements(job_page(data)).cells
    assert {"25.0%", "75.0%", "4.00x", "2.67x"} <= set(cells)  # 1 ms of 4 ms, 2 x 1.5 ms of 4 ms


def test_nothing_of_a_hostile_model_becomes_code_and_nothing_is_loaded(tmp_path: Path) -> None:
    html = job_page(data_of(finished(recorded(job_in(tmp_path)), tmp_path)))
    page = Elements(html)
    assert not page.open
    charts, library, own = page.scripts
    assert HOSTILE in page.cells and HOSTILE in json.dumps(json.loads(charts), ensure_ascii=False).replace(
        '\\"', '"'
    )
    assert "<" not in charts and "hacked" not in library + own
    assert not [tag for tag, found in page.found if tag in ("img", "link", "iframe") or "src" in found]
    assert not [name for _, found in page.found for name in found if name.startswith("on")]
    policy = next(found["content"] for _, found in page.found if "http-equiv" in found)
    assert policy is not None and policy.startswith("default-src 'none';") and "unsafe-eval" not in policy
    allowed = re.search(r"script-src ([^;]*)", policy)
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (library, own)]
    assert allowed is not None and allowed.group(1).split() == [f"'sha256-{digest}'" for digest in digests]
    assert len(html.encode()) < 2e6


def test_every_figure_of_an_emulated_board_says_so(tmp_path: Path) -> None:
    html = job_page(data_of(recorded(job_in(tmp_path, emulated=True))))
    assert "it says nothing about a chip" in html
    shown = html[html.index("<main>") : html.index('<script type="application/json"')]
    assert "before (emulated)" in shown and "(measured)" not in shown.replace("temperature", "")
    charts = json.loads(Elements(html).scripts[0])
    axes = [
        axis["title"] for name in ("by-trials", "by-seconds") for axis in charts[name]["encoding"].values()
    ]
    assert axes == ["trials", "ms (emulated)", "seconds", "ms (emulated)"]


def test_a_page_stays_small_however_many_trials_there_are() -> None:
    points = thinned(list(range(1_000_000)))
    assert len(points) == MOST_POINTS and (points[0], points[-1]) == (0, 999_999)


def test_an_update_carries_the_same_blocks_as_the_page() -> None:
    blocks = [Text(HOSTILE), Chart("c", "t", steps("t", [{"of": "a", "x": 1, "y": 2}], "x", "y", "a"))]
    sent = json.loads(update("title", blocks))
    html = page("title", blocks)
    assert all(block in html for block in sent["blocks"]) and sent["charts"] == chart_specs(blocks)


def test_the_file_of_a_job_follows_its_stages(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    with pytest.raises(ValueError), JobLog(TuneOptions(command=("a", "b")), lambda _: None) as log:
        log(StageDone("import", 1.0, "before it begins"))
        log.begin(job)
        (path,) = job_files(job.records)
        begun = read_job(path)
        assert (begun.state, begun.is_running, begun.command) == ("running", True, ("a", "b"))
        log(StageDone("tune", 2.0, "x"))
        assert [stage.stage for stage in read_job(path).stages] == ["import", "tune"]
        raise ValueError("the board burnt")
    assert (read_job(path).state, read_job(path).reason) == ("failed", "the board burnt")


def test_a_job_whose_process_is_gone_does_not_run(tmp_path: Path) -> None:
    with JobLog(TuneOptions(), lambda _: None) as log:
        log.begin(job_in(tmp_path))
        assert log.path is not None
        job = read_job(log.path)
    assert job.is_running
    assert not msgspec.structs.replace(job, process=2**22 + 1).is_running


def test_the_report_comes_back_from_the_file(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    with JobLog(TuneOptions(), lambda _: None) as log:
        log.begin(job)
        report = finished(job, tmp_path).report
        assert report is not None and log.path is not None
        log.done(report)
        assert read_job(log.path).report == report
    assert latest_job(msgspec.structs.replace(job, command=())).report == report
    other = msgspec.structs.replace(job, operators=job.operators[:1])
    assert latest_job(other) is other


@pytest.mark.parametrize("content", [b"{}", b'{"job_version": 99}', b"no json"])
def test_a_file_of_another_version_is_refused(tmp_path: Path, content: bytes) -> None:
    write_sealed(tmp_path / "j.json", content)
    with pytest.raises(InputError, match="expected the file of a job, version 1"):
        read_job(tmp_path / "j.json")


def test_a_page_that_cannot_be_written_names_the_place(tmp_path: Path) -> None:
    job = recorded(job_in(tmp_path))
    with pytest.raises(InputError, match="the page cannot be written to .*missing/p.html"):
        write_job_page(job, tmp_path / "missing" / "p.html")
