"""What is counted from plans, against caches that are simulated access by access, and numbers by hand."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.counted.__main__ import main as counted
from benchmarks.counted.executed import cycles_of_log, executed_cycles
from benchmarks.counted.networks import Launches, balance, cycles, gpu_launches, programs, traffic
from benchmarks.counted.shares import PIECES, longest
from benchmarks.counted.traffic import chunks, kernel_traffic
from benchmarks.harness.place import board_with
from boards.board import load
from cross import native
from cross.expression import Operator, placeholder
from cross.expression.families.conv import conv2d, depthwise_conv
from cross.expression.families.window import Window
from cross.expression.language.terms import Int
from cross.loopnest.nodes import (
    Block,
    Buffer,
    For,
    Load,
    LoopKind,
    LoopNest,
    Scope,
    Statement,
    Store,
    Var,
    add,
    loads,
    mul,
)
from cross.loopnest.program import Programs
from cross.schedule.cpu_sketch import cpu_space
from tests.onnx_models import model, node, save
from toolkit.model.load import load_model

FLOAT = 4


def buffer(name: str, *shape: int) -> Buffer:
    return Buffer(name, tuple(Int(extent) for extent in shape), "float32", Scope.ARGUMENT)


def over(body: Statement, *loops: tuple[str, int], kind: LoopKind = LoopKind.SERIAL) -> Statement:
    for name, extent in reversed(loops):
        body = For(name, Int(extent), kind, body)
    return body


A, B, C = buffer("A", 8, 8), buffer("B", 8, 8), buffer("C", 8, 8)
ROW, COLUMN, TERM = Var("i"), Var("j"), Var("k")
SUM = add(Load(C, (ROW, COLUMN)), mul(Load(A, (ROW, TERM)), Load(B, (TERM, COLUMN))))
PRODUCT = Store(C, (ROW, COLUMN), SUM)
MATMUL = over(PRODUCT, ("i", 8), ("j", 8), ("k", 8))


def nest(body: Statement) -> LoopNest:
    return LoopNest("test", (A, B, C), (), Block((body,)), 0)


def addresses(statement: Statement, values: dict[str, int]) -> Iterator[tuple[object, ...]]:
    match statement:
        case For(name, Int(extent), _, body):
            for value in range(extent):
                yield from addresses(body, values | {name: value})
        case Block(inner):
            for item in inner:
                yield from addresses(item, values)
        case Store(to, indices, value):
            for load in (*loads(value), Load(to, indices)):
                places = (values[index.name] for index in load.indices if isinstance(index, Var))
                yield (load.buffer.name, *places)


def simulated(body: Statement, cache_bytes: int) -> int:
    """Elements fetched by a cache that pushes out what was used longest ago."""
    held: OrderedDict[tuple[object, ...], None] = OrderedDict()
    fetched = 0
    for address in addresses(body, {}):
        fetched += address not in held
        held.pop(address, None)
        held[address] = None
        if len(held) > cache_bytes // FLOAT:
            held.popitem(last=False)
    return fetched * FLOAT


@pytest.mark.parametrize("elements", [8, 24, 100, 192])
def test_what_moves_is_what_a_simulated_cache_fetches(elements: int) -> None:
    assert kernel_traffic(nest(MATMUL), elements * FLOAT) == simulated(MATMUL, elements * FLOAT)


def test_each_thread_fetches_its_own() -> None:
    parallel = over(over(PRODUCT, ("j", 8), ("k", 8)), ("i", 8), kind=LoopKind.PARALLEL)
    assert kernel_traffic(nest(parallel), 192 * FLOAT, threads=2) == (64 + 2 * 64 + 64) * FLOAT
    assert chunks(7, 3) == [3, 2, 2]


@pytest.mark.slow
def test_a_network_moves_at_least_what_it_has(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(64, 64)).astype(np.float32) for name in ("v", "w")}
    nodes = [node("MatMul", ["x", "v"], ["h"]), node("Relu", ["h"], ["r"]), node("MatMul", ["r", "w"], ["y"])]
    graph = load_model(save(tmp_path, model(nodes, {"x": (64, 64)}, ["y"], weights)))
    board, target = board_with(1, "rpi3b")
    nests = programs(graph, board, target)
    size = 64 * 64 * FLOAT
    roomy, tight = traffic(graph, nests, 1 << 20, 1), traffic(graph, nests, 3 * size, 1)
    assert (roomy.least, roomy.moved) == (4 * size, 4 * size)
    assert tight.least == 4 * size
    assert tight.moved >= roomy.moved
    alone = traffic(graph, nests, size // 2, 1)
    assert alone.moved == sum(kernel_traffic(nests[group.operator.key], size // 2) for group in graph.groups)
    assert alone.moved > roomy.moved
    assert balance(graph, nests, [1.0]) == 1.0


@pytest.mark.slow
@pytest.mark.emulated
def test_a_network_takes_the_cycles_of_all_that_its_kernels_execute(tmp_path: Path) -> None:
    weights = {name: np.ones((64, 64), np.float32) for name in ("v", "w")}
    board, target = board_with(1, "rpi3b")

    def spent(*nodes: onnx.NodeProto) -> float:
        graph = load_model(save(tmp_path, model(list(nodes), {"x": (64, 64)}, ["y"], weights)))
        return cycles(graph, programs(graph, board, target), target)

    least = 64**3 / (target.vector_bytes / FLOAT)
    one = spent(node("MatMul", ["x", "v"], ["y"]))
    assert least < one < 1.5 * least
    both = spent(
        node("MatMul", ["x", "v"], ["h"]), node("Tanh", ["h"], ["r"]), node("MatMul", ["r", "w"], ["y"])
    )
    assert 2 * one + 64 * 64 < both  # a tangent of four elements takes more than four cycles


@pytest.mark.parametrize("times", [1, 10])
def test_pieces_of_code_count_as_often_as_they_are_run(times: int) -> None:
    """A multiply-add to the accumulator of the one before it issues four cycles later."""
    translated = ["----------------", "IN: kernel", "0x00210520:  4e22cc20  fmla     v0.4s, v1.4s, v2.4s", ""]
    run = "Trace 0: 0x7f2e04000100 [00000000/0000000000210520/00000000/ff000000] kernel"
    assert cycles_of_log([*translated, *times * [run]]) == 4 * (times - 1)


@pytest.mark.slow
@pytest.mark.emulated
@pytest.mark.parametrize(("size", "channels", "taps"), [(14, 64, 3), (13, 48, 5)])
def test_untuned_convolutions_of_a_core_in_order_are_the_algorithms_with_the_fewest_cycles(
    size: int, channels: int, taps: int
) -> None:
    _, target = board_with(1, "rpi3b")
    data, weight = (
        placeholder((1, size, size, channels), "x"),
        placeholder((taps, taps, channels, channels), "w"),
    )
    window = Window(pads=(taps // 2,) * 4)
    space = cpu_space(Operator("conv", (data, weight), conv2d(data, weight, window), frozenset({1})), target)
    found = Programs(space)
    executed = [executed_cycles(found.nest(item), target) for item in space.defaults()]
    estimated = [part.space.cycles for part in space.parts]
    for ours, counted_all in zip(estimated, executed, strict=True):
        assert 0.9 * counted_all < ours < 1.6 * counted_all  # what comes from memory is in the estimate alone
    chosen = space.part_of(space.batch([space.default()])[0]).number
    assert executed[chosen] < 1.05 * min(executed) < 0.6 * executed[0]


@given(
    st.integers(1, 400),
    st.lists(st.sampled_from([0.25, 0.4, 0.8, 1.0]), min_size=1, max_size=8),
)
def test_helping_ends_no_later_than_a_piece_after_the_least_time(extent: int, speeds: list[float]) -> None:
    equal, helped = (longest(extent, speeds, helping=helping) for helping in (False, True))
    least = extent / sum(speeds)
    assert equal >= least * (1 - 1e-9) and helped >= least * (1 - 1e-9)
    piece = -(-chunks(extent, len(speeds))[0] // PIECES)  # the first of a share; no later one is longer
    assert helped <= max(least + piece / min(speeds), equal) * (1 + 1e-9)


def test_equal_cores_need_no_help() -> None:
    for extent in (1, 5, 16, 63, 64):
        assert longest(extent, [1.0] * 4, helping=True) == longest(extent, [1.0] * 4, helping=False)


def test_shares_are_counted_in_the_pieces_of_the_pool() -> None:
    (source,) = (path for path in native.SOURCES if path.stem == "pool")
    assert f"#define PIECES {PIECES}\n" in source.read_text()


def test_slow_cores_get_less_to_do() -> None:
    assert longest(60, [1.0, 0.25, 0.25], helping=False) == 80.0
    assert longest(60, [1.0, 0.25, 0.25], helping=True) <= 44.0  # 40 would be the least


@pytest.mark.parametrize("reach", ["0", "-1", "1.5", "nan", "half"])
def test_a_part_of_a_peak_is_one(reach: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        counted(["clusters", "--reach", reach])
    assert ended.value.code == 2 and "--reach" in capsys.readouterr().err


def test_launches_of_a_gpu_and_what_they_write(tmp_path: Path) -> None:
    """A softmax: one with shared memory; without it four, for largest, exponentials, sums and results."""
    graph = load_model(save(tmp_path, model([node("Softmax", ["x"], "y", axis=1)], {"x": (4, 64)}, ["y"])))
    found = {}
    for name in ("jetson-nano", "rock960"):
        board = load(name)
        target = next(item for item in board.targets if item.kind != "cpu")
        found[name] = gpu_launches(graph, programs(graph, board, target))
    assert found["jetson-nano"] == Launches(1, 4 * 4 * 64)
    assert found["rock960"] == Launches(4, 4 * (4 + 4 * 64 + 4 + 4 * 64))


def test_a_board_without_a_gpu_launches_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert counted(["launches", "--board", "rpi3b", "--only", "bert"]) == 2
    assert "expected one with a GPU target, found cpu" in capsys.readouterr().err


def test_clusters_that_are_none_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert counted(["clusters", "--target", "a72+mali", "--only", "bert"]) == 2
    assert "mali is no CPU" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.emulated
@pytest.mark.parametrize(("size", "taps", "most"), [(14, 3, 2.6), (14, 5, 2.4), (28, 3, 3.1)])
def test_untuned_depthwise_convolutions_of_a_core_in_order(size: int, taps: int, most: float) -> None:
    """Cycles for a multiply-add of four channels; with guards for every element they were 4.4 to 6.7."""
    channels = 32
    _, target = board_with(1, "rpi3b")
    data, weight = placeholder((1, size, size, channels), "x"), placeholder((taps, taps, channels), "w")
    output = depthwise_conv(data, weight, Window(pads=(taps // 2,) * 4))
    space = cpu_space(Operator("dw", (data, weight), output, frozenset({1})), target)
    spent = executed_cycles(Programs(space).nest(space.default()), target)
    assert spent < most * size**2 * taps**2 * channels / (target.vector_bytes / FLOAT)
