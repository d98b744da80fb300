"""Inner loops for cores that issue in program order: which load goes between which multiply-adds.

LLVM's schedulers hoist loads as far as registers last, and past that; an out-of-order core does not mind, a
Cortex-A53 stalls. `arranged` writes the straight body of an inner loop in the order in which it should issue
and fences it, so that it stays so. The rules of the machine are in cross/machine_code/cortex_a53.py:

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

The fences are labels (codeview annotations): schedulers keep to their sides, and no code comes of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

GROUP: Final = 3  # multiply-adds between two loads
LEAST: Final = 24  # multiply-adds in a body: below, a loop is bound by latency and LLVM's order is as good
LEAST_USES: Final = 1  # multiply-adds to a load
LEAD: Final = 4  # multiply-adds between the start of a load and its first use
MEET: Final = 1  # the same for the start of the load after it, so that halves of both meet
APART: Final = -2  # and where registers are too few for that
AHEAD: Final = 2  # groups between a load into an integer register and its move to a vector register
LANES: Final = 4
REGISTERS: Final = 31  # one less than there are: LLVM may move what is between two fences
NEVER: Final = 1 << 30
VECTOR: Final = "<4 x float>"
FENCE: Final = 'call void @llvm.codeview.annotation(metadata !{!"tfb"})'
DECLARATION: Final = "void @llvm.codeview.annotation(metadata)"

_NODE: Final = re.compile(r"\s*(%[\w.]+) = (.*)$")
_NAME: Final = re.compile(r"%[\w.]+")
_LOAD: Final = re.compile(r"load (float|<\d+ x float>), ptr (%[\w.]+), align (\d+)$")
_PLACE: Final = re.compile(r"getelementptr inbounds float, ptr (%[\w.]+), i64 (-?\d+)$")
_FMA: Final = re.compile(r"call <\d+ x float> @llvm\.fmuladd\.v\d+f32\((.*)\)$")
_SPLAT: Final = re.compile(rf"shufflevector {VECTOR} (%[\w.]+), {VECTOR} poison, <4 x i32> zeroinitializer$")
_INSERT: Final = re.compile(rf"insertelement {VECTOR} poison, float (%[\w.]+), i64 0$")
_PURE: Final = re.compile(r"(getelementptr inbounds|insertelement|shufflevector|extractelement|bitcast) ")


@dataclass(slots=True)
class _Node:
    name: str
    text: str

    @property
    def uses(self) -> list[str]:
        return _NAME.findall(self.text)


@dataclass(slots=True)
class _Read:
    """A load and its place: slot n stands before group n of the multiply-adds, -1 before them all."""

    name: str
    pointer: str
    type: str
    alignment: int
    first_use: int = NEVER  # positions in the order of the multiply-adds
    last_use: int = -1
    slot: int = -1
    halves: list[str] = field(default_factory=list)  # in integer registers
    begun: str = ""  # the vector with its low half


def arranged(body: Sequence[str], fresh: Callable[[str], str]) -> list[str] | None:
    """The lines of a loop body in another order, with the same results under the same names.

    Args:
        body: LLVM IR, one instruction a line.
        fresh: a new SSA name for a hint.

    Returns:
        None for a body that holds more than loads and multiply-adds, or too few of them.
    """
    nodes = {}
    for line in body:
        match = _NODE.match(line)
        if match is None or not any(kind.match(match[2]) for kind in (_LOAD, _FMA, _PURE)):
            return None
        nodes[match[1]] = _Node(match[1], match[2])
    sums = [node for node in nodes.values() if _FMA.match(node.text)]
    if len(sums) < LEAST:
        return None
    for by_element, meet, order in (
        (True, MEET, _weight_by_weight),
        (True, APART, _weight_by_weight),
        (False, MEET, _place_by_place),
        (False, MEET, _as_written),
    ):
        pure = {node.name: _Node(node.name, node.text) for node in nodes.values() if _PURE.match(node.text)}
        reads = [_read(node) for node in nodes.values() if _LOAD.match(node.text)]
        if by_element:
            reads = _by_lanes(reads, pure, fresh)
        if len(reads) * LEAST_USES > len(sums) or (not by_element and len(sums) < 2 * LEAST):
            continue  # bound by its loads in whatever order, or too short to hide them
        bases = _hide_bases(reads, pure, fresh)
        writer = _Writer(pure, {read.name: read for read in reads}, fresh, bases)
        ordered = _in_order(order(sums, writer), sums)
        for position, node in enumerate(ordered):
            for read in writer.reads_of(node):
                read.first_use = min(read.first_use, position)
                read.last_use = position
        _place(reads, len(ordered), meet)
        if _registers(reads, ordered) <= REGISTERS:
            return writer.write(ordered)
    return None


def _read(node: _Node) -> _Read:
    match = _LOAD.match(node.text)
    assert match is not None
    return _Read(node.name, match[2], match[1], int(match[3]))


# ------------------------------------------------------------------------------------------- by element


def _by_lanes(reads: list[_Read], pure: dict[str, _Node], fresh: Callable[[str], str]) -> list[_Read]:
    """Four neighbouring scalars that are used as splats become one vector that is used by element."""
    splats = _splats(reads, pure)
    runs: dict[tuple[str, int], dict[int, _Read]] = {}
    for read in reads:
        if read.name in splats:
            base, offset = _base(read.pointer, pure)
            runs.setdefault((base, offset // LANES), {})[offset % LANES] = read
    joined: dict[str, _Read] = {}
    for run in runs.values():
        if len(run) < LANES:
            continue
        first = run[0]
        whole = _Read(fresh("lanes"), first.pointer, VECTOR, first.alignment)
        for lane, read in run.items():
            joined[read.name] = whole
            pure[read.name] = _Node(read.name, f"extractelement {VECTOR} {whole.name}, i64 {lane}")
            mask = ", ".join([f"i32 {lane}"] * LANES)
            for splat in splats[read.name]:
                pure[splat].text = f"shufflevector {VECTOR} {whole.name}, {VECTOR} poison, <4 x i32> <{mask}>"
    return list({id(read): read for read in (joined.get(read.name, read) for read in reads)}.values())


def _base(pointer: str, pure: dict[str, _Node]) -> tuple[str, int]:
    """A pointer as one that the loop does not compute from a constant, and a distance in elements."""
    node = pure.get(pointer)
    match = _PLACE.match(node.text) if node else None
    return (match[1], int(match[2])) if match else (pointer, 0)


def _hide_bases(reads: list[_Read], pure: dict[str, _Node], fresh: Callable[[str], str]) -> list[str]:
    """Lines that rename the pointers from which constants are counted: all addresses then count up from them.

    Otherwise LLVM's strength reduction counts them from one in the middle, whose negative distances need an
    instruction of their own.
    """
    renamed: dict[str, str] = {}
    for read in reads:
        base = _base(read.pointer, pure)[0]
        if base not in pure:
            renamed.setdefault(base, fresh("base"))
            read.pointer = renamed.get(read.pointer, read.pointer)
    for node in pure.values():
        match = _PLACE.match(node.text)
        if match and match[1] in renamed:
            node.text = f"getelementptr inbounds float, ptr {renamed[match[1]]}, i64 {match[2]}"
    return [f'  {new} = call ptr asm "", "=r,0"(ptr {old})' for old, new in renamed.items()]


def _splats(reads: list[_Read], pure: dict[str, _Node]) -> dict[str, list[str]]:
    """For every scalar load that has any: the names of its splats."""
    inserts = {node.name: match[1] for node in pure.values() if (match := _INSERT.match(node.text))}
    result: dict[str, list[str]] = {read.name: [] for read in reads if read.type == "float"}
    for node in pure.values():
        match = _SPLAT.match(node.text)
        if match and inserts.get(match[1]) in result:
            result[inserts[match[1]]].append(node.name)
    return {name: found for name, found in result.items() if found}


# ------------------------------------------------------------------------------------------------ order


def _weight_by_weight(sums: list[_Node], writer: _Writer) -> list[_Node]:
    """Multiply-adds by the vector that they load last."""
    ranks: dict[str, int] = {}

    def rank(node: _Node) -> int:
        vectors = [use for use in node.uses if use in writer.reads and writer.reads[use].type == VECTOR]
        return max((ranks.setdefault(vector, len(ranks)) for vector in vectors), default=-1)

    return [node for _, node in sorted(((rank(node), node) for node in sums), key=lambda pair: pair[0])]


def _place_by_place(sums: list[_Node], writer: _Writer) -> list[_Node]:
    """Multiply-adds by the address of the vector that fewer of them read: in a window, pixel by pixel.

    A pixel is then loaded once for all the sums that it adds to, and the weights of a row stay.
    """
    users = Counter(read.name for node in sums for read in writer.reads_of(node))

    def address(node: _Node) -> int:
        rarest = min(writer.reads_of(node), key=lambda read: users[read.name])
        return _base(rarest.pointer, writer.pure)[1]

    if not all(writer.reads_of(node) for node in sums):
        return sums
    return sorted(sums, key=address)


def _as_written(sums: list[_Node], writer: _Writer) -> list[_Node]:
    return sums


def _in_order(ordered: list[_Node], sums: list[_Node]) -> list[_Node]:
    """The multiply-adds as ordered where every addend still comes before its use, otherwise as written."""
    names, seen = {node.name for node in sums}, set()
    for node in ordered:
        if any(use in names and use not in seen for use in node.uses):
            return sums
        seen.add(node.name)
    return ordered


def _place(reads: list[_Read], count: int, meet: int) -> None:
    """Every load in the last slot that is early enough, and no more than their share in a slot.

    A load also starts `meet` multiply-adds before the one used before it is needed: two halves that meet in a
    slot, one's low and the other's high, share a cycle.
    """
    groups = -(-count // GROUP)
    share = max(2, -(-len(reads) // groups))
    free, taken = groups, 0
    ordered = sorted(reads, key=lambda read: read.first_use)
    for before, read in zip([None, *ordered[:-1]][::-1], ordered[::-1], strict=True):
        wanted = (read.first_use - LEAD) // GROUP
        if before is not None:
            wanted = min(wanted, (before.first_use - meet) // GROUP)
        if wanted < free:
            free, taken = wanted, 0
        elif taken == share:
            free, taken = free - 1, 0
        taken += 1
        read.slot = max(free, -1)


def _registers(reads: list[_Read], sums: Sequence[_Node]) -> int:
    """Vector registers that are alive at once: all sums, and loads from their slot to their last use."""
    names = {node.name for node in sums}
    alive = sum(1 for node in sums if not any(use in names for use in node.uses))
    starts = [max(read.slot, 0) * GROUP for read in reads]
    most = max(
        sum(start <= position <= read.last_use for start, read in zip(starts, reads, strict=True))
        for position in range(len(sums))
    )
    return alive + most


@dataclass(slots=True)
class _Writer:
    """Writes what a multiply-add needs right before it, and loads at their places."""

    pure: dict[str, _Node]
    reads: dict[str, _Read]
    fresh: Callable[[str], str]
    lines: list[str] = field(default_factory=list)
    written: set[str] = field(default_factory=set)

    def reads_of(self, node: _Node) -> list[_Read]:
        """The loads behind a node's operands."""
        found = []
        for use in node.uses:
            if use in self.reads:
                found.append(self.reads[use])
            elif use in self.pure:
                found += self.reads_of(self.pure[use])
        return found

    def write(self, sums: Sequence[_Node]) -> list[str]:
        by_slot: dict[int, list[_Read]] = {}
        for read in sorted(self.reads.values(), key=lambda read: read.first_use):
            by_slot.setdefault(read.slot, []).append(read)
        for slot in range(-1, AHEAD):
            for read in by_slot.pop(slot, []):
                self.whole(read)
        halves = [(slot, read) for slot, reads in sorted(by_slot.items()) for read in (*reads, *reads)]
        waiting: list[_Read] = []
        for start in range(0, len(sums), GROUP):
            slot = start // GROUP
            begun = by_slot.get(slot, [])
            due = [read for read in waiting if begun or read.first_use < start + GROUP + MEET]
            waiting = [read for read in waiting if read not in due] + begun
            self.slot(begun, due)
            for node in sums[start : start + GROUP]:
                self.need(node)
                if halves and halves[0][0] <= slot + AHEAD:
                    self.half(halves.pop(0)[1])
        for node in self.pure.values():  # what no sum needs, another loop may; if none does, LLVM drops it
            self.need(node)
        return self.lines

    def slot(self, begun: Sequence[_Read], finished: Sequence[_Read]) -> None:
        """The loads that begin between two groups, beside the high halves of those begun before."""
        if not begun and not finished:
            return
        self.lines.append(f"  {FENCE}")
        for read in begun:
            self.low(read)
        for read in finished:
            self.whole(read)
        self.lines.append(f"  {FENCE}")

    def need(self, node: _Node) -> None:
        """Writes a node after everything that it uses."""
        if node.name in self.written:
            return
        for use in node.uses:
            if use in self.reads:
                self.whole(self.reads[use])
            elif use in self.pure:
                self.need(self.pure[use])
        self.emit(node.name, node.text)

    def emit(self, name: str, text: str) -> str:
        self.lines.append(f"  {name} = {text}")
        self.written.add(name)
        return name

    def value(self, text: str) -> str:
        return self.emit(self.fresh("o"), text)

    def pointer(self, read: _Read) -> str:
        if read.pointer in self.pure:
            self.need(self.pure[read.pointer])
        return read.pointer

    def half(self, read: _Read) -> None:
        """The next half of a vector in an integer register.

        The empty assembly keeps LLVM from joining the halves again.
        """
        if read.type != VECTOR or read.name in self.written:
            return
        place = self.pointer(read)
        if read.halves:
            place = self.value(f"getelementptr inbounds i8, ptr {place}, i64 8")
        loaded = self.value(f"load volatile i64, ptr {place}, align {min(read.alignment, 8)}")
        read.halves.append(self.value(f'call i64 asm "", "=r,0"(i64 {loaded})'))

    def low(self, read: _Read) -> None:
        """Puts the low half into a vector register; loads at once what did not come by halves."""
        if len(read.halves) < 2:
            self.whole(read)
        elif read.name not in self.written:
            low = self.value(f"insertelement <2 x i64> poison, i64 {read.halves[0]}, i64 0")
            read.begun = self.value(f'call <2 x i64> asm sideeffect "", "=w,0"(<2 x i64> {low})')

    def whole(self, read: _Read) -> None:
        """The value of a load: put together from its halves, or loaded here."""
        if read.name in self.written:
            return
        if not read.begun:
            self.emit(read.name, f"load {read.type}, ptr {self.pointer(read)}, align {read.alignment}")
            return
        both = self.value(f"insertelement <2 x i64> {read.begun}, i64 {read.halves[1]}, i64 1")
        self.emit(read.name, f"bitcast <2 x i64> {both} to {VECTOR}")
