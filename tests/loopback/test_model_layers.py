"""A whole network through generated code, on a board: every layer's output against onnxruntime.

The library under test is the one a bundle holds, except that steps write to outputs of their own, so that as
many layers of one run can be compared as a board takes buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from benchmarks.seeded_model import write
from boards.board import Board
from cross.schedule import Configuration, ScheduleSpace, space_of
from device_runtime.protocol import MAX_BUFFERS, BufferRequest, MeasureRequest
from tests.fuzz.pocl import with_one_program
from tests.onnx_models import model, node, onnxruntime_values, random_inputs, save
from toolkit.bundle.build import build
from toolkit.bundle.manifest import TensorSpec
from toolkit.bundle.model_plan import BufferRef, Choice, Copy, Loop, ModelPlan, PlanStep, Step
from toolkit.bundle.pack import GOLDEN_RTOL
from toolkit.measure.builder import Builder
from toolkit.measure.session import open_session
from toolkit.model.distinct import distinct_operators
from toolkit.model.graph import Graph, Group, Region
from toolkit.model.load import adapted, load_model
from toolkit.model.memory import plan_memory
from toolkit.model_job.confirm import Winner
from toolkit.model_job.kernels import TunedOperator, plan_model
from toolkit.tuning.on_board import open_task
from toolkit.tuning.progress import TuningResult
from toolkit.tuning.time_breakdown import TimeBreakdown

Array = NDArray[Any]
LAYERS = 15  # of SqueezeNet at least; what a board's caches make chains of counts once
Pick = Callable[[ScheduleSpace, np.random.Generator], Configuration]


def written(step: Group | Region) -> Sequence[str]:
    """The values that a step writes, those of inner graphs left out."""
    return (step.output,) if isinstance(step, Group) else step.outputs


def with_layers(plan: ModelPlan, graph: Graph, layers: Sequence[str]) -> ModelPlan:
    """The plan with some values, the graph's outputs among them, in outputs of their own."""
    number = {graph.root(name): number for number, name in enumerate(layers)}
    place = {
        place.value: BufferRef("arena", place.offset_bytes)
        for place in plan_memory(graph, plan.alignment).placements
    }
    place |= {graph.root(name): BufferRef("output", number) for number, name in enumerate(graph.outputs)}
    planned, steps = iter(plan.steps), []
    for step in graph.steps:
        names = {graph.root(name) for name in (*step.inputs, *written(step))}
        moved = {place[name]: number[name] for name in names if name in number}
        while isinstance(found := next(planned), Copy):  # into a loop's carried values
            steps.append(with_buffers(found, moved))
        steps.append(with_buffers(found, moved))
    assert not list(planned)
    outputs = tuple(_spec(graph, name, number) for number, name in enumerate(layers))
    return replace(plan, steps=tuple(steps), outputs=outputs)


def with_buffers(step: PlanStep, moved: Mapping[BufferRef, int]) -> PlanStep:
    """The step with other outputs of the model in place of some buffers."""

    def of(ref: BufferRef) -> BufferRef:
        output = moved.get(BufferRef(ref.kind, ref.at))
        return ref if output is None else BufferRef("output", output, ref.offset, ref.strides)

    match step:
        case Step():
            return replace(step, buffers=tuple(of(ref) for ref in step.buffers))
        case Copy():
            return replace(step, source=of(step.source), target=of(step.target))
        case Loop():
            condition = step.condition and of(step.condition)
            return replace(
                step, condition=condition, steps=tuple(with_buffers(item, moved) for item in step.steps)
            )
        case Choice():
            raise AssertionError("the networks of this test have no choices: no layer of one always runs")


def _spec(graph: Graph, name: str, number: int) -> TensorSpec:
    value = graph.values[name]
    return TensorSpec(name=f"layer_{number}", shape=value.shape, dtype=value.dtype, layout="")


def expected_layers(graph: Graph, proto: Any, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """What onnxruntime computes for the layers whose memory stands for a value of the ONNX file."""
    layers = {graph.root(name) for step in graph.steps for name in written(step)}
    known = {
        name: value
        for name, value in graph.values.items()
        if value.source and graph.root(name) in layers and name not in graph.counts
    }
    sources = {
        name: value
        for name, value in known.items()
        if value.elements == graph.values[graph.root(name)].elements  # else it is a part
    }
    assert set(map(graph.root, sources)) == set(map(graph.root, known)), "parts are compared in their whole"
    found = onnxruntime_values(proto, inputs, {value.source for value in sources.values()})
    expected = {}
    for name, value in sources.items():
        array = found[value.source]
        physical = array.transpose(value.permutation) if value.permutation else array
        layer = graph.values[graph.root(name)]
        expected[layer.name] = np.ascontiguousarray(physical, layer.dtype).reshape(layer.shape)
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
    """Runs the model until each layer was an output once, and asserts it; returns how many were compared."""
    proto, target = onnx.load(path), board.target(None)
    graph = adapted(load_model(path), target)
    rng = np.random.default_rng(seed)
    found = []
    for item in distinct_operators(graph):
        task = open_task(item.name, item.operator, board, target)
        result = TuningResult(task.name, None, None, task.flops, 0, (), 0, TimeBreakdown(), TimeBreakdown())
        found.append(TunedOperator(task, result, Winner(pick(task.programs.space, rng), None, None)))

    with Builder(target, workers=2, timeout_s=120.0) as builder:
        whole = plan_model(graph, found, builder, target)
    if target.kind == "opencl":
        whole = with_one_program(whole)  # each program takes PoCL a second
    inputs = random_inputs(graph, seed=seed)
    expected = expected_layers(graph, proto, inputs)
    results = [graph.root(name) for name in graph.outputs]
    layers = dict.fromkeys(graph.root(name) for step in graph.steps for name in written(step))
    inner = [name for name in layers if name in expected and name not in results]
    size = MAX_BUFFERS - len(inputs) - len(results)
    with open_session(board, cache_dir=cache_dir, holder="test_model_layers") as session:
        for start in range(0, max(len(inner), 1), size):
            shown = [*inner[start : start + size], *results]
            plan = with_layers(whole, graph, shown)
            buffers = []
            for name in graph.inputs:
                data = np.ascontiguousarray(inputs[name])
                sha = session.put(data.tobytes())
                buffers.append(BufferRequest("input", str(data.dtype), data.size, sha))
            for name, spec in zip(shown, plan.outputs, strict=True):
                sha = session.put(expected[name].tobytes()) if name in expected else ""
                buffers.append(BufferRequest("output", spec.dtype, spec.elements, sha))
            request = MeasureRequest(
                module=session.put(build(plan, target).code),
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
            assert result.error is None, (result.error, shown)
    return len(expected)


@pytest.fixture(scope="module")
def squeezenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write("light_squeezenet", tmp_path_factory.mktemp("model") / "squeezenet.onnx", seed=7)


@pytest.mark.slow
@pytest.mark.parametrize("pick", [untuned, at_random])
def test_every_layer_of_squeezenet_on_this_machine(
    squeezenet: Path, local_board: Board, tmp_path: Path, pick: Pick
) -> None:
    assert check_on_board(local_board, squeezenet, 11, tmp_path, pick) >= LAYERS


@pytest.mark.emulated
@pytest.mark.slow
def test_every_layer_of_squeezenet_on_an_emulated_board(
    squeezenet: Path, emulated_board: Board, tmp_path: Path
) -> None:
    assert check_on_board(emulated_board, squeezenet, 12, tmp_path) >= LAYERS


@pytest.mark.slow
def test_every_layer_of_squeezenet_by_opencl(squeezenet: Path, pocl_board: Board, tmp_path: Path) -> None:
    assert check_on_board(pocl_board, squeezenet, 13, tmp_path) >= LAYERS


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
    return save(folder, model(nodes, {"x": (1, 16, 8, 12)}, ["y"], weights))


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
    halves = replace(target, storage="float16")
    board = replace(pocl_board, targets=(halves,))
    path = convolutions(tmp_path)
    graph, plain = adapted(load_model(path), board.target(None)), load_model(path)
    assert plan_memory(graph, 64).arena_bytes <= plan_memory(plain, 64).arena_bytes * 0.51
    assert {graph.values[name].dtype for name in (*graph.inputs, *graph.outputs)} == {"float32"}
    assert check_on_board(board, path, 18, tmp_path) >= 2
