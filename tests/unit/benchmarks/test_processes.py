"""The line protocol: real processes, among them ours, the machine's, and ones that misbehave."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.kernels.inference import Network
from benchmarks.kernels.processes import (
    Contender,
    LibraryFailed,
    LibraryProcess,
    contenders,
    environment,
)
from benchmarks.kernels.results import Case
from benchmarks.kernels.rounds import Plan, measure
from benchmarks.kernels.turn import take_turn
from benchmarks.kernels.worker import Variant, Worker
from benchmarks.kernels.workloads import WORKLOADS, Array, Workload, reference

PYTHON = Path(sys.executable)


class Numpy:
    """A library made of the float64 reference; its second variant is wrong."""

    def facts(self) -> dict[str, str]:
        return {"numpy": "yes"}

    def open(self, workload: Workload, left: Array, right: Array) -> list[Variant]:
        right_one = reference(workload, left, right)
        return [
            Variant("right", lambda: None, lambda: right_one),
            Variant("wrong", lambda: None, lambda: -right_one, work=7.0),
            Variant("silent", lambda: None, None),
        ]

    def open_network(self, network: Network, data: Array) -> list[Variant]:
        doubled = 2 * data
        return [Variant("doubled", lambda: None, lambda: doubled, facts={"algorithm": "doubling"})]

    def close(self) -> None:
        pass


def test_a_worker_checks_and_times() -> None:
    worker = Worker(Numpy())
    assert worker.answer({"do": "hello"}) == {"protocol": 2, "facts": {"numpy": "yes"}}
    assert worker.answer({"do": "open", "workload": WORKLOADS["D9"].described()})["variants"] == [
        {"name": "right", "error": 0.0, "work": None, "facts": {}},
        {"name": "wrong", "error": 2.0, "work": 7.0, "facts": {}},
        {"name": "silent", "error": None, "work": None, "facts": {}},
    ]
    answer = worker.answer({"do": "time", "variant": "right", "batches": 2, "batch_s": 1e-4})
    assert set(answer) == {"kept", "disturbed", "calls"}
    assert all(value > 0 for value in (*answer["kept"], *answer["disturbed"]))
    assert worker.answer({"do": "close"}) == {}
    with pytest.raises(ValueError, match="unknown request 'dance'"):
        worker.answer({"do": "dance"})


def test_a_network_is_read_from_its_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", input=np.ones(3, np.float32), output=np.full(3, 4, np.float32))
    network = Network("net", "net.onnx", str(tmp_path / "data.npz"), "net.so", "net 3", 10, 24)
    (answer,) = Worker(Numpy()).answer({"do": "open", "workload": network.described()})["variants"]
    assert answer == {"name": "doubled", "error": 0.5, "work": None, "facts": {"algorithm": "doubling"}}


def test_a_turn_ends_however_disturbed_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10**12, 10**9))
    monkeypatch.setattr("benchmarks.kernels.turn.waited_ns", lambda: next(clock))
    turn = take_turn(lambda: None, batches=2, batch_s=1e-4, patience=3)
    assert turn.kept == () and len(turn.disturbed) == 6


def test_a_missing_library_is_not_measured(tmp_path: Path) -> None:
    process = LibraryProcess(Contender("torch", "nothing", tmp_path / "python"), threads=1)
    case = measure(WORKLOADS["D9"], 1, [process], Plan(rounds=2))
    assert case.series == ()
    assert case.not_measured["torch"].startswith(f"no Python at {tmp_path}/python; make it with:")


def test_a_library_that_dies_says_why() -> None:
    process = LibraryProcess(Contender("timeit", "timeit", PYTHON, ("raise", "SystemExit(3)")), threads=1)
    with pytest.raises(LibraryFailed, match=r"the process ended with code"):
        process.ask({"do": "hello"}, timeout_s=20.0)


WORKER_ON_CORES = """
import json, os, sys
for line in sys.stdin:
    print(json.dumps({
        "protocol": 2,
        "variants": [{"name": "call", "error": None, "work": None, "facts": {}}],
        "kept": [1.0 + sum(os.sched_getaffinity(0))],
        "disturbed": [],
    }), flush=True)
"""


def test_on_one_thread_all_turns_of_a_round_are_on_one_core(tmp_path: Path) -> None:
    """The worker's seconds are one more than the sum of the numbers of the cores on which it may run."""
    (tmp_path / "on_cores.py").write_text(WORKER_ON_CORES)
    process = LibraryProcess(Contender("cores", "on_cores", PYTHON, checkout=tmp_path), threads=1)
    cores = sorted(os.sched_getaffinity(0))
    try:
        one = measure(WORKLOADS["D9"], 1, [process], Plan(rounds=3))
    finally:
        process.close()
    process = LibraryProcess(Contender("cores", "on_cores", PYTHON, checkout=tmp_path), threads=2)
    try:
        all_of_them = measure(WORKLOADS["D9"], 2, [process], Plan(rounds=1))
    finally:
        process.close()

    def seconds(case: Case) -> list[float | None]:
        return [turn and turn.seconds for turn in case.series[0].rounds]

    assert seconds(one) == [1.0 + cores[number % len(cores)] for number in range(3)]
    assert seconds(all_of_them) == [1.0 + sum(cores)]


@pytest.mark.slow
def test_ours_and_the_machine(tmp_path: Path) -> None:
    processes = [
        LibraryProcess(Contender("machine", "benchmarks.kernels.machine_worker", PYTHON), threads=1),
        LibraryProcess(
            Contender(
                "ours",
                "benchmarks.kernels.own_worker",
                PYTHON,
                ("--records", str(tmp_path / "none.db")),
            ),
            threads=1,
        ),
    ]
    try:
        case = measure(WORKLOADS["D9"], 1, processes, Plan(rounds=2, batches=2, batch_s=0.001))
    finally:
        for process in processes:
            process.close()
    assert case.not_measured == {}
    named = {series.name: series for series in case.series}
    assert list(named) == ["machine fma", "machine read", "ours default"]
    assert all(len(series.rounds) == 2 and series.gflops > 0 for series in case.series)
    assert named["ours default"].facts["algorithm"] == "direct"
    error = named["ours default"].error
    assert error is not None and error < 1e-5


def test_openblas_is_told_of_wide_vectors_and_everybody_of_the_threads() -> None:
    narrow, wide = environment(2, 32), environment(1, 64)
    assert "OPENBLAS_CORETYPE" not in narrow
    assert wide["OPENBLAS_CORETYPE"] == "SkylakeX"
    assert (narrow["OMP_NUM_THREADS"], wide["OPENBLAS_NUM_THREADS"]) == ("2", "1")


def test_another_checkout_runs_its_own_code_in_its_own_environment(tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(sys.prefix)
    for folder in ("benchmarks", "benchmarks/kernels"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "benchmarks/kernels/own_worker.py").write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    facts = {'found': __file__, 'python': sys.executable}\n"
        "    print(json.dumps({'protocol': 2, 'facts': facts}), flush=True)\n"
    )
    before = next(item for item in contenders(tmp_path, (), [], before=tmp_path) if item.name == "before")
    process = LibraryProcess(before, threads=1)
    try:
        facts = process.ask({"do": "hello"}, timeout_s=60.0)["facts"]
    finally:
        process.close()
    assert facts["found"] == str(tmp_path / "benchmarks/kernels/own_worker.py")
    assert facts["python"].startswith(str(tmp_path / ".venv"))
