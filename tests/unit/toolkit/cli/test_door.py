"""`import toolkit`: every name is there, loads on first use, and costs nothing before."""

from __future__ import annotations

import subprocess
import sys

import pytest

import toolkit

HEAVY = ("numpy", "xgboost", "llvmlite", "onnx", "paramiko", "cryptography", "rich", "sqlite3", "msgpack")


@pytest.mark.parametrize("name", sorted(toolkit.__all__))
def test_every_name_resolves(name: str) -> None:
    assert getattr(toolkit, name) is not None
    assert name in dir(toolkit)


def test_type_checkers_take_every_name_as_public() -> None:
    """They do so with names that are imported as themselves (PEP 484), even under --no-implicit-reexport."""
    entries = [entry for node in toolkit._CHECKED.body for entry in node.names]
    assert [(entry.asname, entry.name) for entry in entries] == [
        (entry.name, entry.name) for entry in entries
    ]
    assert len(entries) == len(toolkit.__all__) > 50


def test_an_unknown_name_is_an_attribute_error_that_lists_the_known_ones() -> None:
    with pytest.raises(AttributeError, match="no attribute 'tunes'; it has .*tune_operator"):
        _ = toolkit.tunes


@pytest.mark.parametrize("module", ["toolkit", "toolkit.cli.main"])
def test_nothing_heavy_is_loaded_before_it_is_used(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
