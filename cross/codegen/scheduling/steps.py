"""The order of loads and multiply-adds in a loop body. Start at `ordered`.

Cores that issue in program order have a file of their own, in_order.py. For all others, and what that leaves:
the generator writes equal loads once, and LLVM keeps what is loaded. In a reduction that is unrolled over a
3x3 window a pixel is read in up to nine steps, and lives from the first to the last: a tile that fits the
registers of a loop that runs does not fit those of the unrolled one. Where it may not, `stepwise` gives every
step loads of its own and fences it; a tile then needs its sums and one step's operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Final

from boards.target import IN_ORDER_CPUS, Target
from cross.codegen.instructions import (
    FENCE,
    Definition,
    Instruction,
    Line,
    Value,
    element_pointer,
    integer,
    is_constant_place,
    is_multiply_add,
    passed_on,
)
from cross.codegen.scheduling import byte_columns
from cross.codegen.scheduling.in_order import arranged

ROOMY: Final = 1 / 2  # of the registers: LLVM's schedulers fill the rest, and past that where more is alive
MANY_PLACES: Final = 8  # addresses counted from one pointer: half the registers for general use
PACE: Final = 2  # multiply-adds between fences where loads are guarded

WHOLE_REGISTER_LANES: Final = (1, 4, 8, 16)  # of float32
LOADED: Final = ("load", "insertelement", "shufflevector", "extractelement", "bitcast")
OPERANDS: Final = (*LOADED, "getelementptr")
GUARDS: Final = ("select", "and", "add", "sub", "mul")
GUARD_FUNCTIONS: Final = ("llvm.smin.i64", "llvm.smax.i64")

Kind = Callable[[Instruction], bool]


def _is_operand(instruction: Instruction) -> bool:
    return instruction.op in OPERANDS


def _is_guard(instruction: Instruction) -> bool:
    return (
        instruction.op in GUARDS
        or instruction.op.startswith("icmp")
        or (instruction.op == "call" and instruction.detail in GUARD_FUNCTIONS)
    )


def _is_choice(instruction: Instruction) -> bool:
    """Whether it chooses an address: what is read where a guard holds, else zeros."""
    return instruction.op == "select" and instruction.dtype == "pointer"


def ordered(body: Sequence[Line], target: Target, fresh: Callable[[str], str]) -> list[Line] | None:
    """The lines of a loop body in the order that suits the target; None: as they are.

    A result needs `instructions.FENCE_DECLARATION`.
    """
    if target.cpu not in IN_ORDER_CPUS and not all(isinstance(line, Definition) for line in body):
        return None
    if any(isinstance(line, Definition) and _is_choice(line.instruction) for line in body):
        return paced(body, target, fresh)
    found = None
    if target.cpu in IN_ORDER_CPUS:
        products = byte_columns.arranged(body, fresh)
        if products is not None:
            return counted_from_bases(products, fresh) or products
        found = arranged(body, fresh)
    if found is not None or _definitions(body, (is_multiply_add, _is_operand)) is None:
        return found
    found = stepwise(body, target.vector_registers, fresh)
    return counted_from_bases(body if found is None else found, fresh) or found


def counted_from_bases(lines: Sequence[Line], fresh: Callable[[str], str]) -> list[Line] | None:
    """The lines with many addresses counted from one pointer, which LLVM cannot see through.

    Otherwise its strength reduction may give every address a register that counts up with the loop.

    Returns None where few addresses are counted from any one pointer.
    """
    counts: dict[str, set[str]] = {}
    for line in lines:
        if isinstance(line, Definition) and is_constant_place(line.instruction):
            base, distance = line.instruction.operands
            counts.setdefault(base.text, set()).add(distance.text)
    bases = {base: fresh("base") for base, offsets in counts.items() if len(offsets) >= MANY_PLACES}
    if not bases:
        return None
    passed: list[Line] = [
        Definition(new, passed_on(Value(old, "pointer"), "=r,0", ordered=False)) for old, new in bases.items()
    ]
    for line in lines:
        if isinstance(line, Definition):
            passed.append(Definition(line.name, line.instruction.renamed(bases)))
        else:
            passed.append(line)
    return passed


def paced(body: Sequence[Line], target: Target, fresh: Callable[[str], str]) -> list[Line] | None:
    """The lines of a body with guarded loads: every step apart, few multiply-adds at a time, with fences.

    A guard and the address that it chooses live in registers for general use, of which there are few. Left
    alone, LLVM computes those of all pixels first; so every group counts from a pointer of its own, which an
    empty piece of assembly passes on behind the fence, once the sums of the group before are there.

    Returns None for a body that holds more than guards, loads and multiply-adds.
    """
    found = _definitions(body, (is_multiply_add, _is_operand, _is_guard))
    if found is None:
        return None
    sums, operands = found
    bases = _bases(operands, fresh)
    operands = {name: instruction.renamed(bases) for name, instruction in operands.items()}
    steps = _steps(sums)
    lines: list[Line] = []
    before: Sequence[str] = ()
    for step in range(max(steps.values(), default=-1) + 1):
        loaded: dict[str, str] = {}  # of the step; addresses and guards are of the group
        names = [name for name in sums if steps[name] == step]
        for start in range(0, len(names), PACE):
            copies, group = dict(loaded), names[start : start + PACE]
            done = [Definition(name, sums[name]).value for name in before]
            waiting = {new: _passed(Value(old, "pointer"), done, target) for old, new in bases.items()}
            for name in group:
                lines.append(Definition(name, _copied(sums[name], operands | waiting, copies, lines, fresh)))
            loaded = {
                use: copy for use, copy in copies.items() if use in operands and operands[use].op in LOADED
            }
            lines.append(FENCE)
            before = group
    # Other loops may use what the body computes; where none does, LLVM drops it.
    plain = {new: element_pointer(Value(old, "pointer"), "int8", integer(0)) for old, new in bases.items()}
    return lines + [Definition(name, instruction) for name, instruction in (plain | operands).items()]


def _bases(operands: Mapping[str, Instruction], fresh: Callable[[str], str]) -> dict[str, str]:
    """The pointers from which guarded addresses are counted, with new names."""
    chosen = [
        pointer
        for instruction in operands.values()
        if _is_choice(instruction)
        for pointer in _pointers(instruction)
    ]
    bases: dict[str, str] = {}
    while chosen:
        pointer = chosen.pop()
        if pointer not in operands:
            bases.setdefault(pointer, fresh("base"))
        elif is_constant_place(operands[pointer]):
            chosen += _pointers(operands[pointer])
    return bases


def _pointers(instruction: Instruction) -> list[str]:
    """The pointers among the operands that have names."""
    return [value.text for value in instruction.operands if value.dtype == "pointer" and value.is_name]


def _passed(pointer: Value, sums: Sequence[Value], target: Target) -> Instruction:
    """A pointer passed on by assembly that reads the sums: so they are computed before."""
    register = "w" if target.triple.startswith("aarch64") else "v" if target.vector_bytes == 64 else "x"
    read = [value for value in sums if value.dtype == "float32" and value.lanes in WHOLE_REGISTER_LANES]
    return passed_on(pointer, ",".join(["=r,0", *[register] * len(read)]), read, ordered=True)


def stepwise(body: Sequence[Line], registers: int, fresh: Callable[[str], str]) -> list[Line] | None:
    """The lines of a loop body with the loads of every step beside its multiply-adds.

    Args:
        body: the lines of a loop body.
        registers: vector registers of the target.
        fresh: a new SSA name for a hint.

    Returns:
        None for a body that leaves many registers free, holds more than loads and multiply-adds, or has only
        one step.
    """
    found = _definitions(body, (is_multiply_add, _is_operand))
    if found is None:
        return None
    sums, operands = found
    steps = _steps(sums)
    count = max(steps.values(), default=0) + 1
    if count == 1 or _alive(sums, operands) <= ROOMY * registers:
        return None
    lines: list[Line] = []
    for step in range(count):
        copies: dict[str, str] = {}
        for name, instruction in sums.items():
            if steps[name] == step:
                lines.append(Definition(name, _copied(instruction, operands, copies, lines, fresh)))
        lines.append(FENCE)
    return lines + [Definition(name, instruction) for name, instruction in operands.items()]


def _definitions(
    body: Sequence[Line], kinds: Sequence[Kind]
) -> tuple[dict[str, Instruction], dict[str, Instruction]] | None:
    """The multiply-adds of a body and its other instructions, by name; None where one is of no kind."""
    sums: dict[str, Instruction] = {}
    others: dict[str, Instruction] = {}
    for line in body:
        if not isinstance(line, Definition) or not any(kind(line.instruction) for kind in kinds):
            return None
        (sums if is_multiply_add(line.instruction) else others)[line.name] = line.instruction
    return sums, others


def _steps(sums: Mapping[str, Instruction]) -> dict[str, int]:
    """For every multiply-add how many come before it in its sum."""
    steps: dict[str, int] = {}
    for name, instruction in sums.items():
        steps[name] = max((steps[use] + 1 for use in instruction.uses if use in steps), default=0)
    return steps


def _alive(sums: Mapping[str, Instruction], operands: Mapping[str, Instruction]) -> int:
    """Vector registers that the body needs: all sums, and operands from their first use to their last."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    fresh_sums = 0
    for position, instruction in enumerate(sums.values()):
        uses = instruction.uses
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
    instruction: Instruction,
    operands: Mapping[str, Instruction],
    copies: dict[str, str],
    lines: list[Line],
    fresh: Callable[[str], str],
) -> Instruction:
    """An instruction with copies of its operands, which are written before it, once in a step."""
    for use in dict.fromkeys(instruction.uses):
        if use in operands and use not in copies:
            whole = _copied(operands[use], operands, copies, lines, fresh)
            copies[use] = fresh("c")
            lines.append(Definition(copies[use], whole))
    return instruction.renamed(copies)
