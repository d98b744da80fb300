"""Layers of integers in floats: what they compute, and which are chosen by measured times."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boards.board import load
from tests.onnx_models import model, node, save
from toolkit.errors import InputError
from toolkit.model.graph import Graph
from toolkit.model.load import adapted, load_model
from toolkit.model.reference import run_reference
from toolkit.model_job import precision
from toolkit.model_job.job import tune
from toolkit.model_job.options import TuneOptions
from toolkit.records import Records
from toolkit.report.tables import tune_table

BOARD = load("host")
LAYERS = ("node_a", "node_b", "node_c")


def quantized(folder: Path) -> Path:
    """Three matrix products of bytes in a row, QDQ form."""
    rng = np.random.default_rng(3)
    constants: dict[str, Any] = {"s": np.float32(0.05), "z": np.uint8(120), "w_z": np.int8(0)}
    nodes = [node("QuantizeLinear", ["x", "s", "z"], "q0")]
    for place, name in enumerate("abc"):
        constants |= {f"w{name}": rng.integers(-127, 127, (16, 16), np.int8), f"s{name}": np.float32(0.004)}
        nodes += [
            node("DequantizeLinear", [f"q{place}", "s", "z"], f"d{place}"),
            node("DequantizeLinear", [f"w{name}", f"s{name}", "w_z"], f"f{name}"),
            node("MatMul", [f"d{place}", f"f{name}"], name),
            node("QuantizeLinear", [name, "s", "z"], f"q{place + 1}"),
        ]
    nodes.append(node("DequantizeLinear", ["q3", "s", "z"], "y"))
    return save(folder, model(nodes, {"x": (9, 16)}, ["y"], constants))


def test_named_layers_are_computed_in_floats_between_the_same_integers(tmp_path: Path) -> None:
    path = quantized(tmp_path)
    filed, changed = load_model(path), load_model(path, floats={"node_b"})
    assert precision.integer_layers(filed) == LAYERS
    assert precision.integer_layers(changed) == ("node_a", "node_c")
    inputs = {"x": np.random.default_rng(4).normal(0, 1, (9, 16)).astype(np.float32)}
    want, got = (run_reference(graph, inputs)["y"] for graph in (filed, changed))
    assert np.abs(got - want).max() <= 2 * 0.05 + 1e-6  # steps of the output's scale


class Times:
    """Seconds of layers on integers and in floats, in place of a board."""

    def __init__(self, integers: Mapping[str, float], floats: Mapping[str, float], other_s: float) -> None:
        self.integers, self.floats, self.other_s = integers, floats, other_s

    def __call__(self, path: Path, board: Any, target: Any, options: TuneOptions, on_event: Any) -> Any:
        found = load_model(path, floats=options.floats)
        graph = adapted(found, target)
        seconds = {group.output: self._of(graph, group) for group in graph.groups}
        return precision._Timed(found, graph, seconds)

    def _of(self, graph: Graph, group: Any) -> float:
        kept = precision.integer_layers(graph)
        own = [
            (self.integers if name in kept else self.floats)[name] for name in LAYERS if name in group.nodes
        ]
        return sum(own) + (self.other_s if kept != LAYERS else 0.0)


def chosen(monkeypatch: pytest.MonkeyPatch, path: Path, floats: list[float], other_s: float = 0.0) -> Any:
    times = Times(dict.fromkeys(LAYERS, 1.0), dict(zip(LAYERS, floats, strict=True)), other_s)
    monkeypatch.setattr(precision, "_timed", times)
    return precision.fastest_layers(path, BOARD, BOARD.target(None), TuneOptions(), lambda _: None)


def test_layers_that_are_faster_in_floats_are_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = chosen(monkeypatch, quantized(tmp_path), [0.5, 0.97, 2.0])
    assert (report.layers, report.quantized) == (("node_a",), 3)
    (output,) = report.outputs
    assert output.name == "y"
    assert output.sqnr_db is None or output.sqnr_db > 20.0
    assert report.text.startswith("1 of 3 quantized layers: node_a (y ")


def test_no_layer_is_chosen_where_the_whole_model_gets_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = chosen(monkeypatch, quantized(tmp_path), [0.5, 2.0, 2.0], other_s=0.3)
    assert (report.layers, report.outputs) == ((), ())
    assert report.text == "none of 3 quantized layers"


def test_it_needs_trials() -> None:
    with pytest.raises(InputError, match="precision fastest needs trials as its budget, found seconds"):
        TuneOptions(precision="fastest", seconds=60.0)


@pytest.mark.slow
def test_a_board_measures_both_forms_of_every_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    done: list[str] = []
    options = TuneOptions(
        trials=1, precision="fastest", records=tmp_path / "r.db", output=tmp_path / "small.tfb"
    )
    report = tune(quantized(tmp_path), BOARD, options, lambda event: done.append(getattr(event, "stage", "")))
    assert report.precision is not None and report.precision.quantized == 3
    assert set(report.precision.layers) <= set(LAYERS)
    assert done.index("precision") < done.index("pack")
    assert report.precision.text in tune_table(report)
    with Records(tmp_path / "r.db", read_only=True) as records:
        assert len(records) > len(report.operators)  # those of the form that was not chosen, too
