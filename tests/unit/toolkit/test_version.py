"""The version is written down twice, because the tool also runs from a checkout."""

import tomllib
from pathlib import Path

from toolkit.version import TOOL_VERSION


def test_the_project_file_says_the_same() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert project["project"]["version"] == TOOL_VERSION
