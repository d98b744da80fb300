"""Cycles of whole kernels by the issue model of a Cortex-A53, over every instruction that they execute.

An emulator (qemu-aarch64) runs a kernel once on one core and says which straight pieces of code follow which,
and how often. Each piece costs what the model (cross/inspection/cortex_a53.py) adds for it behind the piece
before it, so that loops, edges, transforms and what comes after the sums all count. Every load is taken to
hit the first cache.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from boards.target import Target
from cross.codegen.llvm.module import llvm_module
from cross.codegen.llvm.objects import compile_ir
from cross.compile import kernel_of
from cross.errors import CrossError, LinkError
from cross.expression.language.dtypes import ITEM_BYTES
from cross.inspection.cortex_a53 import CPU_NAMES, Issue, Operation, operation_of
from cross.inspection.instructions import classify
from cross.inspection.listing import instruction_line
from cross.link import compile_c
from cross.loopnest.nodes import LoopNest
from cross.native.toolchain import find_toolchain, run
from toolkit.measure import emulation

LOGGED = ("-d", "in_asm,exec,nochain")  # each piece of code once, and each run of one
ALIGNMENT = 64  # bytes, of buffers and of the workspace
SYMBOL = "counted"

# Runs the kernel once with memory that is all zeros, without any library: only its own code is executed.
HARNESS = """
#include <stdint.h>
int32_t %(symbol)s(void *const *buffers, void *workspace, void *pool);
%(memory)s
static char workspace[%(workspace)d] %(aligned)s;
int32_t tfb_parallel_for(void *pool, void (*body)(void *, int64_t, int64_t), void *closure, int64_t extent) {
    (void)pool;
    body(closure, 0, extent);
    return 0;
}
void *memset(void *to, int value, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) ((volatile char *)to)[i] = (char)value;
    return to;
}
void *memcpy(void *to, const void *from, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) ((volatile char *)to)[i] = ((const char *)from)[i];
    return to;
}
__attribute__((visibility("default"))) void start(void) {
    void *const buffers[] = {%(buffers)s};
    register int64_t status __asm__("x0") = %(symbol)s(buffers, workspace, 0);
    register int64_t number __asm__("x8") = 94; /* exit_group */
    __asm__ volatile("svc 0" : : "r"(status), "r"(number));
    __builtin_unreachable();
}
"""

_INSTRUCTION = re.compile(r"0x0*([0-9a-f]+):\s+[0-9a-f]{8}\s+(.*)")
_EXECUTED = re.compile(r"Trace \d+: 0x[0-9a-f]+ \[[0-9a-f]+/0*([0-9a-f]+)/")


def executed_cycles(nest: LoopNest, target: Target) -> float:
    """Cycles of a kernel on one core of a Cortex-A53.

    Raises:
        ValueError: the target has other cores.
        BoardUnreachable: there is no emulation here.
        CrossError: the kernel cannot be built or run, or the emulator's log is not understood.
    """
    if target.cpu not in CPU_NAMES:
        raise ValueError(f"target {target.name}: expected cores of type {CPU_NAMES[0]}, found {target.cpu}")
    qemu = emulation.required().qemu
    with tempfile.TemporaryDirectory(prefix="tfb-counted-") as folder_name:
        folder = Path(folder_name)
        _build(nest, target, folder)
        command = [str(qemu), "-cpu", target.cpu, *LOGGED, "-D", "log", "./kernel"]
        run(command, folder, f"running {nest.name} under qemu-aarch64", CrossError)
        with (folder / "log").open() as log:
            return cycles_of_log(log)


def _build(nest: LoopNest, target: Target, folder: Path) -> None:
    """The program `kernel`."""
    kernel = kernel_of(SYMBOL, nest)
    sizes = [max(1, item.elements) * ITEM_BYTES[item.dtype] for item in kernel.arguments]
    aligned = f"__attribute__((aligned({ALIGNMENT})))"
    source = HARNESS % {
        "symbol": SYMBOL,
        "aligned": aligned,
        "memory": "\n".join(f"static char b{n}[{size}] {aligned};" for n, size in enumerate(sizes)),
        "workspace": max(1, kernel.workspace_bytes),
        "buffers": ", ".join(f"b{n}" for n in range(len(sizes))),
    }
    (folder / "kernel.o").write_bytes(compile_ir(llvm_module(SYMBOL, nest, target), target))
    (folder / "harness.o").write_bytes(compile_c(source, target))
    toolchain = find_toolchain(target.triple)
    linker = [item for item in toolchain.linker if item != "-shared"]
    flags = toolchain.linker_flags(["-static", "-e", "start", "-z", "noexecstack"])
    command = [*linker, *flags, "kernel.o", "harness.o", "-o", "kernel"]
    run(command, folder, f"linking {nest.name}", LinkError)


def cycles_of_log(log: Iterable[str]) -> float:
    """Of what an emulator's log says: pieces of code where they are translated, then each that is run.

    Raises CrossError for a log that says neither.
    """
    pieces: dict[str, list[Operation]] = {}
    follows: Counter[tuple[str, str]] = Counter()
    piece: list[Operation] | None = None
    last = ""
    for line in log:
        if (executed := _EXECUTED.match(line)) is not None:
            follows[last, executed[1]] += 1
            last = executed[1]
        if (text := _INSTRUCTION.match(line)) is None:
            piece = None
            continue
        if piece is None:
            piece = pieces[text[1]] = []
        instruction = instruction_line(text[2])
        if instruction.operands:  # not what only returns or does nothing
            piece.append(operation_of(classify(instruction, "aarch64")))
    if not follows or not {place for _, place in follows} <= pieces.keys():
        raise CrossError(
            "qemu-aarch64 logged other lines than expected: instructions, and `Trace` for each run"
        )
    return sum(
        count * _added(pieces.get(before, []), pieces[place]) for (before, place), count in follows.items()
    )


def _added(before: Iterable[Operation], operations: Iterable[Operation]) -> int:
    """Cycles that operations take behind others."""
    issue = Issue(hazard=True)
    for operation in before:
        issue.add(operation)
    started = issue.cycle
    for operation in operations:
        issue.add(operation)
    return issue.cycle - started
