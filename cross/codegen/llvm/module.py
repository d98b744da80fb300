"""Bound loop nests to LLVM IR text. Start at `llvm_module`.

Every root statement of a nest becomes a region: a function over a range of iterations of its outermost
parallel loops (collapsed into one), which the thread pool calls, and whose buffers are arguments that do
not alias. The kernel itself runs its regions one after the other:

    i32 @<symbol>(ptr buffers, ptr workspace, ptr pool)

region.py writes the functions, with stores.py and values.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from boards.target import Target
from cross.codegen.buffers import BUFFER_ALIGNMENT, workspace_offsets
from cross.codegen.llvm.begun_sums import with_begun_sums
from cross.codegen.llvm.matrix_tiles import ALLOW as ALLOW_TILES
from cross.codegen.llvm.memory import ZERO_BYTES, ZEROS
from cross.codegen.llvm.region import Region
from cross.loopnest.nodes import LoopNest, Scope
from cross.schedule.untuned import IN_ORDER_CPUS


def llvm_module(symbol: str, nest: LoopNest, target: Target) -> str:
    """The IR of one kernel.

    Args:
        symbol: the exported C symbol.
        nest: a bound loop nest.
        target: a CPU target; its vector width bounds the vectors that are written.

    Raises:
        CompileError: the nest is not bound, or breaks a rule of the grammar.
    """
    if target.cpu not in IN_ORDER_CPUS:  # the loops of those are written for sums that begin with 0
        nest = with_begun_sums(nest)
    pieces = [f'source_filename = "{symbol}"', ""]
    declarations = {"declare i32 @tfb_parallel_for(ptr, ptr, ptr, i64)"}
    functions: list[str] = []
    calls: list[str] = []
    tiles = False
    offsets = workspace_offsets(nest)
    for position, statement in enumerate(nest.body.statements):
        region = Region(f"{symbol}.region{position}", statement, nest, target)
        functions.append(region.function())
        functions.append(_entry(region, nest, offsets))
        calls.append(_call(region))
        declarations |= region.writer.declarations
        tiles |= bool(region.tile_configuration)
    if tiles:
        declarations.add(f"declare {ALLOW_TILES}")
        calls.insert(0, f"  %status = call {ALLOW_TILES}")
    if any(ZEROS.text in text for text in functions):
        pieces.append(
            f"{ZEROS.text} = internal constant [{ZERO_BYTES} x i8] zeroinitializer, align {BUFFER_ALIGNMENT}"
        )
    pieces += [*sorted(declarations), "", *functions, _kernel(symbol, calls)]
    return "\n".join(pieces)


def _kernel(symbol: str, calls: Sequence[str]) -> str:
    lines = [f"define i32 @{symbol}(ptr %buffers, ptr %workspace, ptr %pool) nounwind {{", "entry:"]
    lines += ["  %closure = alloca { ptr, ptr }, align 8", "  store ptr %buffers, ptr %closure, align 8"]
    lines.append("  %second = getelementptr inbounds { ptr, ptr }, ptr %closure, i32 0, i32 1")
    lines.append("  store ptr %workspace, ptr %second, align 8")
    for position, call in enumerate(calls):
        following = f"done{position}"
        lines.append(call.replace("%status", f"%status{position}"))
        if "%status" in call:
            lines.append(f"  %bad{position} = icmp ne i32 %status{position}, 0")
            lines.append(f"  br i1 %bad{position}, label %failed{position}, label %{following}")
            lines += [f"failed{position}:", f"  ret i32 %status{position}", f"{following}:"]
    return "\n".join([*lines, "  ret i32 0", "}", ""])


def _call(region: Region) -> str:
    if region.extent == 1:
        return f"  call void @{region.name}.entry(ptr %closure, i64 0, i64 1)"
    return (
        f"  %status = call i32 @tfb_parallel_for(ptr %pool, ptr @{region.name}.entry, ptr %closure, "
        f"i64 {region.extent})"
    )


def _entry(region: Region, nest: LoopNest, offsets: dict[str, int]) -> str:
    """What the pool calls: finds the buffers of the region and hands them over as arguments."""
    lines = [f"define internal void @{region.name}.entry(ptr %closure, i64 %begin, i64 %end) nounwind {{"]
    lines += ["entry:", "  %buffers = load ptr, ptr %closure, align 8"]
    lines.append("  %second = getelementptr inbounds { ptr, ptr }, ptr %closure, i32 0, i32 1")
    lines.append("  %workspace = load ptr, ptr %second, align 8")
    arguments = [buffer.name for buffer in nest.arguments]
    for position, buffer in enumerate(region.buffers):
        if buffer.scope is Scope.ARGUMENT:
            slot = f"getelementptr inbounds ptr, ptr %buffers, i64 {arguments.index(buffer.name)}"
            lines += [
                f"  %slot{position} = {slot}",
                f"  %buffer{position} = load ptr, ptr %slot{position}, align 8",
            ]
        else:
            offset = offsets[buffer.name]
            lines.append(f"  %buffer{position} = getelementptr inbounds i8, ptr %workspace, i64 {offset}")
    passed = "".join(f"ptr %buffer{position}, " for position in range(len(region.buffers)))
    lines.append(f"  call void @{region.name}({passed}i64 %begin, i64 %end)")
    return "\n".join([*lines, "  ret void", "}", ""])
