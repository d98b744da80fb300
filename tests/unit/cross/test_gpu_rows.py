"""Row by row in one launch: softmax, normalizations and sums on GPUs."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from boards.board import load
from boards.target import Target
from cross.codegen.c.gpu_code import gpu_program
from cross.expression import Operator, Tensor, placeholder
from cross.expression.families.norm import euclidean_norm, layer_norm, log_softmax, normalize, softmax
from cross.expression.families.pool import reduce
from cross.expression.reference import evaluate
from cross.inspection.gpu_launches import inspect_gpu
from cross.loopnest import Programs, verify
from cross.loopnest.nodes import For, LoopKind, Statement, statements
from cross.loopnest.threads import launches, region
from cross.schedule import ScheduleSpace, gpu_space
from tests.fuzz.operators import random_inputs
from tests.interpreter.interpreter import interpret

JETSON = load("jetson-nano").target("gpu")
H100 = load("h100").target("gpu")
SAMPLES = 6


def of(make: Callable[[Tensor], Tensor], *shape: int) -> Operator:
    data = placeholder(shape, "X")
    return Operator("rows", (data,), make(data))


def layer_norm_of(*shape: int) -> Operator:
    data, scale, shift = placeholder(shape, "X"), placeholder(shape[-1:], "a"), placeholder(shape[-1:], "b")
    return Operator("rows", (data, scale, shift), layer_norm(data, scale, shift))


OPERATORS = {
    "softmax": of(lambda x: softmax(x, 2), 2, 5, 96),
    "softmax of a short row": of(lambda x: softmax(x, 1), 37, 12),
    "softmax of one row": of(lambda x: softmax(x, 1), 1, 300),
    "softmax across memory": of(lambda x: softmax(x, 1), 2, 40, 24),
    "log softmax": of(lambda x: log_softmax(x, 1), 9, 77),
    "layer norm": layer_norm_of(1, 11, 80),
    "instance norm": of(lambda x: normalize(x, (1, 2)), 2, 5, 33, 12),
    "group norm": of(lambda x: normalize(x, (1, 3)), 2, 34, 4, 6),
    "euclidean norm": of(lambda x: euclidean_norm(x, (1,)), 6, 130),
    "sum": of(lambda x: reduce(x, (1,), "sum"), 10, 70),
    "mean of an image": of(lambda x: reduce(x, (1, 2), "sum"), 1, 9, 34, 20),
    "sum of all": of(lambda x: reduce(x, (0, 1), "sum"), 40, 6),
}


def algorithms(space: ScheduleSpace) -> list[str]:
    return [part.label for part in space.parts]


def with_shared_memory(size_bytes: int) -> Target:
    assert JETSON.gpu is not None
    limits = msgspec.structs.replace(JETSON.gpu, shared_memory_bytes=size_bytes)
    found: Target = msgspec.structs.replace(JETSON, gpu=limits)
    return found


def check_one_launch(space: ScheduleSpace, count: int, tolerance: float) -> None:
    """Random programs of a space are one launch each, which takes the shared memory that the space says, and
    compute what the operator says."""
    inputs = random_inputs(space.operator, np.random.default_rng(1))
    want = evaluate(space.operator, inputs)
    rule = next(item for item in space.constraints if item.name.endswith(".shared"))
    programs, rows = Programs(space), space.sample(np.random.default_rng(2), count)
    assert rule.needed is not None and len(rows)
    for row, needed in zip(rows, rule.needed(space.values(rows)), strict=True):
        nest = programs.nest(space.configuration(row))
        verify(nest)
        (launch,) = gpu_program("k", nest, space.target).functions
        assert launch.shared_bytes == needed
        np.testing.assert_allclose(interpret(nest, inputs), want, rtol=tolerance, atol=tolerance / 20)


@pytest.mark.parametrize("name", OPERATORS)
def test_every_program_computes_what_the_operator_says(name: str) -> None:
    """And is one launch, whose shared memory is what the space says it is."""
    spaces = [part.space for part in gpu_space(OPERATORS[name], JETSON).parts if part.label != "direct"]
    assert spaces
    for space in spaces:
        check_one_launch(space, SAMPLES, 2e-5)


@pytest.mark.parametrize("target", [JETSON, H100], ids=["jetson", "h100"])
@pytest.mark.parametrize("name", ["softmax", "layer norm", "softmax of a short row"])
def test_the_untuned_program_is_one_launch(name: str, target: Target) -> None:
    space = gpu_space(OPERATORS[name], target)
    (launch,) = launches(Programs(space).nest(space.default()))
    assert launch.threads % 32 == 0


def test_as_many_threads_as_each_has_terms_come_first() -> None:
    assert algorithms(gpu_space(of(lambda x: softmax(x, 1), 8, 768), H100))[0] == "across 32 threads"
    assert algorithms(gpu_space(of(lambda x: softmax(x, 1), 8, 20000), H100))[0] == "across 128 threads"


def test_a_gpu_of_many_processors_gets_smaller_blocks() -> None:
    blocks = []
    for target in (JETSON, H100):
        space = gpu_space(layer_norm_of(1, 128, 768), target)
        (launch,) = launches(Programs(space).nest(space.default()))
        blocks.append(launch.block_count)
    assert blocks == [32, 128]


def test_what_does_not_fit_shared_memory_is_computed_twice() -> None:
    """Exponentials of a row of 1,000 floats take 4,000 bytes."""
    operator = of(lambda x: softmax(x, 1), 4, 1000)
    buffers = {}
    for size in (8192, 2048):
        space = gpu_space(operator, with_shared_memory(size))
        nest = Programs(space).nest(space.default())
        (launch,) = gpu_program("k", nest, JETSON).functions
        buffers[size] = launch.shared_bytes
        inputs = random_inputs(operator, np.random.default_rng(1))
        np.testing.assert_allclose(interpret(nest, inputs), evaluate(operator, inputs), rtol=2e-5, atol=1e-6)
    assert buffers[8192] > 4000 > buffers[2048]


@pytest.mark.parametrize("target", [JETSON, H100], ids=["jetson", "h100"])
def test_cubins_of_untuned_programs_keep_the_limits_of_the_board(target: Target) -> None:
    for operator in (of(lambda x: softmax(x, 2), 4, 128, 128), layer_norm_of(1, 128, 768)):
        space = gpu_space(operator, target)
        (launch,) = inspect_gpu("k", Programs(space).nest(space.default()), target)
        assert launch.registers and max(launch.shares(target).values()) <= 1.0


def test_without_room_for_a_row_every_stage_is_a_launch() -> None:
    assert algorithms(gpu_space(of(lambda x: softmax(x, 1), 4, 1000), with_shared_memory(64))) == ["direct"]


def test_neighbouring_threads_read_neighbouring_elements() -> None:
    """The innermost loop over threads is over rows where rows lie across memory, otherwise over a row."""
    for name, inner in (("softmax", "lane"), ("softmax across memory", "i2"), ("mean of an image", "i3")):
        space = gpu_space(OPERATORS[name], JETSON).parts[0].space
        (launch,) = launches(Programs(space).nest(space.default()))
        assert inner in innermost_thread(launch.body), name


def innermost_thread(statement: Statement) -> str:
    """The variable of the innermost loop over threads of the first region."""
    loops = [item for item in statements(statement) if isinstance(item, For) and item.kind is LoopKind.THREAD]
    return region(loops[0])[0][-1].var
