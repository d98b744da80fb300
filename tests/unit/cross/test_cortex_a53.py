"""The issue model against published measurements: cycles counted on a Cortex-A53 for short pieces of code.

Source of the cycles: github.com/daniestevez/qsdr, qsdr-benchmarks/tests/instruction_benchmark/aarch64.
"""

from __future__ import annotations

import re

import pytest

from cross.inspection.cortex_a53 import Issue, loop_cycles, operation_of
from cross.inspection.instructions import Instruction, classify
from cross.inspection.listing import Line

MEASURED = {
    "ldr d0, [x1]; fadd v1.4s, v1.4s, v1.4s": 2,
    "fadd v1.4s, v1.4s, v1.4s; ldr d0, [x1]": 2,
    "ldr x0, [x1]; fadd v0.4s, v0.4s, v0.4s": 2,
    "fadd v0.4s, v0.4s, v0.4s; ldr x0, [x1]": 1,
    "ldr d0, [x1]; ins v1.d[1], x0": 1,
    "ins v1.d[1], x0; ldr d0, [x1]": 1,
    "ldr d0, [x1]; ins v0.d[1], x0": 2,
    "ld1 { v0.d }[0], [x1]; ins v1.d[1], x0": 2,
    "fadd v0.4s, v0.4s, v0.4s; str q1, [x1]": 2,
    "str q1, [x1]; fadd v0.4s, v0.4s, v0.4s": 2,
    "ldr d0, [x1]; str q1, [x1]": 2,
    "ins v0.d[1], x0; str q1, [x1]": 2,
    "fadd v0.4s, v0.4s, v0.4s; str x0, [x1]": 1,
    "str x0, [x1]; fadd v0.4s, v0.4s, v0.4s": 2,
    "fadd v0.4s, v0.4s, v0.4s; mov x0, v1.d[0]": 2,
    "fadd v0.2s, v0.2s, v0.2s; ldr d1, [x1]": 1,
    "ldr d1, [x1]; fadd v0.2s, v0.2s, v0.2s": 1,
    "ldr q0, [x1]": 2,
    "ldr q0, [x1]; fadd v0.4s, v0.4s, v0.4s": 5,
    "ldr q0, [x1]; ldr q1, [x1]": 4,
    "ldr q0, [x1]; ldr q1, [x1]; fadd v0.4s, v0.4s, v0.4s": 5,
    "ldr q0, [x1]; ldr q1, [x1]; fadd v1.4s, v1.4s, v1.4s": 7,
    "ldp q0, q1, [x1]": 4,
    "ldp q0, q1, [x1]; fadd v1.4s, v1.4s, v1.4s": 7,
    "ldp q0, q1, [x1]; ldp q2, q3, [x1]; fadd v3.4s, v3.4s, v3.4s": 11,
    "ldr d0, [x1]; fadd v0.4s, v0.4s, v0.4s": 4,
    "ldp d0, d1, [x1]; ldp d2, d3, [x1]; fadd v2.4s, v2.4s, v2.4s": 6,
    "ldp d0, d1, [x1]; ldp d2, d3, [x1]; fadd v3.4s, v3.4s, v3.4s": 7,
    "ins v0.d[1], x0; fadd v0.4s, v0.4s, v0.4s": 3,
    "ins v0.d[1], x0; ins v1.d[1], x1": 1,
    "ins v0.d[0], x0; ins v0.d[1], x1": 2,
    "fmul v0.4s, v0.4s, v31.4s; fmul v0.4s, v0.4s, v31.4s": 5,
    "add x0, x0, x0; add x1, x1, x1; add x2, x2, x2": 2,
    "cmp x0, #42; b.ne 0b": 1,
}

SAXPY_RUSTC = (  # 16 cycles an iteration, measured over 512 of them
    "add x6, x1, x5; add x5, x5, #32; cmp x5, x7; ldp q0, q1, [x6]; fmul v0.4s, v0.4s, v2.s[0]; "
    "fmul v1.4s, v1.4s, v2.s[0]; fadd v0.4s, v0.4s, v3.4s; fadd v1.4s, v1.4s, v3.4s; "
    "stp q0, q1, [x6]; b.ne 0b"
)
SAXPY_CORE = (  # one of its two halves, 16 cycles each
    "fmul v0.4s, v0.4s, v31.4s; ldr x0, [x10, #136]; fmul v1.4s, v1.4s, v31.4s; fmul v2.4s, v2.4s, v31.4s; "
    "ldr x1, [x10, #152]; fmul v3.4s, v3.4s, v31.4s; ldr x2, [x10, #168]; fadd v0.4s, v0.4s, v30.4s; "
    "ldr x3, [x10, #184]; fadd v1.4s, v1.4s, v30.4s; ldr x4, [x10, #176]; "
    "st1 {v4.4s, v5.4s, v6.4s, v7.4s}, [x10]; ldr d5, [x10, #144]; ins v7.d[1], x3; ldr d6, [x10, #160]; "
    "ins v5.d[1], x1; ldr d4, [x10, #128]!; ins v6.d[1], x2; ins v7.d[0], x4; ins v4.d[1], x0; "
    "fadd v2.4s, v2.4s, v30.4s; fadd v3.4s, v3.4s, v30.4s"
)


def instructions(code: str) -> list[Instruction]:
    result = []
    for text in code.split("; "):
        mnemonic, _, rest = text.partition(" ")
        operands = re.findall(r"\{[^}]*\}(?:\[\d+\])?|\[[^]]*\]!?|[^,\s]+", rest)
        result.append(classify(Line(mnemonic, tuple(operands)), "aarch64"))
    return result


def block_cycles(instructions: list[Instruction]) -> int:
    """Cycles that straight code occupies issue, from its first instruction to the end of its last."""
    issue = Issue(hazard=True)
    for instruction in instructions:
        issue.add(operation_of(instruction))
    return max(issue.cycle + 1, issue.free_from)


@pytest.mark.parametrize("code", MEASURED)
def test_short_pieces_take_the_measured_cycles(code: str) -> None:
    assert block_cycles(instructions(code)) == MEASURED[code]


@pytest.mark.parametrize("code", [SAXPY_RUSTC, SAXPY_CORE], ids=["saxpy by rustc", "saxpy by hand"])
def test_whole_kernels_take_the_measured_cycles(code: str) -> None:
    assert block_cycles(instructions(code)) == 16


def test_a_multiply_add_forwards_to_its_accumulator_in_four_cycles() -> None:
    chain = "fmla v0.4s, v1.4s, v2.s[0]"
    assert loop_cycles(instructions(chain)) == 4
    four = "; ".join(f"fmla v{register}.4s, v8.4s, v9.s[0]" for register in range(4))
    assert loop_cycles(instructions(four)) == 4
    through_operand = "fmla v0.4s, v1.4s, v2.4s; fmla v1.4s, v0.4s, v2.4s"
    assert loop_cycles(instructions(through_operand)) == 16


@pytest.mark.parametrize(
    ("code", "cycles"),
    [
        ("fdiv v0.4s, v1.4s, v2.4s", 13),
        ("fdiv s0, s0, s2", 14),  # which waits for itself
        ("fsqrt d0, d1", 20),
        ("fsqrt v0.2d, v0.2d", 22),
        ("fdiv v0.4s, v1.4s, v2.4s; fsqrt v3.4s, v4.4s", 22),
        ("fdiv v0.4s, v1.4s, v2.4s; " + "; ".join(f"fadd v{n}.4s, v20.4s, v21.4s" for n in range(3, 15)), 13),
    ],
)
def test_the_divider_does_one_thing_at_a_time_and_others_go_on(code: str, cycles: int) -> None:
    assert loop_cycles(instructions(code)) == cycles


def test_loads_in_groups_of_three_multiply_adds_meet_no_adder_hazard() -> None:
    fma = [f"fmla v{register}.4s, v30.4s, v31.s[0]" for register in range(12)]
    grouped = [
        item for start in range(0, 12, 3) for item in (*fma[start : start + 3], f"ldr d2{start % 9}, [x1]")
    ]
    together = [*fma, *(f"ldr d2{position}, [x1]" for position in range(4))]
    assert loop_cycles(instructions("; ".join(grouped))) == 16
    assert loop_cycles(instructions("; ".join(together))) > 16
    assert loop_cycles(instructions("; ".join(together)), hazard=False) == 16
