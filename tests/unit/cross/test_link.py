"""Linking: what gets in, what shows, what is refused; both architectures; a C program uses the result."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import stat
import subprocess
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from boards.target import Target
from cross import native
from cross.codegen.llvm.objects import compile_ir
from cross.errors import CompileError, LinkError
from cross.link import compile_c, embed, link, native_objects
from cross.native.system_libraries import LIBRARIES
from cross.native.toolchain import find_toolchain, run, system_toolchain, zig_toolchain
from toolkit.measure import emulation


def _target(triple: str, cpu: str) -> Target:
    return Target(
        name="cpu", kind="cpu", triple=triple, cpu=cpu, l2_bytes=1 << 20, clock_hz=1e9, flops_per_cycle=8.0
    )


HOST = _target("x86_64-unknown-linux-gnu", "x86-64")
A53 = _target("aarch64-unknown-linux-gnu", "cortex-a53")
BOTH = pytest.mark.parametrize("target", [HOST, A53], ids=["x86_64", "aarch64"])

TWICE = """
declare float @expf(float)
define i32 @twice(ptr %buffers, ptr %workspace, ptr %pool) {
  %in = load ptr, ptr %buffers
  %slot = getelementptr ptr, ptr %buffers, i64 1
  %out = load ptr, ptr %slot
  %x = load float, ptr %in
  %y = fadd float %x, %x
  store float %y, ptr %out
  ret i32 0
}
define float @exponential(float %x) {
  %y = call float @expf(float %x)
  ret float %y
}
"""


def _names(code: bytes) -> set[bytes]:
    """Every string of the file: enough to see whether a name is in it."""
    return set(code.split(b"\0"))


@BOTH
def test_kernels_and_native_code_become_one_shared_object(target: Target) -> None:
    code = link([compile_ir(TWICE, target)], target, extra_objects=native_objects(target), soname="libx.so.1")
    names = _names(code)
    assert {b"twice", b"exponential", b"libx.so.1", *(name.encode() for name in native.EXPORTS)} <= names
    assert {b"libc.so.6", b"libm.so.6", b"libpthread.so.0"} <= names


@pytest.mark.slow
@BOTH
def test_the_same_inputs_give_the_same_bytes(target: Target, tmp_path: Path) -> None:
    made = [
        link(
            [compile_ir(TWICE, target), compile_c("int one(void) { return 1; }", target)],
            target,
            extra_objects=native_objects(target, tmp_path / folder),
            cache_dir=tmp_path / folder,
        )
        for folder in ("a", "another/with/a/longer/name")
    ]
    assert made[0] == made[1]
    assert str(tmp_path).encode() not in made[0]


def test_only_exported_names_show_and_the_rest_is_left_out() -> None:
    objects = [compile_ir(TWICE, HOST)]
    everything = link(objects, HOST, extra_objects=native_objects(HOST))
    few = link(objects, HOST, extra_objects=native_objects(HOST), exports=["twice"])
    assert b"twice" in _names(few)
    assert not {b"tfb_time", b"tfb_pool_create", b"exponential", b"libpthread.so.0"} & _names(few)
    assert len(few) < len(everything)


def test_a_shared_object_loads_and_runs(tmp_path: Path) -> None:
    path = tmp_path / "kernels.so"
    path.write_bytes(link([compile_ir(TWICE, HOST)], HOST, extra_objects=native_objects(HOST)))
    library = ctypes.CDLL(str(path))
    given, got = ctypes.c_float(21.0), ctypes.c_float()
    buffers = (ctypes.c_void_p * 2)(ctypes.addressof(given), ctypes.addressof(got))
    assert library.twice(buffers, None, None) == 0
    assert got.value == 42.0
    library.exponential.restype = ctypes.c_float
    library.exponential.argtypes = [ctypes.c_float]
    assert library.exponential(0.0) == 1.0


def test_every_name_the_stubs_promise_is_in_this_machines_c_library(tmp_path: Path) -> None:
    promised = sorted(name for names in LIBRARIES.values() for name in names)
    declared = "\n".join(f"declare void @{name}()" for name in promised)
    stored = "\n".join(
        f"  %s{i} = getelementptr ptr, ptr %out, i64 {i}\n  store ptr @{name}, ptr %s{i}"
        for i, name in enumerate(promised)
    )
    text = f"{declared}\ndefine i32 @all_of_them(ptr %out) {{\n{stored}\n  ret i32 0\n}}"
    path = tmp_path / "all.so"
    path.write_bytes(link([compile_ir(text, HOST)], HOST))
    library = ctypes.CDLL(str(path), mode=os.RTLD_NOW)
    addresses = (ctypes.c_void_p * len(promised))()
    assert library.all_of_them(addresses) == 0
    assert all(addresses)


# ------------------------------------------------------------------------------------------ what is refused


def test_a_name_defined_twice_is_refused() -> None:
    code = compile_ir(TWICE, HOST)
    with pytest.raises(LinkError, match="duplicate symbol: twice"):
        link([code, code], HOST)


def test_a_name_that_no_board_has_is_refused() -> None:
    text = "declare void @cblas_sgemm()\ndefine void @f() {\n  call void @cblas_sgemm()\n  ret void\n}"
    with pytest.raises(LinkError, match=r"linking 1 objects for aarch64[^$]*undefined symbol: cblas_sgemm"):
        link([compile_ir(text, A53)], A53)


def test_an_object_for_another_architecture_is_refused() -> None:
    with pytest.raises(LinkError, match="object_0.o is incompatible with elf_x86_64"):
        link([compile_ir(TWICE, A53)], HOST)


def test_garbage_is_refused() -> None:
    with pytest.raises(LinkError, match=r"object_0\.o"):
        link([b"\x7fELF this is no object"], HOST)


def test_an_export_must_be_a_c_name() -> None:
    with pytest.raises(LinkError, match="expected a C name"):
        link([compile_ir(TWICE, HOST)], HOST, exports=["twice; local: *"])


@pytest.mark.parametrize(
    "triple", ["", "riscv64-unknown-linux-gnu", "x86_64-pc-windows-msvc", "aarch64-linux-musl"]
)
def test_a_triple_without_artifacts_is_refused(triple: str) -> None:
    with pytest.raises(
        LinkError, match="expected one of x86_64-unknown-linux-gnu, aarch64-unknown-linux-gnu"
    ):
        link([], _target(triple, ""))


# ------------------------------------------------------------------------------------------------- C sources


@BOTH
def test_c_text_compiles_with_the_header(target: Target) -> None:
    source = (
        '#include "tfb.h"\nTFB_EXPORT int32_t version(void) { return tfb_abi_version() + TFB_ABI_VERSION; }'
    )
    code = link([compile_c(source, target)], target, extra_objects=native_objects(target))
    assert b"version" in _names(code)


def test_a_c_file_finds_headers_beside_it_and_in_the_folders_given(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "here" / "a.h").write_text("#define A 40\n")
    (tmp_path / "there" / "b.h").write_text("#define B 2\n")
    source = tmp_path / "here" / "sum.c"
    source.write_text('#include "a.h"\n#include "b.h"\nint sum(void) { return A + B; }\n')
    assert compile_c(source, HOST, include_dirs=[tmp_path / "there"])[:4] == b"\x7fELF"


def test_an_error_in_c_is_shown_with_its_place() -> None:
    with pytest.raises(CompileError, match=r"compiling source\.c: [^$]*source\.c:2:.*error"):
        compile_c("int f(void) {\n  return nothing;\n}\n", HOST)


@pytest.mark.slow
@BOTH
def test_embedded_data_is_inside_and_aligned(target: Target, tmp_path: Path) -> None:
    data = bytes(range(256)) * 3 + b"odd"
    path = tmp_path / "weights.bin"
    path.write_bytes(data)
    by_value, by_path = embed("weights", data, target), embed("weights", path, target)
    source = (
        '#include "tfb.h"\nextern const unsigned char weights[];\n'
        "TFB_EXPORT const unsigned char *where(void) { return weights; }\n"
    )
    made = [link([compile_c(source, target), code], target) for code in (by_value, by_path)]
    assert made[0] == made[1]
    assert data in made[0]
    assert b"weights" not in _names(made[0])
    if target is HOST:
        shared = tmp_path / "data.so"
        shared.write_bytes(made[0])
        library = ctypes.CDLL(str(shared))
        library.where.restype = ctypes.c_void_p
        assert library.where() % 64 == 0
        assert ctypes.string_at(library.where(), len(data)) == data


def test_embedded_data_needs_a_c_name() -> None:
    with pytest.raises(LinkError, match="'a-b' cannot be a symbol"):
        embed("a-b", b"", HOST)


# ------------------------------------------------------------------------------------------------- the cache


def _native_bytes(cache_dir: Path) -> list[bytes]:
    return [path.read_bytes() for path in native_objects(HOST, cache_dir)]


@pytest.mark.slow
def test_several_processes_may_fill_one_cache(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("fork")) as pool:
        made = list(pool.map(_native_bytes, [tmp_path] * 4))
    assert made == [made[0]] * 4
    assert len(list((tmp_path / "native").iterdir())) == 1


@pytest.mark.slow
def test_the_cache_is_used_again(tmp_path: Path) -> None:
    first = native_objects(HOST, tmp_path)
    times = [path.stat().st_mtime_ns for path in first]
    assert native_objects(HOST, tmp_path) == first
    assert [path.stat().st_mtime_ns for path in first] == times


@pytest.mark.slow
@pytest.mark.parametrize("name", ["check.o", "libc.so.6", "SHA256SUMS"])
def test_a_damaged_file_of_the_cache_is_made_again(tmp_path: Path, name: str) -> None:
    first = native_objects(HOST, tmp_path)
    damaged = first[0].parent / name
    whole = damaged.read_bytes()
    damaged.write_bytes(b"")
    assert native_objects(HOST, tmp_path) == first
    assert damaged.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LinkError, match=r"cannot write the cache .*file/native: .*cache_dir"):
        native_objects(HOST, tmp_path / "file")


def test_nothing_is_left_behind_when_compiling_fails(tmp_path: Path) -> None:
    broken = tmp_path / "gcc"
    broken.write_text("#!/bin/sh\necho this compiler is broken >&2\nexit 3\n")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    zig = find_toolchain(HOST.triple)
    toolchain = type(zig)("broken 1", (str(broken),), (str(broken),), linker_is_driver=True)
    with pytest.raises(
        CompileError, match=r"compiling pool\.c: gcc ended with exit code 3:\nthis compiler is broken"
    ):
        native_objects(HOST, tmp_path / "cache", toolchain=toolchain)
    assert list((tmp_path / "cache" / "native").iterdir()) == []


def test_a_tool_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LinkError, match="trying: cannot start /nowhere/ld"):
        run(["/nowhere/ld"], tmp_path, "trying", LinkError)


# ---------------------------------------------------------------------------------------- other toolchains


@pytest.mark.slow
@pytest.mark.parametrize("own", ["", "-D_FORTIFY_SOURCE=2"])  # what a distribution's compiler has by itself
def test_a_system_compiler_serves_where_zig_is_missing(own: str, tmp_path: Path) -> None:
    toolchain = system_toolchain("x86_64", os.environ)
    if toolchain is None:
        pytest.skip("no system compiler on this machine")
    script = tmp_path / "distributions-cc"
    script.write_text(f'#!/bin/sh\nexec {toolchain.compiler[0]} {own} "$@"\n')
    script.chmod(0o755)
    toolchain = system_toolchain("x86_64", os.environ | {"CC": str(script)})
    assert toolchain is not None and toolchain.compiler[0] == str(script)
    extra = native_objects(HOST, tmp_path, toolchain=toolchain)
    objects = [compile_ir(TWICE, HOST), compile_c("int one(void) { return 1; }", HOST, toolchain=toolchain)]
    path = tmp_path / "kernels.so"
    path.write_bytes(link(objects, HOST, extra_objects=extra, cache_dir=tmp_path, toolchain=toolchain))
    assert ctypes.CDLL(str(path)).tfb_abi_version() == native.ABI_VERSION
    with pytest.raises(LinkError, match="undefined reference to `nowhere'|undefined symbol: nowhere"):
        missing = compile_c("void nowhere(void); void f(void) { nowhere(); }", HOST, toolchain=toolchain)
        used = compile_c(
            '#include "tfb.h"\nvoid f(void); TFB_EXPORT void g(void) { f(); }', HOST, toolchain=toolchain
        )
        link([missing, used], HOST, cache_dir=tmp_path, toolchain=toolchain)


def test_a_compiler_for_another_architecture_is_passed_over(tmp_path: Path) -> None:
    for name, machine in (("cc", "x86_64-linux-gnu"), ("aarch64-linux-gnu-gcc", "aarch64-linux-gnu")):
        script = tmp_path / name
        script.write_text(f'#!/bin/sh\n[ "$1" = -dumpmachine ] && echo {machine} || echo 12.2.0\n')
        script.chmod(0o755)
    environment = {"PATH": str(tmp_path), "CC": "cc"}
    found = system_toolchain("aarch64", environment)
    assert found is not None
    assert found.identity == "aarch64-linux-gnu-gcc 12.2.0"
    assert "-mno-outline-atomics" in found.compiler
    assert system_toolchain("aarch64", {"PATH": str(tmp_path / "nowhere")}) is None


# --------------------------------------------------------------------------------------------- a C program

# Starts without the C runtime's own start files, which are for programs that this machine's compiler links.
PROGRAM = r"""
#include "tfb.h"
#include <stdio.h>
#include <stdlib.h>

int32_t twice(void *const *buffers, void *workspace, struct tfb_pool *pool);

static void add(void *closure, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) __atomic_fetch_add((int64_t *)closure, i, __ATOMIC_RELAXED);
}

__attribute__((used)) static void run(void) {
    float in = 21, out = 0;
    void *buffers[2] = {&in, &out};
    int32_t status = twice(buffers, NULL, NULL);
    struct tfb_pool *pool = tfb_pool_create(3, NULL, 0);
    int64_t sum = 0;
    for (int i = 0; i < 100; i++) tfb_parallel_for(pool, add, &sum, 101);
    tfb_timing timing = {.number = 2, .max_number = 1000, .repeat = 2, .min_repeat_s = 1e-5};
    double seconds[2];
    int64_t number;
    int32_t repeats = tfb_time(twice, buffers, NULL, pool, &timing, seconds, &number);
    float want = 40;
    tfb_difference difference;
    tfb_compare_f32(&out, &want, 1, &difference);
    tfb_pool_destroy(pool);
    printf("%d %d %g %ld %d %g\n", tfb_abi_version(), status, out, (long)sum, repeats,
           difference.max_abs_error);
    exit(0); /* also writes out what printf has kept */
}

#if defined(__x86_64__)
__asm__(".globl _start\n_start: xor %ebp, %ebp\n and $-16, %rsp\n call run\n hlt");
#else
__asm__(".globl _start\n_start: mov x29, #0\n mov x30, #0\n bl run\n brk #1");
#endif
"""
LOADERS = {HOST: "/lib64/ld-linux-x86-64.so.2", A53: "/lib/ld-linux-aarch64.so.1"}


def _linked_program(target: Target, folder: Path) -> Path:
    """PROGRAM, linked against a shared object with the kernel `twice`, in `folder`."""
    toolchain = zig_toolchain(target.triple.split("-")[0])
    assert toolchain is not None
    extra = native_objects(target)
    shared = link([compile_ir(TWICE, target)], target, extra_objects=extra, soname="libkernels.so")
    (folder / "libkernels.so").write_bytes(shared)
    (folder / "program.o").write_bytes(compile_c(PROGRAM, target))
    flags = ["-pie", "-dynamic-linker", LOADERS[target], "-rpath", str(folder)]
    stubs = [str(extra[0].parent / name) for name in LIBRARIES]
    run(
        [*toolchain.linker, *flags, "program.o", "libkernels.so", *stubs, "-o", "program"],
        folder,
        "program",
        LinkError,
    )
    return folder / "program"


def test_a_c_program_uses_a_shared_object(tmp_path: Path) -> None:
    done = subprocess.run([_linked_program(HOST, tmp_path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{native.ABI_VERSION} 0 42 505000 2 2\n"


@pytest.mark.emulated
def test_a_c_program_uses_a_shared_object_for_aarch64(tmp_path: Path) -> None:
    found = emulation.find()
    if found is None:
        pytest.skip("no emulation here; run `make emulation`")
    command = [str(found.qemu), "-L", str(found.sysroot), str(_linked_program(A53, tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{native.ABI_VERSION} 0 42 505000 2 2\n"


def test_a_program_that_a_system_compiler_links_uses_a_shared_object(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no system compiler on this machine")
    _linked_program(HOST, tmp_path)
    source = PROGRAM.replace("static void run(void)", "int main(void)").split("#if defined")[0]
    (tmp_path / "main.c").write_text(source)
    subprocess.run(
        [compiler, "-I", native.FOLDER, "main.c", "./libkernels.so", f"-Wl,-rpath,{tmp_path}", "-o", "main"],
        cwd=tmp_path, check=True,
    )  # fmt: skip
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"{native.ABI_VERSION} 0 42 505000 2 2\n")
