"""Chains of arithmetic, several at a time, in order and out of it: the same results, few registers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.counted.executed import executed_cycles
from boards.board import load
from boards.target import IN_ORDER_CPUS, Target
from cross.codegen.instructions import (
    FENCE,
    Definition,
    Instruction,
    Line,
    Value,
    binary,
    call,
    element_pointer,
    integer,
    literal,
    literal_vector,
    load_from,
    text_of,
)
from cross.codegen.llvm.module import llvm_module
from cross.codegen.llvm.uses import reads_itself
from cross.codegen.scheduling.interleaving import interleaved
from cross.codegen.scheduling.side_by_side import GROUP, ONE_GROUP, REGISTERS, side_by_side
from cross.codegen.scheduling.stored_chains import LEAST
from cross.expression import Operator, Tensor, Term, placeholder, sigmoid, tanh
from cross.expression.families.conv import conv2d
from cross.expression.families.elementwise import apply, bias_add, combine, gelu
from cross.expression.families.window import Window
from cross.expression.language.terms import Const, Int
from cross.expression.reference import evaluate
from cross.loopnest import Programs
from cross.loopnest.nodes import Block, Buffer, Load, Scope, Store, Var
from cross.schedule import cpu_space
from tests.fuzz.kernels import Job, compile_jobs, run_emulated, run_here
from tests.targets import AVX2, EACH_HOST
from toolkit.measure import emulation

BOARD = load("emulated-a53")
TARGET = BOARD.target(None)
SSE = replace(AVX2, cpu="x86-64-v2", vector_bytes=16)
FLOAT, LANES = "float32", 4
INPUT, OUTPUT = Value("%x", "pointer"), Value("%y", "pointer")


def constant(value: float, lanes: int = LANES) -> Value:
    return literal_vector(literal(value, FLOAT), lanes)


def chains(count: int, length: int, *, from_outside: bool, lanes: int = LANES) -> list[Line]:
    """`count` stores, each of a sum and a chain of `length` products behind it; all add one bias."""
    lines: list[Line] = []

    def define(name: str, instruction: Instruction) -> Value:
        lines.append(Definition(name, instruction))
        return lines[-1].value

    bias = define("%bias", load_from(INPUT, FLOAT, lanes, 16))
    for number in range(count):
        value = Value(f"%sum{number}", FLOAT, lanes)
        if not from_outside:
            place = define(f"%p{number}", element_pointer(INPUT, FLOAT, integer(lanes * number + lanes)))
            value = define(f"%v{number}", load_from(place, FLOAT, lanes, 16))
        value = define(f"%b{number}", binary("fadd", value, bias))
        for step in range(length):
            terms = (value, constant(0.1 * step + 0.1, lanes), constant(1.0, lanes))
            value = define(f"%c{number}.{step}", call(f"llvm.fmuladd.v{lanes}f32", FLOAT, lanes, terms))
        place = define(f"%q{number}", element_pointer(OUTPUT, FLOAT, integer(lanes * number)))
        lines.append(Instruction("store", "", 1, (value, place), 16))
    return lines


def reordered(body: list[Line], target: Target = TARGET) -> tuple[list[Line] | None, list[int]]:
    """The lines in the order for a target, and how much memory was asked for."""
    counter, asked = itertools.count(), []

    def memory(count: int) -> Value:
        asked.append(count)
        return Value("%stack", "pointer")

    def fresh(hint: str) -> str:
        return f"%{hint}.{next(counter)}"

    if target == TARGET:
        return interleaved(body, fresh, memory), asked
    return side_by_side(body, target, fresh, memory), asked


@pytest.mark.parametrize("target", [TARGET, AVX2, SSE], ids=lambda target: target.cpu)
@pytest.mark.parametrize("from_outside", [True, False])
@pytest.mark.parametrize("count", [2, 7, 24])
def test_each_line_follows_what_it_reads_and_none_is_lost(
    count: int, from_outside: bool, target: Target
) -> None:
    body = chains(count, 9, from_outside=from_outside, lanes=target.vector_lanes())
    after, asked = reordered(body, target)
    assert after is not None
    outside = {"%x", "%y", "%stack", *(f"%sum{number}" for number in range(count))}
    seen = set(outside)
    for line in after:
        instruction = line.instruction if isinstance(line, Definition) else line
        assert isinstance(instruction, Instruction)
        assert seen.issuperset(instruction.uses)
        if isinstance(line, Definition):
            assert line.name not in seen
            seen.add(line.name)
    names = [line.name for line in body if isinstance(line, Definition)]
    assert seen.issuperset(names)
    stores = [line for line in after if isinstance(line, Instruction) and line != FENCE]
    assert len(stores) == count + sum(asked)  # those that wait are stored on the stack, too
    first = GROUP if target == AVX2 else 0  # chains whose sums need not wait
    assert asked == ([count - first] if from_outside and count > 7 else [])


def test_what_no_store_needs_stays_behind_what_it_reads() -> None:
    body = chains(6, 9, from_outside=False)
    last = [
        Definition(f"%unused{n}", binary("fmul", (v := Value(f"%c{n}.3", FLOAT, LANES)), v)) for n in range(6)
    ]
    after, _ = reordered([*body, *last])
    assert after is not None
    assert [line for line in after if isinstance(line, Definition)][-6:] == last


def test_what_waits_on_the_stack_has_its_bias_already() -> None:
    """So the bias needs no register while the chains run, and none is loaded twice."""
    after, _ = reordered(chains(24, 9, from_outside=True))
    assert after is not None
    passed = next(
        place
        for place, line in enumerate(after)
        if isinstance(line, Definition) and line.instruction.op == "asm sideeffect"
    )
    behind = [line.instruction for line in after[passed:] if isinstance(line, Definition)]
    assert not any(instruction.op == "fadd" for instruction in behind)
    assert sum(instruction.op == "load" for instruction in behind) == 24


def test_chains_are_under_way_together() -> None:
    after, _ = reordered(chains(6, 12, from_outside=False))
    assert after is not None
    steps = [line.name for line in after if isinstance(line, Definition) and line.name.startswith("%c")]
    changes = sum(one[:3] != other[:3] for one, other in itertools.pairwise(steps))
    assert changes > len(steps) / 2


@pytest.mark.parametrize("count", [7, 12])
def test_out_of_order_four_steps_in_a_row_wait_for_nothing(count: int) -> None:
    """Up to ONE_GROUP chains go together."""
    after, _ = reordered(chains(count, 12, from_outside=False, lanes=8), AVX2)
    assert after is not None
    steps = [line.name for line in after if isinstance(line, Definition) and line.name.startswith("%c")]
    size = count if count <= ONE_GROUP else GROUP
    wanted = [
        f"%c{number}.{step}"
        for first in range(0, count, size)
        for step in range(12)
        for number in range(first, min(first + size, count))
    ]
    assert steps == wanted


def test_targets_with_registers_for_the_constants_keep_their_order() -> None:
    body = chains(12, 12, from_outside=True, lanes=16)
    for target in (
        replace(AVX2, vector_registers=32, vector_bytes=64),
        replace(AVX2, triple="armv7-unknown-linux-gnueabihf", vector_bytes=64),
    ):
        assert reordered(body, target) == (None, [])


BODIES: dict[str, Callable[[int], list[Line]]] = {
    "one store": lambda lanes: chains(1, 12, from_outside=False, lanes=lanes),
    "short chains": lambda lanes: chains(4, LEAST // 2 - 4, from_outside=False, lanes=lanes),
    "other vectors": lambda lanes: chains(4, 12, from_outside=False, lanes=2 * lanes),
    "text": lambda lanes: ["  ; text", *long_chains(lanes)],
    "a call": lambda lanes: [
        Definition("%n", call("sinf", FLOAT, 1, [literal(1.0, FLOAT)])), *long_chains(lanes)
    ],
    "another store": lambda lanes: [
        *long_chains(lanes), Instruction("streamed store", "", 1, (Value("%sum", FLOAT, lanes), OUTPUT), 16)
    ],
}  # fmt: skip


def long_chains(lanes: int) -> list[Line]:
    return chains(4, 12, from_outside=False, lanes=lanes)


@pytest.mark.parametrize("target", [TARGET, AVX2, SSE], ids=lambda target: target.cpu)
@pytest.mark.parametrize("what", BODIES)
def test_other_bodies_are_left_alone(what: str, target: Target) -> None:
    assert reordered(long_chains(target.vector_lanes()), target)[0] is not None
    assert reordered(BODIES[what](target.vector_lanes()), target)[0] is None


def pointwise(function: Callable[[Term], Term], *, residual: bool = False, channels: int = 24) -> Operator:
    data, weight = placeholder((1, 14, 14, 8), "X"), placeholder((1, 1, 8, channels), "W")
    bias, inputs = placeholder((channels,), "b"), []
    output: Tensor = bias_add(conv2d(data, weight, Window()), bias)
    if residual:
        inputs.append(placeholder(output.shape, "R"))
        output = combine(lambda x, y: x + y, output, inputs[0], "sum")
    output = apply(function, output, "f")
    return Operator("pointwise", (data, weight, bias, *inputs), output, frozenset({1, 2}))


FUNCTIONS: dict[str, Callable[[Term], Term]] = {
    "silu": lambda x: x * sigmoid(x), "gelu": gelu, "tanh": tanh, "sigmoid": sigmoid,
}  # fmt: skip


def drawn_kernels(target: Target, residual: bool) -> tuple[list[Job], list[np.ndarray], int]:
    """Untuned programs and drawn ones, what they compute, and how many of them keep sums on the stack."""
    rng, jobs, wanted, parked = np.random.default_rng(5), list[Job](), [], 0
    for function in FUNCTIONS.values():
        operator = pointwise(function, residual=residual)
        space = cpu_space(operator, target)
        inputs = [rng.uniform(-2, 2, item.shape).astype(np.float32) for item in operator.inputs]
        for configuration in [space.default(), *map(space.configuration, space.sample(rng, 5))]:
            jobs.append(Job(Programs(space).nest(configuration), inputs))
            parked += "%vectors" in llvm_module("f", jobs[-1].nest, target)
            wanted.append(evaluate(operator, inputs))
    return jobs, wanted, parked


@pytest.mark.emulated
@pytest.mark.parametrize("residual", [False, True])
def test_kernels_in_order_compute_what_the_operator_says(residual: bool, tmp_path: Path) -> None:
    paths = emulation.find()
    if paths is None:
        pytest.skip("no emulation here; `make emulation` fetches it")
    jobs, wanted, parked = drawn_kernels(TARGET, residual)
    assert parked >= 4
    outputs = run_emulated(compile_jobs(jobs, TARGET), jobs, tmp_path, paths.command(BOARD.link.command))
    for got, want in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("target", EACH_HOST)
@pytest.mark.parametrize("residual", [False, True])
def test_kernels_here_compute_what_the_operator_says(residual: bool, target: Target, tmp_path: Path) -> None:
    jobs, wanted, parked = drawn_kernels(target, residual)
    few = target.triple.startswith("x86_64") and target.vector_registers == REGISTERS
    assert (parked >= 4) is (few or target.cpu in IN_ORDER_CPUS)
    for got, want in zip(run_here(compile_jobs(jobs, target), jobs, tmp_path), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("target", EACH_HOST)
def test_vectors_of_a_loop_go_side_by_side(target: Target, tmp_path: Path) -> None:
    x = placeholder((3, 71), "x")
    few = target.triple.startswith("x86_64") and target.vector_registers == REGISTERS
    rng, jobs, wanted = np.random.default_rng(9), list[Job](), []
    for function in FUNCTIONS.values():
        operator = Operator("loop", (x,), apply(function, x, "f"))
        space = cpu_space(operator, target)
        jobs.append(
            Job(Programs(space).nest(space.default()), [rng.uniform(-9, 9, x.shape).astype(np.float32)])
        )
        wanted.append(evaluate(operator, jobs[-1].inputs))
        assert (text_of(FENCE) in llvm_module("f", jobs[-1].nest, target)) is few
    for got, want in zip(run_here(compile_jobs(jobs, target), jobs, tmp_path), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=5e-6)


@pytest.mark.parametrize(("scope", "reads"), [(Scope.LOCAL, True), (Scope.REGISTER, False)])
def test_bodies_that_read_what_they_store_in_memory_stay_as_they_are(scope: Scope, reads: bool) -> None:
    here = (Var("i"),)
    kept, result = (Buffer(name, (Int(8),), FLOAT, scope) for name in ("kept", "result"))
    result = replace(result, scope=Scope.ARGUMENT)
    stores = Store(kept, here, Load(result, (Int(0),))), Store(result, here, Load(kept, here))
    assert reads_itself(Block(stores[1:])) is False
    assert reads_itself(Block((Store(kept, here, Const(1.0, FLOAT)), stores[1]))) is reads
    assert reads_itself(Block(stores))


@pytest.mark.emulated
def test_a_silu_costs_few_cycles() -> None:
    """By the issue model: some 30 a vector of four, where one behind the other takes 88."""
    if emulation.find() is None:
        pytest.skip("no emulation here; `make emulation` fetches it")
    cycles = []
    for function in (FUNCTIONS["silu"], lambda x: x):
        space = cpu_space(operator := pointwise(function), TARGET)
        cycles.append(executed_cycles(Programs(space).nest(space.default()), TARGET))
    vectors = operator.output.elements / LANES
    assert 20 < (cycles[0] - cycles[1]) / vectors < 36
