"""Transfer in the studies: a global model of other operators is there before the first trial."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import asdict

from benchmarks.experiments.cells import Cell, described
from benchmarks.experiments.collected import HERE, collected, programs_of, records_path, target_of
from benchmarks.experiments.landscapes import open_landscape, pool
from benchmarks.experiments.methods import GBT, REPRESENTATIONS, TRANSFER, Method, transferred
from benchmarks.experiments.searching import search
from benchmarks.experiments.source import Source, global_model
from benchmarks.experiments.studies import STUDIES, possible
from benchmarks.harness.statistics import rank_correlation
from toolkit.features.choose import make_features
from toolkit.records import Records, TuningRecord
from toolkit.tuning.on_board import record_key

SOURCE = Source(("C8",))
TARGET = "C11"


def _collect(work: Path, operator: str, count: int) -> None:
    """Random configurations whose times follow one law of the relation features, for every operator."""
    programs = programs_of(operator)
    space = programs.space
    batch = np.unique(space.sample(np.random.default_rng(1), count), axis=0)
    table = make_features("relation", programs)(batch)
    weights = np.random.default_rng(2).normal(size=table.shape[1])
    costs_s = 1e-4 * np.exp(0.02 * (table - table.mean(axis=0)) @ weights)
    key = asdict(record_key(space, target_of(HERE)[0]))
    with Records(records_path(work, "random", 0)) as records:
        records.add(
            *(
                TuningRecord(
                    **key,
                    configuration=space.describe(space.configuration(row)),
                    seconds=(float(cost_s),),
                    timestamp_s=float(trial),
                    seed=0,
                    trial=trial,
                )
                for trial, (row, cost_s) in enumerate(zip(batch, costs_s, strict=True))
            )
        )


@pytest.fixture(name="work", scope="module")
def work_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("studies")
    for operator in (*SOURCE.operators, TARGET):
        _collect(work, operator, 300)
    return work


@pytest.mark.slow
@pytest.mark.parametrize("method", REPRESENTATIONS[1:3], ids=lambda method: method.name)
def test_a_global_model_orders_an_operator_it_has_not_seen(work: Path, method: Method) -> None:
    landscape = pool(collected(TARGET, work))
    rows = landscape.matrix(method.features)
    known = global_model(SOURCE, method.model, method.features, rows.shape[1], work)
    scores = known.model.predict(known.padded(rows))
    assert rank_correlation(scores.tolist(), landscape.costs_s.tolist()) > 0.4


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [TRANSFER, transferred(REPRESENTATIONS[2])], ids=lambda method: method.name
)
def test_transfer_begins_with_fast_programs(work: Path, method: Method) -> None:
    landscape = pool(collected(TARGET, work))
    median_s = float(np.median(landscape.costs_s))
    informed = search(landscape, method, 0, 32, source=SOURCE, work=work)
    scratch = search(landscape, GBT, 0, 32)
    # one of the first eight is drawn at random now and then
    assert sum(cost < median_s for cost in informed[:8]) >= 6
    assert np.mean(informed[:8]) < np.mean(scratch[:8])
    assert informed == search(landscape, method, 0, 32, source=SOURCE, work=work)


def test_cells_of_transfer_name_their_source(work: Path) -> None:
    cell = Cell(f"pool {TARGET}", TRANSFER, 0, 8, SOURCE)
    other = dataclasses.replace(cell, source=Source((TARGET,)))
    assert described(cell, work)["source"] == "host C8"
    assert described(cell, work) != described(other, work)


def test_a_study_without_its_measurements_says_what_is_missing(tmp_path: Path) -> None:
    asked = next(study for study in STUDIES if study.name == "transfer")
    study, notes = possible(asked, tmp_path)
    assert study.landscapes == () and not any(method.transfer for method in study.methods)
    assert any(
        "C7: nothing collected; run `python -m benchmarks.experiments collect`" in note for note in notes
    )
    assert any(note.startswith("No transfer: nothing was collected for C1, C2") for note in notes)


def test_models_are_left_out_as_asked(tmp_path: Path) -> None:
    asked = next(study for study in STUDIES if study.name == "objectives")
    study, notes = possible(asked, tmp_path, ("treegru", "treegru-regression"))
    assert [method.model for method in study.methods] == ["gbt", "gbt-regression"]
    assert all("treegru" not in method.model for pair in study.pairs for method in pair)
    assert any("Left out as asked" in note or "jax" in note for note in notes)


def test_a_table_of_another_space_is_left_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.tfbr").write_bytes(b"no table")
    monkeypatch.setattr("benchmarks.replay.recorded.FOLDER", tmp_path)
    asked = dataclasses.replace(STUDIES[0], landscapes=("table tiny",))
    open_landscape.cache_clear()
    study, notes = possible(asked, tmp_path)
    open_landscape.cache_clear()
    assert study.landscapes == ()
    assert any("is no replay table" in note and "benchmarks.replay record tiny" in note for note in notes)
