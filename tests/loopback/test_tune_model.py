"""The whole way with a small network, by the commands a user types: tune, flash, run, resume, interrupt."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

import toolkit
from boards.target import Target
from cross import link
from device_runtime.protocol import MeasureRequest, MeasureResult
from tests.fuzz.pocl import Pocl
from tests.loopback.tune_board import (
    EMULATED,
    HOST,
    POCL,
    board_file,
    onnxruntime_outputs,
    related_convolutions,
    write_network,
)
from tests.onnx_models import save
from tests.signals import interruptible
from toolkit.bundle.build import BuiltModel, build
from toolkit.bundle.manifest import CpuVariant
from toolkit.bundle.model_plan import ModelPlan
from toolkit.bundle.verify import open_bundle, trusted_keys
from toolkit.cli.main import main
from toolkit.errors import RecordsError
from toolkit.measure import emulation
from toolkit.measure.comparison import compare
from toolkit.measure.session import Session
from toolkit.model_job import in_network, latency, settle, stages
from toolkit.model_job.context import JobContext
from toolkit.model_job.latency import LOOKS, SYMBOL

pytestmark = pytest.mark.slow

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in an empty folder, with a home of its own; fails where the command does."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def command(*arguments: object, code: int = 0) -> Result:
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert result.exit_code == code, result.output
        return result

    return command


def tune(board: Path, *more: object) -> list[object]:
    return ["tune", "small.onnx", "--board", board, "--shape", "x=1,3,14,14", "--records", "r.db", *more]


def check_outputs(run: Run, board: Path) -> None:
    """The installed model gives what onnxruntime gives."""
    data = np.random.default_rng(3).standard_normal((1, 3, 14, 14)).astype(np.float32)
    np.save("x.npy", data)
    shown = json.loads(run("run", "x.npy", "--board", board, "-o", "out", "--repeat", "3", "--json").stdout)
    assert len(shown["seconds"]) == 3
    got = np.load(shown["outputs"]["y"])
    expected = onnxruntime_outputs(data)
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()


def check_page(run: Run, board: Path, page: Path, job: Path) -> None:
    """The page beside the bundle, and the same from the records; without the folder of jobs it says less."""
    assert page.name == "small-host.html" and "end to end after (measured)" in page.read_text()
    made = toolkit.read_job(job)
    assert made.state == "done" and [stage.stage for stage in made.stages][-2:] == ["measure", "pack"]
    asked = (
        "report",
        "small.onnx",
        "--board",
        board,
        "--shape",
        "x=1,3,14,14",
        "--records",
        "r.db",
        "--html",
    )
    assert run(*asked).stdout == "small-host.html\n"
    run(*asked, "again.html")
    assert Path("again.html").read_text() == page.read_text() == Path("small-host.html").read_text()
    kept = job.parent.rename("elsewhere")
    run(*asked, "less.html")
    assert "end to end" not in Path("less.html").read_text() and "Best time" in Path("less.html").read_text()
    kept.rename(job.parent)


def test_tune_flash_and_run(run: Run, tmp_path: Path) -> None:
    write_network(tmp_path)
    board = board_file(tmp_path, HOST)
    report = json.loads(run(*tune(board, "--trials", 3, "--json")).stdout)
    assert (report["schema"], report["schema_version"]) == ("tune-for-board/tune", 1)
    assert report["measured"] == report["trials"] > 0
    assert report["emulated"] is False
    assert report["bundle"] == "small-host.tfb"
    assert all(item["tuned"] and item["best_s"] <= item["default_s"] for item in report["operators"])
    assert sum(item["count"] for item in report["operators"]) >= 5
    assert report["tuned_latency"]["max_relative_error"] <= 1e-4
    check_page(run, board, Path(report["page"]), Path(report["job"]))

    flashed = json.loads(run("flash", "small-host.tfb", "--board", board, "--json").stdout)
    assert flashed["changed"] and flashed["bundle_id"] == report["bundle_id"]
    again = run("flash", "small-host.tfb", "--board", board)
    assert "nothing was changed" in again.stdout
    assert report["bundle_id"] in run("flash", "--status", "--board", board).stdout
    check_outputs(run, board)
    wrong = np.zeros((1, 3, 14, 15), np.float32)
    np.save("wrong.npy", wrong)
    assert "expected float32 [1, 3, 14, 14]" in run("run", "wrong.npy", "--board", board, code=2).stderr

    shown = run("report", "small.onnx", "--board", board, "--shape", "x=1,3,14,14", "--records", "r.db")
    assert shown.stdout.count("conv ") == len(
        [i for i in report["operators"] if i["operator"].startswith("conv")]
    )
    for file in ("small-host.tfb", "r.db"):
        asked = ["inspect", file, "--board", board, "--records", "r.db"]
        listed = json.loads(run(*asked, "--json").stdout)["kernels"]
        assert {item["operator_key"] for item in listed} == {i["operator_key"] for i in report["operators"]}
        told = json.loads(run(*asked, "--operator", listed[0]["operator_key"], "--json").stdout)
        assert told["seconds"] > 0 and told["hot_loop"] and told["schedule"]


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_the_bundle_holds_the_bytes_that_were_measured_of_the_model_that_is_not_slower(
    factor: float, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call of this linker gives other bytes, so that a model that is linked again is another one.

    The tuned model, here one with the same kernels that counts as another, counts as one that takes `factor`
    times as long.
    """
    links, measured = itertools.count(), []

    def link_once(*arguments: Any, **named: Any) -> bytes:
        return linked(*arguments, **named) + next(links).to_bytes(8, "little")

    def measure(session: Session, request: MeasureRequest) -> MeasureResult:
        measured.append(request)
        return asked(session, request)

    linked, asked = link.link, Session.measure
    monkeypatch.setattr(link, "link", link_once)
    monkeypatch.setattr(Session, "measure", measure)
    write_network(tmp_path)
    monkeypatch.setattr(
        latency,
        "compare",
        lambda before, after, looks: compare(before, [factor * seconds for seconds in before]),
    )
    monkeypatch.setattr(settle, "same_code", lambda *_: False)
    monkeypatch.setattr(stages, "after_tuning_s", lambda *_: (0.0, math.inf))
    report = json.loads(run(*tune(board_file(tmp_path, HOST), "--trials", 1, "--json")).stdout)
    variant, parts = shipped(tmp_path / "small-host.tfb")
    models = [request.module for request in measured if request.symbol == SYMBOL]
    untuned, tuned = models[-1], models[-2]  # of the last pair the tuned one comes first
    assert untuned != tuned
    assert report["packed"] == ("untuned" if factor > 1 else "tuned")
    assert parts[variant.library] == (untuned if factor > 1 else tuned)
    assert report["comparison"]["verdict"] == ("slower" if factor > 1 else "faster")
    default_s = {item["operator_key"]: item["default_s"] for item in report["operators"]}
    best_s = {item["operator_key"]: item["best_s"] for item in report["operators"]}
    assert {item.operator_key: item.seconds for item in variant.kernels} == (
        default_s if factor > 1 else best_s
    )
    assert len(report["default_latency"]["first_s"]) == report["comparison"]["pairs"] == LOOKS[0]
    assert (
        len(report["tuned_latency"]["seconds"]) == len(report["default_latency"]["seconds"]) >= 5 * LOOKS[0]
    )


def shipped(path: Path) -> tuple[CpuVariant, dict[str, str]]:
    """The only variant of a bundle that this host signed, and the SHA-256 of every part."""
    said = open_bundle(path, trusted_keys()).manifest
    (variant,) = said.variants
    assert isinstance(variant, CpuVariant)
    return variant, {part.path: part.sha256 for part in said.parts}


def wrong(plan: ModelPlan, target: Target, host: Target | None = None) -> BuiltModel:
    """The model with all its weights zero."""
    return build(replace(plan, parameters=bytes(len(plan.parameters))), target, host)


def test_an_untuned_model_that_fails_does_not_throw_away_the_tuned_one(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_network(tmp_path)
    board = board_file(tmp_path, HOST)
    right = stages.prepare

    def prepare(job: JobContext) -> stages.Baseline:
        baseline = right(job)
        return replace(baseline, built=wrong(baseline.built.plan, job.target))

    monkeypatch.setattr(stages, "prepare", prepare)
    told = run(*tune(board, "--trials", 2))
    assert re.search(r"end to end before +failed: wrong_answer: max .error. ", told.stdout)
    report = json.loads(run(*tune(board, "--trials", 2, "--json")).stdout)
    assert report["measured"] == 0 and report["default_latency"] is None
    assert report["default_failure"].startswith("wrong_answer: ")
    run("flash", "small-host.tfb", "--board", board)
    check_outputs(run, board)

    monkeypatch.setattr(stages, "prepare", right)
    monkeypatch.setattr(in_network, "build_code", wrong)
    refused = run(*tune(board, "--trials", 2), code=6).stderr
    assert "although each of its kernels was checked by itself, failed as a whole" in refused


def test_an_operator_of_ones_own(tmp_path: Path) -> None:
    a, b = toolkit.placeholder((24, 40), "A"), toolkit.placeholder((40, 17), "B")
    k = toolkit.reduce_axis(40, "k")
    c = toolkit.compute((24, 17), lambda i, j: toolkit.sum(a[i, k] * b[k, j], axis=k), name="C")
    operator = toolkit.Operator("matmul", (a, b), c, constants=frozenset({1}))
    board = toolkit.load_board(board_file(tmp_path, HOST))
    result = toolkit.tune_operator(operator, board, toolkit.Budget(6), records=tmp_path / "r.db")
    assert (result.trials, result.failures) == (6, 0)
    assert result.best is not None
    assert result.best_gflops >= result.default_gflops > 0


def test_operators_begin_with_programs_of_others(run: Run, tmp_path: Path) -> None:
    save(tmp_path, related_convolutions(), "related.onnx")
    asked = ["tune", "related.onnx", "--board", board_file(tmp_path, HOST), "--records", "r.db"]
    asked += ["--tuner", "reuse", "--no-winograd", "--trials", 64]
    plan = json.loads(run(*asked, "--dry-run", "--json").stdout)
    reusing = {item["name"]: item["reuses"] for item in plan["operators"] if item["reuses"]}
    assert len(reusing) == 2
    report = json.loads(run(*asked, "--json").stdout)
    assert report["tuned_latency"]["max_relative_error"] <= 1e-4
    shown = json.loads(run("records", "tree", "--records", "r.db", "--json").stdout)
    assert sum(bool(item["reuses"]) for item in shown["operators"]) == 2
    assert "└─ conv" in run("records", "tree", "--records", "r.db").stdout
    again = json.loads(run(*asked, "--json").stdout)
    assert (again["measured"], again["trials"]) == (0, report["trials"])


def test_the_same_command_measures_no_trial_again(run: Run, tmp_path: Path) -> None:
    write_network(tmp_path)
    board = board_file(tmp_path, HOST)
    first = json.loads(run(*tune(board, "--trials", 2, "--json")).stdout)
    second = json.loads(run(*tune(board, "--trials", 2, "--json")).stdout)
    assert second["measured"] == 0
    assert second["trials"] == first["trials"]
    more = json.loads(run(*tune(board, "--trials", 3, "--json")).stdout)
    assert 0 < more["measured"] <= len(more["operators"])


def smallest_budget_s(run: Run, board: Path) -> int:
    """The smallest sensible budget, by what this machine takes under its load of this moment."""
    result = run(*tune(board, "--budget", "0s"), code=2)
    assert "a budget of 0 s is too small: the preparations take" in result.stderr
    found = re.search(r"give --budget (\d+)s or more", result.stderr)
    assert found is not None
    return int(found[1])


def test_a_budget_of_time_ends_the_search(run: Run, tmp_path: Path) -> None:
    """How exactly it is kept is measured by hand: another test's load would decide here."""
    write_network(tmp_path)
    board = board_file(tmp_path, HOST)
    smallest_s = smallest_budget_s(run, board)
    plan = json.loads(run(*tune(board, "--budget", f"{smallest_s}s", "--dry-run", "--json")).stdout)
    assert plan["tuning_s"] > 0  # the budget that the refusal of a smaller one named is enough
    budget_s = 2 * smallest_s
    result = run(*tune(board, "--budget", f"{budget_s}s", "--json"))
    report = json.loads(result.stdout)
    assert report["trials"] >= 2 * len(report["operators"])
    assert report["accounts"]["wall_s"] == report["tuning_s"]
    assert 0 < report["accounts"]["device_s"] < report["accounts"]["measure_s"] < report["tuning_s"]
    assert "about" in result.stderr and "; done at " in result.stderr
    assert f"{budget_s // 60}:{budget_s % 60:02d} given" in result.stderr
    assert "search overhead" in run(*shown_report(board)).stdout
    shares = json.loads(run(*shown_report(board), "--json").stdout)
    assert 0 < shares["overhead_share"] < shares["idle_share"] < 1


def shown_report(board: Path) -> list[object]:
    return ["report", "small.onnx", "--board", board, "--shape", "x=1,3,14,14", "--records", "r.db"]


def test_the_plan_alone(run: Run, tmp_path: Path) -> None:
    """Timed by a few trials, which are recorded, and the second time by the records."""
    write_network(tmp_path)
    board = board_file(tmp_path, HOST)
    first = run(*tune(board, "--budget", "5m", "--dry-run", "--json"))
    plan = json.loads(first.stdout)
    assert (plan["schema"], plan["budget_s"]) == ("tune-for-board/plan", 300.0)
    assert plan["total_s"] == pytest.approx(300.0)
    parts = [plan[name] for name in ("prepared_s", "tuning_s", "confirm_s", "finish_s")]
    assert min(parts) > 0 and sum(parts) == pytest.approx(300.0)
    assert sum(item["trials"] for item in plan["operators"]) == plan["trials"] > 100
    recorded = sum(item["recorded"] for item in plan["operators"])
    assert 0 < recorded <= 12 and f"by the times of {recorded} trials now" in first.stderr
    assert not Path("small-host.tfb").exists()
    second = run(*tune(board, "--trials", 4, "--dry-run"))
    assert "by the times of the records" in second.stderr
    assert "in all" in second.stdout and "about" in second.stdout
    report = json.loads(run(*tune(board, "--trials", 4, "--json")).stdout)
    assert report["measured"] == report["trials"] - recorded


def test_trials_shared_by_all_operators(run: Run, tmp_path: Path) -> None:
    write_network(tmp_path)
    board = board_file(tmp_path, HOST)
    report = json.loads(run(*tune(board, "--total-trials", 16, "--json")).stdout)
    assert report["measured"] == report["trials"] <= 16
    again = json.loads(run(*tune(board, "--total-trials", 16, "--json")).stdout)
    assert again["measured"] == 16 - report["trials"]
    refused = run(*tune(board, "--total-trials", 16, "--trials", 3), code=2)
    assert "--trials, --total-trials and --budget exclude each other" in refused.stderr


def test_without_measurements_coverage_is_missed(run: Run, tmp_path: Path) -> None:
    """A board that gives no kernel the time to run: the operators keep their default schedules.

    A kernel that is done before the runtime first looks at the clock counts all the same, so that one or two
    of the five may be measured.
    """
    write_network(tmp_path)
    board = board_file(tmp_path, f"{HOST}timeout_s = 0.001\n")
    result = run(*tune(board, "--trials", 1, "--coverage", "100"), code=5)
    assert re.search(r"\d\d?% of the operators have a measured kernel, 100% were requested", result.stderr)
    assert not Path("small-host.tfb").exists()
    run(*tune(board, "--trials", 1))
    assert Path("small-host.tfb").exists()


def test_records_travel(run: Run, tmp_path: Path) -> None:
    write_network(tmp_path)
    board = board_file(tmp_path, HOST)
    report = json.loads(run(*tune(board, "--trials", 2, "--json")).stdout)
    assert f"{report['trials']} records" in run("records", "export", "all.jsonl", "--records", "r.db").stdout
    run("records", "import", "all.jsonl", "--records", "other.db")
    assert "0 new records" in run("records", "import", "all.jsonl", "--records", "other.db").stdout
    listed = json.loads(run("records", "list", "--records", "other.db", "--json").stdout)
    assert sum(item["records"] for item in listed["operators"]) == report["trials"]


def test_an_interrupted_run_says_how_to_go_on_and_the_same_command_does(tmp_path: Path) -> None:
    write_network(tmp_path)
    words = [str(word) for word in tune(board_file(tmp_path, HOST), "--trials", 200)]
    command = [sys.executable, "-m", "toolkit.cli", *words]
    root = str(Path(toolkit.__file__).parent.parent)
    environment = os.environ | {"PYTHONPATH": root, "HOME": str(tmp_path / "home")}
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=interruptible,
    ) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if line.startswith("tuning "):
                break
        wait_for_records(tmp_path / "r.db", 20, process)
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=120)[1]
    assert process.returncode == 130, "".join(said) + rest
    assert "interrupted; everything that was measured is kept. To go on: " in rest
    assert "Traceback" not in rest
    with toolkit.Records(tmp_path / "r.db", read_only=True) as records:
        kept = len(records)
    assert kept > 0
    limited = [*command[:-1], "1"]
    done = subprocess.run(limited, cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "recorded already" in done.stderr


def wait_for_records(path: Path, count: int, process: subprocess.Popen[str]) -> None:
    while True:
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        with contextlib.suppress(RecordsError), toolkit.Records(path, read_only=True) as records:
            if len(records) >= count:
                return
        time.sleep(0.05)


@pytest.mark.emulated
def test_the_whole_way_under_emulation(run: Run, tmp_path: Path) -> None:
    if emulation.find() is None:
        pytest.skip("the emulation is not installed; run `make emulation`")
    write_network(tmp_path)
    board = board_file(tmp_path, EMULATED)
    shown = run(*tune(board, "--trials", 1))
    assert "small on emulated-a53: emulated, the times say nothing about a chip" in shown.stdout
    assert "(emulated: no time says anything about a chip)" in shown.stderr
    run("flash", "small-emulated-a53.tfb", "--board", board)
    check_outputs(run, board)
    assert "s (emulated), the fastest of 1 runs" in run("run", "x.npy", "--board", board).stdout


def test_the_whole_way_by_opencl(
    run: Run, tmp_path: Path, pocl: Pocl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU's variant beside it takes what an earlier job on the same board recorded for the CPU."""
    monkeypatch.delenv("POCL_EXTRA_BUILD_FLAGS")  # the whole way, with PoCL's optimizer
    write_network(tmp_path)
    board = board_file(tmp_path, POCL)
    pocl.teach(tmp_path / "device")
    run(*tune(board, "--target", "cpu", "--trials", 1, "-o", "cpu.tfb"))
    report = json.loads(run(*tune(board, "--trials", 1, "--json")).stdout)
    assert (report["target"], report["kind"], report["pocl"]) == ("opencl", "opencl", True)
    assert all(item["tuned"] and not item["failures"] for item in report["operators"])
    fallback = report["fallback"]
    assert fallback["target"] == "cpu"
    assert fallback["tuned"] == fallback["operators"] == len(report["operators"])
    assert min(fallback["latency"]["seconds"]) > 0
    shown = run("report", "small.onnx", "--board", board, "--shape", "x=1,3,14,14", "--records", "r.db")
    assert shown.stdout.count("conv ") >= 2
    assert "pocl: OpenCL on this machine's CPU, the times say nothing about a GPU" in shown.stdout

    assert (
        "runs opencl on Portable Computing Language"
        in run("flash", report["bundle"], "--board", board).stdout
    )
    check_outputs(run, board)
    monkeypatch.setenv("OCL_ICD_VENDORS", "/nonexistent")
    check_outputs(run, board)
    assert "fell back to cpu on" in run("run", "x.npy", "--board", board).stdout
