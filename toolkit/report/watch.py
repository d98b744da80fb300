"""A web server for the pages of jobs that are running or over, on this machine alone.

One job has the page that `tune` writes, which follows it by server-sent events; without a job, the page shows
all of them side by side. What is shown is read from the files of the jobs and from the records, whenever one
of these has changed. Whoever asks needs the token of the URL, and asks for 127.0.0.1 or localhost by name, so
that no page of somebody else's in the same browser can (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlencode

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from toolkit.errors import InputError
from toolkit.model_job.job_file import job_files, read_job
from toolkit.records import Records
from toolkit.report.charts import staircases
from toolkit.report.job_data import JobData, job_data
from toolkit.report.job_page import job_blocks, job_state, job_title, measured_word, moment
from toolkit.report.page import Block, Cell, Chart, Link, Row, Table, Text, page, update
from toolkit.report.tables import duration, time_text

NAMES: Final = ("127.0.0.1", "localhost")
EVERY_S: Final = 2.0  # between two looks at the files
MOST_JOBS: Final = 12  # of the page of all jobs, the newest
HEADERS: Final = {
    "Referrer-Policy": "no-referrer",  # the token is in the address
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

TOKEN_BYTES: Final = 32


class Shown(NamedTuple):
    """A page: its title, the blocks below it, and whether they may change yet."""

    title: str
    blocks: list[Block]
    running: bool


class JobPages:
    """The pages of the jobs whose measurements some stores keep, for one thread.

    Stores stay open: to open one reads all of it, and every page looks again and again.
    """

    def __init__(self, stores: Sequence[Path], token: str) -> None:
        self._stores = stores
        self._token = token
        self._opened: dict[Path, tuple[int, Records]] = {}
        self._known: dict[Path, tuple[object, JobData]] = {}  # what the figures were made of, and they
        self._made: dict[str, tuple[object, Shown]] = {}

    def address(self, path: str = "/", job: str = "") -> str:
        """Where a job's page is; without a job that of all jobs."""
        return f"{path}?{urlencode({'token': self._token} | ({'job': job} if job else {}))}"

    def shown(self, job: str) -> Shown | None:
        """The page of a job by the name of its file, or of all; None for one that is not there.

        As long as nothing changes it is the same value.
        """
        found = {path.stem: path for store in self._stores for path in job_files(store)}
        names = [job] if job else sorted(found, reverse=True)[:MOST_JOBS]
        jobs = [(name, data) for name in names if name in found and (data := self._data(found[name]))]
        state = [(name, data, data.job.is_running) for name, data in jobs]
        if job and not jobs:
            return None
        if job not in self._made or self._made[job][0] != state:
            self._made[job] = (state, self._page(jobs[0][1]) if job else self._all(jobs))
        return self._made[job][1]

    @staticmethod
    def _page(data: JobData) -> Shown:
        return Shown(job_title(data.job), job_blocks(data), data.job.is_running)

    def _data(self, path: Path) -> JobData | None:
        """A job's figures, read again when its file or its records have changed; None: not readable."""
        try:
            job = read_job(path)
            records = self._records(Path(job.records))
            state = (
                job,
                records,
                records.commits(),
            )  # before records are read: what is added meanwhile counts as new
            if path not in self._known or self._known[path][0] != state:
                self._known[path] = (state, job_data(job, records))
            return self._known[path][1]
        except (InputError, OSError):  # of another version, or being moved: the other jobs are shown
            return None

    def _records(self, store: Path) -> Records:
        inode = store.stat().st_ino
        if store not in self._opened or self._opened[store][0] != inode:
            self._opened[store] = (inode, Records(store, read_only=True))
        return self._opened[store][1]

    def _all(self, found: Sequence[tuple[str, JobData]]) -> Shown:
        title = "Tuning jobs"
        if not found:
            nothing = Text("There is no job yet: `toolkit tune` begins one, and it appears here.")
            return Shown(title, [nothing], True)
        columns = (
            "job", "state", "target", "begun", "trials", "failed", "time of tuning", "sum of operator times",
            "faster",
        )  # fmt: skip
        rows = [_line(Link(job_title(data.job), self.address(job=name)), data) for name, data in found]
        x, y = "seconds", "times as fast"
        points = [
            {"of": f"{name}: {job_title(data.job)}", x: step.seconds, y: data.whole[0].best_s / step.best_s}
            for name, data in found
            for step in data.whole
        ]
        text = "How many times as fast as their first trials the sums of the operators' times are"
        chart = [Chart("jobs", text, staircases(text, points, x, y))] if points else []
        return Shown(title, [Table("Jobs, the newest first", columns, rows), *chart], True)


class Guard:
    """Lets GET requests with the token through to an application; whatever else is asked is refused."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)  # the beginning and the end of the server
            return
        request, answer = Request(scope), self._app
        if request.method != "GET":
            answer = PlainTextResponse("only GET is answered", 405, {"Allow": "GET"})
        elif not secrets.compare_digest(request.query_params.get("token", "").encode(), self._token):
            answer = PlainTextResponse("the token is missing or wrong: open the URL that was printed", 403)
        await answer(scope, receive, send)


def application(pages: JobPages, token: str, *, every_s: float = EVERY_S) -> Starlette:
    """The ASGI application: `/` is a page, `/events` its updates; of all jobs, or of the one named `job`."""
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pages")

    async def shown(request: Request) -> Shown | None:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(thread, pages.shown, request.query_params.get("job", ""))

    async def show(request: Request) -> Response:
        found = await shown(request)
        if found is None:
            return PlainTextResponse("there is no such job", 404, HEADERS)
        events = pages.address("/events", request.query_params.get("job", ""))
        return HTMLResponse(page(found.title, [], live=events), headers=HEADERS)

    async def follow(request: Request) -> AsyncIterator[str]:
        sent: Shown | None = None
        while (found := await shown(request)) is not None:
            if found is not sent:
                yield f"data: {update(found.title, found.blocks)}\n\n"
                sent = found
            if not found.running:
                break
            await asyncio.sleep(every_s)
        yield "event: end\ndata:\n\n"

    async def events(request: Request) -> Response:
        return StreamingResponse(follow(request), media_type="text/event-stream", headers=HEADERS)

    return Starlette(
        routes=[Route("/", show, methods=["GET"]), Route("/events", events, methods=["GET"])],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=list(NAMES), www_redirect=False),
            Middleware(Guard, token=token),
        ],
    )


class Watch(msgspec.Struct, frozen=True):
    """A server that is bound to a port of this machine and not running yet; `url` has its token."""

    url: str
    server: uvicorn.Server
    bound: socket.socket

    def run(self) -> None:
        """Serve until Ctrl-C."""
        with suppress(KeyboardInterrupt):
            self.server.run(sockets=[self.bound])


def watch(stores: Sequence[Path | str], *, port: int = 0, every_s: float = EVERY_S) -> Watch:
    """A server for the jobs of these stores; port 0: a free one. Raises InputError for one that is taken."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((NAMES[0], port))
        bound.listen()  # who asks before the server runs waits for it
    except OSError as error:
        bound.close()
        raise InputError(
            f"port {port} cannot be used: {error.strerror}; name another one with --port"
        ) from error
    token = secrets.token_urlsafe(TOKEN_BYTES)
    pages = JobPages([Path(store) for store in stores], token)
    config = uvicorn.Config(
        application(pages, token, every_s=every_s),
        log_level="error",
        access_log=False,
        timeout_graceful_shutdown=1,
    )
    url = f"http://{NAMES[0]}:{bound.getsockname()[1]}{pages.address()}"
    return Watch(url, uvicorn.Server(config), bound)


def _line(link: Link, data: JobData) -> Row:
    job, failed = data.job, sum(reason.count for item in data.operators for reason in item.reasons)
    first_s, best_s = (data.whole[0].best_s, data.whole[-1].best_s) if data.whole else (0.0, 0.0)
    return [
        link,
        job_state(job),
        job.target,
        Cell(moment(job.started_unix_s), job.started_unix_s),
        float(sum(item.trials for item in data.operators)),
        float(failed),
        Cell(duration(data.spent.wall_s), data.spent.wall_s),
        Cell(f"{time_text(best_s)} ({measured_word(job)})", best_s) if best_s else None,
        Cell(f"{first_s / best_s:.2f}x", first_s / best_s) if best_s else None,
    ]
