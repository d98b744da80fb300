"""Sums of products of bytes in tile registers (AMX): the nests, the code, and what it computes.

Everywhere the instructions are C functions (tests/tiles_on_cpu.py); where the processor has them, they run.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from boards.target import TILE_FEATURES, Target
from cross.codegen.llvm.dot_products import product_of
from cross.codegen.llvm.module import llvm_module
from cross.compile import compile
from cross.expression import Operator, Term, compute, maximum, minimum, placeholder, reduce_axis
from cross.expression import sum as summed
from cross.expression.families.conv import dense_conv
from cross.expression.families.elementwise import apply
from cross.expression.families.window import Window
from cross.expression.language.operations import OPERATIONS
from cross.expression.language.terms import call, cast
from cross.expression.reference import evaluate
from cross.loopnest import LoopNest, Programs, to_text, verify
from cross.schedule.alternatives import AlternativeSpaces
from cross.schedule.choose import space_of
from cross.schedule.cpu_sketch import TILES
from cross.schedule.space import ScheduleSpace
from device_runtime.measure.cpu_kernel import CALL_ERRORS
from tests.conftest import Draws
from tests.fuzz.kernels import Job, run_here
from tests.interpreter.interpreter import interpret
from tests.targets import AVX2, HOST, HOSTS
from tests.tiles_on_cpu import run_on_cpu

Array = NDArray[Any]
X86 = pytest.mark.skipif(not HOST.triple.startswith("x86_64"), reason="runs machine code of x86-64")
OPERATORS = 24
FUNCTIONS = ("dot4", "sdot4")


def with_tiles(target: Target) -> Target:
    missing = tuple(item for item in TILE_FEATURES if item not in target.features)
    return msgspec.structs.replace(target, features=(*target.features, *missing))


TARGET = with_tiles(HOST)
XEON = with_tiles(
    msgspec.structs.replace(
        AVX2, cpu="x86-64-v4", features=("+avx512vnni",), vector_bytes=64, vector_registers=32
    )
)
"""Of no machine in particular, for what is only written, not run."""


def convolution(
    function: str, image: tuple[int, int], words: int, columns: int, kernel: int = 3, stride: int = 1
) -> Operator:
    """Of words, with a bias, rescaled to bytes."""
    data, weight = (
        placeholder((1, *image, words), "x", "int32"),
        placeholder((kernel, kernel, words, columns), "w", "int32"),
    )
    bias, pad = placeholder((columns,), "b", "int32"), kernel // 2
    window = Window((stride, stride), (pad,) * 4, (1, 1))
    sums = dense_conv(data, weight, window, product=lambda x, w: call(function, x, w))
    moved = compute(sums.shape, lambda n, y, x, c: sums[n, y, x, c] + bias[c], name="moved")
    scaled = apply(
        lambda x: cast("uint8", clamped(call("round", cast("float32", x) * 2.0**-10) + 100.0)),
        moved,
        "scaled",
    )
    return Operator("conv", (data, weight, bias), scaled, frozenset({1, 2}))


def clamped(x: Term) -> Term:
    return maximum(minimum(x, 255.0), 0.0)


def product(function: str, rows: int, words: int, columns: int) -> Operator:
    """Of a matrix of words and a known one, as sums."""
    a, b = placeholder((rows, words), "a", "int32"), placeholder((words, columns), "b", "int32")
    k = reduce_axis(words, "k")
    c = compute((rows, columns), lambda i, j: summed(call(function, a[i, k], b[k, j]), axis=k), name="c")
    return Operator("product", (a, b), c, frozenset({1}))


def with_column_sums(of: Operator) -> Operator:
    """A product, and a reduction of its results that tile registers do not take."""
    rows, columns = of.output.shape
    m = reduce_axis(rows, "m")
    sums = compute((columns,), lambda j: summed(of.output[m, j], axis=m), name="sums")
    return Operator("sums", of.inputs, sums, of.constants)


def drawn(rng: np.random.Generator) -> Operator:
    function, words = str(rng.choice(FUNCTIONS)), int(rng.choice((4, 8, 12, 16, 20, 32, 48)))
    columns = int(rng.choice((16, 32, 40, 48, 64, 100)))
    if rng.integers(2):
        of = product(function, int(rng.integers(2, 70)), words, columns)
        return with_column_sums(of) if rng.integers(3) == 0 else of
    image = tuple(int(item) for item in rng.integers(3, 20, 2))
    return convolution(
        function, (image[0], image[1]), words, columns, int(rng.choice((1, 3))), int(rng.choice((1, 2)))
    )


def in_tiles(operator: Operator, target: Target = TARGET) -> ScheduleSpace:
    """The space of an operator with its sums in tile registers."""
    space = space_of(operator, target)
    assert isinstance(space, AlternativeSpaces)
    (found,) = (part.space for part in space.parts if part.label == TILES)
    return found


def operands(operator: Operator, rng: np.random.Generator) -> list[Array]:
    """Words of any bytes; a bias that the scale leaves within a byte's range now and then."""
    limits = [1 << 31 if len(item.shape) > 1 else 1 << 16 for item in operator.inputs]
    return [
        rng.integers(-limit, limit, item.shape, "int32", endpoint=False)
        for item, limit in zip(operator.inputs, limits, strict=True)
    ]


def nests(
    operator: Operator, rng: np.random.Generator, count: int, target: Target = TARGET
) -> list[LoopNest]:
    """The untuned program and drawn ones."""
    space = in_tiles(operator, target)
    rows = [space.default(), *map(space.configuration, space.sample(rng, count))]
    programs = Programs(space)
    found = [programs.nest(row) for row in rows]
    for nest in found:
        verify(nest)
        assert " in tile\n" in to_text(nest)
    return found


def jobs_of(count: int, seed: int, target: Target) -> tuple[list[Job], list[Array]]:
    rng = np.random.default_rng([31, seed])
    jobs, want = [], []
    for _ in range(count):
        operator = drawn(rng)
        given = operands(operator, rng)
        expected = evaluate(operator, given)
        for nest in nests(operator, rng, 2, target):
            jobs.append(Job(nest, given))
            want.append(expected)
    return jobs, want


def check(jobs: list[Job], got: list[Array], want: list[Array]) -> None:
    wrong = [job for job, one, other in zip(jobs, got, want, strict=True) if not np.array_equal(one, other)]
    assert not wrong, f"{len(wrong)} of {len(jobs)} are wrong, the first:\n{to_text(wrong[0].nest)}"


@X86
@pytest.mark.parametrize(
    ("target", "threads"), [(TARGET, 1), (with_tiles(HOSTS[1 % len(HOSTS)]), 2)], ids=["one", "two"]
)
def test_any_x86_64_computes_them_by_functions(
    target: Target, threads: int, draws: Draws, tmp_path: Path
) -> None:
    """As this machine is, and narrowed to its lowest level, whose vectors are shorter."""
    jobs, want = jobs_of(draws.of(OPERATORS // 2), draws.seed + threads, target)
    check(jobs, run_on_cpu(jobs, target, tmp_path, threads), want)


@pytest.mark.skipif(not HOST.has_tiles, reason="this processor has no tile registers")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_processor_with_tiles_computes_them(threads: int, draws: Draws, tmp_path: Path) -> None:
    jobs, want = jobs_of(draws.of(OPERATORS), draws.seed + 10 + threads, HOST)
    artifact = compile([(f"kernel{place}", job.nest) for place, job in enumerate(jobs)], HOST)
    check(jobs, run_here(artifact, jobs, tmp_path, threads), want)


REFUSED = """
import ctypes, mmap, sys
class Stack(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
memory = ctypes.create_string_buffer(4096)
stack = Stack(ctypes.addressof(memory), 0, 4096)
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None) == 0
buffers = [mmap.mmap(-1, 1 << 16) for _ in range(3)]
pointers = (ctypes.c_void_p * 3)(*(ctypes.addressof(ctypes.c_char.from_buffer(item)) for item in buffers))
print(ctypes.CDLL(sys.argv[1]).kernel0(pointers, None, None))
"""


@X86
def test_a_kernel_returns_where_the_system_refuses_tiles(tmp_path: Path) -> None:
    """Linux does where a signal's stack has no room for them, and where the processor has none."""
    space = in_tiles(product("dot4", 32, 16, 32))
    artifact = compile([("kernel0", Programs(space).nest(space.default()))], TARGET)
    (tmp_path / "kernels.so").write_bytes(artifact.code)
    command = [sys.executable, "-c", REFUSED, str(tmp_path / "kernels.so")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) in CALL_ERRORS and "AMX" in CALL_ERRORS[int(done.stdout)][1]


def test_the_interpreter_reads_sums_in_tiles_as_any_others() -> None:
    rng = np.random.default_rng(5)
    operator = convolution("sdot4", (3, 5), 4, 16)
    given = operands(operator, rng)
    for nest in nests(operator, rng, 1):
        assert np.array_equal(interpret(nest, given), evaluate(operator, given))


def test_a_step_is_loads_and_products_of_whole_registers() -> None:
    """28 pixels of 32 columns: two registers of 14 rows, two of columns, four of sums."""
    space = in_tiles(convolution("dot4", (28, 28), 32, 128), XEON)
    sizes = {"scaled.i1": [1, 1, 1], "scaled.i2": [1, 1, 28], "scaled.i3": [1, 1, 32]}
    configuration = space.parse(space.describe(space.default()) | sizes)
    text = llvm_module("k", Programs(space).nest(configuration), XEON)
    assert text.count("call void @llvm.x86.tdpbusd") == 4
    assert text.count("call void @llvm.x86.tileloadd64") == 4
    assert text.count("call void @llvm.x86.tilezero") == text.count("call void @llvm.x86.tilestored64") == 4
    assert text.count("call void @llvm.x86.ldtilecfg") == text.count("call void @llvm.x86.tilerelease") == 1
    assert "call i32 @tfb_allow_tiles()" in text and "vpdpbusd" not in text


def test_untuned_programs_take_tiles_where_there_are_any() -> None:
    operator = convolution("dot4", (28, 28), 32, 128)
    space = space_of(operator, XEON)
    assert space.part_of(space.batch([space.default()])[0]).label == TILES
    without = msgspec.structs.replace(XEON, features=())
    assert not isinstance(space_of(operator, without), AlternativeSpaces)


@pytest.mark.parametrize(
    "operator",
    [
        product("dot4", 1, 64, 128),  # one row
        product("dot4", 64, 3, 128),  # three words
        product("dot4", 64, 64, 8),  # half a register of columns
        product("narrow_dot4", 64, 64, 128),
    ],
    ids=["row", "words", "columns", "function"],
)
def test_others_have_no_tiles(operator: Operator) -> None:
    assert not isinstance(space_of(operator, XEON), AlternativeSpaces)


def test_data_with_signs_are_multiplied_as_they_are() -> None:
    assert product_of(XEON, 127, 196, 1 << 16, 64, signed=True) == "sdot4"
    assert product_of(XEON, 127, 196, 1 << 16, 64, signed=False) == "dot4"
    assert product_of(XEON, 127, 1, 1 << 16, 64, signed=True) == "dot4"  # one row: vectors
    assert product_of(XEON, 127, 196, 1 << 10, 3, signed=True) == "dot4"
    assert OPERATIONS["sdot4"].only == "int32"
