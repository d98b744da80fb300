"""What is concluded from live runs, and the records that they are read from."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import asdict

from benchmarks.experiments.again import FILE, Pair, Timed, timed_pairs
from benchmarks.experiments.collect import LEARNED, RANDOM, TRANSFER
from benchmarks.experiments.collected import (
    HERE,
    NARROW,
    Run,
    collected,
    narrow_here,
    programs_of,
    records_path,
    runs,
    target_of,
)
from benchmarks.experiments.live import summary
from toolkit.errors import RecordsError
from toolkit.records import Records, TuningRecord
from toolkit.tuning.on_board import record_key

TRIALS = 20


def _run(method: str, operator: str, costs_s: list[float], untuned: int = 1) -> Run:
    costs = np.array(costs_s)
    rows = np.zeros((len(costs), 1), np.int64)
    return Run(operator, method, 0, costs, np.arange(len(costs), dtype=np.float64), rows, untuned)


def _course(best_s: float, found_at: int) -> list[float]:
    """An untuned schedule of 9 ms, then 8 ms until `best_s` is found at a trial counted from 1."""
    return [9e-3, *[8e-3] * (found_at - 1), *[best_s] * (TRIALS + 1 - found_at)]


def test_the_goals_are_computed_from_pairs_of_runs() -> None:
    operators = [f"C{number}" for number in range(1, 7)]
    made = [_run(RANDOM, name, _course(2e-3, 15)) for name in operators]
    made += [_run(LEARNED, name, _course(1e-3, 5)) for name in operators]
    speedup, most, with_untuned, share = summary(made, TRIALS)["goals"]
    assert speedup["value"]["estimate"] == pytest.approx(2.0) and speedup["met"]
    assert with_untuned["value"]["estimate"] == pytest.approx(2.0)
    assert share["value"]["estimate"] == pytest.approx(5 / TRIALS) and share["met"]
    assert speedup["rows"][0] == ["C1", 2.0, 0.25, 2.0, 2.0]
    assert most["value"]["estimate"] == pytest.approx(2.0)


def test_a_run_that_never_gets_there_counts_with_all_trials() -> None:
    made = [_run(RANDOM, "C1", _course(1e-3, 3)), _run(LEARNED, "C1", _course(2e-3, 3))]
    goals = summary(made, TRIALS)["goals"]
    assert goals[1]["value"]["estimate"] == 1.0  # random had found the fastest
    assert goals[3]["value"]["estimate"] == 1.0 and not goals[3]["met"] and not goals[0]["met"]


def test_untuned_schedules_count_only_where_it_says_so() -> None:
    made = [
        _run(RANDOM, "C1", [1e-3, *[4e-3] * TRIALS]),
        _run(LEARNED, "C1", [1e-3, *[2e-3] * TRIALS]),
    ]
    without, _, counted, _ = summary(made, TRIALS)["goals"]
    assert without["value"]["estimate"] == pytest.approx(2.0)
    assert counted["value"]["estimate"] == pytest.approx(1.0)


@pytest.mark.parametrize(("found_at", "shown", "met"), [(7, 7, False), (30, "never", False), (3, 3, True)])
def test_transfer_is_counted_until_it_is_at_the_best_from_scratch(
    found_at: int, shown: int | str, met: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.experiments.live.TRANSFER_GOAL", 5)
    course = _course(1e-3, found_at)[: TRIALS + 1]
    made = [_run(LEARNED, "C7", _course(1e-3, 10)), _run(TRANSFER, "C7", course)]
    (goal,) = summary(made, TRIALS)["goals"]
    assert goal["rows"] == [["C7", 0, shown]]
    assert goal["met"] is met


def test_curves_by_time_begin_with_nothing_and_end_with_the_best() -> None:
    (operator,) = summary([_run(LEARNED, "C1", _course(1e-3, 5))], TRIALS)["operators"]
    (method,) = operator["methods"]
    flops = programs_of("C1").space.operator.flops
    assert method["by_time"][0] == 0.0
    assert method["by_time"][-1] == method["mean"][-1] == pytest.approx(flops / 1e-3 / 1e9, rel=1e-4)


def _record(operator: str, trial: int, row: list[int], cost_s: float | None) -> TuningRecord:
    space = programs_of(operator).space
    key = asdict(record_key(space, target_of(HERE)[0]))
    return TuningRecord(
        **key,
        configuration=space.describe(space.configuration(np.array(row))),
        seconds=() if cost_s is None else (cost_s,),
        error_kind="" if cost_s is not None else "timeout",
        timestamp_s=100.0 + trial + (3600.0 if trial > 2 else 0.0),  # interrupted after the third
        seed=3,
        trial=trial,
    )


def test_runs_are_read_back_from_records(tmp_path: Path) -> None:
    space = programs_of("C8").space
    default = list(space.default().indices)
    others = space.sample(np.random.default_rng(0), 3).tolist()
    with Records(records_path(tmp_path, LEARNED, 3)) as records:
        for trial, (row, cost_s) in enumerate(zip([default, *others], [4e-3, None, 2e-3, 1e-3], strict=True)):
            records.add(_record("C8", trial, row, cost_s))
    (run,) = runs(tmp_path, ("C7", "C8"))
    assert (run.operator, run.method, run.seed, run.untuned) == ("C8", LEARNED, 3, 1)
    assert run.elapsed_s.tolist() == [0.0, 1.0, 2.0, 2.0]
    assert np.isnan(run.costs_s[1]) and run.costs_s[[0, 2, 3]].tolist() == [4e-3, 2e-3, 1e-3]
    assert run.batch.tolist() == [default, *others]
    assert len(collected("C8", tmp_path).costs_s) == 4


def test_nothing_collected_is_said_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(
        RecordsError, match="no measurements of C7 .*python -m benchmarks.experiments collect"
    ):
        collected("C7", tmp_path)


@pytest.mark.skipif(not narrow_here(), reason="x86 code")
def test_the_narrow_target_has_its_own_code_and_records() -> None:
    here, narrow = target_of(HERE)[1], target_of(NARROW)[1]
    assert narrow.vector_bytes == 16 and narrow.key != here.key
    assert programs_of("C8").space.key != programs_of("C8", NARROW).space.key


def test_winners_timed_again_are_kept_and_judged_together(tmp_path: Path) -> None:
    pairs = tuple(Pair(name, seed, 80, TRIALS, 2e-3, 1e-3) for name in ("C7", "C8") for seed in range(3))
    (tmp_path / FILE).write_bytes(msgspec.json.encode(Timed(pairs=pairs)))
    assert timed_pairs(tmp_path, TRIALS) == pairs
    assert timed_pairs(tmp_path, TRIALS + 1) == ()
    (goal,) = summary([], TRIALS, pairs)["goals"]
    assert goal["value"]["estimate"] == pytest.approx(0.5) and not goal["met"] and goal["verdict"] == "worse"
    even = [
        Pair(pair.operator, pair.seed, 80, TRIALS, 1e-3 * (0.99 + 0.01 * pair.seed), 1e-3) for pair in pairs
    ]
    (goal,) = summary([], TRIALS, even)["goals"]
    assert goal["met"] and goal["verdict"] == "tie"


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"{", "delete it"), (b'{"version": 99, "pairs": []}', "99 - at `\\$.version`; delete it")],
)
def test_a_file_of_times_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(RecordsError, match=said):
        timed_pairs(tmp_path, TRIALS)
