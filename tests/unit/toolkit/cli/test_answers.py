"""How commands end: exit codes, messages, --json; and what options accept."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from boards.errors import UnknownBoard
from cross.errors import CompileError
from toolkit import errors
from toolkit.cli.answers import answering, constant, duration, shape
from toolkit.cli.main import flash, main, tune_for_board
from toolkit.model_job.options import DEFAULT_TRIALS
from toolkit.version import TOOL_VERSION


def raising(error: BaseException) -> click.Command:
    @click.command()
    @answering
    def command(*, as_json: bool) -> None:
        raise error

    return command


CASES = [
    (errors.ToolkitError("x"), 1),
    (errors.ModelError("x"), 2),
    (errors.OutputError("x"), 2),
    (UnknownBoard("hots", ("host",)), 2),
    (errors.BoardUnreachable("x"), 3),
    (errors.BoardBusy("x"), 4),
    (errors.CoverageError("x"), 5),
    (errors.VerificationError("x"), 6),
    (errors.RolledBack("x"), 7),
    (errors.NotCommitted("x"), 8),
    (errors.TimedOut("x"), 124),
    (errors.Interrupted("x"), 130),
    (CompileError("x"), 1),
    (KeyboardInterrupt(), 130),
    (OSError(errno.ENOSPC, "No space left on device", "a file"), 2),
]


@pytest.mark.parametrize(("error", "code"), CASES, ids=lambda value: type(value).__name__)
def test_each_error_has_its_exit_code_and_its_message_on_stderr(error: BaseException, code: int) -> None:
    result = CliRunner().invoke(raising(error), [])
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(("error", "code"), CASES, ids=lambda value: type(value).__name__)
def test_with_json_the_error_is_an_object_on_stdout_too(error: BaseException, code: int) -> None:
    result = CliRunner().invoke(raising(error), ["--json"])
    document = json.loads(result.stdout)
    assert document["schema"] == "tune-for-board/error"
    assert document["schema_version"] == 1
    assert document["error"]["exit_code"] == code
    assert document["error"]["message"] in result.stderr


def test_what_the_system_refuses_says_where() -> None:
    result = CliRunner().invoke(raising(OSError(errno.EIO, "Input/output error", "records.db")), [])
    assert result.stderr == (
        "error: records.db: Input/output error; see to the disk or the permissions there and try again\n"
    )


def test_ctrl_c_says_what_it_left() -> None:
    interrupted = KeyboardInterrupt()
    interrupted.add_note("Slot 1 is current, as before.")
    result = CliRunner().invoke(raising(interrupted), [])
    assert result.stderr.startswith("error: interrupted; Slot 1 is current, as before. To go on: ")


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


@pytest.mark.parametrize(("name", "command"), list(commands(main)))
def test_every_command_has_json_and_help(name: str, command: click.Command) -> None:
    assert any("--json" in parameter.opts for parameter in command.params), name
    texts = [CliRunner().invoke(main, [*name.split(), option]) for option in ("-h", "--help")]
    assert [result.exit_code for result in texts] == [0, 0]
    assert texts[0].stdout == texts[1].stdout
    assert command.help


def test_the_installed_commands_are_those_of_the_group() -> None:
    for alone, inside in ((flash, main.commands["flash"]), (tune_for_board, main.commands["tune"])):
        assert alone.callback is inside.callback
        assert [one.name for one in alone.params] == [*(one.name for one in inside.params), "version"]
        assert CliRunner().invoke(alone, ["-h"]).exit_code == 0
        assert CliRunner().invoke(alone, ["--version"]).stdout.endswith(f", version {TOOL_VERSION}\n")
    assert {"boards", "doctor", "run", "records", "report", "runtime"} <= set(main.commands)


@pytest.mark.parametrize(
    "arguments",
    [
        ["tune", "m.onnx"],
        ["tune", "m.onnx", "--board", "host", "--trials", "0"],
        ["tune", "m.onnx", "--board", "host", "--trials", "3", "--budget", "3m"],
        ["tune", "m.onnx", "--board", "host", "--budget", "soon"],
        ["tune", "m.onnx", "--board", "host", "--tuner", "luck"],
        ["tune", "m.onnx", "--board", "host", "--shape", "x"],
        ["flash", "--board", "host"],
        ["flash", "b.tfb", "--status", "--board", "host"],
        ["boards", "what"],
        ["fly"],
    ],
    ids=" ".join,
)
def test_bad_usage_exits_with_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "Error: " in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("20m", 1200), ("1h30m", 5400), ("1.5h", 5400), ("0", 0)]
)
def test_times(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "3x", "-1s", "nan", "inf", "m", "s"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected for example 90s, 20m or 1h30m"):
        duration(text)


@pytest.mark.parametrize(
    ("text", "read"),
    [("x=1,3,224,224", ("x", (1, 3, 224, 224))), ("a=b=4", ("a=b", (4,))), ("in:0=2x8", ("in:0", (2, 8)))],
)
def test_shapes(text: str, read: tuple[str, tuple[int, ...]]) -> None:
    assert shape(text) == read


@pytest.mark.parametrize("text", ["", "x", "x=", "=1,2", "x=1,-1", "x=a", "x=1,,2"])
def test_what_is_no_shape(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected NAME=1,3,224,224"):
        shape(text)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("sr=16000", ("sr", (16000,))),
        ("a=b=0.5,-1", ("a=b", (0.5, -1))),
        ("n=9007199254740993", ("n", (2**53 + 1,))),
    ],
)
def test_constant_inputs(text: str, read: tuple[str, tuple[float, ...]]) -> None:
    assert constant(text) == read


@pytest.mark.parametrize("text", ["", "sr", "sr=", "=1", "sr=x", "sr=1,,2"])
def test_what_is_no_constant_input(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected NAME=16000"):
        constant(text)


def test_the_help_states_the_default_of_the_room_behind() -> None:
    assert f"[default: {DEFAULT_TRIALS}]" in CliRunner().invoke(main, ["tune", "--help"]).stdout


@pytest.mark.parametrize("shell", ["bash_source", "zsh_source", "fish_source"])
def test_shells_complete_commands_and_options(shell: str) -> None:
    """As docs/cli.md says: the script that a shell reads, and what it is told for words that are begun."""
    program = [str(Path(sys.executable).with_name("toolkit"))]
    script = subprocess.run(
        program, env={**os.environ, "_TOOLKIT_COMPLETE": shell}, capture_output=True, text=True, check=True
    ).stdout
    assert "_TOOLKIT_COMPLETE" in script
    asked = {"_TOOLKIT_COMPLETE": "bash_complete", "COMP_WORDS": "toolkit bundle di", "COMP_CWORD": "2"}
    told = subprocess.run(program, env={**os.environ, **asked}, capture_output=True, text=True).stdout
    assert told.split() == ["plain,diff"]
