"""Searches on the recorded space that is shipped for tests: seconds, no board, the same bytes each time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness.place import board_with
from benchmarks.replay.__main__ import main
from benchmarks.replay.operators import TABLES
from benchmarks.replay.record import record
from benchmarks.replay.recorded import Replay, course, open_replay
from benchmarks.replay.reduce import Size, reduced_choices
from cross.schedule.cpu_sketch import cpu_space
from tests.loopback.tuning_process import board_in
from toolkit.cost_model.gbt import GradientBoostedTrees
from toolkit.cost_model.model_file import Provenance, SavedModel, TrainedOperator, facts, save
from toolkit.errors import ReplayError
from toolkit.explore.names import TUNERS
from toolkit.explore.search import SearchOptions, make_proposer, search_features
from toolkit.explore.space import enumerated
from toolkit.features.choose import make_features
from toolkit.features.context import ContextFeatures


@pytest.fixture(scope="module", name="tiny")
def _tiny() -> Replay:
    return open_replay("tiny")


def test_the_shipped_table_holds_every_configuration_of_three_algorithms(tiny: Replay) -> None:
    valid = np.concatenate(list(enumerated(tiny.space)))
    assert len(tiny.table) == len(valid) <= TABLES["tiny"].most
    assert set(tiny.table.batch[:, 0].tolist()) == {0, 1, 2}
    worked = tiny.table.costs_s[np.isfinite(tiny.table.costs_s)]
    assert worked.max() > 3 * worked.min()  # good and bad programs


@pytest.mark.slow
@pytest.mark.parametrize("tuner", TUNERS)
def test_the_same_table_and_seed_print_the_same_bytes(
    tuner: str, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    printed = []
    for seed in ("3", "3", "4"):
        assert main(["search", "tiny", "--tuner", tuner, "--trials", "40", "--seed", seed]) == 0
        printed.append(capsysbinary.readouterr().out)
    assert printed[0] == printed[1] and len(printed[0].splitlines()) == 40
    assert (printed[0] != printed[2]) == (tuner != "grid")
    last = json.loads(printed[0].splitlines()[-1])
    assert last["trial"] == 39 and 0 < last["of_best"] <= 1


@pytest.mark.slow
@pytest.mark.parametrize("tuner", TUNERS)
def test_every_search_finds_the_best_when_it_may_look_everywhere(tiny: Replay, tuner: str) -> None:
    rng, features = np.random.default_rng(0), ContextFeatures(tiny.programs)
    proposer = make_proposer(tiny.space, features, rng, SearchOptions(tuner=tuner))
    rows, costs_s = course(tiny, proposer, 10 * len(tiny.table))
    assert len(rows) == len(costs_s) == len(tiny.table)
    assert np.nanmin(costs_s) == tiny.best_s


@pytest.mark.slow
def test_a_prior_chooses_from_the_first_batch_on(tiny: Replay, tmp_path: Path) -> None:
    relation = make_features("relation", tiny.programs)
    model = GradientBoostedTrees(seed=0)
    model.fit(relation(tiny.table.batch), tiny.table.costs_s)
    origin = Provenance(
        (TrainedOperator("tiny", "00ff", "host:cpu", len(tiny.table), 0),), "0.1", 0, 0.0, 1.0
    )
    path = save(tmp_path / "prior.tfbm", SavedModel("gbt", model, facts(relation), origin))
    options = SearchOptions(prior=path)
    features, rng = search_features(options, tiny.programs), np.random.default_rng(0)
    _, costs_s = course(tiny, make_proposer(tiny.space, features, rng, options), 8)
    assert np.nanmin(costs_s) <= 1.05 * tiny.best_s
    assert np.nanmedian(costs_s) < np.nanmedian(tiny.table.costs_s)


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_of_the_space_as_it_is_now(name: str) -> None:
    """Opening it refuses a table of another space."""
    replay = open_replay(name)
    assert replay.space.valid(replay.table.batch).all()


def test_show_and_refusals(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["show", "tiny"]) == 0
    shown = capsys.readouterr().out
    assert "again: python -m benchmarks.replay record tiny" in shown and "GFLOP/s at" in shown
    assert main(["show", "tiny", "--table", str(tmp_path / "tiny.tfbr")]) == 2
    assert "no replay table at" in capsys.readouterr().err
    with pytest.raises(ReplayError, match="no replay table is called 'C7': expected one of C6, "):
        open_replay("C7")


@pytest.mark.parametrize("random_every", [1, 2, 3])
def test_a_reduced_space_keeps_the_fastest_and_the_untuned_program(tiny: Replay, random_every: int) -> None:
    size = Size(300, random_every=random_every)
    full = cpu_space(tiny.operator, tiny.table.target)
    rows = full.sample(np.random.default_rng(2), 12)
    fastest = [full.configuration(row) for row in rows]
    kept = reduced_choices(full, fastest, size, np.random.default_rng(0))
    space = full.restricted(kept)
    assert 100 <= sum(len(block) for block in enumerated(space)) <= 300
    for number in range(3):
        first = next(item for item in fastest if item.indices[0] == number)
        assert space.parse(full.describe(first)).indices[0] == number
    again = reduced_choices(full, fastest, size, np.random.default_rng(0))
    assert kept == again


@pytest.mark.slow
def test_a_table_is_recorded_and_an_interrupted_recording_goes_on(tmp_path: Path) -> None:
    size = Size(24, tuned=6)
    place = (board_in(tmp_path / "device"), board_with(1)[1], tmp_path)
    table = record("tiny", size, *place)
    assert 6 <= len(table) <= 24 and not table.errors
    assert table.space(open_replay("tiny").operator).key == table.space_key
    again = record("tiny", size, *place)  # everything is in the records
    assert (again.rows, again.seconds) == (table.rows, table.seconds)
    path = tmp_path / "tiny.choices.json"
    path.write_bytes(path.read_bytes().replace(b'"]', b'0"]'))
    with pytest.raises(ReplayError, match="was chosen in another schedule space"):
        record("tiny", size, *place)
