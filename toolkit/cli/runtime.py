"""toolkit runtime: the file that runs on boards, and what the emulated board needs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import click

import toolkit
from toolkit.cli.answers import answer, answering, say
from toolkit.errors import writing


@click.group()
def runtime() -> None:
    """The device runtime, and the emulation that the board emulated-a53 needs."""


@runtime.command()
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("device_runtime.pyz"),
              show_default=True, help="Where to write it; the credentials go beside it.")  # fmt: skip
@answering
def archive(*, output: Path, as_json: bool) -> None:
    """Write the device runtime as one file, to start by hand on a board that is reached over TCP.

    \b
    Beside it, unless they are there, TLS credentials for both sides:
      NAME.board.pem  copy it to the board with the runtime, and start it there:
                      python3 NAME.pyz --device-dir DIR --listen 0.0.0.0:7070 --tls NAME.board.pem
      NAME.host.pem   stays here: name it as link.tls_file in the board file

    Who has NAME.host.pem can run native code on the board; who has NAME.board.pem can pass for the board.
    """
    data = toolkit.runtime_archive()
    board_file, host_file = output.with_suffix(".board.pem"), output.with_suffix(".host.pem")
    with writing("the runtime", output, "choose another place with -o"):
        output.write_bytes(data)
    made = toolkit.make_credentials(board_file, host_file)
    content = {
        "path": output,
        "size_bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "board_credentials": board_file,
        "host_credentials": host_file,
    }
    mark = "" if made else " (kept)"
    lines = [
        str(output),
        f"{board_file}{mark}, for the board",
        f"{host_file}{mark}, link.tls_file of its file",
    ]
    answer("runtime-archive", content, "\n".join(lines), as_json=as_json)


@runtime.command()
@answering
def emulation(*, as_json: bool) -> None:
    """Fetch qemu and an aarch64 Python into the cache, unless they are there."""
    paths = toolkit.fetch_emulation(progress=say)
    text = f"qemu     {paths.qemu}\nsysroot  {paths.sysroot}\npython   {paths.python}"
    answer("runtime-emulation", paths, text, as_json=as_json)
