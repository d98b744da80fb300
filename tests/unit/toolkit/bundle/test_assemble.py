"""From a graph and kernels to a plan: packed weights, shared memory, a library that computes the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from benchmarks.seeded_model import write
from tests.bundles import host_target
from tests.model_libraries import kernels, run_library
from tests.onnx_models import model, node, onnxruntime_values, random_inputs, save
from tests.quick import others_slow
from toolkit.bundle.assemble import OperatorKernel, assemble
from toolkit.bundle.model_plan import ModelPlan
from toolkit.errors import InputError
from toolkit.model.graph import Graph
from toolkit.model.load import load_model
from toolkit.model.memory import ALIGNMENT_BYTES

Array = NDArray[Any]
RNG = np.random.default_rng(21)


def weight(*shape: int) -> Array:
    return RNG.uniform(-1.0, 1.0, shape).astype(np.float32)


def network() -> Any:
    """Equal convolutions, a residual, groups, a concatenation, a flattening, a product, two outputs."""
    nodes = [
        node("Conv", ["x", "w", "b"], "a", pads=[1, 1, 1, 1]),
        node("Relu", ["a"], "r"),
        node("Conv", ["r", "w2", "b2"], "c", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], "c2"),
        node("Conv", ["c2", "w2", "b2"], "d", pads=[1, 1, 1, 1]),
        node("Add", ["d", "r"], "s"),
        node("Conv", ["s", "g"], "e", group=2),
        node("Concat", ["e", "r"], "f", axis=1),
        node("MaxPool", ["f"], "p", kernel_shape=[3, 3], strides=[2, 2]),
        node("Flatten", ["p"], "h"),
        node("Gemm", ["h", "v", "o"], "y"),
        node("Sigmoid", ["p"], "z"),
    ]
    weights = {
        "w": weight(8, 3, 3, 3),
        "b": weight(8),
        "w2": weight(8, 8, 3, 3) / 4,
        "b2": weight(8),
        "g": weight(8, 4, 1, 1),
        "v": weight(16 * 16, 10) / 8,
        "o": weight(10),
    }
    return model(nodes, {"x": (1, 3, 9, 9)}, ["y", "z"], weights)


def check(plan: ModelPlan, graph: Graph, proto: Any, folder: Path) -> None:
    inputs = random_inputs(graph, seed=4)
    got, want = run_library(plan, inputs, folder), onnxruntime_values(proto, inputs, graph.outputs)
    for name in graph.outputs:
        error = np.abs(got[name] - want[name]).max()
        assert error <= 1e-4 * np.abs(want[name]).max(), (name, error)


@pytest.fixture(scope="module")
def proto() -> Any:
    return network()


@pytest.fixture(scope="module")
def graph(proto: Any, tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return load_model(save(tmp_path_factory.mktemp("model"), proto))


@pytest.fixture(scope="module")
def default_kernels(graph: Graph) -> dict[str, OperatorKernel]:
    return kernels(graph)


@pytest.mark.parametrize("seed", others_slow([None, 1, 2], 1))
def test_the_library_computes_the_network(seed: int | None, graph: Graph, proto: Any, tmp_path: Path) -> None:
    chosen = kernels(graph, None if seed is None else np.random.default_rng(seed))
    check(assemble(graph, chosen, host_target()), graph, proto, tmp_path)


@pytest.mark.parametrize("algorithm", [1, 2])
def test_weights_of_winograd_kernels_are_transformed_ahead_of_time(algorithm: int, tmp_path: Path) -> None:
    """Two layers with bias, ReLU and a residual, on an image that no tile divides."""
    nodes = [
        node("Conv", ["x", "w", "b"], "a", pads=[1, 1, 1, 1]),
        node("Relu", ["a"], "r"),
        node("Conv", ["r", "w2", "b2"], "c", pads=[1, 1, 1, 1]),
        node("Add", ["c", "r"], "s"),
        node("Relu", ["s"], "y"),
    ]
    weights = {"w": weight(16, 16, 3, 3), "b": weight(16), "w2": weight(16, 16, 3, 3), "b2": weight(16)}
    proto = model(nodes, {"x": (1, 16, 11, 9)}, ["y"], weights)
    graph = load_model(save(tmp_path, proto))
    chosen = kernels(graph, algorithm=algorithm)
    maps = [packing.maps for kernel in chosen.values() for packing in kernel.packings if packing is not None]
    assert [len(matrix) for pair in maps for _, matrix in pair] == [2 * algorithm + 2] * 4
    check(assemble(graph, chosen, host_target()), graph, proto, tmp_path)


def test_a_plan_names_what_it_runs(graph: Graph, default_kernels: dict[str, OperatorKernel]) -> None:
    plan = assemble(graph, default_kernels, host_target())
    assert [spec.name for spec in plan.inputs] == ["x"]
    assert [(spec.name, spec.layout) for spec in plan.outputs] == [("y", ""), ("z", "NCHW")]
    assert [step.layer for step in plan.steps] == [group.name for group in graph.groups]
    layers = [layer for kernel in plan.kernels for layer in kernel.provenance.layers]
    assert sorted(set(layers)) == sorted({name for group in graph.groups for name in group.nodes})
    assert len(plan.kernels) == len({group.operator.key for group in graph.groups})


def test_no_step_writes_what_it_reads(graph: Graph, default_kernels: dict[str, OperatorKernel]) -> None:
    plan = assemble(graph, default_kernels, host_target())
    for step in plan.steps:
        assert step.buffers[-1] not in step.buffers[:-1], step.layer
        assert step.buffers[-1].kind in ("arena", "output")


def test_equal_weights_are_stored_once(graph: Graph, default_kernels: dict[str, OperatorKernel]) -> None:
    """Both convolutions with `w2` and `b2` read the same bytes, once for each way to pack them."""
    plain = {
        key: replace(kernel, packings=(None,) * len(kernel.packings))
        for key, kernel in default_kernels.items()
    }
    plan = assemble(graph, plain, host_target())
    distinct = {graph.values[name].data.tobytes() for name in graph.constants if name_used(graph, name)}  # type: ignore[union-attr]
    expected = sum(-(-len(content) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for content in distinct)
    assert len(plan.parameters) == expected


def name_used(graph: Graph, name: str) -> bool:
    return any(name in group.inputs for group in graph.groups)


def test_a_missing_kernel_is_named(graph: Graph) -> None:
    with pytest.raises(
        InputError, match=r"needs a kernel for the operator [0-9a-f]{16} .*compile one for each"
    ):
        assemble(graph, {}, host_target())


def test_a_computed_input_cannot_be_packed(graph: Graph, default_kernels: dict[str, OperatorKernel]) -> None:
    group = next(group for group in graph.groups if group.operator.name == "conv")
    chosen = default_kernels[group.operator.key]
    packing = next(packing for packing in chosen.packings if packing is not None)
    wrong = OperatorKernel(chosen.planned, (packing, *chosen.packings[1:]))
    with pytest.raises(InputError, match="computed at run time"):
        assemble(graph, {**default_kernels, group.operator.key: wrong}, host_target())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "inception_v1"])
def test_a_whole_network(name: str, tmp_path: Path) -> None:
    path = write(f"light_{name}", tmp_path / f"{name}.onnx", seed=0)
    graph = load_model(path)
    check(assemble(graph, kernels(graph), host_target()), graph, onnx.load(str(path)), tmp_path)
