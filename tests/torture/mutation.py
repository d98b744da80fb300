"""Mutants of LLVM text: a line changed in a way that a slip of a compiler's author would change it."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass

CONSTANT_OFFSET = re.compile(r"(getelementptr inbounds [^,]+, ptr %\S+, i64 )(\d+)$")
MULTIPLE = re.compile(r"( = mul i64 %\S+, )(\d+)$")
SUM = re.compile(r"( = (?:nsw |nuw )*(?:add|sub) i64 %\S+, )(-?\d+)$")
BOUND = re.compile(r"( = icmp \w+ i64 %\S+, )(-?\d+)$")
FIRST = re.compile(r"( = phi i64 \[ )(\d+)(, )")
EXTENT = re.compile(r"(@tfb_parallel_for\(.*i64 )(\d+)(\))")
COMPARISON = re.compile(r" = icmp (\w+) ")
FLOAT_COMPARISON = re.compile(r" = fcmp (\w+) ")
FLOAT = re.compile(r"\b(float )(0x[0-9A-Fa-f]{16})")
LANE = re.compile(r"\bi32 (\d+)(?=[,>])")
MASK_LANE = re.compile(r"\bi1 (true|false|0|1)(?=[,>])")
ALIGNMENT = re.compile(r"(, align )(\d+)$")
STORE = re.compile(r"^\s+(?:store |call void @llvm\.masked\.store)")
OPERAND = re.compile(r"%[a-z]+\d+(?:\.\w+)?")
DEFINITION = re.compile(
    r"^\s+(%\S+) = (?:load|call|fmul|fadd|fsub|select|shufflevector|mul|add|getelementptr)\b.*$"
)

OTHERS = {
    "slt": ("sle", "sgt", "ult"), "sle": ("slt", "sge"), "sgt": ("sge", "slt"), "sge": ("sgt", "sle"),
    "ult": ("ule", "ugt", "slt"), "ule": ("ult", "uge"), "ugt": ("uge", "ult"), "uge": ("ugt", "ule"),
    "eq": ("ne", "ule"), "ne": ("eq", "ult"),
    "olt": ("ole", "ogt", "ult"), "ole": ("olt", "oge"), "ogt": ("oge", "olt", "ugt"), "oge": ("ogt", "ole"),
    "oeq": ("one", "ueq"), "uno": ("ord",), "ord": ("uno",), "une": ("oeq", "one"),
}  # fmt: skip
SWAPS = (
    (" fadd ", " fsub "), (" fsub ", " fadd "), (" fmul ", " fadd "), (" fdiv ", " fmul "),
    ("@llvm.maxnum", "@llvm.minnum"), ("@llvm.minnum", "@llvm.maxnum"),
    ("@llvm.maximum", "@llvm.minimum"), ("@llvm.minimum", "@llvm.maximum"),
    (" smax", " smin"), (" sdiv ", " srem "), (" and ", " or "), (" or ", " and "), (" add ", " sub "),
)  # fmt: skip

Change = Callable[[str, random.Random], str | None]


@dataclass(frozen=True, slots=True)
class Mutant:
    """Changed text, and what was changed, for people."""

    text: str
    change: str


def mutant(text: str, rng: random.Random) -> Mutant:
    """One line changed, by a kind of change that is drawn first: rare kinds come as often as common ones."""
    lines = text.splitlines()
    while True:
        name = rng.choice(sorted(CHANGES))
        found = [place for place, line in enumerate(lines) if line.startswith("  ")]
        rng.shuffle(found)
        for place in found:
            changed = CHANGES[name](lines[place], rng)
            if name == "another operand":
                changed = _another_operand(lines, place, rng)
            if changed is not None and changed != lines[place]:
                what = f"{name}: {lines[place].strip()[:150]} -> {changed.strip()[:150] or 'nothing'}"
                return Mutant("\n".join([*lines[:place], changed, *lines[place + 1 :], ""]), what)


def computes_so_often(text: str, symbol: str, calls: int) -> Mutant:
    """The kernel, but it returns at once from all calls but the first."""
    inner = text.replace(f"define i32 @{symbol}(", f"define internal i32 @{symbol}.inner(")
    wrapper = (
        f"@{symbol}.calls = internal global i64 0\n"
        f"define i32 @{symbol}(ptr %buffers, ptr %workspace, ptr %pool) nounwind {{\n"
        f"  %old = load i64, ptr @{symbol}.calls\n  %new = add i64 %old, 1\n"
        f"  store i64 %new, ptr @{symbol}.calls\n  %done = icmp uge i64 %old, {calls}\n"
        f"  br i1 %done, label %skip, label %run\nskip:\n  ret i32 0\nrun:\n"
        f"  %status = call i32 @{symbol}.inner(ptr %buffers, ptr %workspace, ptr %pool)\n"
        "  ret i32 %status\n}\n"
    )
    return Mutant(inner + wrapper, f"computes at its first {calls} calls only")


def _number(pattern: re.Pattern[str], steps: tuple[int, ...]) -> Change:
    """The number in group 2 made a little smaller or larger."""

    def change(line: str, rng: random.Random) -> str | None:
        found = pattern.search(line)
        if found is None:
            return None
        value = int(found.group(2)) + rng.choice(steps)
        return f"{line[: found.start(2)]}{value}{line[found.end(2) :]}"

    return change


def _predicate(pattern: re.Pattern[str]) -> Change:
    def change(line: str, rng: random.Random) -> str | None:
        found = pattern.search(line)
        if found is None or found.group(1) not in OTHERS:
            return None
        return f"{line[: found.start(1)]}{rng.choice(OTHERS[found.group(1)])}{line[found.end(1) :]}"

    return change


def _swap(line: str, rng: random.Random) -> str | None:
    fitting = [(old, new) for old, new in SWAPS if old in line and "declare" not in line]
    if not fitting:
        return None
    old, new = rng.choice(fitting)
    return line.replace(old, new, 1)


def _float(line: str, rng: random.Random) -> str | None:
    found = list(FLOAT.finditer(line))
    if not found:
        return None
    place = rng.choice(found)
    (value,) = struct.unpack(">d", bytes.fromhex(place.group(2)[2:]))
    new = rng.choice((value + 1.0, -value, value * 1.0625, value * 1.0009765625, 0.0))
    (rounded,) = struct.unpack(">f", struct.pack(">f", min(max(new, -3e38), 3e38)))
    return f"{line[: place.start(2)]}0x{struct.pack('>d', rounded).hex().upper()}{line[place.end(2) :]}"


def _lane(line: str, rng: random.Random) -> str | None:
    found = list(LANE.finditer(line)) if "shufflevector" in line else []
    if not found:
        return None
    place = rng.choice(found)
    return (
        f"{line[: place.start(1)]}{max(0, int(place.group(1)) + rng.choice((-1, 1)))}{line[place.end(1) :]}"
    )


def _mask_lane(line: str, rng: random.Random) -> str | None:
    found = list(MASK_LANE.finditer(line))
    if not found:
        return None
    place = rng.choice(found)
    other = {"true": "false", "false": "true", "0": "1", "1": "0"}[place.group(1)]
    return f"{line[: place.start(1)]}{other}{line[place.end(1) :]}"


def _dropped(line: str, rng: random.Random) -> str | None:
    return "" if STORE.match(line) else None


def _another_operand(lines: list[str], place: int, rng: random.Random) -> str | None:
    """One value replaced by another that was computed a little earlier, in the same way."""
    _, _, right = lines[place].partition(" = ")
    operands = list(OPERAND.finditer(right or lines[place]))
    if not operands:
        return None
    found = rng.choice(operands)
    shift = len(lines[place]) - len(right) if right else 0
    earlier = [
        match.group(1) for line in lines[max(0, place - 30) : place] if (match := DEFINITION.match(line))
    ]
    if not earlier:
        return None
    line, other = lines[place], rng.choice(earlier)
    return f"{line[: shift + found.start()]}{other}{line[shift + found.end() :]}"


CHANGES: dict[str, Change] = {
    "offset": _number(CONSTANT_OFFSET, (-64, -16, -8, -4, -1, 1, 4, 8, 16, 64)),
    "stride": _number(MULTIPLE, (-16, -1, 1, 16)),
    "sum": _number(SUM, (-8, -1, 1, 8)),
    "bound": _number(BOUND, (-1, 1, 2)),
    "first": _number(FIRST, (1, 1, 2)),
    "extent": _number(EXTENT, (-1, 1)),
    "alignment": _number(ALIGNMENT, (32, 60)),
    "comparison": _predicate(COMPARISON),
    "float comparison": _predicate(FLOAT_COMPARISON),
    "operator": _swap,
    "constant": _float,
    "lane": _lane,
    "mask": _mask_lane,
    "no store": _dropped,
    "another operand": lambda line, rng: None,
}
