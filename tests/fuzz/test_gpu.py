"""Any operator under any GPU configuration: numpy reference == interpreter == OpenCL C on PoCL."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from boards.board import load
from boards.target import Target
from cross.codegen.c.gpu_code import gpu_program
from cross.compile import compile
from cross.expression.half_storage import with_half_storage
from cross.expression.reference import evaluate
from cross.loopnest import LoopNest, Programs, interpret, to_text, verify
from cross.nvrtc import compile_cubin, usage
from cross.schedule import ScheduleSpace, gpu_space
from cross.schedule.gpu_operands import shared_size
from cross.schedule.gpu_winograd import gpu_winograd_spaces
from device_runtime.pocl import PLATFORM, name_cpu, settle
from device_runtime.protocol import WORKSPACE, GpuKernel, GpuModule
from tests.fuzz.operators import FAMILIES, random_inputs, random_operator

Array = NDArray[Any]
TOLERANCE = 1e-4  # of the largest magnitude in the expected output
POCL = load("pocl").target(None)


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Any:
    cl = pytest.importorskip("pyopencl")
    settle(str(tmp_path_factory.mktemp("pocl")), 1)
    devices = [item for platform in cl.get_platforms() for item in platform.get_devices()]
    device = next((item for item in devices if PLATFORM in item.platform.name), None)
    if device is None:
        pytest.skip("no PoCL here; pip install 'tune-for-board[pocl]'")
    name_cpu(device.int_ptr)
    return cl.CommandQueue(cl.Context([device]))


def run(
    queue: Any, kernel: GpuKernel, nest: LoopNest, inputs: list[Array], unwritten: float = np.nan
) -> Array:
    cl = pytest.importorskip("pyopencl")
    program = cl.Program(queue.context, kernel.code).build(["-cl-std=CL1.2"])
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    output = nest.arguments[-1]
    got = np.full([extent.value for extent in output.shape], unwritten, output.dtype)
    packed = [
        array if buffer.packing is None else buffer.packing.apply(array)
        for buffer, array in zip(nest.arguments[:-1], inputs, strict=True)
    ]
    buffers = [cl.Buffer(queue.context, flags, hostbuf=np.ascontiguousarray(item)) for item in (*packed, got)]
    workspace = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, max(kernel.workspace_bytes, 1))
    for launch in kernel.launches:
        arguments = [workspace if place == WORKSPACE else buffers[place] for place in launch.buffers]
        cl.Kernel(program, launch.name)(queue, launch.global_size, launch.threads, *arguments)
    cl.enqueue_copy(queue, got, buffers[-1])
    return got


def check(queue: Any, family: str, seed: int, target: Target = POCL) -> None:
    rng = np.random.default_rng([7, seed])
    compare(queue, gpu_space(random_operator(rng, family), target), rng, f"{family} {seed}")


def compare(
    queue: Any, space: ScheduleSpace, rng: np.random.Generator, what: str, tolerance: float = TOLERANCE
) -> None:
    """A random program of a space, interpreted and on PoCL, against numpy."""
    programs, operator = Programs(space), space.operator
    configuration = space.configuration(space.sample(rng, 1)[0])
    verify(programs.parametric(programs.structure(configuration)).nest, parametric=True)
    nest = programs.nest(configuration)
    verify(nest)
    inputs = random_inputs(operator, rng)
    kernel = GpuModule.from_bytes(compile([("kernel_0", nest)], space.target).code).kernels["kernel_0"]
    want, interpreted = evaluate(operator, inputs), interpret(nest, inputs)
    for got in (interpreted, run(queue, kernel, nest, inputs)):
        error = np.abs(got.astype(np.float64) - want).max()
        assert error <= tolerance * np.abs(want).max(), f"{what}: {error}\n{to_text(nest)}"


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_opencl_equals_interpreter_and_reference(queue: Any, family: str) -> None:
    check(queue, family, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 67))
def test_a_thousand_pairs_on_pocl(queue: Any, seed: int) -> None:
    for family in sorted(FAMILIES):
        check(queue, family, seed)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["chain", "convolution", "matmul", "movement", "normalization"])
def test_half_storage_on_pocl(queue: Any, family: str) -> None:
    rng = np.random.default_rng([12, *family.encode()])
    operator = random_operator(rng, family)
    stored = with_half_storage(operator, range(len(operator.inputs)), output=True)
    compare(queue, gpu_space(stored, POCL), rng, f"{family} in half floats", 2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["winograd", "winograd transposed"])
@pytest.mark.parametrize("seed", [0, 3])
def test_winograd_algorithms_on_pocl(queue: Any, family: str, seed: int) -> None:
    assert POCL.gpu is not None
    rng = np.random.default_rng([11, seed])
    found = gpu_winograd_spaces(random_operator(rng, family), POCL, POCL.gpu)
    assert found
    for name, space in found.items():
        compare(queue, space, rng, f"{family} {seed} by {name}")


@pytest.mark.parametrize("board", ["jetson-nano", "h200"])
def test_cubins_keep_the_limits_of_the_board(board: str) -> None:
    target = load(board).target("gpu")
    assert target.gpu is not None
    rng = np.random.default_rng(3)
    space = gpu_space(random_operator(rng, "convolution"), target)
    nest = Programs(space).nest(space.configuration(space.sample(rng, 1)[0]))
    program = gpu_program("kernel_0", nest, target)
    found = usage(compile_cubin(program.source, target.gpu.compute_capability))
    reserved = 1024 if board == "h200" else 0
    for function in program.functions:
        used = found[function.name]
        assert 0 < used.registers <= 255
        assert used.registers * function.threads <= target.gpu.registers_per_block
        assert shared_size(used.shared_bytes) in (function.shared_bytes, function.shared_bytes + reserved)
