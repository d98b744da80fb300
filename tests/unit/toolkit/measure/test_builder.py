"""The builder pool: batches in order, failures in place, lost and stuck compiler processes replaced."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from boards.board import load
from boards.target import Target
from cross.codegen.llvm.module import CALLERS, piece_module, pieces
from cross.compile import compile as compile_together
from cross.expression import Operator, placeholder
from cross.expression.families.dense import dense
from cross.expression.language.terms import Binary, Call, Const, Int, Lookup
from cross.loopnest import Programs
from cross.loopnest.nodes import Expr, Knob, Load, LoopKind, LoopNest, Statement, Store, Var, with_inner
from cross.schedule import space_of
from device_runtime.protocol import GpuModule, MeasureFailure
from tests.fuzz.kernels import call, loaded
from tests.nests import argument, elementwise, loop, matmul, nest, vectorized
from tests.nests import load as load_of
from tests.nests import store as store_to
from toolkit.measure.builder import Builder, BuiltKernel, NamedUnit, end_idle_workers

Compiled = list[tuple[NamedUnit, bytes | MeasureFailure]]
TARGET = load("host").target()
POCL = load("pocl").target()


@pytest.fixture(scope="module", name="builder")
def _builder() -> Iterator[Builder]:
    with Builder(TARGET, workers=2) as builder:
        builder.build([("warm_up", elementwise("exp", 16, 8))])
        yield builder


@pytest.fixture(scope="module", name="gpu_builder")
def _gpu_builder() -> Iterator[Builder]:
    with Builder(POCL, workers=1) as builder:
        yield builder


def unbound() -> LoopNest:
    """A nest with a knob left in it, which the compiler must refuse."""
    whole = elementwise("exp", 16, 8)
    x, y = whole.arguments
    return nest((x, y), loop("i", Knob("tile"), store_to(y, ("i",), load_of(x, "i"))))


def pids(builder: Builder) -> list[int]:
    return [worker.process.pid for worker in builder._workers]


def test_a_batch_is_one_artifact_with_a_kernel_for_each_nest(builder: Builder) -> None:
    jobs = [(f"k{rows}", matmul(16, 16, 8, rows, 8)) for rows in (4, 1, 2)]
    built = builder.build(jobs)
    assert all(isinstance(item, BuiltKernel) for item in built)
    assert [item.kernel.symbol for item in built if isinstance(item, BuiltKernel)] == ["k4", "k1", "k2"]
    artifacts = {id(item.artifact) for item in built if isinstance(item, BuiltKernel)}
    assert len(artifacts) == 1
    first = built[0]
    assert isinstance(first, BuiltKernel)
    assert first.artifact.code.startswith(b"\x7fELF")
    assert [argument.role for argument in first.kernel.arguments] == ["input", "constant", "output"]


def test_an_empty_batch_is_nothing(builder: Builder) -> None:
    assert builder.build([]) == []


def test_what_the_compiler_refuses_is_a_failure_in_its_place(builder: Builder) -> None:
    built = builder.build([("a", elementwise("exp", 16, 8)), ("b", unbound()), ("c", matmul(8, 8, 8, 2, 8))])
    assert isinstance(built[0], BuiltKernel) and isinstance(built[2], BuiltKernel)
    assert isinstance(built[1], MeasureFailure)
    assert built[1].kind == "build" and built[1].text
    assert [kernel.symbol for kernel in built[0].artifact.kernels] == ["a", "c"]


def test_only_failures_make_no_artifact(builder: Builder) -> None:
    (failure,) = builder.build([("b", unbound())])
    assert isinstance(failure, MeasureFailure) and failure.kind == "build"


def test_a_symbol_of_the_native_code_is_a_link_failure_of_the_batch(builder: Builder) -> None:
    built = builder.build(
        [("tfb_time", matmul(8, 8, 8, 2, 8)), ("other", matmul(8, 8, 8, 1, 8)), ("bad", unbound())]
    )
    assert [item.kind for item in built if isinstance(item, MeasureFailure)] == ["link", "link", "build"]


def test_the_same_symbol_twice_is_refused(builder: Builder, gpu_builder: Builder) -> None:
    jobs = [("same", matmul(8, 8, 8, 2, 8)), ("same", matmul(8, 8, 8, 1, 8))]
    for one in (builder, gpu_builder):
        with pytest.raises(ValueError, match="one symbol"):
            one.build(jobs)
    for target in (TARGET, POCL):
        with pytest.raises(ValueError, match="one symbol"):
            compile_together(jobs, target)


def two_regions(scale: float, *, rounds: bool = False) -> LoopNest:
    """y = scale x, then z = 2 y + 1, rounded or not."""
    x, y, z = (
        argument(name, (24,), role) for name, role in zip("xyz", ("input", "input", "output"), strict=True)
    )
    scaled = Binary("*", load_of(x, "i"), Const(scale, "float32"))
    first = vectorized("i", 24, store_to(y, ("i",), scaled))
    shifted = Binary("+", Binary("*", load_of(y, "j"), Const(2.0, "float32")), Const(1.0, "float32"))
    value = Call("round", (shifted,)) if rounds else shifted
    return nest((x, y, z), first, vectorized("j", 24, store_to(z, ("j",), value)))


def test_equal_pieces_are_compiled_once(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a batch and after it; what they are pieces of computes what it should."""
    compiled: list[str] = []
    compile_units = builder.compile

    def counted(jobs: Iterable[NamedUnit]) -> Compiled:
        found = compile_units(jobs)
        compiled.extend(name for (name, _), _ in found if name != CALLERS)
        return found

    monkeypatch.setattr(builder, "compile", counted)
    scales = {"one": 2.0, "other": 3.0, "same": 2.0}
    built = builder.build([(symbol, two_regions(scale)) for symbol, scale in scales.items()])
    assert len(compiled) == 3
    (later,) = builder.build([("later", two_regions(5.0))])
    assert len(compiled) == 4
    kernels = [item for item in (*built, later) if isinstance(item, BuiltKernel)]
    codes = [item.code for item in kernels]
    assert len(codes) == 4 and codes[0] == codes[2] and len(set(codes)) == 3
    values = np.arange(24, dtype=np.float32)
    for item, scale in zip(kernels, (2.0, 3.0, 2.0, 5.0), strict=True):
        library = loaded(item.artifact, tmp_path)
        result = call(library, item.kernel, [values, np.zeros_like(values)])
        np.testing.assert_array_equal(result, 2 * scale * values + 1)


def test_jobs_are_made_while_workers_compile(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never more than one that no worker has."""
    made, answered = [], []
    collect = builder._collect

    def noted(answers: dict[int, bytes | MeasureFailure]) -> None:
        answered.append((len(answers), len(made)))
        collect(answers)

    def jobs() -> Iterator[NamedUnit]:
        for rows in (1, 2, 4, 8, 16):
            made.append(rows)
            yield f"k{rows}", matmul(16, 16, 8, rows, 8)

    monkeypatch.setattr(builder, "_collect", noted)
    codes = builder.compile(jobs())
    assert len(codes) == 5 and all(isinstance(code, bytes) for _, code in codes)
    workers = len(builder._workers)
    assert answered and all(count == min(5, done + workers + 1) for done, count in answered)


def test_a_kernel_whose_piece_fails_leaves_the_batch(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What calls the pieces was compiled for all; it is compiled again without that kernel."""
    compile_units = builder.compile

    def failing(jobs: Iterable[NamedUnit]) -> Compiled:
        refused = MeasureFailure("build", "no registers")
        return [((name, unit), refused if "7.0" in repr(unit) and name != CALLERS else code)
                for (name, unit), code in compile_units(jobs)]  # fmt: skip

    monkeypatch.setattr(builder, "compile", failing)
    good, bad = builder.build([("good", two_regions(6.0)), ("bad", two_regions(7.0))])
    assert bad == MeasureFailure("build", "no registers")
    assert isinstance(good, BuiltKernel) and [kernel.symbol for kernel in good.artifact.kernels] == ["good"]
    values = np.arange(24, dtype=np.float32)
    result = call(loaded(good.artifact, tmp_path), good.kernel, [values, np.zeros_like(values)])
    np.testing.assert_array_equal(result, 12 * values + 1)


def test_what_is_rounded_later_is_another_piece() -> None:
    """What a region before computes is not fused then: the next integer may be another one."""
    plain, rounded = (set(pieces(two_regions(2.0, rounds=rounds), TARGET)) for rounds in (False, True))
    assert not plain & rounded


def test_the_signs_of_zeros_and_packed_weights_make_other_pieces() -> None:
    """The comparison of nests does not see the signs, but the code differs."""
    plus, minus = (pieces(two_regions(zero), TARGET)[0] for zero in (0.0, -0.0))
    assert plus != minus
    assert plus.statement == minus.statement
    assert piece_module("k", plus, TARGET) != piece_module("k", minus, TARGET)
    x, y = argument("x", (4,), "input"), argument("y", (4,), "output")
    rows = [
        nest((x, y), loop("i", 4, store_to(y, ("i",), Lookup(((zero,) * 4,), Int(0), Var("i"), "float32"))))
        for zero in (0.0, -0.0)
    ]
    assert rows[0] == rows[1]
    assert pieces(rows[0], TARGET) != pieces(rows[1], TARGET)
    program = matmul(16, 16, 8, 4, 8)
    bare = replace(program, arguments=tuple(replace(item, packing=None) for item in program.arguments))
    packed = program.arguments[1]
    assert packed.packing is not None

    def unpacked(part: Expr) -> Expr:
        if isinstance(part, Load):
            part = Load(replace(part.buffer, packing=None), part.indices)
        return part.mapped(unpacked)

    def change(statement: Statement) -> Statement:
        if isinstance(statement, Store):
            return replace(statement, value=unpacked(statement.value))
        return with_inner(statement, change)

    bare = replace(bare, body=change(bare.body))
    assert bare != program
    assert pieces(bare, TARGET) != pieces(program, TARGET)


def test_equal_pieces_that_are_called_in_other_ways_are_other_code(builder: Builder) -> None:
    whole = two_regions(2.0)
    x, y, z = whole.arguments
    turned = replace(whole, arguments=(y, x, z))
    one, other = builder.build([("one", whole), ("turned", turned)])
    assert isinstance(one, BuiltKernel) and isinstance(other, BuiltKernel)
    assert pieces(whole, TARGET)[0].statement == pieces(turned, TARGET)[0].statement
    assert one.code != other.code


def test_an_accident_over_a_shared_piece_fails_no_candidate() -> None:
    """It is compiled once more, by the process that replaces the one that died."""
    with Builder(TARGET, workers=1) as builder:
        builder.build([("warm_up", elementwise("exp", 16, 8))])
        (lost,) = pids(builder)
        os.kill(lost, signal.SIGSTOP)
        killer = threading.Timer(0.2, os.kill, (lost, signal.SIGKILL))
        killer.start()
        built = builder.build([(symbol, two_regions(7.0)) for symbol in ("a", "b")])
        killer.join()
        assert all(isinstance(item, BuiltKernel) for item in built)
        assert pids(builder) != [lost]


def test_pieces_that_were_not_asked_for_long_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.measure.builder.MOST_KEPT", 3)
    with Builder(TARGET, workers=1) as builder:
        for scale in (2.0, 3.0, 4.0, 2.0):
            (item,) = builder.build([("k", two_regions(scale))])
            assert isinstance(item, BuiltKernel)
            assert len(builder._objects) <= 3 and len(builder._names.newest(100)) <= 3


@pytest.mark.slow
def test_a_stuck_process_is_a_timeout_and_is_replaced() -> None:
    with Builder(TARGET, workers=2, timeout_s=0.3) as builder:
        jobs = [(f"k{i}", elementwise("exp", 16 + 8 * i, 8)) for i in range(4)]
        builder.build([("warm_up", elementwise("exp", 8, 8))])
        stuck = pids(builder)[0]
        os.kill(stuck, signal.SIGSTOP)
        built = builder.build(jobs)
        failures = [item for item in built if isinstance(item, MeasureFailure)]
        assert [failure.kind for failure in failures] == ["timeout"]
        assert "not done after 0.3 s" in failures[0].text
        assert stuck not in pids(builder)
        assert all(isinstance(item, BuiltKernel) for item in builder.build(jobs))


def test_a_process_that_dies_over_a_job_is_a_failure_and_is_replaced(builder: Builder) -> None:
    lost = pids(builder)[0]
    os.kill(lost, signal.SIGSTOP)  # so that it has its job when it dies

    def kill() -> None:
        time.sleep(0.2)
        os.kill(lost, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    built = builder.build([(f"k{i}", elementwise("exp", 400 + 8 * i, 8)) for i in range(4)])
    killer.join()
    failures = [item for item in built if isinstance(item, MeasureFailure)]
    assert [(failure.kind, failure.signal) for failure in failures] == [("build", signal.SIGKILL)]
    assert "the compiler process died of signal 9" in failures[0].text
    assert len(set(pids(builder))) == 2 and lost not in pids(builder)


def test_a_process_that_fails_says_why(builder: Builder) -> None:
    """A job that the worker cannot even unpack ends it; its last words are in the failure."""
    jobs = [("good", elementwise("exp", 16, 8)), ("bad", None)]
    built = [code for _, code in builder.compile(jobs)]  # type: ignore[arg-type]
    assert isinstance(built[0], bytes)
    assert isinstance(built[1], MeasureFailure)
    assert built[1].kind == "build"
    assert "the compiler process died of exit code 1; it printed: Traceback" in built[1].text


def test_idle_processes_wait_for_the_next_builder() -> None:
    """Of the same target and priority; those that died meanwhile are not among them."""
    jobs = [("k", elementwise("exp", 16, 8))]
    end_idle_workers()
    with Builder(TARGET, workers=2) as builder:
        first = pids(builder)
        builder.build(jobs)
    for target, nice in ((TARGET, 1), (POCL, 0)):
        with Builder(target, workers=1, nice=nice) as builder:
            assert not set(pids(builder)) & set(first)
    with Builder(TARGET, workers=2) as builder:
        assert set(pids(builder)) == set(first)
        assert isinstance(builder.build(jobs)[0], BuiltKernel)
        lost = builder._workers[0].process
    lost.kill()
    lost.wait()
    with Builder(TARGET, workers=3) as builder:
        assert set(first) & set(pids(builder)) == set(first) - {lost.pid}
        started = [worker.process for worker in builder._workers]
    end_idle_workers()
    assert all(process.poll() is not None for process in started)


def test_closing_ends_busy_processes() -> None:
    builder = Builder(TARGET, workers=1)
    (worker,) = builder._workers
    worker.start(0, [("k", elementwise("exp", 16, 8))], 30.0)
    builder.close()
    assert worker.process.poll() is not None
    builder.close()


def gpu_programs(target: Target = POCL) -> list[LoopNest]:
    """Three programs that differ, of a matrix product on a GPU."""
    left, right = placeholder((16, 24), "A"), placeholder((24, 32), "B")
    programs = Programs(space_of(Operator("product", (left, right), dense(left, right)), target))
    batch = np.unique(programs.space.sample(np.random.default_rng(0), 20), axis=0)
    return [programs.nest(programs.space.configuration(row)) for row in batch[:3]]


def test_a_batch_for_a_gpu_is_one_module_of_programs(gpu_builder: Builder) -> None:
    built = gpu_builder.build([(f"k{place}", program) for place, program in enumerate(gpu_programs())])
    kernels = [item for item in built if isinstance(item, BuiltKernel)]
    assert len({item.artifact.sha256 for item in kernels}) == 1
    module = GpuModule.from_bytes(kernels[0].artifact.code)
    assert (module.language, sorted(module.kernels)) == ("opencl", ["k0", "k1", "k2"])
    assert [item.kernel.symbol for item in kernels] == ["k0", "k1", "k2"]
    assert len({item.code for item in kernels}) == 3


def test_gpu_programs_are_the_same_whatever_they_are_called(gpu_builder: Builder) -> None:
    program, other, _ = gpu_programs()
    one, same, different = gpu_builder.build([("tfb_a", program), ("tfb_bc", program), ("tfb_d", other)])
    assert isinstance(one, BuiltKernel) and isinstance(same, BuiltKernel)
    assert isinstance(different, BuiltKernel)
    assert one.code == same.code != different.code


@pytest.mark.slow
def test_cubins_are_the_same_whatever_their_kernels_are_called() -> None:
    pytest.importorskip("nvidia.cuda_nvrtc")
    nano = next(item for item in load("jetson-nano").targets if item.kind == "cuda")
    program, other, _ = gpu_programs(nano)
    with Builder(nano, workers=1) as builder:
        built = builder.build([("tfb_a1", program), ("tfb_b2", program), ("tfb_c3", other)])
    one, same, different = (item.code for item in built if isinstance(item, BuiltKernel))
    assert one == same != different


def test_a_gpu_program_that_asks_for_too_much_is_a_failure_in_its_place(gpu_builder: Builder) -> None:
    x, y = argument("X", (8192,), "input"), argument("Y", (8192,), "output")
    copied = loop("i", 8192, store_to(y, ("i",), load_of(x, "i")), LoopKind.THREAD)
    built = gpu_builder.build([("a", nest((x, y), loop("b", 1, copied, LoopKind.BLOCK)))])
    assert isinstance(built[0], MeasureFailure) and built[0].kind == "build"
    assert f"8192 threads a block, {POCL.name} has at most 4096" in built[0].text
