"""A study as a program: its parser, the options that many have, and the exit code of what goes wrong."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from boards.errors import BoardError
from cross.errors import CrossError
from toolkit.errors import ToolkitError

INTERRUPTED: Final = 130
BAD_INPUT: Final = 2
REFUSALS: Final = (CrossError, ValueError, OSError, subprocess.CalledProcessError)
"""Errors without an exit code of their own that a study ends with, and no bug."""

Parser = argparse.ArgumentParser
Asked = argparse.Namespace
Command = Callable[[Asked], int | None]


def program(name: str, description: str | None) -> Parser:
    """The parser of `python -m benchmarks.NAME`; the description is the module's docstring."""
    return Parser(
        prog=f"python -m benchmarks.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def subcommands(parser: Parser) -> Callable[..., Parser]:
    """`add(name, run, help, parents=[...])` makes a command of a program; `run` is what `finished` calls."""
    commands = parser.add_subparsers(dest="command", required=True)

    def add(name: str, run: Command, text: str, **options: Any) -> Parser:
        command = commands.add_parser(name, help=text, description=text, **options)
        command.set_defaults(run=run)
        return command

    return add


def finished(parser: Parser, arguments: Sequence[str] | None, run: Command | None = None) -> int:
    """Parse the arguments and run the command that they ask for, or `run`; returns the exit code."""
    asked = parser.parse_args(arguments)
    name = parser.prog.removeprefix("python -m ")
    try:
        return (run or asked.run)(asked) or 0
    except (ToolkitError, BoardError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return error.exit_code
    except REFUSALS as error:
        print(f"{name}: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted: what is measured is kept, the same command goes on from there", file=sys.stderr)
        return INTERRUPTED


def names(text: str) -> list[str]:
    """The type of an option like C1,C6."""
    return [name for name in text.split(",") if name]


def numbers(text: str) -> list[int]:
    """The type of an option like 1,2."""
    return [int(number) for number in names(text)]


def share(text: str) -> float:
    """The type of an option that is a part of a whole, above 0 and at most 1."""
    found = float(text)
    if not 0.0 < found <= 1.0:
        raise argparse.ArgumentTypeError(f"{text}: expected a number above 0, at most 1")
    return found


def some_of(known: Collection[str], what: str = "operators") -> Callable[[str], list[str]]:
    """The type of an option that takes some of the known names, separated by commas."""

    def parse(text: str) -> list[str]:
        found = names(text)
        if unknown := [name for name in found if name not in known]:
            raise argparse.ArgumentTypeError(
                f"unknown {what} {', '.join(unknown)}: expected some of {', '.join(known)}"
            )
        return found

    return parse
