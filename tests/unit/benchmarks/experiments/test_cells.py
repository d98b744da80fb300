"""Cells are finished once, kept, and made again only when what they depend on has changed."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.experiments import cells
from benchmarks.experiments.cells import Cell, Store, described, finish
from benchmarks.experiments.landscapes import PoolSpace, open_landscape
from benchmarks.experiments.methods import GBT, GENETIC, RANDOM, RANDOM_X2, REPRESENTATIONS
from benchmarks.experiments.searching import search
from benchmarks.experiments.source import Source
from tests.quick import others_slow

TINY = "table tiny"


@pytest.mark.slow
def test_an_interrupted_run_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    wanted = [Cell(TINY, RANDOM, seed, 16) for seed in range(3)]
    assert [finish(cells, tmp_path) for cells in (wanted[:2], [*wanted, *wanted], wanted)] == [2, 1, 0]
    store = Store(tmp_path)
    found = [store.costs_s(cell) for cell in wanted]
    assert all(costs is not None and len(costs) == 16 for costs in found)
    assert found[0] != found[1]


def test_cells_of_other_code_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell, store = Cell(TINY, RANDOM, 0, 4), Store(tmp_path)
    store.keep(cell, [1.0, math.nan, 2.0, 3.0])
    kept = store.costs_s(cell)
    assert kept is not None and math.isnan(kept[1]) and kept[2:] == [2.0, 3.0]
    monkeypatch.setattr(cells, "code_digest", lambda: "other")
    assert store.costs_s(cell) is None


def test_a_damaged_cell_counts_as_missing(tmp_path: Path) -> None:
    cell, store = Cell(TINY, RANDOM, 0, 4), Store(tmp_path)
    store.keep(cell, [1.0])
    (path,) = store.folder.iterdir()
    path.write_text("{")
    assert store.costs_s(cell) is None


def test_presentation_does_not_matter_and_everything_else_does(tmp_path: Path) -> None:
    base = Cell(TINY, RANDOM, 0, 8)
    assert described(base, tmp_path) == described(dataclasses.replace(base, method=RANDOM_X2), tmp_path)
    for other in (
        dataclasses.replace(base, method=GENETIC),
        dataclasses.replace(base, seed=1),
        dataclasses.replace(base, evaluations=9),
        dataclasses.replace(base, method=dataclasses.replace(RANDOM, spare=4.0)),
    ):
        assert described(base, tmp_path) != described(other, tmp_path)
    source = dataclasses.replace(base, source=Source(("C1",)))
    assert described(base, tmp_path) == described(source, tmp_path)  # random search does not read it


@pytest.mark.parametrize(
    "method",
    others_slow([RANDOM, GENETIC, GBT, *REPRESENTATIONS[:3]], RANDOM, GENETIC, GBT),
    ids=lambda method: method.name,
)
def test_a_search_is_its_seed(method: cells.Method) -> None:
    landscape = open_landscape(TINY, Path("."))
    once, again, other = (search(landscape, method, seed, 24) for seed in (0, 0, 1))
    assert len(once) == 24
    assert np.array_equal(once, again, equal_nan=True)
    assert not np.array_equal(once, other, equal_nan=True)


def test_a_search_measures_no_configuration_twice_and_ends_with_the_space() -> None:
    landscape = open_landscape(TINY, Path("."))
    everything = search(landscape, RANDOM, 0, 10_000)
    assert np.array_equal(np.sort(everything), np.sort(landscape.costs_s), equal_nan=True)


@pytest.mark.slow
def test_a_pool_is_searched_to_its_end() -> None:
    landscape = open_landscape(TINY, Path("."))
    known = dataclasses.replace(
        landscape, kind="pool", space=PoolSpace(len(landscape.costs_s)), place=lambda rows: rows[:, 0]
    )
    costs_s = search(known, GBT, 0, 10_000)
    assert np.array_equal(np.sort(costs_s), np.sort(landscape.costs_s), equal_nan=True)


def test_transfer_needs_a_source() -> None:
    landscape = open_landscape(TINY, Path("."))
    with pytest.raises(ValueError, match="expected the source of its global model"):
        search(landscape, dataclasses.replace(GBT, transfer=True), 0, 8)
