"""Inner loops for cores that issue in program order: which load goes between which multiply-adds.

LLVM's schedulers hoist loads as far as registers last, and past that; an out-of-order core does not mind, a
Cortex-A53 stalls. `arranged` writes the straight body of an inner loop in the order in which it should issue
and fences it, so that it stays so. The rules of the machine are in cross/inspection/cortex_a53.py:

    before                                    after
    for every channel k                       for every four channels: a 128-bit load for each pixel,
      load the vectors of weights               used by element
      for every pixel: load float, splat        fmla (beside it: ldr x)  fmla (ldr x)  fmla
        fmla for every vector                   fmov d, x of one vector, beside it mov v.d[1], x of another
                                                fmla (ldr x)  fmla (ldr x)  fmla  ...

A 128-bit load costs two cycles in which no fmla issues, and more where a multiply-add enters the adders. In
halves through integer registers, loaded beside multiply-adds, a vector costs one cycle. Multiply-adds are
taken weight by weight, so that few vectors of weights are alive at a time; every sum still adds its terms in
the order of the text. Published kernels for this core do the same by hand (XNNPACK, Arm Compute Library).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Final

import msgspec
from msgspec.structs import replace

from cross.codegen.instructions import (
    FENCE,
    Definition,
    Instruction,
    Line,
    Value,
    extraction,
    is_constant_place,
    is_multiply_add,
    load_from,
    passed_on,
    poison,
    shuffle,
)
from cross.codegen.scheduling import halves
from cross.codegen.scheduling.halves import FLOAT, HALF_BYTES, LANES

GROUP: Final = 3  # multiply-adds between two loads
LEAST: Final = 24  # multiply-adds in a body: below, a loop is bound by latency and LLVM's order is as good
LEAST_USES: Final = 1  # multiply-adds to a load
LOAD_LATENCY: Final = 4  # multiply-adds between the start of a load and its first use
SHORT_LATENCY: Final = 3  # where registers do not last for more: the fewest stalls by the model
# Multiply-adds between the start of a load and the first use of the one before it. PAIRED: the high half of
# one and the low half of the next are moved in the same cycle; UNPAIRED: fewer vectors are alive.
PAIRED: Final = 1
UNPAIRED: Final = -2
HALF_LATENCY: Final = 2  # groups between a load into an integer register and its move to a vector register
REGISTERS: Final = 31  # one less than there are: LLVM may move what is between two fences
NEVER: Final = 1 << 30
PURE: Final = ("getelementptr", "insertelement", "shufflevector", "extractelement", "bitcast")


class _Read(msgspec.Struct):
    """A load and its place: slot n stands before group n of the multiply-adds, -1 before them all."""

    value: Value
    pointer: Value
    alignment: int
    first_use: int = NEVER  # positions in the order of the multiply-adds
    last_use: int = -1
    slot: int = -1
    halves: list[Value] = []  # in integer registers
    begun: Value | None = None  # the vector with its low half

    @property
    def name(self) -> str:
        return self.value.text

    @property
    def is_vector(self) -> bool:
        return self.value.lanes == LANES


def arranged(body: Sequence[Line], fresh: Callable[[str], str]) -> list[Line] | None:
    """The lines of a loop body in another order, with the same results under the same names.

    Args:
        body: the lines of a loop body.
        fresh: a new SSA name for a hint.

    Returns:
        None for a body that holds more than loads and multiply-adds of float32, or too few of them.
    """
    sums: list[Definition] = []
    loads: list[Definition] = []
    addresses: dict[str, Instruction] = {}
    for line in body:
        if not isinstance(line, Definition):
            return None
        instruction = line.instruction
        if instruction.op in PURE:
            addresses[line.name] = instruction
        elif instruction.op == "load" and instruction.dtype == FLOAT:
            loads.append(line)
        elif is_multiply_add(instruction) and instruction.dtype == FLOAT and instruction.lanes > 1:
            sums.append(line)
        else:
            return None
    if len(sums) < LEAST:
        return None
    for by_element, spacing, latency, order in (
        (True, PAIRED, LOAD_LATENCY, _weight_by_weight),
        (True, UNPAIRED, LOAD_LATENCY, _weight_by_weight),
        (True, PAIRED, SHORT_LATENCY, _weight_by_weight),
        (False, PAIRED, LOAD_LATENCY, _place_by_place),
        (False, PAIRED, LOAD_LATENCY, _as_written),
    ):
        pure = dict(addresses)
        reads = [_read(line) for line in loads]
        if by_element:
            reads = _by_lanes(reads, pure, fresh)
        if len(reads) * LEAST_USES > len(sums) or (not by_element and len(sums) < 2 * LEAST):
            continue  # bound by its loads in whatever order, or too short to hide them
        bases = _hide_bases(reads, pure, fresh)
        writer = _Writer(pure, {read.name: read for read in reads}, fresh, bases)
        ordered = _in_order(order(sums, writer), sums)
        for position, line in enumerate(ordered):
            for read in writer.reads_of(line.instruction):
                read.first_use = min(read.first_use, position)
                read.last_use = position
        _place(reads, len(ordered), spacing, latency)
        if _registers(reads, ordered) <= REGISTERS:
            return writer.write(ordered)
    return None


def _read(line: Definition) -> _Read:
    (pointer,), alignment = line.instruction.operands, line.instruction.detail
    assert isinstance(alignment, int)
    return _Read(line.value, pointer, alignment)


# ------------------------------------------------------------------------------------------- by element


def _by_lanes(reads: list[_Read], pure: dict[str, Instruction], fresh: Callable[[str], str]) -> list[_Read]:
    """Four neighbouring scalars that are used as splats become one vector that is used by element."""
    splats = _splats(reads, pure)
    places: dict[str, dict[int, _Read]] = {}  # by the pointer from which they are counted
    for read in reads:
        if read.name in splats:
            base, offset = base_of(read.pointer, pure)
            places.setdefault(base.text, {})[offset] = read
    joined: dict[str, _Read] = {}
    for found in places.values():
        for start in sorted(found):
            run = [found.get(start + lane) for lane in range(LANES)]
            first = run[0]
            if first is None or first.name in joined or None in run:
                continue
            whole = replace(first, value=Value(fresh("lanes"), FLOAT, LANES))
            for lane in range(LANES):
                name = found[start + lane].name
                joined[name] = whole
                pure[name] = extraction(whole.value, lane)
                for splat in splats[name]:
                    pure[splat] = shuffle(whole.value, (lane,) * LANES)
    return list({id(read): read for read in (joined.get(read.name, read) for read in reads)}.values())


def base_of(pointer: Value, pure: Mapping[str, Instruction]) -> tuple[Value, int]:
    """A pointer as one that the loop does not compute from a constant, and a distance in elements."""
    place = pure.get(pointer.text)
    if place is None or not is_constant_place(place):
        return pointer, 0
    return place.operands[0], int(place.operands[1].text)


def _hide_bases(reads: list[_Read], pure: dict[str, Instruction], fresh: Callable[[str], str]) -> list[Line]:
    """Lines that rename the pointers from which constants are counted: all addresses then count up from them.

    Otherwise LLVM's strength reduction counts them from one in the middle, whose negative distances need an
    instruction of their own.
    """
    renamed: dict[str, str] = {}
    for read in reads:
        base = base_of(read.pointer, pure)[0].text
        if base not in pure:
            renamed.setdefault(base, fresh("base"))
            read.pointer = read.pointer._replace(text=renamed.get(read.pointer.text, read.pointer.text))
    for name, instruction in pure.items():
        if is_constant_place(instruction):
            pure[name] = instruction.renamed(renamed)
    return [
        Definition(new, passed_on(Value(old, "pointer"), "=r,0", ordered=False))
        for old, new in renamed.items()
    ]


def _splats(reads: list[_Read], pure: dict[str, Instruction]) -> dict[str, list[str]]:
    """For every scalar load that has any: the names of its splats."""
    inserts = {
        name: instruction.operands[1].text
        for name, instruction in pure.items()
        if instruction.op == "insertelement"
        and instruction.detail == 0
        and instruction.operands[0] == poison(FLOAT, LANES)
    }
    result: dict[str, list[str]] = {read.name: [] for read in reads if read.value.lanes == 1}
    for name, instruction in pure.items():
        if instruction.op == "shufflevector" and instruction.detail == (0,) * LANES:
            scalar = inserts.get(instruction.operands[0].text)
            if scalar in result:
                result[scalar].append(name)
    return {name: found for name, found in result.items() if found}


# ------------------------------------------------------------------------------------------------ order


def _weight_by_weight(sums: list[Definition], writer: _Writer) -> list[Definition]:
    """Multiply-adds by the vector that they load last."""
    ranks: dict[str, int] = {}

    def rank(line: Definition) -> int:
        uses = line.instruction.uses
        vectors = [use for use in uses if use in writer.reads and writer.reads[use].is_vector]
        return max((ranks.setdefault(vector, len(ranks)) for vector in vectors), default=-1)

    return [line for _, line in sorted(((rank(line), line) for line in sums), key=lambda pair: pair[0])]


def _place_by_place(sums: list[Definition], writer: _Writer) -> list[Definition]:
    """Multiply-adds by the address of the vector that fewer of them read: in a window, pixel by pixel.

    A pixel is then loaded once for all the sums that it adds to, and the weights of a row stay. Rows whose
    places are counted from different pointers (those of a ring of rows) follow as the sums add them.
    """
    users = Counter(read.name for line in sums for read in writer.reads_of(line.instruction))
    if not all(writer.reads_of(line.instruction) for line in sums):
        return sums
    places: dict[str, tuple[str, int]] = {}  # by the name of a multiply-add
    before: dict[str, set[str]] = {}  # rows that others wait for, by the pointer of their places
    for line in sums:
        rarest = min(writer.reads_of(line.instruction), key=lambda read: users[read.name])
        base, offset = base_of(rarest.pointer, writer.pure)
        places[line.name] = base.text, offset
        earlier = {places[use][0] for use in line.instruction.uses if use in places}
        before.setdefault(base.text, set()).update(earlier - {base.text})
    try:
        rows = {base: rank for rank, base in enumerate(TopologicalSorter(before).static_order())}
    except CycleError:
        return sums
    return sorted(sums, key=lambda line: (rows[places[line.name][0]], places[line.name][1]))


def _as_written(sums: list[Definition], writer: _Writer) -> list[Definition]:
    return sums


def _in_order(ordered: list[Definition], sums: list[Definition]) -> list[Definition]:
    """The multiply-adds as ordered where every addend still comes before its use, otherwise as written."""
    names, seen = {line.name for line in sums}, set()
    for line in ordered:
        if any(use in names and use not in seen for use in line.instruction.uses):
            return sums
        seen.add(line.name)
    return ordered


def _place(reads: list[_Read], count: int, spacing: int, latency: int) -> None:
    """Every load in the last slot that is early enough, and no more than their share in a slot.

    A load starts `latency` multiply-adds before its first use, and `spacing` before the one used before it is
    needed: two halves in one slot, the low one of a vector and the high one of another, share a cycle.
    """
    groups = -(-count // GROUP)
    share = max(2, -(-len(reads) // groups))
    free, taken = groups, 0
    ordered = sorted(reads, key=lambda read: read.first_use)
    for before, read in zip([None, *ordered[:-1]][::-1], ordered[::-1], strict=True):
        wanted = (read.first_use - latency) // GROUP
        if before is not None:
            wanted = min(wanted, (before.first_use - spacing) // GROUP)
        if wanted < free:
            free, taken = wanted, 0
        elif taken == share:
            free, taken = free - 1, 0
        taken += 1
        read.slot = max(free, -1)


def _registers(reads: list[_Read], sums: Sequence[Definition]) -> int:
    """Vector registers that are alive at once: all sums, and loads from their slot to their last use."""
    names = {line.name for line in sums}
    alive = sum(1 for line in sums if not any(use in names for use in line.instruction.uses))
    starts = [max(read.slot, 0) * GROUP for read in reads]
    most = max(
        sum(start <= position <= read.last_use for start, read in zip(starts, reads, strict=True))
        for position in range(len(sums))
    )
    return alive + most


class _Writer(msgspec.Struct):
    """Writes what a multiply-add needs right before it, and loads at their places."""

    pure: dict[str, Instruction]
    reads: dict[str, _Read]
    fresh: Callable[[str], str]
    lines: list[Line] = []
    written: set[str] = set()

    def reads_of(self, instruction: Instruction) -> list[_Read]:
        """The loads behind an instruction's operands."""
        found = []
        for use in instruction.uses:
            if use in self.reads:
                found.append(self.reads[use])
            elif use in self.pure:
                found += self.reads_of(self.pure[use])
        return found

    def write(self, sums: Sequence[Definition]) -> list[Line]:
        by_slot: dict[int, list[_Read]] = {}
        for read in sorted(self.reads.values(), key=lambda read: read.first_use):
            by_slot.setdefault(read.slot, []).append(read)
        for slot in range(-1, HALF_LATENCY):
            for read in by_slot.pop(slot, []):
                self.whole(read)
        coming = [(slot, read) for slot, reads in sorted(by_slot.items()) for read in (*reads, *reads)]
        waiting: list[_Read] = []
        for start in range(0, len(sums), GROUP):
            slot = start // GROUP
            begun = by_slot.get(slot, [])
            due = [read for read in waiting if begun or read.first_use < start + GROUP + PAIRED]
            waiting = [read for read in waiting if read not in due] + begun
            self.slot(begun, due)
            for line in sums[start : start + GROUP]:
                self.need(line.name, line.instruction)
                if coming and coming[0][0] <= slot + HALF_LATENCY:
                    self.half(coming.pop(0)[1])
        for name, instruction in self.pure.items():  # what no sum needs, another loop may use
            self.need(name, instruction)
        return self.lines

    def slot(self, begun: Sequence[_Read], finished: Sequence[_Read]) -> None:
        """The loads that begin between two groups, beside the high halves of those begun before."""
        if not begun and not finished:
            return
        self.lines.append(FENCE)
        for read in begun:
            self.low(read)
        for read in finished:
            self.whole(read)
        self.lines.append(FENCE)

    def need(self, name: str, instruction: Instruction) -> None:
        """Writes a definition after everything that it uses."""
        if name in self.written:
            return
        for use in instruction.uses:
            if use in self.reads:
                self.whole(self.reads[use])
            elif use in self.pure:
                self.need(use, self.pure[use])
        self.emit(name, instruction)

    def emit(self, name: str, instruction: Instruction) -> Value:
        line = Definition(name, instruction)
        self.lines.append(line)
        self.written.add(name)
        return line.value

    def value(self, instruction: Instruction) -> Value:
        return self.emit(self.fresh("o"), instruction)

    def pointer(self, read: _Read) -> Value:
        if read.pointer.text in self.pure:
            self.need(read.pointer.text, self.pure[read.pointer.text])
        return read.pointer

    def half(self, read: _Read) -> None:
        """The next half of a vector in an integer register."""
        if not read.is_vector or read.name in self.written:
            return
        distance = HALF_BYTES * len(read.halves)
        read.halves.append(halves.loaded(self.value, self.pointer(read), distance, read.alignment))

    def low(self, read: _Read) -> None:
        """Puts the low half into a vector register; loads at once what did not come by halves."""
        if len(read.halves) < 2:
            self.whole(read)
        elif read.name not in self.written:
            read.begun = halves.begun(self.value, read.halves[0])

    def whole(self, read: _Read) -> None:
        """The value of a load: put together from its halves, or loaded here."""
        if read.name in self.written:
            return
        if read.begun is None:
            self.emit(read.name, load_from(self.pointer(read), FLOAT, read.value.lanes, read.alignment))
            return
        self.emit(read.name, halves.whole(self.value, read.begun, read.halves[1]))
