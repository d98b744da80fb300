"""The order of loads and multiply-adds in a loop body. Start at `ordered`.

Cores that issue in program order have a file of their own, in_order.py. For all others, and what that leaves:
the generator writes equal loads once, and LLVM keeps what is loaded. In a reduction that is unrolled over a
3x3 window a pixel is read in up to nine steps, and lives from the first to the last: a tile that fits the
registers of a loop that runs does not fit those of the unrolled one. Where it may not, `stepwise` gives every
step loads of its own and fences it; a tile then needs its sums and one step's operands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

from boards.target import Target
from cross.codegen.in_order import FENCE, arranged
from cross.schedule.untuned import IN_ORDER_CPUS

ROOMY: Final = 1 / 2  # of the registers: LLVM's schedulers fill the rest, and past that where more is alive
MANY_PLACES: Final = 8  # addresses counted from one pointer: half the registers for general use
PACE: Final = 2  # multiply-adds between fences where loads are guarded

_NODE: Final = re.compile(r"\s*(%[\w.]+) = (.*)$")
_NAME: Final = re.compile(r"%[\w.]+")
_SUM: Final = re.compile(r"call (<\d+ x )?\w+>? @llvm\.fmuladd\.")
_CHOICE: Final = re.compile(r"select i1 %[\w.]+, ptr ")
_POINTER: Final = re.compile(r"ptr (%[\w.]+)")
_PLACE: Final = re.compile(r"getelementptr inbounds \w+, ptr (%[\w.]+), i64 (-?\d+)$")
_WHOLE_REGISTERS: Final = ("float", "<4 x float>", "<8 x float>", "<16 x float>")
_LOADED: Final = re.compile(r"(load|insertelement|shufflevector|extractelement|bitcast) ")
_GUARD: Final = re.compile(r"(select|icmp|and|add|sub|mul|call i64 @llvm\.s(min|max)\.) ?")
_OPERAND: Final = re.compile(
    r"(load|getelementptr inbounds|insertelement|shufflevector|extractelement|bitcast) "
)


def ordered(body: Sequence[str], target: Target, fresh: Callable[[str], str]) -> list[str] | None:
    """The lines of a loop body in the order that suits the target; None: as they are.

    A result needs `in_order.DECLARATION`.
    """
    if any(_CHOICE.search(line) for line in body):
        return paced(body, target, fresh)
    found = arranged(body, fresh) if target.cpu in IN_ORDER_CPUS else None
    if found is not None or _nodes(body, (_SUM, _OPERAND)) is None:
        return found
    found = stepwise(body, target.vector_registers, fresh)
    return counted_from_bases(body if found is None else found, fresh) or found


def counted_from_bases(lines: Sequence[str], fresh: Callable[[str], str]) -> list[str] | None:
    """The lines with many addresses counted from one pointer, which LLVM cannot see through.

    Otherwise its strength reduction may give every address a register that counts up with the loop.

    Returns None where few addresses are counted from any one pointer.
    """
    counts: dict[str, set[str]] = {}
    for line in lines:
        match = _NODE.match(line)
        place = _PLACE.match(match[2]) if match else None
        if place:
            counts.setdefault(place[1], set()).add(place[2])
    bases = {base: fresh("base") for base, offsets in counts.items() if len(offsets) >= MANY_PLACES}
    if not bases:
        return None
    passed = [f'  {new} = call ptr asm "", "=r,0"(ptr {old})' for old, new in bases.items()]
    return passed + [_renamed(line, bases) for line in lines]


def paced(body: Sequence[str], target: Target, fresh: Callable[[str], str]) -> list[str] | None:
    """The lines of a body with guarded loads: every step apart, few multiply-adds at a time, with fences.

    A guard and the address that it chooses live in registers for general use, of which there are few. Left
    alone, LLVM computes those of all pixels first; so every group counts from a pointer of its own, which an
    empty piece of assembly passes on behind the fence, once the sums of the group before are there.

    Returns None for a body that holds more than guards, loads and multiply-adds.
    """
    nodes = _nodes(body, (_SUM, _OPERAND, _GUARD))
    if nodes is None:
        return None
    sums = {name: text for name, text in nodes.items() if _SUM.match(text)}
    operands = {name: text for name, text in nodes.items() if name not in sums}
    bases = _bases(operands, fresh)
    operands = {name: _renamed(text, bases) for name, text in operands.items()}
    steps = _steps(sums)
    lines: list[str] = []
    before: Sequence[str] = ()
    for step in range(max(steps.values(), default=-1) + 1):
        loaded: dict[str, str] = {}  # of the step; addresses and guards are of the group
        names = [name for name in sums if steps[name] == step]
        for start in range(0, len(names), PACE):
            copies, group = dict(loaded), names[start : start + PACE]
            waiting = {
                new: _passed(old, [sums[name] for name in before], before, target)
                for old, new in bases.items()
            }
            for name in group:
                lines.append(f"  {name} = {_copied(sums[name], operands | waiting, copies, lines, fresh)}")
            loaded = {use: copy for use, copy in copies.items() if _LOADED.match(operands.get(use, ""))}
            lines.append(f"  {FENCE}")
            before = group
    # Other loops may use what the body computes; where none does, LLVM drops it.
    plain = {new: f"getelementptr inbounds i8, ptr {old}, i64 0" for old, new in bases.items()}
    return lines + [f"  {name} = {text}" for name, text in (plain | operands).items()]


def _bases(operands: dict[str, str], fresh: Callable[[str], str]) -> dict[str, str]:
    """The pointers from which guarded addresses are counted, with new names."""
    chosen = [use for text in operands.values() if _CHOICE.match(text) for use in _POINTER.findall(text)]
    bases: dict[str, str] = {}
    while chosen:
        pointer = chosen.pop()
        if pointer not in operands:
            bases.setdefault(pointer, fresh("base"))
        elif _PLACE.match(operands[pointer]):
            chosen += _POINTER.findall(operands[pointer])
    return bases


def _passed(pointer: str, texts: Sequence[str], sums: Sequence[str], target: Target) -> str:
    """A pointer passed on by assembly that reads the sums: so they are computed before."""
    register = "w" if target.triple.startswith("aarch64") else "v" if target.vector_bytes == 64 else "x"
    types = [text.split(" @")[0].removeprefix("call ") for text in texts]
    read = [f"{kind} {name}" for kind, name in zip(types, sums, strict=True) if kind in _WHOLE_REGISTERS]
    constraints = ",".join(["=r,0", *[register] * len(read)])
    return f'call ptr asm sideeffect "", "{constraints}"({", ".join([f"ptr {pointer}", *read])})'


def _renamed(text: str, names: dict[str, str]) -> str:
    return _NAME.sub(lambda match: names.get(match[0], match[0]), text)


def stepwise(body: Sequence[str], registers: int, fresh: Callable[[str], str]) -> list[str] | None:
    """The lines of a loop body with the loads of every step beside its multiply-adds.

    Args:
        body: LLVM IR, one instruction a line.
        registers: vector registers of the target.
        fresh: a new SSA name for a hint.

    Returns:
        None for a body that leaves many registers free, holds more than loads and multiply-adds, or has only
        one step.
    """
    nodes = _nodes(body, (_SUM, _OPERAND))
    if nodes is None:
        return None
    sums = {name: text for name, text in nodes.items() if _SUM.match(text)}
    operands = {name: text for name, text in nodes.items() if name not in sums}
    steps = _steps(sums)
    count = max(steps.values(), default=0) + 1
    if count == 1 or _alive(sums, operands) <= ROOMY * registers:
        return None
    lines: list[str] = []
    for step in range(count):
        copies: dict[str, str] = {}
        for name, text in sums.items():
            if steps[name] == step:
                lines.append(f"  {name} = {_copied(text, operands, copies, lines, fresh)}")
        lines.append(f"  {FENCE}")
    return lines + [f"  {name} = {text}" for name, text in operands.items()]


def _nodes(body: Sequence[str], kinds: Sequence[re.Pattern[str]]) -> dict[str, str] | None:
    """The instructions of a body by name; None where one is of no kind."""
    nodes = {}
    for line in body:
        match = _NODE.match(line)
        if match is None or not any(kind.match(match[2]) for kind in kinds):
            return None
        nodes[match[1]] = match[2]
    return nodes


def _steps(sums: dict[str, str]) -> dict[str, int]:
    """For every multiply-add how many come before it in its sum."""
    steps: dict[str, int] = {}
    for name, text in sums.items():
        steps[name] = max((steps[use] + 1 for use in _NAME.findall(text) if use in steps), default=0)
    return steps


def _alive(sums: dict[str, str], operands: dict[str, str]) -> int:
    """Vector registers that the text needs: all sums, and operands from their first use to their last."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    fresh_sums = 0
    for position, text in enumerate(sums.values()):
        uses = _NAME.findall(text)
        fresh_sums += not any(use in sums for use in uses)
        for use in uses:
            if use in operands:
                first.setdefault(use, position)
                last[use] = position
    changes = [0] * (len(sums) + 1)
    for use, position in first.items():
        changes[position] += 1
        changes[last[use] + 1] -= 1
    return fresh_sums + max(accumulate(changes))


def _copied(
    text: str, operands: dict[str, str], copies: dict[str, str], lines: list[str], fresh: Callable[[str], str]
) -> str:
    """An instruction with copies of its operands, which are written before it, once in a step."""
    for use in dict.fromkeys(_NAME.findall(text)):
        if use in operands and use not in copies:
            whole = _copied(operands[use], operands, copies, lines, fresh)
            copies[use] = fresh("c")
            lines.append(f"  {copies[use]} = {whole}")
    return _NAME.sub(lambda match: copies.get(match[0], match[0]), text)
