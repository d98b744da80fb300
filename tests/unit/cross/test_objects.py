"""LLVM IR to objects: both architectures, errors with the line, reproducible, usable after fork."""

from __future__ import annotations

import multiprocessing
import struct
from concurrent.futures import ProcessPoolExecutor

import pytest

from boards.target import Target
from cross.codegen.llvm import objects
from cross.errors import CompileError


def _target(triple: str, cpu: str, **fields: object) -> Target:
    return Target(
        name="cpu", kind="cpu", triple=triple, cpu=cpu, l2_bytes=1 << 20, clock_hz=1e9, flops_per_cycle=8.0,
        **fields,  # type: ignore[arg-type]
    )  # fmt: skip


X86 = _target("x86_64-unknown-linux-gnu", "x86-64-v3")
A53 = _target("aarch64-unknown-linux-gnu", "cortex-a53")
MACHINES = {X86: 62, A53: 183}  # e_machine of ELF

FMA = """
declare <8 x float> @llvm.fma.v8f32(<8 x float>, <8 x float>, <8 x float>)
define i32 @kernel(ptr noalias %a, ptr noalias %b, ptr noalias %c) {
  %x = load <8 x float>, ptr %a, align 32
  %y = load <8 x float>, ptr %b, align 32
  %z = load <8 x float>, ptr %c, align 32
  %w = call <8 x float> @llvm.fma.v8f32(<8 x float> %x, <8 x float> %y, <8 x float> %z)
  store <8 x float> %w, ptr %c, align 32
  ret i32 0
}
"""


def _compiled(target: Target) -> bytes:
    return objects.compile_ir(FMA, target)


@pytest.mark.parametrize("target", [X86, A53], ids=lambda target: target.cpu)
def test_an_object_is_a_relocatable_elf_file_for_the_targets_architecture(target: Target) -> None:
    code = _compiled(target)
    assert code[:4] == b"\x7fELF"
    kind, machine = struct.unpack_from("<HH", code, 16)
    assert (kind, machine) == (1, MACHINES[target])


@pytest.mark.parametrize("target", [X86, A53], ids=lambda target: target.cpu)
def test_the_same_text_gives_the_same_bytes_again(target: Target) -> None:
    assert _compiled(target) == _compiled(target)


def test_the_cpu_and_the_features_decide_the_instructions() -> None:
    baseline = _target("x86_64-unknown-linux-gnu", "x86-64")
    assert "vfmadd" in objects.assembly(FMA, X86)
    assert "vfmadd" not in objects.assembly(FMA, baseline)
    with_fma = _target("x86_64-unknown-linux-gnu", "x86-64", features=("+fma",))
    assert "vfmadd" in objects.assembly(FMA, with_fma)
    assert "fmla" in objects.assembly(FMA, A53)


def test_native_is_this_machine() -> None:
    host = _target(X86.triple, "native")
    cpu, features = objects.cpu_and_features(host)
    assert cpu == objects.host_cpu_name()
    assert "+" in features
    assert _compiled(host)[:4] == b"\x7fELF"


def test_the_targets_own_features_win_over_the_machines() -> None:
    host = _target(X86.triple, "native", features=("-fma", "-fma4", "-avx512f"))
    assert "vfmadd" not in objects.assembly(FMA, host)


def test_native_for_another_architecture_is_refused() -> None:
    with pytest.raises(
        CompileError, match=r"'native' means this machine .* name the board's CPU in its file"
    ):
        objects.compile_ir(FMA, _target("aarch64-unknown-linux-gnu", "native"))


def test_a_refused_line_is_shown() -> None:
    text = "define i32 @f() {\n  %x = add i32 %y, 1\n  ret i32 %x\n}"
    with pytest.raises(CompileError) as caught:
        objects.compile_ir(text, X86)
    assert "line 2, column 16: use of undefined value '%y'" in str(caught.value)
    assert str(caught.value).endswith("    %x = add i32 %y, 1")


def test_ir_that_parses_but_makes_no_sense_is_refused() -> None:
    text = "define i32 @f() {\n  br label %a\na:\n  %x = phi i32 [ 1, %a ]\n  ret i32 %x\n}"
    with pytest.raises(CompileError, match="LLVM refuses the generated IR"):
        objects.compile_ir(text, X86)


def test_a_truncated_text_is_refused() -> None:
    with pytest.raises(CompileError, match="line 1, column 18: "):
        objects.compile_ir("define i32 @f() {", X86)


def test_a_triple_in_the_text_must_be_the_targets() -> None:
    with pytest.raises(CompileError, match=r"expected the triple 'x86_64-unknown-linux-gnu', found 'aarch64"):
        objects.compile_ir('target triple = "aarch64-unknown-linux-gnu"\n' + FMA, X86)
    assert objects.compile_ir('target triple = "x86_64-unknown-linux-gnu"\n' + FMA, X86)


def test_an_unknown_triple_is_refused() -> None:
    with pytest.raises(CompileError, match="no back end for the triple 'quantum-unknown-linux-gnu'"):
        objects.compile_ir(FMA, _target("quantum-unknown-linux-gnu", ""))


def test_a_gpu_target_is_refused() -> None:
    gpu = Target(name="mali", kind="opencl", l2_bytes=1, clock_hz=1e9, flops_per_cycle=1.0)
    with pytest.raises(CompileError, match="target mali: LLVM code is for cpu targets, found kind 'opencl'"):
        objects.compile_ir(FMA, gpu)


def test_forked_workers_compile_too() -> None:
    expected = [_compiled(X86), _compiled(A53)]  # LLVM and its target machines are loaded before the fork
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        assert list(pool.map(_compiled, [X86, A53] * 4)) == expected * 4
