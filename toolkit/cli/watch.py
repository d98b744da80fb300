"""toolkit watch."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import click

import toolkit
from toolkit.cli.answers import answer, answering, say

NEEDED = ("starlette", "uvicorn")
GIVE_WAY = 10  # niceness beside a job that measures on this machine


@click.command()
@click.option("--records", "stores", type=click.Path(path_type=Path), multiple=True, metavar="FILE",
              help="A store whose jobs to show; may be repeated.  [default: that of `tune`]")  # fmt: skip
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Of this machine.  [default: a free one]"
)
@answering
def watch(*, stores: tuple[Path, ...], port: int, as_json: bool) -> None:
    """Serve the pages of running and finished jobs to a browser on this machine, until Ctrl-C.

    The address that is printed holds a token; who has it can read the pages.
    """
    if any(find_spec(name) is None for name in NEEDED):
        raise toolkit.MissingExtra(
            f"watching needs {' and '.join(NEEDED)}, which are not installed: "
            "pip install 'tune-for-board[watch]'"
        )
    server = toolkit.watch(stores or [toolkit.DEFAULT_RECORDS], port=port)
    answer("watch", {"url": server.url}, server.url, as_json=as_json, folded=False)
    say("Ctrl-C ends it; jobs go on")
    os.nice(GIVE_WAY)
    server.run()
