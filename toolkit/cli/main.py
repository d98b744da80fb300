"""The three commands that are installed: toolkit, tune-for-board and flash.

Nothing heavy is imported here: every module of this folder works through the door `import toolkit`, which
loads what a command uses when it runs.
"""

from __future__ import annotations

import copy

import click

from toolkit.cli.bench import bench
from toolkit.cli.boards import boards
from toolkit.cli.bundle import bundle
from toolkit.cli.doctor import doctor
from toolkit.cli.flash import flash as flash_command
from toolkit.cli.inspect import inspect
from toolkit.cli.model import model
from toolkit.cli.quantize import quantize
from toolkit.cli.records import records
from toolkit.cli.report import report
from toolkit.cli.run import run
from toolkit.cli.runtime import runtime
from toolkit.cli.tune import tune
from toolkit.cli.watch import watch
from toolkit.version import TOOL_VERSION

__all__ = ["flash", "main", "tune_for_board"]

_SETTINGS = {"help_option_names": ["-h", "--help"]}


@click.group()
@click.version_option(TOOL_VERSION, prog_name="toolkit")
def main() -> None:
    """Tune neural networks for a board by measuring on it; bundle and flash the result.

    \b
    Exit codes: 0 done, 1 internal error, 2 bad usage or input, 3 board unreachable, 4 board busy,
    5 below the requested coverage, 6 verification failed, 7 rolled back, 8 flashed but not committed,
    124 timed out, 130 interrupted (what was measured is kept).
    """


for command in (
    tune,
    flash_command,
    boards,
    doctor,
    run,
    records,
    model,
    quantize,
    report,
    inspect,
    bundle,
    bench,
    runtime,
    watch,
):
    main.add_command(command)


def _with_short_help(command: click.Command) -> None:
    """-h for the command and all below it: click keeps the help option that a command was first asked for."""
    command.context_settings = {**command.context_settings, **_SETTINGS}
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            _with_short_help(inner)


_with_short_help(main)


def _alone(command: click.Command, name: str) -> click.Command:
    """A subcommand of `toolkit` as a program of its own, which has a --version as well."""
    program = copy.copy(command)
    program.params = [*command.params]
    return click.version_option(TOOL_VERSION, prog_name=name)(program)


tune_for_board = _alone(tune, "tune-for-board")
flash = _alone(flash_command, "flash")
