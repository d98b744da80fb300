"""`import toolkit`: every name is there, loads on first use, and costs nothing before."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import toolkit

HEAVY = ("numpy", "xgboost", "llvmlite", "onnx", "paramiko", "cryptography", "rich", "sqlite3", "msgpack")


@pytest.mark.parametrize("name", sorted(toolkit.__all__))
def test_every_name_resolves(name: str) -> None:
    assert getattr(toolkit, name) is not None
    assert name in dir(toolkit)


def test_names_for_people_and_for_the_type_checker_agree() -> None:
    tree = ast.parse(Path(toolkit.__file__).read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {
        (entry.asname or entry.name, node.module, entry.name)
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for entry in node.names
    }
    assert imported == {(name, *place) for name, place in toolkit._PLACES.items()}
    assert set(toolkit.__all__) == set(toolkit._PLACES)


def test_an_unknown_name_is_an_attribute_error_that_lists_the_known_ones() -> None:
    with pytest.raises(AttributeError, match="no attribute 'tunes'; it has .*tune_operator"):
        _ = toolkit.tunes


@pytest.mark.parametrize("module", ["toolkit", "toolkit.cli.main"])
def test_nothing_heavy_is_loaded_before_it_is_used(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
