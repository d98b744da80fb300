"""A model plan as one self-contained shared object with a C header.

The generated C is only glue: it calls the kernels in order (`tfb_model`, same ABI as a kernel, so that a
whole model is checked and timed like one) and wraps that in create, run, destroy for applications (model.c).
All memory is allocated in create. Parameters are a read-only section: the loader maps it, processes share it,
and create touches it, so that the first run finds every page; the pages of stacks, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from boards.target import Target
from cross import link, native
from toolkit.bundle.manifest import TensorSpec, counters
from toolkit.bundle.model_plan import (
    BufferRef,
    Choice,
    Copy,
    Loop,
    ModelPlan,
    PlanStep,
    Step,
    leaves,
)
from toolkit.model.memory import ALIGNMENT_BYTES, aligned

MODEL_ABI_VERSION = 2
SONAME = "model.so"
PARAMETERS = "tfb_parameters"

FOLDER = Path(__file__).parent
"""Where the C lies that is the same for every model: model.h (a template) and the files that follow it."""

EXPORTS = (
    "tfb_model_abi_version",
    "tfb_model_create",
    "tfb_model_create_on",
    "tfb_model_destroy",
    "tfb_model_error_text",
    "tfb_model_input",
    "tfb_model_input_count",
    "tfb_model_output",
    "tfb_model_output_count",
    "tfb_model_run",
)
"""What every model's library has, as the header says."""

TOOLS = ("tfb_model", "tfb_model_step_count", "tfb_model_steps", "tfb_model_workspace_bytes")
"""What that of a CPU has beside it."""

CPU_HEADER = {
    "NEEDS": "nothing but libc",
    "CREATE": """\
/* Allocates all memory and starts the threads that the model was tuned with. The calling thread is one of
 * them: it is pinned to the first core until destroy. Call run and destroy from the same thread.""",
    "TOOLS": """\
/* The model as one kernel, for tools: buffers are the inputs, then the outputs, each 64-byte aligned;
 * workspace is 64-byte aligned and tfb_model_workspace_bytes() long; pool NULL: on the calling thread. */
struct tfb_pool;
int32_t tfb_model(void *const *buffers, void *workspace, struct tfb_pool *pool);
int64_t tfb_model_workspace_bytes(void);
""",
}
"""What the header of a CPU's model says in its places."""


class ModelLibrary(msgspec.Struct, frozen=True):
    """A linked model: ELF shared object and the C header that goes with it."""

    shared_object: bytes
    header: bytes


def build(model_plan: ModelPlan, target: Target) -> ModelLibrary:
    """Compile the glue and link everything. The plan is sound (`check`); raises CrossError from the tools."""
    objects = [link.compile_c(source(model_plan), target), *(kernel.code for kernel in model_plan.kernels)]
    if model_plan.parameters:
        objects.append(link.embed(PARAMETERS, model_plan.parameters, target, alignment_bytes=ALIGNMENT_BYTES))
    shared_object = link.link(
        objects,
        target,
        extra_objects=link.native_objects(target),
        exports=(*EXPORTS, *TOOLS, *native.EXPORTS),
        soname=SONAME,
    )
    return ModelLibrary(shared_object, header(model_plan).encode())


def header(model_plan: ModelPlan, words: Mapping[str, str] = CPU_HEADER) -> str:
    """The C and C++ header of the model's library; `words` are what it says in its places."""
    sizes = []
    for role, specs in (("INPUT", model_plan.inputs), ("OUTPUT", model_plan.outputs)):
        counts = counters(specs)
        sizes.append(f"#define TFB_MODEL_{role}S {len(specs)}")
        for number, spec in enumerate(specs):
            shape = "x".join(str(extent) for extent in spec.shape)
            about = comment(f"{spec.name}: {spec.dtype} {shape} {spec.layout}".rstrip())
            if spec.count:
                about += f"; how many of dimension {spec.dimension} count is in output {counts[spec.count]}"
            sizes.append(f"/* {about} */")
            sizes.append(f"#define TFB_MODEL_{role}_{number}_ELEMENTS {spec.elements}")
            sizes.append(f"#define TFB_MODEL_{role}_{number}_BYTES {spec.size_bytes}")
    text = (FOLDER / "model.h").read_text()
    text = text.replace("@NAME@", comment(model_plan.name)).replace("@ABI@", str(MODEL_ABI_VERSION))
    for place, found in words.items():
        text = text.replace(f"@{place}@", found)
    return text.replace("@SIZES@", "\n".join(sizes))


def source(model_plan: ModelPlan) -> str:
    """The glue in C; the parameters are an object of their own."""
    symbols = sorted({step.symbol for step, _ in leaves(model_plan.steps) if isinstance(step, Step)})
    cores = ", ".join(str(core) for core in model_plan.cores) or "0"
    pieces = [
        "#define _GNU_SOURCE",
        "#pragma GCC visibility push(default)",
        header(model_plan),
        "#pragma GCC visibility pop",
        "#include <string.h>",
        '#include "tfb.h"',
        f"#define ALIGNMENT {ALIGNMENT_BYTES}",
        f"#define WORKSPACE_BYTES INT64_C({model_plan.workspace_bytes})",
        f"#define LOCAL_BYTES {max((kernel.local_bytes for kernel in model_plan.kernels), default=0)}",
        f"#define TUNED_THREADS {model_plan.threads}",
        f"#define TUNED_CORES {len(model_plan.cores)}",
        f"static const int32_t tuned_cores[] = {{{cores}}};",
        *tensors(model_plan),
        '#define DEVICE_TEXT "this model needs no device"',
        (FOLDER / "model_about.c").read_text(),
        f'extern const unsigned char {PARAMETERS}[] __attribute__((visibility("hidden")));',
        f"#define PARAMETERS_BYTES {len(model_plan.parameters)}",
        *(f"int32_t {symbol}(void *const *, void *, struct tfb_pool *);" for symbol in symbols),
        (FOLDER / "model_clock.c").read_text(),
        *_model(model_plan),
        (FOLDER / "model.c").read_text(),
    ]
    return "\n".join(pieces)


def _model(model_plan: ModelPlan) -> list[str]:
    """The function `tfb_model`, kernel calls and copies in loops and choices; and `tfb_model_steps`, the same
    with the nanoseconds of each call and copy added up in `spent_ns`, in the order of `leaves`."""
    count = sum(1 for _ in leaves(model_plan.steps))
    parameters = "void *const *buffers, void *workspace, struct tfb_pool *pool"
    always = "static inline __attribute__((always_inline)) int32_t"
    return [
        "static int32_t failed(void) { tfb_run_last_first(0); return TFB_MODEL_ERROR_KERNEL; }",
        f"{always} model_steps({parameters}, int64_t *spent_ns)",
        "{",
        "    unsigned char *const arena = workspace;",
        f"    void *const scratch = arena + {aligned(model_plan.arena_bytes)};",
        "    int64_t since_ns = spent_ns ? now_ns() : 0;",
        *lines(model_plan.steps, _CpuWords(len(model_plan.inputs), itertools.count())),
        "    (void)since_ns;",
        "    return TFB_MODEL_OK;",
        "}",
        f"int32_t tfb_model({parameters}) {{ return model_steps(buffers, workspace, pool, NULL); }}",
        f"TFB_EXPORT int32_t tfb_model_steps({parameters}, int64_t *spent_ns)",
        "{ return model_steps(buffers, workspace, pool, spent_ns); }",
        f"TFB_EXPORT int32_t tfb_model_step_count(void) {{ return {count}; }}",
    ]


def tensors(model_plan: ModelPlan) -> list[str]:
    """The C tables `inputs` and `outputs`."""
    return [*_tensors("input", model_plan.inputs), *_tensors("output", model_plan.outputs)]


def _tensors(role: str, specs: tuple[TensorSpec, ...]) -> list[str]:
    """Tables of names, shapes and sizes; one dummy entry where there is no tensor: C has no empty array."""
    lines = []
    entries = []
    counts = counters(specs)
    for number, spec in enumerate(specs):
        shape = ", ".join(str(extent) for extent in spec.shape) or "1"
        lines.append(f"static const int64_t {role}_{number}_shape[] = {{{shape}}};")
        entries.append(
            f"    {{{literal(spec.name)}, {literal(spec.dtype)}, {literal(spec.layout)}, "
            f"{role}_{number}_shape, {len(spec.shape)}, {spec.elements}, {spec.size_bytes}, "
            f"{counts.get(spec.count, -1)}, {spec.dimension}}},"
        )
    return [*lines, f"static const tfb_tensor {role}s[] = {{", *(entries or ["    {0},"]), "};"]


class Words(Protocol):
    """How the C of a target's model says the steps that differ; conditions are expressions."""

    @property
    def checked(self) -> str:
        """A statement that ends the function where a condition could not be read; "" where all can be."""

    def call(self, step: Step) -> Iterator[str]:
        """Call a kernel."""

    def copy(self, step: Copy) -> Iterator[str]:
        """Copy bytes."""

    def truth(self, ref: BufferRef) -> str:
        """Whether a condition holds."""

    def begin(self, loop: Loop, depth: int) -> Iterator[str]:
        """Before each run of the loop number `depth`."""

    def run(self, depth: int) -> Iterator[str]:
        """After each run of the loop number `depth`."""

    def end(self, loop: Loop) -> Iterator[str]:
        """After the loop."""


def lines(steps: Iterable[PlanStep], words: Words, depth: int = 0) -> Iterator[str]:
    """The statements of some steps; the loop number d around them counts in `run<d>`."""
    for step in steps:
        match step:
            case Step():
                yield from words.call(step)
            case Copy():
                yield from words.copy(step)
            case Loop(count, inner, condition, layer):
                run = f"run{depth}"
                yield f"    for (int64_t {run} = 0; {run} < {count}; ++{run}) {{ /* {comment(layer)} */"
                if condition is not None:
                    yield f"    if (!{words.truth(condition)}) break;"
                yield from words.begin(step, depth)
                yield from lines(inner, words, depth + 1)
                yield from words.run(depth)
                yield "    }"
                yield from words.end(step)
            case Choice(condition, then, otherwise, layer):
                yield f"    if ({words.truth(condition)}) {{ /* {comment(layer)} */"
                yield from lines(then, words, depth)
                yield "    } else {"
                if words.checked:
                    yield words.checked
                yield from lines(otherwise, words, depth)
                yield "    }"


class _CpuWords(msgspec.Struct, frozen=True):
    """Of a CPU: calls of functions, which are numbered for `spent_ns`."""

    n_inputs: int
    numbers: Iterator[int]
    checked: str = ""

    def call(self, step: Step) -> Iterator[str]:
        buffers = ", ".join(self._address(ref) for ref in step.buffers)
        yield f"    {{ /* {comment(step.layer or step.symbol)} */"
        yield f"        void *const step[] = {{{buffers}}};"
        yield f"        if ({step.symbol}(step, scratch, pool) != 0) return failed();"
        yield "    }"
        yield self._lap()

    def copy(self, step: Copy) -> Iterator[str]:
        places = f"{self._address(step.target)}, {self._address(step.source)}"
        yield f"    memcpy({places}, {step.size_bytes});"
        yield self._lap()

    def truth(self, ref: BufferRef) -> str:
        return f"*(const unsigned char *)({self._address(ref)})"

    def begin(self, loop: Loop, depth: int) -> Iterator[str]:
        if loop.alternating:
            yield f"    tfb_run_last_first(run{depth} % 2);"

    def run(self, depth: int) -> Iterator[str]:
        return iter(())

    def end(self, loop: Loop) -> Iterator[str]:
        if loop.alternating:
            yield "    tfb_run_last_first(0);"

    def _lap(self) -> str:
        return f"    if (spent_ns) since_ns = lap(&spent_ns[{next(self.numbers)}], since_ns);"

    def _address(self, ref: BufferRef) -> str:
        offset = moved(ref)
        match ref.kind:
            case "parameter":
                return f"(void *)({PARAMETERS} + {ref.at}{offset})"
            case "arena":
                return f"arena + {ref.at}{offset}"
            case "input" | "output":
                found = f"buffers[{ref.at + (self.n_inputs if ref.kind == 'output' else 0)}]"
                return f"(unsigned char *){found}{offset}" if offset else found


def moved(ref: BufferRef) -> str:
    """What is added to the place of a buffer: its offset and the strides of the loops around."""
    offset = f" + {ref.offset}" if ref.offset else ""
    return offset + "".join(f" + run{loop} * {stride}" for loop, stride in enumerate(ref.strides) if stride)


def literal(text: str) -> str:
    """A C string literal; everything but plain characters as octal escapes."""
    body = "".join(chr(b) if chr(b).isalnum() or b in b" _-./:" else f"\\{b:03o}" for b in text.encode())
    return f'"{body}"'


def comment(text: str) -> str:
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text).replace("*/", "* /")
