"""A model of how a Cortex-A53 issues the instructions of a loop. Start at `loop_cycles`.

Arm publishes no optimization guide for this core, and LLVM's own model of it (llvm-mca -mcpu=cortex-a53) is
far off: it knows no rules of 128-bit operations and makes loads wait for the write-back of earlier
multiply-adds. This model is built from measurements that others published; it is a model, and assumes that
every load hits the first-level cache.

- [cycles] github.com/daniestevez/qsdr, qsdr-benchmarks: cycles of instruction pairs and of whole kernels,
  by the performance counter of a Cortex-A53. Two instructions a cycle, in order. A 128-bit arithmetic
  instruction takes both 64-bit NEON pipes and goes first: an integer load or an addition shares its cycle
  only when it comes after. A 64-bit vector load and an insert share a cycle, a 64-bit vector load and
  128-bit arithmetic do not. A 128-bit load takes two cycles alone, a pair of them four.
- [latencies] github.com/ocxtal/insn_bench_aarch64, results/raspberry-pi-3_cortex-a53.md: fmla 8 cycles, 4 to
  the next fmla of the same accumulator, one 128-bit one a cycle; scalar loads 3; stores 1 a cycle.
- [divider] One, which is not pipelined: of square roots the tables of [latencies] say 12 cycles and one every
  9 (doubles 22 and 20), scalars and vectors alike; of divisions GCC's cortex-a53.md says 14 and 13 (doubles
  29 and 28) for scalars, which vectors are taken to take, too.
- [integers] The same tables: smull, smlal and the other multiplications 4 cycles, 1 to the next smlal of the
  same accumulator, one 128-bit one a cycle; sadalp 4 cycles and one every second. XNNPACK's loop for this
  core (src/qs8-gemm/2x8c8-aarch64-neon-mlal-cortex-a53.S.in: 256 products of bytes in 74 cycles) takes as
  long as if sadalp let nothing else issue in its two cycles.
- [hazard] ncnn, docs/developer-guide/arm-a53-a55-dual-issue.md: no vector load issues in the cycle in which a
  multiply-add enters the adders, four after its own; GCC's cortex-a53.md reserves the adders alike. Kernels
  written for this core (XNNPACK, OpenBLAS) come in groups of three fmla and a load, which never meet it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from cross.inspection.instructions import Instruction, Kind
from cross.inspection.listing import Line

NAME: Final = "cortex-a53 issue model"
CPU_NAMES: Final = ("cortex-a53",)
ITERATIONS: Final = 24  # of the loop; the second half counts
FMA_LATENCY: Final = 8  # cycles
FMA_FORWARD: Final = 4  # to the accumulator of the next multiply-add
PRODUCT_LATENCY: Final = 4  # of integers
PRODUCT_FORWARD: Final = 1
PAIRWISE_CYCLES: Final = 2  # of sadalp
DIVIDER_CYCLES: Final = {("fdiv", "s"): 13, ("fdiv", "d"): 28, ("fsqrt", "s"): 9, ("fsqrt", "d"): 20}
DIVIDER_LATENCY: Final = {("fdiv", "s"): 14, ("fdiv", "d"): 29, ("fsqrt", "s"): 12, ("fsqrt", "d"): 22}
STORE_DATA_SLACK: Final = 2  # cycles after its issue in which a store takes its data

_REGISTER: Final = re.compile(r"\b([vqdshbxw])(\d+)\b|\bsp\b")
_SETS_FLAGS: Final = re.compile(r"(adds|subs|ands|bics|cm[pn]|tst|ccm[pn]|fcmpe?|negs|adcs|sbcs)$")
_READS_FLAGS: Final = re.compile(
    r"(b\.\w+|cs(el|et|etm|inc|inv|neg)|cinc|cneg|cinv|ccm[pn]|fcsel|adcs?|sbcs?)$"
)
_COMPARES: Final = re.compile(r"(cm[pn]|tst|ccm[pn]|fcmpe?)$")
_READS_DESTINATION: Final = re.compile(
    r"(fml[as]|ml[as]|[su]ml[as]l2?|[su]adalp|[su]dot|movk|bi[tf]|bsl|bfi|bfxil|sri|sli|tbx)$"
)
_MULTIPLY: Final = re.compile(r"(mul|madd|msub|mneg|[us]mulh|[us]mull|[us]madd[l]|[us]msubl|[us]div)$")
_PRODUCT: Final = re.compile(r"([su]ml[as]l2?|[su]mull2?|ml[as]|mul)$")
_PAIRWISE: Final = re.compile(r"[su]adalp$")
_INTO_LANE: Final = re.compile(r"v\d+\.\w+\[\d+\]$")


class Operation(msgspec.Struct, frozen=True):
    """What issue needs to know of an instruction."""

    reads: tuple[str, ...]
    late_reads: tuple[str, ...]  # data of a store
    accumulators: tuple[str, ...]  # read by forwarding from the last multiply-add
    writes: tuple[tuple[str, int], ...]  # register, cycles after issue
    merges: bool = False  # writes one lane: the rest may still be on its way
    cycles: int = 1  # more: nothing else issues during them
    pipes: int = 0  # 64-bit NEON pipes
    memory: bool = False
    fma: bool = False
    forward: int = 0  # cycles to the accumulator of the next of its kind; 0: none of these
    divider: int = 0  # cycles in which it keeps the divider
    alone: bool = False

    @property
    def vector_load(self) -> bool:
        return self.memory and self.pipes > 0 and not self.late_reads


def loop_cycles(instructions: Sequence[Instruction], *, hazard: bool = True) -> float:
    """Cycles per iteration of a loop that runs these instructions again and again.

    Args:
        instructions: of one iteration, in order.
        hazard: whether vector loads wait while a multiply-add enters the adders; without, a lower bound.
    """
    return sum(line_cycles(instructions, hazard=hazard))


def line_cycles(instructions: Sequence[Instruction], *, hazard: bool = True) -> tuple[float, ...]:
    """Of each instruction: the cycles between its issue and that of the one before it; 0: together."""
    operations = [operation_of(instruction) for instruction in instructions]
    issue = Issue(hazard)
    half = ITERATIONS // 2
    spent = [0] * len(operations)
    for iteration in range(ITERATIONS):
        for position, operation in enumerate(operations):
            before = issue.cycle
            issue.add(operation)
            if iteration >= half:
                spent[position] += issue.cycle - before
    return tuple(cycles / (ITERATIONS - half) for cycles in spent)


class Issue:
    """In-order issue: the `cycle` of the last instruction; `free_from`, after one that takes several."""

    def __init__(self, hazard: bool) -> None:
        self.hazard = hazard
        self.cycle = 0
        self.free_from = 0  # no issue before this cycle
        self.divider_from = 0  # nor of what divides
        self.group: list[Operation] = []  # issued in `cycle`
        self.ready: dict[str, int] = {}
        self.forward: dict[str, int] = {}
        self.fma_cycles: set[int] = set()

    def add(self, operation: Operation) -> None:
        at = max(self.cycle, self.free_from, self._operands_ready(operation))
        if operation.divider:
            at = max(at, self.divider_from)
        if at == self.cycle and self.group and not self._joins(operation):
            at += 1
        while self.hazard and operation.vector_load and at - FMA_FORWARD in self.fma_cycles:
            at += 1
        if at != self.cycle:
            self.group = []
        self.cycle = at
        self.group.append(operation)
        if operation.cycles > 1:
            self.free_from = at + operation.cycles
        if operation.divider:
            self.divider_from = at + operation.divider
        for register, latency in operation.writes:
            before = self.ready.get(register, 0) if operation.merges else 0
            self.ready[register] = max(at + latency, before)
            self.forward.pop(register, None)
        if operation.fma:
            self.fma_cycles.add(at)
        if operation.forward:
            for register in operation.accumulators:
                self.forward[register] = at + operation.forward

    def _operands_ready(self, operation: Operation) -> int:
        times = [self.ready.get(register, 0) for register in operation.reads]
        times += [
            self.ready.get(register, 0) - STORE_DATA_SLACK - position
            for position, register in enumerate(operation.late_reads)
        ]
        times += [
            self.forward.get(register, self.ready.get(register, 0)) for register in operation.accumulators
        ]
        return max(times, default=0)

    def _joins(self, operation: Operation) -> bool:
        """Whether it shares the cycle of the instruction before it."""
        if len(self.group) > 1 or operation.alone or operation.cycles > 1:
            return False
        first = self.group[0]
        if first.alone or first.cycles > 1 or (first.memory and operation.memory):
            return False
        if operation.pipes == 2:  # 128-bit operations go first
            return False
        written = {register for register, _ in first.writes}
        if any(register in written and register != "flags" for register, _ in operation.writes):
            return False
        return first.pipes + operation.pipes <= 2


# ------------------------------------------------------------------------------------------ decoding


def operation_of(instruction: Instruction) -> Operation:
    """What issue needs to know of it."""
    line = instruction.line
    if instruction.kind is Kind.BRANCH:
        reads = tuple(_registers(", ".join(line.operands)))
        return Operation(reads + (("flags",) if _READS_FLAGS.match(line.mnemonic) else ()), (), (), ())
    if instruction.load_bytes or instruction.store_bytes or line.mnemonic.startswith("prf"):
        return _memory(instruction)
    written = [] if _COMPARES.match(line.mnemonic) else _registers(line.operands[0])
    sources = line.operands if _COMPARES.match(line.mnemonic) else line.operands[1:]
    taken = [register for operand in sources for register in _registers(operand)]
    accumulators: list[str] = []
    product = _PRODUCT.match(line.mnemonic) is not None and instruction.vector
    fma = instruction.kind is Kind.FMA and not product
    if _READS_DESTINATION.match(line.mnemonic):
        (accumulators if fma or product else taken).extend(written)
    elif fma:  # fmadd d, n, m, a
        accumulators = _registers(line.operands[-1])
        taken = [register for operand in line.operands[1:-1] for register in _registers(operand)]
    if _READS_FLAGS.match(line.mnemonic):
        taken.append("flags")
    latency = _latency(instruction)
    writes = [(register, latency) for register in written]
    if _SETS_FLAGS.match(line.mnemonic):
        writes.append(("flags", 0 if not instruction.vector else 1))
    return Operation(
        tuple(taken),
        (),
        tuple(accumulators),
        tuple(writes),
        merges=_INTO_LANE.match(line.operands[0]) is not None,
        pipes=_pipes(instruction),
        fma=fma,
        forward=FMA_FORWARD if fma else PRODUCT_FORWARD if product else 0,
        divider=DIVIDER_CYCLES.get(_divided(line), 0),
        cycles=PAIRWISE_CYCLES if _PAIRWISE.match(line.mnemonic) else 1,
        alone=_MULTIPLY.match(line.mnemonic) is not None and not instruction.vector,
    )


def _latency(instruction: Instruction) -> int:
    mnemonic = instruction.line.mnemonic
    if instruction.vector and (_PRODUCT.match(mnemonic) or _PAIRWISE.match(mnemonic)):
        return PRODUCT_LATENCY
    if instruction.kind is Kind.FMA:
        return FMA_LATENCY
    if (divided := _divided(instruction.line)) in DIVIDER_LATENCY:
        return DIVIDER_LATENCY[divided]
    if instruction.kind is Kind.MOVE:
        return 2
    if instruction.kind is Kind.VECTOR:
        return 4 if mnemonic.startswith("f") else 2
    if _MULTIPLY.match(mnemonic):
        return 4
    return 2 if any("lsl" in operand or "lsr" in operand for operand in instruction.line.operands) else 1


def _divided(line: Line) -> tuple[str, str]:
    """The mnemonic, and the width of elements: "s" or "d" of `v0.4s`, `d1`."""
    return line.mnemonic, "d" if re.search(r"\.2d$|^d\d", line.operands[0]) else "s"


def _pipes(instruction: Instruction) -> int:
    """64-bit NEON pipes of arithmetic and moves."""
    if not instruction.vector:
        return 0
    line = instruction.line
    if line.mnemonic in ("ins", "mov") and re.match(r"[xw]\d+$|[xw]zr$", line.operands[-1]):
        return 1
    if line.mnemonic == "fmov" or (line.mnemonic == "dup" and line.operands[-1][0] in "xw"):
        return 1
    wide = any(re.search(r"\.(16b|8h|4s|2d)$|\.[bhsd]\[\d+\]$", operand) for operand in line.operands)
    return 2 if wide else 1


def _memory(instruction: Instruction) -> Operation:
    line = instruction.line
    place = next(position for position, operand in enumerate(line.operands) if operand.startswith("["))
    address = _registers(line.operands[place])
    data = [register for operand in line.operands[:place] for register in _registers(operand)]
    writeback = line.operands[place].endswith("!") or len(line.operands) > place + 1
    base = [(address[0], 1)] if writeback and address else []
    moved = max(instruction.load_bytes, instruction.store_bytes)
    each = moved // max(len(data), 1)
    pipes = 0 if not instruction.vector else (2 if each == 16 or _lane_form(line) else 1)
    if not instruction.load_bytes:
        cycles = max(1, len(data) if instruction.vector and each == 16 else 1)
        return Operation(
            tuple(address),
            tuple(data),
            (),
            tuple(base),
            cycles=cycles,
            pipes=pipes,
            memory=True,
            alone=cycles > 1,
        )
    step = 2 if each == 16 else 1
    first = 4 if each == 16 else 3
    writes = [(register, first + step * position) for position, register in enumerate(data)]
    return Operation(
        tuple(address), (), (), (*writes, *base),
        merges=line.operands[0].endswith("]"), cycles=step * max(len(data), 1), pipes=pipes, memory=True,
    )  # fmt: skip


def _lane_form(line: Line) -> bool:
    """ld1 of one lane, or ld1r: they take the whole register and so both pipes."""
    return line.operands[0].endswith("]") or line.mnemonic.endswith("1r")


def _registers(operand: str) -> list[str]:
    """Registers named in an operand; views of one register have one name."""
    found = []
    for match in _REGISTER.finditer(operand):
        letter, number = match[1], match[2]
        found.append("sp" if letter is None else ("x" if letter in "xw" else "v") + number)
    return found
