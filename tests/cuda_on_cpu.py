"""CUDA C run on the CPU, block by block: what the printer writes, where there is no CUDA device.

`run_on_cpu` runs kernels; a `Driver` stands in for pycuda.driver, so that the runtime's own CUDA driver runs
whole models. The sources are compiled as C. The threads of a block are coroutines that run until they end or
come to a barrier, one after the other; a barrier that some threads reach and others do not ends the program.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cross.codegen.c.family import Program
from cross.loopnest import LoopNest
from device_runtime.protocol import GpuModel
from tests.compilers import host_compiler

Array = NDArray[Any]
TIMEOUT_S = 120.0

PRELUDE = r"""
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>
#define MOST_THREADS 1024
#define STACK_BYTES 65536
#define __global__
#define __device__
#define __launch_bounds__(threads)
#define __shared__ static
#define __constant__ static
#define __align__(bytes) __attribute__((aligned(bytes)))
typedef struct __align__(8) { float x, y; } float2;
typedef struct __align__(16) { float x, y, z, w; } float4;
static struct { int x; } blockIdx, threadIdx;
static inline float2 make_float2(float x, float y) { return (float2){x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return (float4){x, y, z, w}; }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a < b ? b : a; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __int_as_float(int bits) { union { int i; float f; } u = {bits}; return u.f; }

static ucontext_t scheduler, threads[MOST_THREADS];
static char *stacks;
static int ended[MOST_THREADS];
static void (*body)(void);

static void __syncthreads(void) {
    int thread = threadIdx.x;
    swapcontext(&threads[thread], &scheduler);
}

static void enter(void) { body(); ended[threadIdx.x] = 1; }

static void launch(void (*kernel)(void), int block_count, int count) {
    body = kernel;
    if (stacks == NULL) stacks = malloc((size_t)MOST_THREADS * STACK_BYTES);
    for (blockIdx.x = 0; blockIdx.x < block_count; ++blockIdx.x) {
        for (int i = 0; i < count; ++i) {
            getcontext(&threads[i]);
            threads[i].uc_stack.ss_sp = stacks + (size_t)i * STACK_BYTES;
            threads[i].uc_stack.ss_size = STACK_BYTES;
            threads[i].uc_link = &scheduler;
            ended[i] = 0;
            makecontext(&threads[i], enter, 0);
        }
        for (int gone = 0; gone == 0;) {
            for (int i = 0; i < count; ++i) {
                threadIdx.x = i;
                swapcontext(&scheduler, &threads[i]);
                gone += ended[i];
            }
            if (gone != 0 && gone != count) {
                fprintf(stderr, "block %d: %d of %d threads miss a barrier\n", blockIdx.x, gone, count);
                exit(1);
            }
        }
    }
}

static void *read_file(const char *name, size_t bytes) {
    void *content = aligned_alloc(64, (bytes + 63) / 64 * 64);
    FILE *file = fopen(name, "rb");
    if (file == NULL || fread(content, 1, bytes, file) != bytes) exit(2);
    fclose(file);
    return content;
}

static void write_file(const char *name, const void *content, size_t bytes) {
    FILE *file = fopen(name, "wb");
    if (file == NULL || fwrite(content, 1, bytes, file) != bytes || fclose(file) != 0) exit(2);
}
"""


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel to run once: its program, the nest that it is of, and the inputs of its operator."""

    program: Program
    nest: LoopNest
    inputs: Sequence[Array]


def run_on_cpu(calls: Sequence[Call], folder: Path) -> list[Array]:
    """The outputs of all kernels, whose functions have names of their own."""
    results, sources, mains = [], [PRELUDE], []
    for number, call in enumerate(calls):
        output = call.nest.arguments[-1]
        got = np.full([extent.value for extent in output.shape], np.nan, output.dtype)  # type: ignore[union-attr]
        packed = [
            array if buffer.packing is None else buffer.packing.apply(array)
            for buffer, array in zip(call.nest.arguments[:-1], call.inputs, strict=True)
        ]
        arrays = [np.ascontiguousarray(item) for item in (*packed, got)]
        for place, array in enumerate(arrays):
            (folder / f"{number}_{place}").write_bytes(array.tobytes())
        sources += [_as_c(number, call.program.source), *_bodies(number, call, len(arrays))]
        mains.append(_main(number, call, [array.nbytes for array in arrays]))
        results.append(got)
    source = folder / "kernels.c"
    source.write_text("\n".join([*sources, "int main(void) {", *mains, "return 0; }"]))
    _compile(source, folder / "kernels")
    subprocess.run([str(folder / "kernels")], cwd=folder, check=True, timeout=TIMEOUT_S)
    for number, got in enumerate(results):
        got[...] = np.fromfile(folder / f"{number}_out", got.dtype).reshape(got.shape)
    return results


def _compile(source: Path, made: Path, *options: str) -> None:
    command = [*host_compiler(), "-O0", "-w", *options]
    subprocess.run([*command, "-o", str(made), str(source), "-lm"], check=True, timeout=TIMEOUT_S)


def _as_c(number: int, source: str) -> str:
    """A program as C, its helper functions and tables under names of their own."""
    own = re.findall(
        r"^__device__ static inline [\w ]+ (\w+)\(|^__constant__ const \w+ (\w+)\[", source, re.M
    )
    names = [helper or table for helper, table in own]
    renamed = [f"#undef {name}\n#define {name} {name}_of_{number}" for name in names]
    return "\n".join([*renamed, source.replace('extern "C" ', "")])


def _bodies(number: int, call: Call, arrays: int) -> list[str]:
    """One function without arguments for each launch."""
    lines = [f"static void *buffers{number}[{arrays}], *workspace{number};"]
    for place, function in enumerate(call.program.functions):
        passed = ", ".join(
            f"workspace{number}" if argument is None else f"buffers{number}[{argument}]"
            for argument in function.arguments
        )
        lines.append(f"static void body{number}_{place}(void) {{ {function.name}({passed}); }}")
    return lines


def _main(number: int, call: Call, sizes: Sequence[int]) -> str:
    lines = [
        f'buffers{number}[{place}] = read_file("{number}_{place}", {size});'
        for place, size in enumerate(sizes)
    ]
    lines.append(f"workspace{number} = aligned_alloc(64, {call.program.workspace_bytes // 64 * 64 + 64});")
    for place, function in enumerate(call.program.functions):
        lines.append(f"launch(body{number}_{place}, {function.blocks}, {function.threads});")
    lines.append(f'write_file("{number}_out", buffers{number}[{len(sizes) - 1}], {sizes[-1]});')
    return "\n".join(lines)


STAND_IN = r"""
#include <stdint.h>
#include <string.h>
static void **arguments;
static int get(void *out, uint64_t value) { memcpy(out, &value, 8); return 0; }
static int number(void *out, int value) { memcpy(out, &value, 4); return 0; }
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int *count) { return number(count, 1); }
int cuDeviceGet(int *device, int index) { return number(device, index); }
int cuDeviceGetName(char *name, int length, int device) { snprintf(name, length, "stand-in"); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    return number(value, attribute == 75 ? MAJOR : attribute == 76 ? MINOR : attribute == 1 ? 1024 : -1);
}
int cuDevicePrimaryCtxRetain(void **context, int device) { return get(context, 1); }
int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
int cuCtxSetCurrent(void *context) { return context != (void *)1; }
int cuCtxSynchronize(void) { return 0; }
int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    return get(address, (uint64_t)(uintptr_t)aligned_alloc(256, (bytes + 255) / 256 * 256));
}
int cuMemFree_v2(uint64_t address) { free((void *)address); return 0; }
static int copied(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); return 0; }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) { return copied((void *)to, from, bytes); }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) { return copied(to, (void *)from, bytes); }
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    if (to < from + bytes && from < to + bytes) return 1; /* a copy onto itself */
    return copied((void *)to, (void *)from, bytes);
}
int cuModuleLoadData(void **module, const void *image) { return get(module, (uint64_t)strdup("")); }
int cuModuleUnload(void *module) { free(module); return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    for (unsigned i = 0; i < sizeof table / sizeof *table; ++i)
        if (strcmp(table[i].name, name) == 0) return get(function, (uint64_t)table[i].call);
    return 500;
}
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty,
                   unsigned tz, unsigned shared, void *stream, void **given, void **extra) {
    arguments = given;
    launch((void (*)(void))function, x, threads);
    return y != 1 || z != 1 || ty != 1 || tz != 1 || shared != 0;
}
"""


def driver_library(model: GpuModel, capability: str, folder: Path) -> Path:
    """libcuda.so.1 that runs the kernels of a model whose code is CUDA C; instead of NVIDIA's."""
    sources, rows = [PRELUDE, "static void **arguments;"], []
    for number, kernel in enumerate(model.module.kernels.values()):
        assert isinstance(kernel.code, bytes)
        sources.append(_as_c(number, kernel.code.decode()))
        for launch in kernel.launches:
            passed = ", ".join(f"*(void **)arguments[{place}]" for place in range(len(launch.buffers)))
            sources.append(f"static void call_{launch.name}(void) {{ {launch.name}({passed}); }}")
            rows.append(f'{{"{launch.name}", call_{launch.name}}}')
    assert len(set(rows)) == len(rows), "functions of the same name"
    table = f"static struct {{ const char *name; void (*call)(void); }} table[] = {{{', '.join(rows)}}};"
    numbers = f"#define MAJOR {capability[-2]}\n#define MINOR {capability[-1]}"
    source, made = folder / "libcuda.c", folder / "libcuda.so.1"
    source.write_text("\n".join([*sources, table, numbers, STAND_IN]))
    _compile(source, made, "-shared", "-fPIC")
    return made


class Driver:
    """What CudaDevice uses of pycuda.driver; addresses are this process's, modules are CUDA C as bytes."""

    class Error(Exception):
        """As pycuda.driver.Error."""

    class MemoryError(Error):
        """As pycuda.driver.MemoryError."""

    Context = SimpleNamespace(synchronize=lambda: None)

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._memory: list[Array] = []
        self.copies = 0

    def mem_alloc(self, size_bytes: int) -> int:
        memory = np.zeros(size_bytes + 256, np.uint8)
        self._memory.append(memory)
        return memory.ctypes.data + -memory.ctypes.data % 256  # type: ignore[no-any-return]

    def memcpy_htod(self, target: int, source: memoryview) -> None:
        ctypes.memmove(target, bytes(source), len(source))

    def memcpy_dtoh(self, target: memoryview, source: int) -> None:
        target[:] = ctypes.string_at(source, len(target))

    def memcpy_dtod_async(self, target: int, source: int, size_bytes: int) -> None:
        assert abs(target - source) >= size_bytes, "a copy onto itself"
        self.copies += 1
        ctypes.memmove(target, source, size_bytes)

    def memset_d8(self, target: int, byte: int, size_bytes: int) -> None:
        ctypes.memset(target, byte, size_bytes)

    def module_from_buffer(self, code: bytes) -> Any:
        return SimpleNamespace(get_function=lambda name: _Function(name, code.decode(), self._folder))


class _Function:
    """As pycuda.driver.Function; it is compiled once it is known how many arguments it has."""

    def __init__(self, name: str, source: str, folder: Path) -> None:
        self._name, self._source, self._folder = name, source, folder
        self._library: Any = None

    def prepare(self, kinds: str) -> None:
        passed = ", ".join(f"arguments[{place}]" for place in range(len(kinds)))
        source = self._folder / f"{self._name}.c"
        source.write_text(f"""{PRELUDE}
{self._source.replace('extern "C" ', "")}
static void **arguments;
static void call(void) {{ {self._name}({passed}); }}
void run(void **given, int blocks, int count) {{ arguments = given; launch(call, blocks, count); }}
""")
        _compile(source, source.with_suffix(".so"), "-shared", "-fPIC")
        self._library = ctypes.CDLL(str(source.with_suffix(".so")))

    def prepared_async_call(
        self, blocks: Sequence[int], threads: Sequence[int], stream: object, *arguments: int
    ) -> None:
        self._library.run((ctypes.c_void_p * len(arguments))(*arguments), blocks[0], threads[0])
