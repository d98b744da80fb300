"""A measurement that goes on where it was stopped."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from benchmarks.harness.documents import write
from benchmarks.kernels.measuring import Turnout, measure_all, resumable
from benchmarks.kernels.processes import Contender
from benchmarks.kernels.results import read
from benchmarks.kernels.rounds import Plan
from benchmarks.kernels.workloads import WORKLOADS, Workload
from tests.benchmark_reports import case, report, steady

NUMPY = Contender("numpy", "benchmarks.kernels.libraries.numpy_worker", Path(sys.executable))
SMALL = [WORKLOADS["D9"], WORKLOADS["D8"]]


def turnout(file: Path, said: list[str]) -> Turnout:
    return Turnout([NUMPY], Plan(rounds=1, batches=1, batch_s=1e-4), file, said.append)


def test_only_an_interrupted_report_under_the_same_conditions_is_gone_on_with() -> None:
    now = report()
    assert resumable(report(complete=False), now)
    assert not resumable(report(complete=True), now)
    replace = msgspec.structs.replace
    interrupted = report(complete=False)
    assert resumable(replace(interrupted, machine={"model": "a CPU", "load": "9.9"}), now)
    assert not resumable(replace(interrupted, machine={"model": "another", "load": "0.1"}), now)
    assert not resumable(replace(interrupted, plan={"rounds": 4}), now)
    ours = {"measurements": "7", "target": "two cores"}
    assert resumable(replace(interrupted, libraries={"torch": {"torch": "2.13"}, "ours": ours}), now)
    tuned = {"measurements": "8", "target": "one core"}
    assert not resumable(replace(interrupted, libraries={"torch": {"torch": "2.13"}, "ours": tuned}), now)


@pytest.mark.slow
def test_what_was_measured_before_an_interruption_is_kept(tmp_path: Path) -> None:
    file, said = tmp_path / "report.json", list[str]()

    def interrupted(_: int) -> Iterator[Workload]:
        yield SMALL[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_all(interrupted, [1], turnout(file, said))
    before = read(file)
    assert not before.complete and [item.workload for item in before.cases] == ["D9"]
    after = measure_all(lambda _: SMALL, [1], turnout(file, said))
    assert after.complete and after == read(file)
    assert [item.workload for item in after.cases] == ["D9", "D8"]
    assert after.cases[0] == before.cases[0]
    assert "1 threads, D9: measured already" in said
    again = measure_all(lambda _: SMALL[:1], [1], turnout(file, said))
    assert again.cases[0] != before.cases[0]


def test_a_file_of_another_kind_is_measured_anew(tmp_path: Path) -> None:
    file, said = tmp_path / "report.json", list[str]()
    file.write_text('{"schema": "something else"}')
    made = measure_all(lambda _: [], [1], turnout(file, said))
    assert made.complete and made.cases == () and made.machine["board"] == "host"
    assert said[0].endswith("measuring anew")


def test_a_case_is_written_with_its_goals(tmp_path: Path) -> None:
    made = report(case(steady("ours", "tuned", 1e-3), steady("torch", "nchw", 1e-3)))
    write(made, tmp_path / "report.json")
    assert read(tmp_path / "report.json") == made
