"""What is counted from plans, against caches that are simulated access by access, and numbers by hand."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.counted.__main__ import main as counted
from benchmarks.counted.networks import balance, cycles, programs, traffic
from benchmarks.counted.shares import PIECES, longest
from benchmarks.counted.traffic import chunks, kernel_traffic
from benchmarks.harness.place import board_with
from cross import native
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
    operations = 2 * 2 * 64**3
    assert operations / (2 * target.vector_bytes / FLOAT) <= cycles(graph, nests, target) < operations
    assert balance(graph, nests, [1.0]) == 1.0


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


def test_clusters_that_are_none_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert counted(["clusters", "--target", "a72+mali", "--only", "bert"]) == 2
    assert "mali is no CPU" in capsys.readouterr().err
