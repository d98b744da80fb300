"""Jobs are watched while they run: curves grow, choices stay, what ends is said to have ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.browser.conftest import Browser
from tests.jobs import TRIALS, finished, job_in, record, recorded
from toolkit.model_job.job_file import JobLog
from toolkit.model_job.options import TuneOptions
from toolkit.records import Records

pytest.importorskip("uvicorn")

from toolkit.report.watch import watch

pytestmark = pytest.mark.slow


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Of a server that looks ten times a second."""
    server = watch([tmp_path / "r.db"], every_s=0.1)
    thread = threading.Thread(target=server.server.run, args=([server.bound],))
    thread.start()
    yield server.url
    server.server.should_exit = True
    thread.join(30)


def test_a_job_is_watched_from_its_first_trial_to_its_end(
    browser: Browser, address: str, tmp_path: Path
) -> None:
    job = job_in(tmp_path)
    with JobLog(TuneOptions(), lambda _: None) as log, JobLog(TuneOptions(), lambda _: None) as other:
        browser.open(address)
        browser.wait("return document.body.textContent.includes('There is no job yet')")
        log.begin(recorded(job, 2))
        browser.wait("return document.querySelectorAll('#jobs svg .role-mark path').length === 1")
        other.begin(recorded(job_in(tmp_path, name="second", board="rpi3b", emulated=True)))
        browser.wait("return document.querySelectorAll('tbody tr').length === 2")
        assert browser.violations() == []

        browser.run(
            "[...document.querySelectorAll('td a')].find(a => a.textContent === 'small on host').click()"
        )
        browser.wait("return document.querySelector('h1').textContent === 'small on host'")
        browser.wait("return document.querySelectorAll('#by-trials svg .role-mark path').length > 0")
        browser.run("document.querySelectorAll('th button')[5].click()")
        drawn = "return document.getElementById('by-trials').innerHTML"
        before = browser.run(drawn)
        with Records(job.records) as records:
            for trial, (ms, score) in list(enumerate(TRIALS))[2:]:
                records.add(*(record(of, trial, ms, score=score) for of in job.operators))
        browser.wait("return document.getElementById('by-trials').innerHTML !== arguments[0]", before)
        browser.wait("return document.querySelector('dl').textContent.includes('12, 2 of them failed')")
        # the table is sorted as the reader left it
        assert browser.run("return document.querySelector('th[aria-sort]').cellIndex") == 5
        report = finished(job, tmp_path).report
        assert report is not None
        log.done(report)
        browser.wait("return document.querySelector('dl').textContent.includes('is done')")
        browser.wait("return document.querySelectorAll('#runs svg .role-mark path').length > 0")
        assert browser.complaints() == []


def test_the_address_names_this_machine_and_a_token(address: str) -> None:
    parts = urlsplit(address)
    assert parts.hostname == "127.0.0.1" and len(parts.query) >= len("token=") + 43
