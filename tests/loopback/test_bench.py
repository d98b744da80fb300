"""`toolkit bench` on this machine: a bundle by itself, against itself, and against ONNX Runtime."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result

from boards.board import load
from tests.bundles import COLUMNS, DEPTH, small_model, write_bundle
from tests.onnx_models import model, node, save
from toolkit.bundle.sign import open_key
from toolkit.cli.main import main
from toolkit.errors import InputError
from toolkit.measure.session import Session
from toolkit.model_job import bench as bench_job
from toolkit.model_job.bench import BenchOptions, check

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command in a folder with two bundles and the same network as ONNX; few pairs are enough here."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench_job, "PAIRS", 2)
    monkeypatch.setattr(bench_job, "ROUNDS", 1)
    key = open_key(tmp_path / "home/.config/tune-for-board/signing_key")
    write_bundle(tmp_path, key, small_model(), "a.tfb")
    write_bundle(tmp_path, key, small_model(2), "b.tfb")
    rng = np.random.default_rng(1)  # as small_model(1) draws its weights
    w = rng.standard_normal(DEPTH).astype(np.float32)
    weights = {"w": w, "v": rng.standard_normal((DEPTH, COLUMNS)).astype(np.float32)}
    nodes = [node("Mul", ["x", "w"], "s"), node("MatMul", ["s", "v"], "y")]
    save(tmp_path, model(nodes, {"x": (4, DEPTH)}, ["y"], weights), "small.onnx")

    def command(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(main, ["bench", "--board", "host", "--bundle", "a.tfb", *arguments])
        assert result.exit_code == code, result.output
        return result

    return command


@pytest.mark.slow
def test_a_bundle_is_measured_by_every_number_of_threads_and_against_another(run: Run) -> None:
    shown = run("--threads", "1", "--against", "b.tfb", "--csv", "times.csv", "--trace", "t.json", "--json")
    found = json.loads(shown.stdout)
    assert (found["schema"], found["schema_version"]) == ("tune-for-board/bench", 1)
    assert [(item["model"], item["threads"]) for item in found["models"]] == [
        ("small", 2), ("small", 1), ("b.tfb", 2)
    ]  # fmt: skip
    for item in found["models"]:
        assert len(item["seconds"]) >= 5 and item["max_relative_error"] <= 1e-4
        assert min(item["seconds"]) <= item["p50_s"] <= item["p90_s"] <= item["p99_s"] <= max(item["seconds"])
    assert found["comparison"]["pairs"] == 2
    assert found["comparison"]["verdict"] == "too few runs to tell"
    assert found["emulated"] is False and found["memory_bytes"]["workspace"] > 0
    assert [item["layer"] for item in found["layers"]] == ["mul", "mm"]
    events = [event for event in json.loads(Path("t.json").read_text())["traceEvents"] if event["ph"] == "X"]
    assert [event["dur"] / 1e6 for event in events] == pytest.approx([i["seconds"] for i in found["layers"]])
    assert events[1]["ts"] == pytest.approx(events[0]["ts"] + events[0]["dur"])
    assert all(item["seconds"] > 0 for item in found["layers"])
    with Path("times.csv").open() as stream:
        lines = list(csv.DictReader(stream))
    assert [float(line["median_s"]) for line in lines] == [item["p50_s"] for item in found["models"]]
    assert {line["times"] for line in lines} == {"measured"}
    assert "\x1b" not in shown.output and shown.stderr.endswith("done\n")


@pytest.mark.slow
def test_the_installed_bundle_is_measured_where_it_lies(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def bench(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["bench", "--board", "host", *arguments])

    assert "has no current bundle; flash one first" in bench().stderr
    assert CliRunner().invoke(main, ["flash", "a.tfb", "--board", "host"]).exit_code == 0
    Path("a.tfb").unlink()
    sent: list[int] = []
    upload = Session._upload
    monkeypatch.setattr(
        Session, "_upload", lambda *given, **named: (sent.append(len(given[2])), upload(*given, **named))[1]
    )
    shown = bench("--json")
    assert shown.exit_code == 0, shown.stderr
    found = json.loads(shown.stdout)
    assert sent == [] and found["installed"]
    assert found["bundle_id"] in found["bundle"] and found["models"][0]["p99_s"] > 0
    assert [item["layer"] for item in found["layers"]] == ["mul", "mm"]
    assert ", installed" in bench("--against", "b.tfb").stdout
    (part,) = Path("home").glob(".local/share/tune-for-board/host/slots/*/cpu/model.so")
    part.chmod(0o644)
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    assert "model.so is damaged on the disk; flash it again" in bench().stderr


@pytest.mark.slow
def test_onnx_runtime_computes_the_same_and_is_compared(run: Run) -> None:
    text = run("--against", "onnxruntime", "--model", "small.onnx").stdout
    assert "onnxruntime" in text and re.search(r"times +measured", text) and "too few runs to tell" in text
    weights = {"v": np.random.default_rng(1).standard_normal(DEPTH * (1 + COLUMNS)).astype(np.float32)}
    weights["v"] = weights["v"][DEPTH:].reshape(DEPTH, COLUMNS)
    nodes = [node("Mul", ["x", "w"], "s"), node("MatMul", ["s", "v"], "y")]
    save(Path(), model(nodes, {"x": (4, DEPTH), "w": (DEPTH,)}, ["y"], weights), "open.onnx")
    against = ("--against", "onnxruntime", "--model", "open.onnx")
    assert "['w']" in run(*against, code=2).stderr
    held = ",".join(map(repr, np.random.default_rng(1).standard_normal(DEPTH).astype(np.float32).tolist()))
    assert "too few runs to tell" in run(*against, "--constant", f"w={held}").stdout
    assert "computes by open.onnx something else" in run(*against, "--constant", "w=2", code=6).stderr
    assert "a bundle has no such inputs" in run("--constant", "w=2", code=2).stderr
    Path("wrong.onnx").write_bytes(b"no model")
    assert "cannot run wrong.onnx" in run("--against", "onnxruntime", "--model", "wrong.onnx", code=2).stderr


def test_onnx_runtime_that_is_not_installed_is_named_with_its_extra(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    said = run("--against", "onnxruntime", "--model", "small.onnx", code=2).stderr
    assert "pip install 'tune-for-board[onnxruntime]'" in said


def test_what_does_not_fit_is_refused(run: Run) -> None:
    assert "expected 1 to as many, found 3" in run("--threads", "3", code=2).stderr
    assert "no variant for target 'gpu': expected cpu" in run("--target", "gpu", code=2).stderr
    assert "give both or neither" in run("--against", "onnxruntime", code=2).stderr
    assert "is no list of numbers" in run("--threads", "one", code=2).stderr
    with pytest.raises(InputError, match="runs on this machine, which board rpi3b is not"):
        check(BenchOptions(against="onnxruntime", model="small.onnx"), load("rpi3b"))
    other = msgspec.structs.replace(load("host"), name="other")
    with pytest.raises(InputError, match="is for board host, not for other"):
        bench_job.bench("a.tfb", other)
