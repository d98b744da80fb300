"""What one instruction is for: its class, bytes moved, arithmetic, and whether it is a spill.

One table for each architecture, from patterns of the mnemonic to classes; `classify` is the door.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, Literal

import msgspec

from cross.inspection.listing import Architecture, Line, is_branch


class Kind(Enum):
    """Classes of instructions in an inner loop."""

    FMA = "fma"  # or products of integers
    VECTOR = "other vector arithmetic"
    VECTOR_LOAD = "vector load"
    BROADCAST = "element load"  # one element, for all lanes or for use by element
    MOVE = "vector move"  # register to register: copies, shuffles, lane inserts
    STORE = "store"
    SCALAR = "scalar"
    BRANCH = "branch"


class Instruction(msgspec.Struct, frozen=True):
    """A classified line. `load_bytes` counts loads that are folded into arithmetic as well; `flops` counts
    multiplications of integers, too, each with an addition."""

    line: Line
    kind: Kind
    load_bytes: int = 0
    store_bytes: int = 0
    flops: int = 0
    element: bool = False  # reads one element from memory for all lanes, on its own or folded
    stack: Literal["", "spill", "reload"] = ""
    vector: bool = False  # touches vector registers


def classify(line: Line, architecture: Architecture) -> Instruction:
    """The class of one line of assembly."""
    if is_branch(line, architecture) or line.mnemonic in ("call", "callq", "bl", "blr"):
        return Instruction(line, Kind.BRANCH)
    return _classify_x86(line) if architecture == "x86_64" else _classify_aarch64(line)


def _stack(line: Line) -> Literal["", "spill", "reload"]:
    if re.search(r"\b\d+-byte (Folded )?Reload", line.comment):
        return "reload"
    return "spill" if re.search(r"\b\d+-byte (Folded )?Spill", line.comment) else ""


# ------------------------------------------------------------------------------------------------ x86-64

_X86_REGISTER: Final = re.compile(r"%([xyz])mm\d+")
_X86_BYTES: Final = {"x": 16, "y": 32, "z": 64}
_X86_FMA: Final = re.compile(r"vfn?m(add|sub)(\d{3})?(ps|pd|ss|sd|ph)$")
_X86_BYTES_FMA: Final = {"pdpbusd": 4, "pmaddwd": 2}  # products a 32-bit lane
_X86_FLOP: Final = re.compile(r"v?(add|sub|mul|div|max|min)(ps|pd|ss|sd)$")
_X86_MOVE: Final = re.compile(
    r"v?(mov(aps|apd|ups|upd|ss|sd|dq[au]\d*|q|d|lhps|hlps|[sd][lh]?dup|ddup)|p?broadcast\w+|insert\w+|extract\w+|"
    r"p?perm\w*|p?shuf\w+|p?unpck\w+|p?blend\w+|pinsr\w|pextr\w|palignr|compress\w+|expand\w+)$"
)


_X86_TILES: Final = {  # of full registers, as the line does not say how they are configured
    "tdpbusd": (Kind.FMA, 2 * 16 * 16 * 64, 0),
    "tdpbssd": (Kind.FMA, 2 * 16 * 16 * 64, 0),
    "tilezero": (Kind.VECTOR, 0, 0),
    "tileloadd": (Kind.VECTOR_LOAD, 0, 1024),
    "tilestored": (Kind.STORE, 0, 1024),
}


def _classify_x86(line: Line) -> Instruction:
    if line.mnemonic in _X86_TILES:
        kind, flops, moved = _X86_TILES[line.mnemonic]
        loaded, stored = (0, moved) if kind is Kind.STORE else (moved, 0)
        return Instruction(line, kind, loaded, stored, flops, vector=True)
    widths = [_X86_BYTES[found] for operand in line.operands for found in _X86_REGISTER.findall(operand)]
    memory = [position for position, operand in enumerate(line.operands) if _is_x86_memory(operand)]
    stores = bool(memory) and memory[-1] == len(line.operands) - 1
    if line.mnemonic.startswith(("prefetch", "lea", "nop")) or not widths:
        moved = _scalar_bytes_x86(line) if memory and not line.mnemonic.startswith(("prefetch", "lea")) else 0
        plain_store = stores and line.mnemonic.startswith("mov")
        kind = Kind.STORE if plain_store else Kind.SCALAR
        compares = line.mnemonic.startswith(("cmp", "test"))
        return Instruction(
            line,
            kind,
            load_bytes=0 if plain_store else moved,
            store_bytes=moved if stores and not compares else 0,
            stack=_stack(line),
        )
    width = max(widths)
    item = 8 if re.search(r"(pd|sd|q)$", line.mnemonic) else 4
    scalar = re.search(r"(ss|sd)$", line.mnemonic) is not None
    element = bool(memory) and not stores and (_is_broadcast(line) or (scalar and "mov" in line.mnemonic))
    width_read = item if element or scalar else width
    lanes = 1 if scalar else width // item
    if _X86_FMA.match(line.mnemonic):
        kind, flops = Kind.FMA, 2 * lanes
    elif (products := _X86_BYTES_FMA.get(line.mnemonic.removeprefix("v"))) is not None:
        kind, flops = Kind.FMA, 2 * products * lanes
    elif _X86_MOVE.match(line.mnemonic):
        kind, flops = Kind.MOVE, 0
        if stores:
            kind = Kind.STORE
        elif memory:
            kind = Kind.BROADCAST if element else Kind.VECTOR_LOAD
    else:
        kind, flops = Kind.VECTOR, lanes if _X86_FLOP.match(line.mnemonic) else 0
    return Instruction(
        line,
        kind,
        load_bytes=width_read if memory and not stores else 0,
        store_bytes=width_read if stores else 0,
        flops=flops,
        element=element,
        stack=_stack(line),
        vector=True,
    )


def _is_x86_memory(operand: str) -> bool:
    return "(" in operand or operand.startswith(("%fs:", "%gs:"))


def _is_broadcast(line: Line) -> bool:
    return "broadcast" in line.mnemonic or any("{1to" in operand for operand in line.operands)


def _scalar_bytes_x86(line: Line) -> int:
    return {"b": 1, "w": 2, "l": 4}.get(line.mnemonic[-1], 8)


# ----------------------------------------------------------------------------------------------- aarch64

_ARM_REGISTER_BYTES: Final = {"q": 16, "d": 8, "s": 4, "h": 2, "b": 1, "x": 8, "w": 4}
_ARM_ARRANGEMENT: Final = re.compile(r"v\d+\.(\d*)([bhsd])")
_ARM_LANES: Final = {"b": 1, "h": 2, "s": 4, "d": 8}
_ARM_FMA: Final = re.compile(r"(fml[as]|fn?madd|fn?msub)$")
_ARM_INTEGER_FMA: Final = re.compile(r"([su]ml[as]l2?|[su]mull2?|mla|mls|mul)$")  # a product a lane
_ARM_DOT: Final = re.compile(r"([su]|us|su)(dot|mmla)$")  # four products a lane, or eight
_ARM_FLOP: Final = re.compile(r"f(add|sub|mul|nmul|div|max|min|maxnm|minnm|abd)$")
_ARM_LOAD: Final = re.compile(r"(ld[1-4]r?|ldu?r\w*|ldn?p\w*)$")
_ARM_STORE: Final = re.compile(r"(st[1-4]|stu?r[bh]?|stn?p)$")
_ARM_MOVE: Final = re.compile(
    r"(mov|movi|mvni|fmov|ins|dup|ext|zip[12]|uzp[12]|trn[12]|tb[lx]|rev\d+|[us]mov)$"
)
_ARM_VECTOR: Final = re.compile(r"(v\d+\.|[qdshb]\d+$|\{)")


def _classify_aarch64(line: Line) -> Instruction:
    vector = any(_ARM_VECTOR.match(operand) for operand in line.operands)
    loads, stores = _ARM_LOAD.match(line.mnemonic), _ARM_STORE.match(line.mnemonic)
    if loads or stores:
        return _arm_memory(line, vector, loads is not None)
    flops = 0
    if not vector:
        kind = Kind.SCALAR
    elif _ARM_FMA.match(line.mnemonic):
        kind, flops = Kind.FMA, 2 * _arm_lanes(line)
    elif _ARM_DOT.match(line.mnemonic) or _ARM_INTEGER_FMA.match(line.mnemonic):
        dot = _ARM_DOT.match(line.mnemonic)
        kind, flops = Kind.FMA, {None: 2, "dot": 8, "mmla": 16}[dot and dot[2]] * _arm_lanes(line)
    elif _ARM_MOVE.match(line.mnemonic):
        kind = Kind.MOVE
    else:
        kind, flops = Kind.VECTOR, _arm_lanes(line) if _ARM_FLOP.match(line.mnemonic) else 0
    return Instruction(line, kind, flops=flops, vector=vector)


def _arm_lanes(line: Line) -> int:
    found = _ARM_ARRANGEMENT.match(line.operands[0])
    return int(found[1]) if found and found[1] else 1


def _arm_memory(line: Line, vector: bool, loads: bool) -> Instruction:
    if line.operands[0].startswith("{"):
        registers = _ARM_ARRANGEMENT.findall(line.operands[0])
        one_lane = line.operands[0].endswith("]") or line.mnemonic.endswith("r")
        sizes = [
            _ARM_LANES[letter] * (1 if one_lane or not count else int(count)) for count, letter in registers
        ]
    else:
        names = [operand for operand in line.operands if re.match(r"[qdshbxw](\d+|zr)$", operand)]
        sizes = [_ARM_REGISTER_BYTES[name[0]] for name in names]
        one_lane = False
    moved = sum(sizes)
    element = loads and vector and (max(sizes, default=0) <= 4 or line.mnemonic.endswith("1r"))
    if not loads:
        kind = Kind.STORE
    elif not vector:
        kind = Kind.SCALAR
    else:
        kind = Kind.BROADCAST if element else Kind.VECTOR_LOAD
    return Instruction(
        line,
        kind,
        load_bytes=moved if loads else 0,
        store_bytes=0 if loads else moved,
        element=element,
        stack=_stack(line),
        vector=vector,
    )
