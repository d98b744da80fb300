"""Which quantized layers are computed in floats: `tune --precision fastest`.

A layer is a convolution or matrix product of integers. All operators are tuned twice, with every layer on
integers as the file says, and with every layer in floats between the same integers. A layer whose kernels
took less time in floats is computed so, if the whole model is expected to be faster for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from boards.description import Board
from boards.target import Target
from cross.expression.language.tensor import Reduce
from toolkit.model.change import Change
from toolkit.model.graph import Graph, Group
from toolkit.model.reference import run_reference
from toolkit.model_job import stages
from toolkit.model_job.context import open_job, stage
from toolkit.model_job.latency import golden_data
from toolkit.model_job.options import ChangedOutput, JobListener, PrecisionReport, TuneOptions

FASTER: Final = 0.95
"""Of the time on integers: what a layer in floats may take at most. Two measurements of one kernel differ by
less on a quiet board."""
SAMPLES: Final = 4
_INTEGERS: Final = frozenset({"int8", "uint8", "int16"})


class _Timed(msgspec.Struct, frozen=True):
    """A model with seconds of each group by its output, infinite where nothing ran."""

    model: Graph
    graph: Graph
    seconds: Mapping[str, float]

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())

    def layer_s(self, layer: str) -> float:
        """Seconds of the groups that compute a layer, and of those that convert for them."""
        own = [group for group in self.graph.groups if layer in group.nodes]
        read = {self.graph.root(name) for group in own for name in group.inputs}
        fed = [group for group in self.graph.groups if group.output in read and _converts(group)]
        return sum(self.seconds[group.output] for group in (*own, *fed))


def fastest_layers(
    model: Path, board: Board, target: Target, options: TuneOptions, on_event: JobListener
) -> PrecisionReport:
    """Tune both forms of each layer, and choose. Raises what tuning raises."""
    filed = _timed(model, board, target, options, on_event)
    layers = integer_layers(filed.graph)
    chosen: tuple[str, ...] = ()
    changed = filed
    if layers:
        floats = _timed(model, board, target, replace(options, floats=frozenset(layers)), on_event)
        chosen = tuple(name for name in layers if floats.layer_s(name) < FASTER * filed.layer_s(name))
    if chosen:
        changed = _timed(model, board, target, replace(options, floats=frozenset(chosen)), on_event)
        if changed.total_s >= filed.total_s:
            chosen, changed = (), filed
    with stage("precision", on_event) as running:
        outputs = _changes(filed.model, changed.model, options.tuning.seed) if chosen else ()
        report = PrecisionReport(chosen, len(layers), outputs)
        running.summary = report.text
    return report


def integer_layers(graph: Graph) -> tuple[str, ...]:
    """The names of nodes that multiply integers, in running order."""
    found = {}
    for node in graph.nodes:
        if node.op in ("Conv", "ConvTranspose", "MatMul"):
            data = graph.values[node.inputs[0]]
            if data.dtype in _INTEGERS and not data.constant:
                found[node.name] = True
    return tuple(found)


def _timed(model: Path, board: Board, target: Target, options: TuneOptions, on_event: JobListener) -> _Timed:
    with open_job(model, board, target, options, on_event) as job:
        baseline = stages.prepare(job)
        stages.announce(job, None)
        results, _ = stages.tune_tasks(job, baseline, None, None)
        confirm_s, _ = stages.after_tuning_s(job, results)
        tuned = stages.confirm_tasks(job, baseline, results, job.passed_s + confirm_s)
        best = {item.task.operator.key: item.winner.seconds for item in tuned}
        seconds = {group.output: best[group.operator.key] or float("inf") for group in job.graph.groups}
        return _Timed(job.model, job.graph, seconds)


def _converts(group: Group) -> bool:
    """Whether a group only makes floats of integers."""
    operator = group.operator
    reduces = any(isinstance(item.body, Reduce) for item in operator.stages)
    bytes_read = any(item.dtype in _INTEGERS for item in operator.inputs)
    return bytes_read and not reduces and operator.output.dtype == "float32"


def _changes(filed: Graph, changed: Graph, seed: int) -> tuple[ChangedOutput, ...]:
    """What changes of each output on random inputs, by the numpy reference."""
    found = dict.fromkeys(filed.outputs, Change())
    for number in range(SAMPLES):
        golden = golden_data(filed, np.random.default_rng([seed, number]))
        outputs = run_reference(changed, dict(zip(filed.inputs, golden.inputs, strict=True)))
        for name, expected in zip(filed.outputs, golden.outputs, strict=True):
            found[name] = found[name].with_sample(expected, outputs[name])
    return tuple(ChangedOutput(name, item.sqnr_db, item.agreement) for name, item in found.items())
