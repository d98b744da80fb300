"""How every command ends: data on stdout, messages on stderr, one exit code for each kind of failure."""

from __future__ import annotations

import functools
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, ParamSpec

import click

import toolkit
from boards.errors import BoardError
from cross.errors import CrossError
from toolkit.errors import OutputError, ToolkitError

if TYPE_CHECKING:
    from toolkit import Board

P = ParamSpec("P")

TRUST: Final = "trust_board_file"
WIDE: Final = "wide"
INTERRUPTED: Final = 130


def answering(function: Callable[P, None]) -> Callable[P, None]:
    """Turn the tool's errors into a message and an exit code, and Ctrl-C into advice on how to go on.

    Gives the command the option --json, which every command has.
    """

    @functools.wraps(function)
    def command(*args: P.args, **kwargs: P.kwargs) -> None:
        as_json = bool(kwargs.get("as_json"))
        try:
            function(*args, **kwargs)
        except (ToolkitError, BoardError, CrossError) as error:
            fail(str(error), error.exit_code, type(error).__name__, as_json=as_json)
        except BrokenPipeError:
            raise  # whoever read the output has left; click ends quietly
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            text = f"{where}{error.strerror or error}; see to the disk or the permissions there and try again"
            fail(text, OutputError.exit_code, "OutputError", as_json=as_json)
        except KeyboardInterrupt as error:
            name = Path(sys.argv[0]).name.replace("__main__.py", "toolkit")
            again = shlex.join([name, *sys.argv[1:]])
            kept = " ".join(getattr(error, "__notes__", ())) or "everything that was measured is kept."
            text = f"interrupted; {kept} To go on: {again}"
            fail(text, INTERRUPTED, "Interrupted", as_json=as_json)

    return click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON object (with a schema version) on stdout."
    )(command)


def fail(text: str, exit_code: int, kind: str, *, as_json: bool) -> None:
    """Print an error on stderr, with --json also as a JSON document on stdout, and exit."""
    say(f"error: {text}")
    if as_json:
        content = {"error": {"kind": kind, "message": text, "exit_code": exit_code}}
        click.echo(toolkit.document("error", content))
    raise SystemExit(exit_code)


def answer(schema: str, content: object, text: str, *, as_json: bool, folded: bool = True) -> None:
    """The command's data on stdout: `text` for people, `content` as a JSON document for programs.

    Lines that are longer than the terminal are `folded` at words.
    """
    shown = toolkit.printable(text)
    click.echo(
        toolkit.document(schema, content) if as_json else toolkit.fold(shown, columns() if folded else 0)
    )


def columns() -> int:
    """Of the terminal that stdout is; 0, no limit, for files and pipes, and with --wide."""
    context = click.get_current_context(silent=True)
    wide = context is not None and context.meta.get(WIDE)
    return 0 if wide or not on_terminal() else shutil.get_terminal_size().columns


def on_terminal() -> bool:
    """Whether the answer is read on a terminal."""
    return sys.stdout.isatty()


def say(text: str) -> None:
    """A message for people, on stderr."""
    click.echo(toolkit.printable(text), err=True)


def _note(name: str) -> Callable[[click.Context, click.Parameter, bool], None]:
    """A callback that keeps a flag in the context instead of handing it to the command."""

    def note(context: click.Context, parameter: click.Parameter, given: bool) -> None:
        context.meta[name] = given

    return note


def board_to_run(name: str) -> Board:
    """The board to connect to. Raises BoardError, UntrustedBoard."""
    return toolkit.load_board(name, trust=click.get_current_context().meta[TRUST])


def duration(text: str) -> float:
    """90, 90s, 20m or 1h30m in seconds, for an option of type `duration`."""
    rest, seconds = text.strip().lower(), 0.0
    try:
        for unit, scale in (("h", 3600.0), ("m", 60.0)):
            if unit in rest:
                number, rest = rest.split(unit, 1)
                seconds += float(number) * scale
        if rest.removesuffix("s"):
            seconds += float(rest.removesuffix("s"))
        if not any(character.isdigit() for character in text):
            raise ValueError(text)
    except ValueError:
        seconds = float("nan")
    if not 0.0 <= seconds < float("inf"):
        raise click.BadParameter(f"{text!r} is no time: expected for example 90s, 20m or 1h30m")
    return seconds


def shape(text: str) -> tuple[str, tuple[int, ...]]:
    """NAME=1,3,224,224: a graph input and its dimensions, for an option of type `shape`."""
    name, _, dimensions = text.rpartition("=")
    try:
        extents = tuple(int(part) for part in dimensions.replace("x", ",").split(","))
    except ValueError:
        extents = ()
    if not (name and extents and all(extent >= 0 for extent in extents)):
        raise click.BadParameter(f"{text!r} is no shape: expected NAME=1,3,224,224")
    return name, extents


def constant(text: str) -> tuple[str, tuple[float, ...]]:
    """NAME=16000: a graph input and the numbers that it always holds, for an option of type `constant`."""
    name, _, numbers = text.rpartition("=")
    try:
        found = tuple(_number(part) for part in numbers.split(","))
    except ValueError:
        found = ()
    if not (name and found):
        raise click.BadParameter(f"{text!r} is no constant input: expected NAME=16000, or as many numbers")
    return name, found


def _number(text: str) -> float:
    """An integer where it is written as one: those of 64 bits are not all floats."""
    try:
        return int(text)
    except ValueError:
        return float(text)


constant_option = click.option(
    "--constant", "constants", type=constant, multiple=True, metavar="NAME=16000",
    help="What an input always holds: one number, or one for each element; may be repeated.",
)  # fmt: skip


wide_option = click.option(
    "--wide", WIDE, is_flag=True, expose_value=False, callback=_note(WIDE),
    help="Print whole tables, however wide the terminal is.",
)  # fmt: skip
"""The option --wide of the commands that print tables, which `columns` reads."""
board_option = click.option(
    "--board", "-b", "board_name", required=True, metavar="BOARD",
    help="Name, NAME@[USER@]HOST[:PORT], host:LEVEL, or a .toml file; see `toolkit boards list`.",
)  # fmt: skip
"""The option --board of the commands that work with one."""
target_option = click.option(
    "--target", default="",
    help="One of the board's targets, or clusters of CPU cores together, big ones first: a72+a53.  "
         "[default: the target with the highest peak]",
)  # fmt: skip
"""The option --target of the commands that tune for one or read what was tuned."""
trust_option = click.option(
    "--trust-board-file", TRUST, is_flag=True, expose_value=False, callback=_note(TRUST),
    help="Agree for good to the program that the board's file has the tool run.",
)  # fmt: skip
"""The option --trust-board-file of the commands that connect to a board, which `board_to_run` reads."""
wait_option = click.option(
    "--wait", "wait_s", type=duration, default="0s", metavar="TIME",
    help="How long to wait for a board that somebody else holds, for example 30s.",
)  # fmt: skip
"""The option --wait of the commands that take the board's lease."""
