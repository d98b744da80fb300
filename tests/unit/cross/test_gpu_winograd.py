"""Winograd convolution on GPUs: stages with flat tiles, programs, and what stands in their sources."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from boards.board import load
from boards.target import Target
from cross.codegen.c.gpu_code import gpu_program
from cross.expression import Operator, placeholder
from cross.expression.families.conv import conv2d
from cross.expression.families.elementwise import apply, combine
from cross.expression.families.transposed import Transposed, phases, transposed_conv
from cross.expression.families.window import Window
from cross.expression.reference import evaluate
from cross.expression.rewrites.winograd.flat import with_flat_tiles
from cross.expression.rewrites.winograd.form import winograd_form
from cross.loopnest import Programs, lower, verify
from cross.loopnest.bind import bind
from cross.nvrtc import compile_cubin, usage
from cross.schedule import ScheduleSpace, cpu_space, gpu_space, space_of
from cross.schedule.space import Configuration
from cross.schedule.winograd.gpu import gpu_winograd_spaces
from tests.interpreter.interpreter import interpret
from tests.targets import AVX2
from tests.unit.cross.test_winograd import convolution, every_structure, relative_error, uniform

POCL, MALI, NANO = (
    load("pocl").target(None),
    load("rock960").target("mali"),
    load("jetson-nano").target("gpu"),
)
LIMIT = 1e-4  # of the largest magnitude in the result, as for every kernel


def transposed() -> Operator:
    """A 4x4 kernel with stride 2, as in DCGAN, with ReLU."""
    found = [phases(extent, Transposed(4, 2, (1, 1))) for extent in (7, 6)]
    data = placeholder((1, *(item.extent for item in found), 16), "X")
    weight = placeholder((*(item.stride for item in found), *(item.taps for item in found), 16, 17), "W")
    output = apply(lambda value: value * 0.5, transposed_conv(data, weight, found), "half")
    return Operator("transposed", (data, weight), output, frozenset({1}))


def residual() -> Operator:
    """5 x 11 outputs are rounded up to whole tiles, the other operand of the addition is not.

    What is padded is computed, too.
    """
    data, weight = placeholder((1, 5, 11, 16), "X"), placeholder((3, 3, 16, 16), "W")
    other = placeholder((1, 5, 11, 16), "R")
    shifted = apply(lambda value: value - 0.5, data, "shifted")
    convolved = conv2d(shifted, weight, Window(pads=(2, 1, 0, 1)))
    output = combine(lambda left, right: left + right, convolved, other, "add")
    return Operator("conv", (data, weight, other), output, frozenset({1}))


def unpadded() -> Operator:
    """The transform reads what is computed element by element, without a padding."""
    data, weight = placeholder((1, 10, 7, 16), "X"), placeholder((3, 3, 16, 16), "W")
    output = conv2d(apply(lambda value: value * 2.0, data, "twice"), weight, Window())
    return Operator("conv", (data, weight), output, frozenset({1}))


def without_any_padding() -> Operator:
    data, weight = placeholder((2, 6, 10, 16), "X"), placeholder((3, 3, 16, 32), "W")
    return Operator("conv", (data, weight), conv2d(data, weight, Window()), frozenset({1}))


OPERATORS = {
    "3x3": convolution((2, 5, 7, 16), 19),
    "transposed": transposed(),
    "residual": residual(),
    "unpadded": unpadded(),
    "no padding": without_any_padding(),
    "3x1": convolution((2, 9, 11, 16), 19, (1, 0, 1, 0), (3, 1)),
    "1x3": convolution((1, 1, 40, 16), 17, (0, 2, 0, 1), (1, 3)),
    "4x4": convolution((2, 9, 12, 16), 19, (1, 2, 2, 1), (4, 4)),
    "stride 2": convolution((2, 15, 17, 16), 17, (1, 1, 1, 1), (3, 3), (2, 2)),
}


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("name", OPERATORS)
def test_flat_tiles_compute_the_same(name: str, tile: int) -> None:
    operator = OPERATORS[name]
    form = winograd_form(operator, tile)
    assert form is not None
    inputs = uniform(operator)
    flat = with_flat_tiles(form.operator)
    assert relative_error(evaluate(flat, form.inputs(inputs)), evaluate(operator, inputs)) < 1e-6
    data, products = (stage for stage in flat.stages if stage.name.endswith((".data", ".products")))
    assert [len(data.shape), len(products.shape) - len(form.operator.inputs[1].shape)] == [4, 0]


def spaces(operator: Operator, target: Target = POCL) -> dict[str, ScheduleSpace]:
    assert target.gpu is not None
    return gpu_winograd_spaces(operator, target, target.gpu)


def check(operator: Operator, space: ScheduleSpace, configurations: Sequence[Configuration]) -> None:
    """The verifier passes, and the interpreter equals float64."""
    inputs, programs = uniform(operator), Programs(space)
    want = evaluate(operator, inputs)
    for configuration in configurations:
        verify(programs.parametric(programs.structure(configuration)).nest, parametric=True)
        nest = programs.nest(configuration)
        verify(nest)
        assert relative_error(interpret(nest, inputs), want) < LIMIT
        assert gpu_program("kernel", nest, space.target).functions


def test_windows_of_five_have_one_algorithm() -> None:
    operator = convolution((1, 8, 9, 16), 16, (2, 2, 2, 2), (5, 5))
    found = spaces(operator)
    assert list(found) == ["F(2x2,5x5)"]
    check(operator, found["F(2x2,5x5)"], [found["F(2x2,5x5)"].default()])


@pytest.mark.parametrize(
    ("kernel", "strides", "names"),
    [
        ((3, 3), (1, 1), ["F(2x2,3x3)", "F(4x4,3x3)"]),  # no F(5x5,3x3)
        ((4, 4), (1, 1), ["F(2x2,4x4)"]),  # no F(4x4,4x4)
        ((4, 4), (2, 2), []),  # no space to depth
    ],
)
def test_algorithms_that_no_gpu_was_measured_with_are_for_cpus(
    kernel: tuple[int, int], strides: tuple[int, int], names: list[str]
) -> None:
    operator = convolution((1, 20, 20, 16), 16, (1, 1, 1, 1), kernel, strides)
    assert list(spaces(operator)) == names
    assert len(cpu_space(operator, AVX2).parts) > 1 + len(names)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
def test_every_structure_computes_the_convolution(name: str) -> None:
    found = spaces(OPERATORS[name])
    assert len(found) >= 1
    space = found[max(found)]
    check(OPERATORS[name], space, every_structure(space, np.random.default_rng(2)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["3x3", "transposed"])
@pytest.mark.parametrize("target", [POCL, MALI, NANO], ids=["pocl", "mali", "nano"])
def test_the_untuned_program_computes_the_convolution(name: str, target: Target) -> None:
    for space in spaces(OPERATORS[name], target).values():
        assert space.valid(space.batch([space.default()])).all()
        check(OPERATORS[name], space, [space.default()])


# ---------------------------------------------------------------------------------------------- sources


@pytest.mark.parametrize("target", [POCL, NANO], ids=["opencl", "cuda"])
def test_transforms_are_written_out(target: Target) -> None:
    """F(2x2) transforms are additions: nothing is multiplied by a literal, and there is no matrix."""
    space = spaces(convolution((1, 8, 8, 16), 16), target)["F(2x2,3x3)"]
    source = gpu_program("k", Programs(space).nest(space.default()), target).source
    for name in ("conv_rows", "conv_data_acc", "conv_half", "conv_tile"):
        assert re.search(rf"{name}\S* = {name}\S* [+-] ", source)
        assert not re.search(rf"{name}\S* = 0", source)  # what is added first is stored
    assert not re.search(r"[\d.]f \*|\* \(?-?[\d.]+f", source)
    assert "table" not in source


def test_a_matrix_that_a_running_loop_reads_stays_a_table() -> None:
    """Without a schedule nothing is unrolled."""
    form = winograd_form(convolution((1, 4, 4, 16), 16), 2)
    assert form is not None
    nest = bind(lower(form.operator, ()), {})
    assert "__constant float table0[4][4]" in gpu_program("k", nest, POCL).source


@pytest.mark.slow
def test_launches_and_registers_of_a_cubin() -> None:
    """Padding inlined: three launches; registers are within what the constraints predict."""
    pytest.importorskip("nvidia.cuda_nvrtc")
    space = spaces(convolution((1, 14, 14, 64), 64), NANO)["F(4x4,3x3)"]
    program = gpu_program("k", Programs(space).nest(space.default()), NANO)
    assert [function.name for function in program.functions] == ["k_conv_data", "k_conv_products", "k_relu"]
    assert NANO.gpu is not None
    found = usage(compile_cubin(program.source, NANO.gpu.compute_capability))
    for function in program.functions:
        assert 0 < found[function.name].registers <= NANO.gpu.registers_per_thread
        assert found[function.name].shared_bytes == function.shared_bytes


# -------------------------------------------------------------------------------------------- the choice


def test_the_direct_algorithm_comes_first() -> None:
    space = space_of(convolution((1, 14, 14, 32), 32), POCL)
    assert space.knobs[0].labels == ("direct", "F(2x2,3x3)", "F(4x4,3x3)")
    assert len(space.defaults()) == 3 and space.default() == space.defaults()[0]
    assert space.describe(space.default())["algorithm"] == [0]


def test_winograd_can_be_left_out() -> None:
    operator = convolution((1, 14, 14, 32), 32)
    direct = space_of(operator, POCL, winograd=False)
    assert direct.key == gpu_space(operator, POCL, winograd=False).key != space_of(operator, POCL).key
    assert all(not knob.name.startswith("F(") for knob in direct.knobs)


def test_few_channels_or_registers_are_not_worth_it() -> None:
    assert spaces(convolution((1, 14, 14, 8), 32)) == {}
    assert MALI.gpu is not None
    few = msgspec.structs.replace(MALI.gpu, registers_per_thread=48)
    target = msgspec.structs.replace(MALI, gpu=few)
    assert list(spaces(convolution((1, 14, 14, 32), 32), target)) == ["F(2x2,3x3)"]
