"""Bound loop nests to LLVM IR text. Start at `llvm_module`.

Every root statement of a nest becomes a region: a function over a range of iterations of its outermost
parallel loops (collapsed into one), which the thread pool calls, and whose buffers are arguments that do
not alias. The kernel itself runs its regions one after the other:

    i32 @<symbol>(ptr buffers, ptr workspace, ptr pool)

A region is a piece that can be compiled on its own, so that kernels with equal pieces share one (`pieces`,
`piece_module`); what is left of such a kernel is a `Caller`: which regions it runs, on which buffers.
region.py writes the functions, with stores.py and values.py; piece.py says what their code depends on.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import msgspec

from boards.target import IN_ORDER_CPUS, Target
from cross.codegen.buffers import BUFFER_ALIGNMENT, rounded_buffers, workspace_offsets
from cross.codegen.llvm.begun_sums import with_begun_sums
from cross.codegen.llvm.matrix_tiles import ALLOW as ALLOW_TILES
from cross.codegen.llvm.memory import ZERO_BYTES, ZEROS
from cross.codegen.llvm.piece import Piece
from cross.codegen.llvm.region import Region
from cross.codegen.llvm.steps_together import with_steps_together
from cross.loopnest.nodes import LoopNest

CALLERS = "callers"  # the name under which those of a batch are compiled
PARALLEL_FOR = "declare i32 @tfb_parallel_for(ptr, ptr, ptr, i64)"
Text = tuple[list[str], list[str]]
"""Declarations, and functions with what they define beside them."""


class Place(msgspec.Struct, frozen=True):
    """Where a kernel has a buffer of a region: which of its arguments it is, or bytes into its workspace."""

    argument: int | None
    offset: int = 0


class Call(msgspec.Struct, frozen=True):
    """A kernel's call of a region, by the region's name."""

    region: str
    extent: int
    places: tuple[Place, ...]
    in_tiles: bool


class Caller(msgspec.Struct, frozen=True):
    """A kernel whose regions are functions of their own."""

    symbol: str
    calls: tuple[Call, ...]


def llvm_module(symbol: str, nest: LoopNest, target: Target) -> str:
    """The IR of one kernel.

    Args:
        symbol: the exported C symbol.
        nest: a bound loop nest.
        target: a CPU target; its vector width bounds the vectors that are written.

    Raises:
        CompileError: the nest is not bound, or breaks a rule of the grammar.
    """
    found = pieces(nest, target)
    names = [f"{symbol}.region{position}" for position in range(len(found))]
    texts = [_functions(name, piece, target) for name, piece in zip(names, found, strict=True)]
    return _module(symbol, [*texts, _kernel(caller_of(symbol, nest, found, names))])


def pieces(nest: LoopNest, target: Target) -> tuple[Piece, ...]:
    """The regions of a kernel, in order, as what their code depends on."""
    # the loops of cores in order are written for sums that begin with 0
    nest = with_steps_together(nest) if target.cpu in IN_ORDER_CPUS else with_begun_sums(nest)
    rounded = rounded_buffers(nest)
    return tuple(Piece.of(statement, nest, rounded) for statement in nest.body.statements)


def piece_module(name: str, piece: Piece, target: Target) -> str:
    """The IR of a region of this name alone. Raises CompileError as llvm_module does."""
    return _module(name, [_functions(name, piece, target)])


def caller_of(symbol: str, nest: LoopNest, found: Sequence[Piece], names: Sequence[str]) -> Caller:
    """The kernel that calls its pieces by these names. Raises CompileError where it is not bound."""
    places = {buffer.name: Place(number) for number, buffer in enumerate(nest.arguments)}
    places |= {name: Place(None, offset) for name, offset in workspace_offsets(nest).items() if name}
    calls = [
        Call(name, piece.extent, tuple(places[buffer.name] for buffer in piece.buffers), piece.in_tiles)
        for name, piece in zip(names, found, strict=True)
    ]
    return Caller(symbol, tuple(calls))


def callers_module(callers: Sequence[Caller]) -> str:
    """The IR of kernels whose regions are in other modules."""
    regions = {call.region for caller in callers for call in caller.calls}
    declared = [f"declare hidden void @{region}.entry(ptr, i64, i64)" for region in sorted(regions)]
    return _module(CALLERS, [(declared, []), *map(_kernel, callers)])


def _module(source: str, texts: Sequence[Text]) -> str:
    declarations = sorted(set(chain.from_iterable(declared for declared, _ in texts)))
    functions = [function for _, found in texts for function in found]
    zeros = []
    if any(ZEROS.text in function for function in functions):
        zero = f"internal constant [{ZERO_BYTES} x i8] zeroinitializer, align {BUFFER_ALIGNMENT}"
        zeros.append(f"{ZEROS.text} = {zero}")
    return "\n".join([f'source_filename = "{source}"', "", *zeros, *declarations, "", *functions])


def _functions(name: str, piece: Piece, target: Target) -> Text:
    """A region, and what the pool calls for it."""
    region = Region(name, piece, target)
    function = region.function()
    return sorted(region.writer.declarations), [function, _entry(name, len(piece.buffers))]


def _entry(name: str, buffers: int) -> str:
    """What the pool calls: takes the region's buffers out of their array and hands them over as arguments."""
    lines = [f"define hidden void @{name}.entry(ptr %buffers, i64 %begin, i64 %end) nounwind {{", "entry:"]
    for place in range(buffers):
        lines.append(f"  %slot{place} = getelementptr inbounds ptr, ptr %buffers, i64 {place}")
        lines.append(f"  %buffer{place} = load ptr, ptr %slot{place}, align 8")
    passed = "".join(f"ptr %buffer{place}, " for place in range(buffers))
    return "\n".join([*lines, f"  call void @{name}({passed}i64 %begin, i64 %end)", "  ret void", "}", ""])


def _kernel(caller: Caller) -> Text:
    calls = caller.calls
    lines = [f"define i32 @{caller.symbol}(ptr %buffers, ptr %workspace, ptr %pool) nounwind {{", "entry:"]
    most = max((len(call.places) for call in calls), default=0)
    lines.append(f"  %closure = alloca [{most} x ptr], align 8")
    declared = {PARALLEL_FOR}
    if any(call.in_tiles for call in calls):
        declared.add(f"declare {ALLOW_TILES}")
        lines += [f"  %allowed = call {ALLOW_TILES}", *_stopped("allowed", "begin")]
    for number, call in enumerate(calls):
        lines += [
            line for slot, place in enumerate(call.places) for line in _put(f"{number}.{slot}", slot, place)
        ]
        entry = f"{call.region}.entry"
        if call.extent == 1:
            lines.append(f"  call void @{entry}(ptr %closure, i64 0, i64 1)")
            continue
        status, closure = f"status{number}", f"ptr @{entry}, ptr %closure"
        lines.append(f"  %{status} = call i32 @tfb_parallel_for(ptr %pool, {closure}, i64 {call.extent})")
        lines += _stopped(status, f"done{number}")
    return sorted(declared), ["\n".join([*lines, "  ret i32 0", "}", ""])]


def _put(name: str, slot: int, place: Place) -> list[str]:
    """The address of a buffer into its slot of the array."""
    if place.argument is None:
        lines = [f"  %buffer{name} = getelementptr inbounds i8, ptr %workspace, i64 {place.offset}"]
    else:
        lines = [
            f"  %argument{name} = getelementptr inbounds ptr, ptr %buffers, i64 {place.argument}",
            f"  %buffer{name} = load ptr, ptr %argument{name}, align 8",
        ]
    return [
        *lines,
        f"  %slot{name} = getelementptr inbounds ptr, ptr %closure, i64 {slot}",
        f"  store ptr %buffer{name}, ptr %slot{name}, align 8",
    ]


def _stopped(status: str, following: str) -> list[str]:
    """Return a status that is not 0."""
    return [
        f"  %{status}.bad = icmp ne i32 %{status}, 0",
        f"  br i1 %{status}.bad, label %{status}.stop, label %{following}",
        f"{status}.stop:",
        f"  ret i32 %{status}",
        f"{following}:",
    ]
