"""README and docs stay true: the Python in them uses names that exist, the commands are real ones."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import click
import pytest

import toolkit
from toolkit.cli.main import main

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = {"toolkit": [], "tune-for-board": ["tune"], "flash": ["flash"]}


def blocks(language: str) -> list[str]:
    return [
        block
        for path in DOCUMENTS
        for block in re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)
    ]


@pytest.mark.parametrize("code", blocks("python"))
def test_python_uses_names_that_exist(code: str) -> None:
    for node in ast.walk(ast.parse(code)):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "toolkit"
        ):
            assert node.attr in toolkit.__all__
        if isinstance(node, ast.ImportFrom) and node.module == "toolkit":
            assert {entry.name for entry in node.names} <= set(toolkit.__all__)


@pytest.mark.parametrize("line", [line for block in blocks("sh") for line in block.splitlines()])
def test_commands_parse(line: str) -> None:
    words = shlex.split(line, comments=True)
    if words[0] not in NAMES:
        assert words[0] in ("make", ".")
        return
    arguments, command = [*NAMES[words[0]], *words[1:]], main
    context = click.Context(main)
    while isinstance(command, click.Group):
        command = command.commands[arguments.pop(0)]
        context = click.Context(command, parent=context)
    command.make_parser(context).parse_args(arguments)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        assert link.startswith("http") or (path.parent / link).exists(), link
