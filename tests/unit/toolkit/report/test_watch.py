"""The server of pages answers GET requests with the token that ask this machine by name."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.jobs import HOSTILE, finished, job_in, record, recorded
from toolkit.errors import InputError
from toolkit.model_job.job_file import JobLog
from toolkit.model_job.options import TuneOptions
from toolkit.records import Records
from toolkit.records.database import connect, journal_of

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from toolkit.report.watch import JobPages, application, watch

TOKEN = "secret"


def asked(
    stores: list[Path],
    path: str = "/",
    query: str = f"token={TOKEN}",
    *,
    host: str = "127.0.0.1:1",
    method: str = "GET",
) -> tuple[int, dict[str, str], str]:
    """Status, headers and body of an answer, straight from the application."""
    app = application(JobPages(stores, TOKEN), TOKEN, every_s=0.01)
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1",
        "method": method, "path": path, "raw_path": path.encode(), "query_string": query.encode(),
        "root_path": "", "scheme": "http", "headers": [(b"host", host.encode())], "client": ("127.0.0.1", 2),
        "server": ("127.0.0.1", 1),
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(part.get("body", b"") for part in sent[1:]).decode()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Of a job that is done."""
    job = recorded(job_in(tmp_path))
    with JobLog(TuneOptions(), lambda _: None) as log:
        log.begin(job)
        report = finished(job, tmp_path).report
        assert report is not None
        log.done(report)
    return tmp_path / "r.db"


@pytest.mark.parametrize("path", ["/", "/events"])
@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"query": ""}, 403),
        ({"query": "token=secre"}, 403),
        ({"query": "token=%C3%A9"}, 403),
        ({"host": "evil.example:1"}, 400),
        ({"host": ""}, 400),
        ({"method": "POST"}, 405),
        ({"method": "HEAD"}, 405),
    ],
)
def test_others_are_refused(store: Path, path: str, change: dict[str, str], status: int) -> None:
    found, _, body = asked([store], path, **change)
    assert found == status and "small" not in body


def test_a_page_names_its_events_and_gives_its_address_to_nobody(store: Path) -> None:
    status, headers, body = asked([store], host="localhost:1")
    assert status == 200 and f'data-live="/events?token={TOKEN}"' in body
    assert headers["referrer-policy"] == "no-referrer" and headers["cache-control"] == "no-store"
    assert "connect-src &#x27;self&#x27;" in body


def test_the_events_of_a_finished_job_are_one_and_the_end(store: Path) -> None:
    (job,) = store.with_name("r.db.jobs").glob("*.json")
    status, headers, body = asked([store], "/events", f"token={TOKEN}&job={job.stem}")
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    event, end, rest = body.split("\n\n")
    assert end == "event: end\ndata:" and not rest
    sent = json.loads(event.removeprefix("data: "))
    assert any("is done" in block for block in sent["blocks"]) and "by-trials" in sent["charts"]
    assert not any(HOSTILE in block for block in sent["blocks"])


def test_no_name_leads_out_of_the_folder_of_jobs(store: Path) -> None:
    for name in ("none", "../r.db", "%2e%2e%2fr.db"):
        assert asked([store], query=f"token={TOKEN}&job={name}")[0] == 404


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with (
        watch([tmp_path / "r.db"]).bound as bound,
        pytest.raises(InputError, match="name another one with --port"),
    ):
        watch([tmp_path / "r.db"], port=bound.getsockname()[1])


def test_a_file_of_a_job_that_cannot_be_read_hides_no_other(store: Path) -> None:
    (store.with_name("r.db.jobs") / "z.json").write_text("damaged")
    shown = JobPages([store], TOKEN).shown("")
    assert shown is not None and "small on host" in str(shown.blocks)


def test_what_is_added_is_shown_whatever_files_say(tmp_path: Path) -> None:
    """The log grows before its transaction can be read: size and time of a look may be those of the next."""
    job = recorded(job_in(tmp_path), 1)
    with JobLog(TuneOptions(), lambda _: None) as log, Records(job.records) as records:
        log.begin(job)
        records.add(record(job.operators[0], 1, 2.0))
        pages, journal = JobPages([tmp_path / "r.db"], TOKEN), journal_of(tmp_path / "r.db")
        before, size = pages.shown(""), journal.stat().st_size
        assert pages.shown("") is before
        with closing(connect(tmp_path / "r.db", "rw")) as connection:
            connection.execute("PRAGMA wal_checkpoint(RESTART)")
        assert pages.shown("") is before
        state = [(path, path.stat()) for path in (tmp_path / "r.db", journal)]
        records.add(record(job.operators[0], 2, 1.0))
        for path, found in state:
            os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
        assert journal.stat().st_size == size and pages.shown("") is not before
