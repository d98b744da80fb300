"""Fixtures every room's tests share: golden files and the caches that outlive one test."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("unhurried", deadline=None)  # the machine may be busy
settings.load_profile("unhurried")

# folders of tests that start programs, connect to them and kill them
WAITING = frozenset({"browser", "loopback", "torture"})

GoldenCheck = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the golden files from today's output"
    )
    parser.addoption(
        "--board", default="", help="name or TOML file of a real board for the tests marked `board`"
    )
    parser.addoption(
        "--draws",
        type=float,
        default=1.0,
        help="draw this many times as many random cases as `make test` does",
    )
    parser.addoption("--seed", type=int, default=0, help="of what --draws counts")


def pytest_configure(config: pytest.Config) -> None:
    """Each of several processes begins to import at another file: what one compiles the others find.

    Programs under construction are many small objects and hardly any cycles: looking for those every 700
    objects, as Python does, finds next to nothing and takes a twentieth of the time.
    """
    gc.set_threshold(100_000, 20, 20)
    worker = getattr(config, "workerinput", None)
    if worker is not None and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        files = sorted(str(path) for path in Path(__file__).parent.rglob("test_*.py"))
        first = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
        config.args = files[first:] + files[:first]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The same order in each of these processes, with tests that wait for other programs first.

    One of the processes begins with these, and waits while the others compute. Were they last, all processes
    would have such tests left at the end, and the cores would be idle.
    """
    items.sort(key=lambda item: (WAITING.isdisjoint(item.path.parts), item.path))


@pytest.fixture(scope="module", autouse=True)
def optimizer_of_pocl(request: pytest.FixtureRequest) -> Iterator[None]:
    """PoCL's optimizer is off, but in files that say `POCL_OPTIMIZES = True`: it takes a quarter of the CPU
    time of tests with an OpenCL board, and most of these ask only whether the right thing is computed."""
    with pytest.MonkeyPatch.context() as patch:
        if not getattr(request.module, "POCL_OPTIMIZES", False):
            patch.setenv("POCL_EXTRA_BUILD_FLAGS", "-cl-opt-disable")
        yield


@dataclass(frozen=True)
class Draws:
    """How many random cases to draw, and from which seed: --draws and --seed."""

    factor: float
    seed: int

    def of(self, count: int) -> int:
        """How many, where `make test` draws `count`."""
        return max(1, round(count * self.factor))


@pytest.fixture(scope="session")
def draws(request: pytest.FixtureRequest) -> Draws:
    return Draws(request.config.getoption("--draws"), request.config.getoption("--seed"))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> GoldenCheck:
    """`golden(name, text)`: text equals the file `name` beside the test; --update-golden rewrites it."""
    folder = request.path.parent
    update = bool(request.config.getoption("--update-golden"))

    def check(name: str, text: str) -> None:
        path: Path = folder / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        assert path.exists(), f"no golden file {path}; write it with `make golden` and read it"
        assert text == path.read_text(), (
            f"{path} differs; if the change is meant, run `make golden` and review the diff"
        )

    return check
