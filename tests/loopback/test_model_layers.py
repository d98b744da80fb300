"""A whole network through generated code, on a board: every layer's output against onnxruntime.

The library under test is the one a bundle holds, except that each step writes to an output of its own, so
that all layers of one run can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from benchmarks.seeded_model import write
from boards.board import Board
from cross.schedule import Configuration, ScheduleSpace, space_of
from device_runtime.protocol import BufferRequest, MeasureRequest
from tests.onnx_models import model, node, onnxruntime_values, random_inputs, save
from toolkit.bundle.build import build
from toolkit.bundle.manifest import TensorSpec
from toolkit.bundle.model_plan import BufferRef, ModelPlan, Step
from toolkit.bundle.pack import GOLDEN_RTOL
from toolkit.measure.builder import Builder
from toolkit.measure.session import open_session
from toolkit.model.distinct import distinct_operators
from toolkit.model.graph import Graph
from toolkit.model.half_storage import stored_for
from toolkit.model.load import load_model
from toolkit.model.memory import plan_memory
from toolkit.model_job.confirm import Winner
from toolkit.model_job.kernels import TunedOperator, plan_model
from toolkit.tuning.on_board import open_task
from toolkit.tuning.progress import TuningResult
from toolkit.tuning.time_breakdown import TimeBreakdown

Array = NDArray[Any]
Pick = Callable[[ScheduleSpace, np.random.Generator], Configuration]


def with_every_layer(plan: ModelPlan, graph: Graph) -> ModelPlan:
    """The plan with each step's result in an output of its own; later steps read it from there."""
    where: dict[BufferRef, BufferRef] = {}
    steps: list[Step] = []
    for number, (step, group) in enumerate(zip(plan.steps, graph.groups, strict=True)):
        assert step.layer == group.name
        reads = tuple(where.get(ref, ref) for ref in step.buffers[:-1])
        where[step.buffers[-1]] = BufferRef("output", number)
        steps.append(Step(step.symbol, (*reads, BufferRef("output", number)), step.layer))
    outputs = tuple(_spec(graph, group.output, number) for number, group in enumerate(graph.groups))
    return replace(plan, steps=tuple(steps), outputs=outputs, arena_bytes=0)


def _spec(graph: Graph, name: str, number: int) -> TensorSpec:
    value = graph.values[name]
    return TensorSpec(name=f"layer_{number}", shape=value.shape, dtype=value.dtype, layout="")


def expected_layers(graph: Graph, proto: Any, inputs: Mapping[str, Array]) -> dict[int, Array]:
    """What onnxruntime computes for the groups whose output stands for a value of the ONNX file."""
    sources = {number: graph.values[group.output] for number, group in enumerate(graph.groups)}
    names = {value.source for value in sources.values() if value.source}
    found = onnxruntime_values(proto, inputs, names)
    expected = {}
    for number, value in sources.items():
        if value.source:
            array = found[value.source]
            physical = array.transpose(value.permutation) if value.permutation else array
            expected[number] = np.ascontiguousarray(physical).reshape(value.shape)
    return expected


def untuned(space: ScheduleSpace, rng: np.random.Generator) -> Configuration:
    """The program of a model without records."""
    return space.default()


def at_random(space: ScheduleSpace, rng: np.random.Generator) -> Configuration:
    """Any program."""
    return space.configuration(space.sample(rng, 1)[0])


def last_algorithm(space: ScheduleSpace, rng: np.random.Generator) -> Configuration:
    """The untuned program of the algorithm named last: of convolutions Winograd's with large tiles."""
    return space.defaults()[-1]


def check_on_board(board: Board, path: Path, seed: int, cache_dir: Path, pick: Pick = untuned) -> int:
    """Runs all layers once on the board and asserts each; returns how many were compared."""
    proto, target = onnx.load(path), board.target(None)
    graph = stored_for(load_model(path), target)
    rng = np.random.default_rng(seed)
    found = []
    for item in distinct_operators(graph):
        task = open_task(item.name, item.operator, board, target)
        result = TuningResult(task.name, None, None, task.flops, 0, (), 0, TimeBreakdown(), TimeBreakdown())
        found.append(TunedOperator(task, result, Winner(pick(task.programs.space, rng), None, None)))

    with Builder(target, workers=2, timeout_s=120.0) as builder:
        whole = plan_model(graph, found, builder, target)
    plan = with_every_layer(whole, graph)
    built = build(plan, target)
    inputs = random_inputs(graph, seed=seed)
    expected = expected_layers(graph, proto, inputs)
    with open_session(board, cache_dir=cache_dir, holder="test_model_layers") as session:
        buffers = []
        for name in graph.inputs:
            data = np.ascontiguousarray(inputs[name])
            buffers.append(BufferRequest("input", str(data.dtype), data.size, session.put(data.tobytes())))
        for number, spec in enumerate(plan.outputs):
            known = number in expected
            sha = session.put(expected[number].astype(spec.dtype).tobytes()) if known else ""
            buffers.append(BufferRequest("output", spec.dtype, spec.elements, sha))
        request = MeasureRequest(
            module=session.put(built.code),
            symbol="tfb_model",
            buffers=tuple(buffers),
            workspace_bytes=plan.workspace_bytes,
            threads=target.threads,
            timeout_s=300.0,
            rtol=GOLDEN_RTOL[target.storage],
            driver=target.kind,
            device=target.device,
        )
        result = session.measure(request)
    assert result.error is None, result.error
    return len(expected)


@pytest.fixture(scope="module")
def squeezenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write("light_squeezenet", tmp_path_factory.mktemp("model") / "squeezenet.onnx", seed=7)


@pytest.mark.slow
@pytest.mark.parametrize("pick", [untuned, at_random])
def test_every_layer_of_squeezenet_on_this_machine(
    squeezenet: Path, local_board: Board, tmp_path: Path, pick: Pick
) -> None:
    assert check_on_board(local_board, squeezenet, 11, tmp_path, pick) >= 30


@pytest.mark.emulated
@pytest.mark.slow
def test_every_layer_of_squeezenet_on_an_emulated_board(
    squeezenet: Path, emulated_board: Board, tmp_path: Path
) -> None:
    assert check_on_board(emulated_board, squeezenet, 12, tmp_path) >= 30


@pytest.mark.slow
def test_every_layer_of_squeezenet_by_opencl(squeezenet: Path, pocl_board: Board, tmp_path: Path) -> None:
    assert check_on_board(pocl_board, squeezenet, 13, tmp_path) >= 30


def convolutions(folder: Path) -> Path:
    """A 3x3 convolution with ReLU, and a transposed one of what it gives."""
    rng = np.random.default_rng(5)
    weights = {
        "w1": rng.uniform(-0.1, 0.1, (16, 16, 3, 3)).astype(np.float32),
        "w2": rng.uniform(-0.1, 0.1, (16, 16, 4, 4)).astype(np.float32),
    }
    nodes = [
        node("Conv", ["x", "w1"], "c", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], "r"),
        node("ConvTranspose", ["r", "w2"], "y", strides=[2, 2], pads=[1, 1, 1, 1]),
    ]
    return save(folder, model(nodes, {"x": (1, 16, 9, 9)}, ["y"], weights))


@pytest.mark.slow
def test_layers_by_winograd_by_opencl(pocl_board: Board, tmp_path: Path) -> None:
    """Their weights are transformed when they are packed, their kernels are several launches each."""
    path = convolutions(tmp_path)
    operators = distinct_operators(load_model(path))
    found = [space_of(item.operator, pocl_board.target(None)) for item in operators]
    labels = {label for space in found for label in (space.knobs[0].labels or ())}
    assert {"F(4x4,3x3)", "F(4x4,2x2)"} <= labels
    assert check_on_board(pocl_board, path, 17, tmp_path, last_algorithm) >= 2


@pytest.mark.slow
def test_layers_stored_as_half_floats_by_opencl(pocl_board: Board, tmp_path: Path) -> None:
    """Weights and what layers hand on take half the memory; the network's own inputs and outputs do not."""
    (target,) = (item for item in pocl_board.targets if item.kind == "opencl")
    halves = msgspec.structs.replace(target, storage="float16")
    board = msgspec.structs.replace(pocl_board, targets=(halves,))
    path = convolutions(tmp_path)
    graph, plain = stored_for(load_model(path), board.target(None)), load_model(path)
    assert plan_memory(graph, 64).arena_bytes <= plan_memory(plain, 64).arena_bytes * 0.51
    assert {graph.values[name].dtype for name in (*graph.inputs, *graph.outputs)} == {"float32"}
    assert check_on_board(board, path, 18, tmp_path) >= 2
