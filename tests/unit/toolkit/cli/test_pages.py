"""The commands around pages: a job does not fail for want of one, and what is not installed is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from tests.jobs import finished, job_in, recorded
from toolkit.cli import watch
from toolkit.cli.main import main
from toolkit.cli.tune import with_page
from toolkit.model_job.job_file import JobLog
from toolkit.model_job.options import TuneOptions, TuneReport


def report_of(folder: Path) -> TuneReport:
    """The report of a job that has its file."""
    job = recorded(job_in(folder))
    with JobLog(TuneOptions(), lambda _: None) as log:
        log.begin(job)
        report = finished(job, folder).report
        assert report is not None
        report = replace(report, job=log.path)
        log.done(report)
    return report


def test_a_finished_job_writes_its_page_beside_the_bundle(tmp_path: Path) -> None:
    written = with_page(report_of(tmp_path))
    assert written.page == tmp_path / "small.html"
    assert "end to end after (measured)" in written.page.read_text()


def test_a_job_without_a_page_has_succeeded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = replace(report_of(tmp_path), bundle=tmp_path / "missing" / "small.tfb")
    assert with_page(report) == report
    assert "no page: the page cannot be written to" in capsys.readouterr().err
    assert with_page(replace(report, job=None)).page is None


def test_the_extra_that_watching_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "NEEDED", ("no_such_module",))
    result = CliRunner().invoke(main, ["watch"])
    assert result.exit_code == 2
    assert "pip install 'tune-for-board[watch]'" in result.stderr
