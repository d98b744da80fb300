"""toolkit runtime: the file that runs on boards, and what the emulated board needs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import click

import toolkit
from toolkit.cli.answers import answer, answering, json_option, say
from toolkit.errors import OutputError


@click.group()
def runtime() -> None:
    """The device runtime, and the emulation that the board emulated-a53 needs."""


@runtime.command()
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("device_runtime.pyz"),
              show_default=True, help="Where to write it.")  # fmt: skip
@json_option
@answering
def archive(*, output: Path, as_json: bool) -> None:
    """Write the device runtime as one file, to start by hand on a board (see its --help)."""
    data = toolkit.runtime_archive()
    try:
        output.write_bytes(data)
    except OSError as error:
        raise OutputError(
            f"the runtime cannot be written to {output}: {error.strerror}; choose another place with -o"
        ) from error
    sha = hashlib.sha256(data).hexdigest()
    content = {"path": output, "size_bytes": len(data), "sha256": sha}
    answer("runtime-archive", content, str(output), as_json=as_json)


@runtime.command()
@json_option
@answering
def emulation(*, as_json: bool) -> None:
    """Fetch qemu and an aarch64 Python into the cache, unless they are there."""
    paths = toolkit.fetch_emulation(progress=say)
    text = f"qemu     {paths.qemu}\nsysroot  {paths.sysroot}\npython   {paths.python}"
    answer("runtime-emulation", paths, text, as_json=as_json)
