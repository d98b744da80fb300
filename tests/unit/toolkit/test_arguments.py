"""What the Python API accepts and refuses: paths as strings, options that mean something; exit codes."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import boards
import cross
import toolkit
from boards.errors import BoardError
from cross.errors import CrossError
from toolkit.errors import InputError, ToolkitError

RESULTS = (
    "Report",
    "Check",
    "FoundKernel",
    "ModelRun",
    "BoardProbe",
    "NewBoard",
)  # made by the tool, not by its user


def callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Functions and constructors of the facade, and public methods."""
    for name in toolkit.__all__:
        value = getattr(toolkit, name)
        if inspect.isfunction(value):
            yield name, value
        elif inspect.isclass(value) and not name.endswith(RESULTS):
            yield name, value.__init__
            for method, function in vars(value).items():
                if inspect.isfunction(function) and not method.startswith("_"):
                    yield f"{name}.{method}", function


def test_every_path_may_be_a_string() -> None:
    only_paths = [
        f"{name}({parameter.name})"
        for name, function in callables()
        for parameter in inspect.signature(function).parameters.values()
        if re.search(r"\bPath\b", str(parameter.annotation)) and "str" not in str(parameter.annotation)
    ]
    assert only_paths == []


def test_strings_are_taken_for_paths(tmp_path: Path) -> None:
    assert toolkit.make_credentials(str(tmp_path / "b.pem"), str(tmp_path / "h.pem"))
    assert not toolkit.make_credentials(str(tmp_path / "b.pem"), tmp_path / "h.pem")
    missing, text = str(tmp_path / "missing"), "cannot be opened"
    board = toolkit.load_board("host", cache_dir=str(tmp_path), config_dir=str(tmp_path))
    calls: tuple[Callable[[], object], ...] = (
        lambda: toolkit.open_bundle(missing, toolkit.trusted_keys(str(tmp_path))),
        lambda: toolkit.found_kernels(missing, missing, ()),
        lambda: toolkit.flash_bundle(missing, board, toolkit.FlashOptions(config_dir=str(tmp_path))),
    )
    for call in calls:
        with pytest.raises(InputError, match=text):
            call()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"trials": -2}, "expected trials of at least 1, found -2"),
        ({"trials": 0}, "expected trials of at least 1, found 0"),
        ({"total": 0}, "expected total of at least 1, found 0"),
        ({"seconds": float("nan")}, "expected seconds of at least 0, found nan"),
        ({"workers": 0}, "expected workers of at least 1, found 0"),
        ({"wait_s": -1.0}, "expected wait_s of at least 0, found -1.0"),
        ({"coverage": 95.0}, "expected a coverage between 0 and 1, found 95.0"),
        ({"trials": 8, "seconds": 60.0}, "trials and seconds exclude each other"),
        ({"total": 8, "seconds": 60.0}, "total and seconds exclude each other"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        toolkit.TuneOptions(**options)


def test_a_budget_is_never_negative() -> None:
    with pytest.raises(InputError, match="expected trials of at least 0, found -2"):
        toolkit.Budget(trials=-2)


def test_one_budget_is_enough_and_none_is_the_usual_one() -> None:
    assert toolkit.TuneOptions().trials == toolkit.DEFAULT_TRIALS
    assert toolkit.TuneOptions(seconds=60.0).trials is None
    assert toolkit.TuneOptions(total=100).trials is None


def test_every_error_has_an_exit_code() -> None:
    """That of the command line, which catches the three roots."""
    for package in (boards, cross, toolkit):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                import_module(module.name)
    found: list[type[Exception]] = [ToolkitError, BoardError, CrossError]
    for error in found:
        found += error.__subclasses__()
    assert len(found) > 30
    codes = {getattr(error, "exit_code", None) for error in found}
    assert codes == {1, 2, 3, 4, 5, 6, 7, 8, 124, 130}
