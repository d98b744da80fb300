"""LLVM IR text to ELF object bytes. Start at `compile_ir`.

The only file that makes machine code: text enters, an object for the target's CPU leaves. LLVM is loaded on
the first call, and target machines are kept for the life of the process; both survive fork. The code is
position independent, for shared objects.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from boards.features import needed_flags
from boards.target import Target
from cross.errors import CompileError

NATIVE = "native"

CODE_GENERATOR_EFFORT = 2  # of 0 to 3


def compile_ir(text: str, target: Target) -> bytes:
    """The module `text` as one ELF object for `target`: no optimizer passes, only LLVM's code generator.

    Module triple and data layout may be left out of `text`; they are the target's. Raises CompileError with
    the line of the text that LLVM refuses.
    """
    module, machine = _checked(text, target)
    return bytes(machine.emit_object(module))


def assembly(text: str, target: Target, *, comments: bool = False) -> str:
    """The machine code as assembly text, to read; with LLVM's comments on loops and spills, if wanted."""
    module, machine = _checked(text, target)
    machine.set_asm_verbosity(comments)
    return str(machine.emit_assembly(module))


def assemble(listing: str, target: Target) -> bytes | None:
    """Assembler text as an ELF object; None where LLVM was built with no assembler for the target."""
    llvm = _llvm()
    if llvm.get_default_triple().split("-")[0] != target.triple.split("-")[0]:
        return None  # llvmlite initializes the host's assembler only
    llvm.initialize_native_asmparser()
    escaped = (line.replace("\\", "\\5C").replace('"', "\\22") for line in listing.splitlines())
    return compile_ir("\n".join(f'module asm "{line}"' for line in escaped), target)


def host_cpu_name() -> str:
    """LLVM's name of this machine's CPU, for example "znver4"."""
    return _host_cpu()[0]


def cpu_and_features(target: Target) -> tuple[str, str]:
    """LLVM's CPU name and comma-separated feature string for a target.

    For the CPU "native" these are this machine's: the features are listed one by one, because a hypervisor
    may hide some that the CPU's name implies. The target's own features come last, so that they win.
    """
    if target.cpu != NATIVE:
        return target.cpu, ",".join(target.features)
    host_triple = _llvm().get_default_triple()
    if host_triple.split("-")[0] != target.triple.split("-")[0]:
        raise CompileError(
            f"target {target.name}: cpu {NATIVE!r} means this machine ({host_triple}), but the triple is "
            f'{target.triple!r}; name the board\'s CPU in its file, for example cpu = "cortex-a53"'
        )
    name, features = _host_cpu()
    return name, ",".join([*features, *target.features])


@functools.cache
def fuses(target: Target) -> bool:
    """Whether an x86-64 target is known to have fused multiply-adds: others would call a function of libm."""
    return "+fma" in cpu_and_features(target)[1].split(",") or "fma" in needed_flags(target)


# --------------------------------------------------------------------------------------------- with LLVM


@functools.cache
def _llvm() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm


@functools.cache
def _host_cpu() -> tuple[str, tuple[str, ...]]:
    """The name of this machine's CPU, and whether it has each of LLVM's features."""
    host = _llvm().get_host_cpu_features()
    features = (("+" if present else "-") + name for name, present in sorted(host.items()))
    return str(_llvm().get_host_cpu_name()), tuple(features)


@functools.lru_cache(maxsize=64)
def _machine(triple: str, cpu: str, features: str) -> Any:
    llvm = _llvm()
    try:
        found = llvm.Target.from_triple(triple)
    except RuntimeError as error:
        raise CompileError(
            f"LLVM has no back end for the triple {triple!r} of the board file: {error}"
        ) from None
    return found.create_target_machine(
        cpu=cpu, features=features, opt=CODE_GENERATOR_EFFORT, reloc="pic", codemodel="small"
    )


def _checked(text: str, target: Target) -> tuple[Any, Any]:
    """The parsed and verified module, and the machine to emit it with."""
    if not target.triple:
        raise CompileError(f"target {target.name}: LLVM code is for cpu targets, found kind {target.kind!r}")
    machine = _machine(target.triple, *cpu_and_features(target))
    module = _parsed(text)
    for what, expected in (("triple", machine.triple), ("data_layout", str(machine.target_data))):
        found = getattr(module, what)
        if found and found != expected:
            raise CompileError(
                f"LLVM IR for target {target.name}: expected the {what} {expected!r}, "
                f"found {found!r} in its text"
            )
        setattr(module, what, expected)
    return module, machine


def _parsed(text: str) -> Any:
    llvm = _llvm()
    try:
        # A context of its own: in the global one the types and constants of every kernel would pile up.
        module = llvm.parse_assembly(text, llvm.create_context())
        module.verify()
    except RuntimeError as error:
        raise CompileError(_explain(text, str(error))) from None
    return module


def _explain(text: str, message: str) -> str:
    """LLVM's message with the line of the IR it is about, where it names one."""
    where = re.search(r"<string>:(\d+):(\d+): error: (.*)", message)
    if where is None:
        return f"LLVM refuses the generated IR: {message.strip()}"
    line, column = int(where[1]), int(where[2])
    lines = text.splitlines()
    shown = lines[line - 1].strip() if line <= len(lines) else "end of the text"
    return f"LLVM refuses the generated IR at line {line}, column {column}: {where[3]}\n    {shown}"
