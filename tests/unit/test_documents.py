"""README and docs stay true: names in the Python exist, commands and options are real and all documented."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import toolkit
from toolkit.cli.main import main

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FOR_MAINTAINERS = [
    *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
]
ROOMS = "boards|cross|device_runtime|toolkit|benchmarks|tests|docs"
NAMES = {"toolkit": [], "tune-for-board": ["tune"], "flash": ["flash"]}
EVERYWHERE = {"--help", "--json", "--board", "--trust-board-file", "--wait", "--wide"}
"""Options that docs/cli.md explains once, before the commands."""


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
        assert words[0] in ("make", ".", "cc", "git", "python") or words[0].startswith("MODEL=")
        return
    arguments, command = [*NAMES[words[0]], *words[1:]], main
    context = click.Context(main, **main.context_settings)
    while isinstance(command, click.Group):
        command = command.commands[arguments.pop(0)]
        context = click.Context(command, parent=context, **command.context_settings)
    command.make_parser(context).parse_args(arguments)


def commands(command: click.Command = main, *words: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with the words that call it."""
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from commands(inner, *words, name)
    else:
        yield words, command


def entry(words: tuple[str, ...]) -> str:
    """What docs/cli.md says of a command: its section, or its row in a table."""
    text = (ROOT / "docs/cli.md").read_text()
    section = re.search(rf"^## toolkit {' '.join(words)}\b.*?(?=^## )", text, re.DOTALL | re.MULTILINE)
    if section:
        return section[0]
    rows = [line for line in text.splitlines() if line.startswith(f"| `toolkit {words[0]} ")]
    (row,) = [row for row in rows if re.search(rf"`[^`]*\b{words[-1]}\b", row.split("|")[1])]
    return row


@pytest.mark.parametrize(
    ("words", "command"), [pytest.param(*found, id=" ".join(found[0])) for found in commands()]
)
def test_options_are_documented_and_documented_ones_exist(
    words: tuple[str, ...], command: click.Command
) -> None:
    code = " ".join(re.findall(r"`[^`\n]*`", entry(words)))
    documented = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", code)) | EVERYWHERE
    options = [{*one.opts, *one.secondary_opts} for one in command.params if isinstance(one, click.Option)]
    assert documented - EVERYWHERE <= set().union(*options)
    assert [one for one in options if not one & documented] == []


@pytest.mark.parametrize("path", [*DOCUMENTS, *FOR_MAINTAINERS], ids=lambda path: path.name)
def test_paths_that_are_named_exist(path: Path) -> None:
    named = set(re.findall(rf"`((?:{ROOMS})/[\w./*-]+)`", path.read_text()))
    assert [name for name in sorted(named) if "NAME" not in name and not any(ROOT.glob(name))] == []


def test_versions_are_where_the_table_says() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## Which version invalidates what")[2]
    checked = []
    for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE):
        words = re.findall(r"`([\w./]+)`", row)
        paths = [ROOT / word for word in words if "/" in word]
        files = [path for found in paths for path in ([found] if found.is_file() else found.glob("*.py"))]
        for name in (word for word in words if word.isupper()):
            checked.append(name)
            assert any(re.search(rf"^{name}\b.* = ", file.read_text(), re.MULTILINE) for file in files), row
    assert len(checked) >= 20


@pytest.mark.parametrize("path", [*DOCUMENTS, *FOR_MAINTAINERS], ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        assert link.startswith("http") or (path.parent / link).exists(), link
