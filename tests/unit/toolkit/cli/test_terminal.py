"""What commands print on a terminal of 80 columns: no row is wrapped; elsewhere nothing is cut."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from onnx import helper

from cross.expression.language.description import to_json
from tests.bundles import small_model, write_bundle
from tests.onnx_models import model, node, save
from tests.unit.toolkit.report.test_tables import CONV, REPORT
from toolkit.bundle.sign import open_key
from toolkit.cli.main import main
from toolkit.measure.peak import load_board
from toolkit.model.distinct import distinct_operators
from toolkit.model.load import load_model
from toolkit.model_job.tuning_plan import OperatorPlan, TuningPlan
from toolkit.records import OperatorLine, Records, TuningRecord
from toolkit.report.columns import fold, table
from toolkit.report.tables import plan_table, tune_table
from toolkit.tuning.on_board import open_task

NODE = "StatefulPartitionedCall/" + "deep/" * 80 + "Conv2D"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network, and records of its operators on rpi3b, half of them failures."""
    folder = tmp_path_factory.mktemp("terminal")
    key = open_key(folder / ".config/tune-for-board/signing_key")
    for number, name in enumerate(("a.tfb", "b.tfb"), 1):
        write_bundle(folder, key, small_model(number), name, number)
    weights = {"w": np.ones((8, 3, 3, 3), np.float32)}
    conv = helper.make_node("Conv", ["x", "w"], ["c"], name=NODE, strides=[2, 2])
    nodes = [conv, node("MaxPool", ["c"], "y", kernel_shape=[2, 2])]
    path = save(folder, model(nodes, {"x": (1, 3, 32, 32)}, ["y"], weights), "net.onnx")
    (folder / "samples").mkdir()
    np.save(folder / "samples/ten.npy", np.random.default_rng(0).random((10, 3, 32, 32), np.float32))
    board = load_board("rpi3b", to_run=False)
    with Records(folder / "r.db") as records:
        for item in distinct_operators(load_model(path)):
            task = open_task(item.name, item.operator, board, board.target())
            key = task.key
            records.describe(OperatorLine(operator_key=key.operator_key, description=to_json(item.operator)))
            for trial in range(4):
                records.add(TuningRecord(
                    operator_key=key.operator_key, target_key=key.target_key, space_key=key.space_key,
                    tool_version=key.tool_version, configuration=task.space.describe(task.space.default()),
                    seconds=() if trial % 2 else (1e-3 + trial * 1e-5,), timestamp_s=0.0, seed=0, trial=trial,
                    error_kind="crash" if trial % 2 else "", error_text="killed by SIGSEGV " * 40,
                ))  # fmt: skip
        records.export_jsonl(folder / "best.jsonl", best=True)
    return folder


COMMANDS = [
    "boards list", "boards show rpi3b", "records list --records r.db", "records failures --records r.db",
    "records tree --records r.db", "records check r.db", "report net.onnx --board rpi3b --records r.db",
    "model list", "model show x86-64-avx512", "inspect r.db --board rpi3b", "bundle show a.tfb",
    "bundle diff a.tfb b.tfb", "bundle verify a.tfb", "records best more.jsonl --records r.db",
    "records list --records best.jsonl",
    "inspect best.jsonl --board rpi3b --operator slowest --show alternatives",
    "quantize net.onnx --data samples",
]  # fmt: skip


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns."""
    monkeypatch.setattr("toolkit.cli.answers.on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.usefixtures("terminal")
def test_no_row_is_wrapped(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    result = CliRunner().invoke(main, command.split())
    assert result.exit_code == 0, result.stderr
    unbroken = [line for line in result.stdout.splitlines() if len(line) > 80 and " " in line.strip()]
    assert not unbroken


@pytest.mark.slow
def test_a_real_terminal_gets_its_width_and_a_pipe_everything(folder: Path) -> None:
    command = [sys.executable, "-m", "toolkit.cli", "records", "list", "--records", "r.db"]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    piped = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    assert "conv 3x3 s2 32x32 3->8" in piped.stdout and "tool" in piped.stdout.splitlines()[0]
    assert "\x1b" not in piped.stdout
    ours, theirs = pty.openpty()
    subprocess.run(["stty", "cols", "80", "rows", "24"], stdin=theirs, check=True)
    subprocess.run(command, cwd=folder, env=environment, stdout=theirs, stderr=subprocess.PIPE, check=True)
    os.close(theirs)
    lines = os.read(ours, 1 << 16).decode().splitlines()
    assert max(map(len, lines)) <= 80
    assert any("--wide" in line for line in lines)


@pytest.mark.usefixtures("terminal")
def test_wide_shows_every_column(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    shown = CliRunner().invoke(main, ["records", "list", "--records", "r.db", "--wide"]).stdout
    assert max(map(len, shown.splitlines())) > 80
    assert "key" in shown.splitlines()[0].split()


def test_the_tables_of_a_job_fit() -> None:
    name = "conv 3x3 s2 112x112 64->128 (stage2/block0/Conv2D)"
    operators = tuple(replace(CONV, name=name, default_s=1.5, best_s=0.75) for _ in range(3))
    for emulated in (False, True):
        shown = fold(tune_table(replace(REPORT, operators=operators, emulated=emulated), 80), 80)
        assert max(map(len, shown.splitlines())) <= 80
        assert "conv 3x3 s2" in shown and "1500.000 ms" in shown
    plan = TuningPlan(
        operators=tuple(OperatorPlan(name, 2, 0, 90, 45.0, reuses=name) for _ in range(2)),
        trials=100, budget_s=70.0, prepared_s=3.0, tuning_s=50.0, confirm_s=10.0, finish_s=7.0, total_s=70.0,
    )  # fmt: skip
    assert max(map(len, plan_table(plan, 80).splitlines())) <= 80


def test_figures_are_never_cut() -> None:
    text = table(["name", "a", "b"], [["x" * 60, "1" * 20, "2" * 20]], width=60)
    assert "1" * 20 in text and "2" * 20 in text and max(map(len, text.splitlines())) == 60


def test_the_whole_name_of_a_node_is_in_the_json(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    run = CliRunner().invoke(main, ["report", "net.onnx", "--board", "rpi3b", "--records", "r.db", "--json"])
    operators = json.loads(run.stdout)["operators"]
    (conv,) = (item for item in operators if item["name"].startswith("conv"))
    assert conv["name"] == "conv 3x3 s2 32x32 3->8 (.../deep/deep/Conv2D)"
    assert conv["layers"] == [NODE]
    assert conv["failures"] == 2 and conv["reasons"][0]["count"] == 2
