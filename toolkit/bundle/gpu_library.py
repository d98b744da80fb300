"""A GPU's model as a shared object with the C header of every model, for programs that link with it.

It opens the GPU's driver (libOpenCL or libcuda, by dlopen) and runs the steps of the plan, which are printed
as those of a CPU's model are (library.py). Kernels and parameters are read from model.gpu beside it, so that
a bundle has them once; the library knows where they lie there, and refuses another file. Start at `build`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from boards.target import Target
from cross import link
from device_runtime.protocol import GpuModel, Launch
from toolkit.bundle.library import (
    EXPORTS,
    FOLDER,
    SONAME,
    ModelLibrary,
    comment,
    header,
    lines,
    literal,
    moved,
    tensors,
)
from toolkit.bundle.model_plan import BufferRef, Copy, Loop, ModelPlan, Step, leaves

GPU_FILE: Final = "model.gpu"
MOST_BUFFERS: Final = 64  # of a launch: MAX_LAUNCH_BUFFERS of gpu_module.py
RUNS_IN_QUEUE: Final = 256  # of a loop before the queue is waited for, as in the device runtime
DRIVERS: Final = {"opencl": "libOpenCL", "cuda": "libcuda"}


def build(model_plan: ModelPlan, model: GpuModel, target: Target, host: Target) -> ModelLibrary:
    """The library for programs on `host`, the board's CPU; `model` is the plan's. Raises CrossError."""
    words = {
        "NEEDS": f"libc, {GPU_FILE} beside it and, found when it runs, {DRIVERS[target.kind]}",
        "CREATE": "/* Opens the device, allocates all memory there, builds all kernels: it may take seconds.",
        "TOOLS": "",
    }
    code = link.compile_c(source(model_plan, model, target, words), host)
    shared_object = link.link([code], host, exports=EXPORTS, soname=SONAME)
    return ModelLibrary(shared_object, header(model_plan, words).encode())


def source(model_plan: ModelPlan, model: GpuModel, target: Target, words: Mapping[str, str]) -> str:
    """The library in C."""
    said = header(model_plan, words)
    launches = sum(len(one.launches) for one in model.module.kernels.values())
    sizes = {kernel.symbol: kernel.argument_bytes for kernel in model_plan.kernels}
    numbers = {symbol: number for number, symbol in enumerate(model.module.kernels)}
    driver = (FOLDER / f"gpu_{target.kind}.c").read_text()
    return "\n".join([
        "#define _GNU_SOURCE",
        "#pragma GCC visibility push(default)",
        said,
        "#pragma GCC visibility pop",
        *_constants(model, target, launches, sum(1 for _ in leaves(model_plan.steps))),
        *tensors(model_plan),
        (FOLDER / "gpu_model.h").read_text(),
        "#define DEVICE_TEXT failure",
        (FOLDER / "model_about.c").read_text(),
        driver,
        *_kernels(model),
        *_steps(model_plan, _GpuWords(sizes, numbers)),
        (FOLDER / "gpu_run.c").read_text(),
    ])  # fmt: skip


def _constants(model: GpuModel, target: Target, launches: int, leaf_count: int) -> list[str]:
    data = model.to_bytes()
    parameters = data.index(model.parameters) if model.parameters else 0
    memories = [*model.inputs, *model.outputs, model.arena_bytes, len(model.parameters), model.scratch_bytes]
    capability = target.gpu.compute_capability.rpartition("_")[2].rstrip("a") if target.gpu else ""
    major, minor = (capability[:-1], capability[-1]) if capability else ("0", "0")
    constants = {
        "KERNELS": len(model.module.kernels),
        "LAUNCHES": launches,
        "PARTS": 1 << max(8, (16 * leaf_count).bit_length()),
        "MOST_BUFFERS": MOST_BUFFERS,
        "THREADS_PER_BLOCK": model.threads_per_block,
        "CAPABILITY_MAJOR": major,
        "CAPABILITY_MINOR": minor,
        "GPU_DEVICE": literal(target.device),
        "GPU_FILE": literal(GPU_FILE),
        "GPU_FILE_BYTES": f"INT64_C({len(data)})",
        "GPU_FILE_SUM": f"UINT32_C({zlib.crc32(data)})",  # finds a wrong file; signatures are the board's
        "PARAMETERS_AT": f"INT64_C({parameters})",
        "PARAMETERS_BYTES": f"INT64_C({len(model.parameters)})",
        "MEMORY_BYTES": ", ".join(f"INT64_C({size})" for size in memories),
    }
    return [f"#define {name} {value}" for name, value in constants.items()]


def _kernels(model: GpuModel) -> Iterator[str]:
    """The tables of launches and kernels, in the order of the module."""
    data, first, rows = model.to_bytes(), 0, []
    for number, kernel in enumerate(model.module.kernels.values()):
        code = kernel.code.encode() if isinstance(kernel.code, str) else kernel.code
        for place, launch in enumerate(kernel.launches):
            indices = ", ".join(map(str, launch.buffers)) or "0"
            yield f"static const int32_t buffers_{number}_{place}[] = {{{indices}}};"
        launches = ", ".join(
            _launch(launch, f"{number}_{place}") for place, launch in enumerate(kernel.launches)
        )
        yield f"static const struct gpu_launch launches_{number}[] = {{{launches}}};"
        rows.append(
            f"{{{data.index(code)}, {len(code)}, {first}, {len(kernel.launches)}, launches_{number}}}"
        )
        first += len(kernel.launches)
    yield f"static const struct gpu_kernel kernels[] = {{{', '.join(rows)}}};"


def _launch(launch: Launch, number: str) -> str:
    blocks, threads = (", ".join(map(str, extents)) for extents in (launch.blocks, launch.threads))
    return f"{{{literal(launch.name)}, {{{blocks}}}, {{{threads}}}, {len(launch.buffers)}, buffers_{number}}}"


def _steps(model_plan: ModelPlan, words: _GpuWords) -> list[str]:
    """`run_steps`, which puts all steps into the device's queue; conditions are read back."""
    return [
        (FOLDER / "gpu_steps.c").read_text(),
        "static int32_t run_steps(struct tfb_instance *gpu)",
        "{",
        "    int32_t status = 0;",
        "",
        *lines(model_plan.steps, words),
        "    return status;",
        "}",
    ]


class _GpuWords(msgspec.Struct, frozen=True):
    """Of a GPU: launches and copies that a driver starts. `sizes`: of each kernel's buffers, in bytes."""

    sizes: Mapping[str, tuple[int, ...]]
    numbers: Mapping[str, int]
    checked: str = "    if (status != 0) return status;"

    def call(self, step: Step) -> Iterator[str]:
        places = ", ".join(
            self._place(ref, size) for ref, size in zip(step.buffers, self.sizes[step.symbol], strict=True)
        )
        yield f"    {{ /* {comment(step.layer or step.symbol)} */"
        yield f"        const struct gpu_place step[] = {{{places}}};"
        yield f"        status = call(gpu, &kernels[{self.numbers[step.symbol]}], step);"
        yield "    }"
        yield self.checked

    def copy(self, step: Copy) -> Iterator[str]:
        places = [
            f"(struct gpu_place){self._place(ref, step.size_bytes)}" for ref in (step.source, step.target)
        ]
        yield f"    status = driver.copy(gpu, {', '.join(places)});"
        yield self.checked

    def truth(self, ref: BufferRef) -> str:
        return f"holds(gpu, (struct gpu_place){self._place(ref, 1)}, &status)"

    def begin(self, loop: Loop, depth: int) -> Iterator[str]:
        return iter(())  # whether runs take turns in their order is a CPU's matter

    def end(self, loop: Loop) -> Iterator[str]:
        if loop.condition is not None:
            yield self.checked

    def run(self, depth: int) -> Iterator[str]:
        yield f"    if (run{depth} % {RUNS_IN_QUEUE} == {RUNS_IN_QUEUE - 1}) status = driver.finish(gpu);"
        yield self.checked

    def _place(self, ref: BufferRef, size_bytes: int) -> str:
        offset = moved(ref)
        match ref.kind:
            case "parameter" | "arena":
                memory = "PARAMETERS" if ref.kind == "parameter" else "ARENA"
                return f"{{{memory}, {ref.at}{offset}, {size_bytes}}}"
            case "input" | "output":
                base = "TFB_MODEL_INPUTS + " if ref.kind == "output" else ""
                return f"{{{base}{ref.at}, 0{offset}, {size_bytes}}}"
