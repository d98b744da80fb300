"""The static report of one kernel, character by character, from assembly text that is kept here."""

from __future__ import annotations

import json
from collections.abc import Callable

from msgspec.structs import replace

from boards.target import Target
from cross.inspection.cpu_loops import CodeReport, inspect_listing
from toolkit.inspection.cpu_report import static_content, static_table, static_text
from toolkit.report.documents import document

A53 = Target(
    name="cpu", kind="cpu", triple="aarch64-unknown-linux-gnu", cpu="cortex-a53", l2_bytes=1 << 19,
    clock_hz=1.2e9, vector_registers=32, flops_per_cycle=8.0,
)  # fmt: skip
LISTING = """
	.type	conv,@function
conv:
	stp	x20, x19, [sp, #-16]!           // 16-byte Folded Spill
.LBB0_1:
	mov	x9, x0
	mov	x10, #0
.LBB0_2:
	ldp	q20, q21, [x8], #32
	str	q19, [sp, #32]                  // 16-byte Spill
	fmla	v0.4s, v20.4s, v22.s[0]
	ldr	x12, [x9, #8]
	fmla	v1.4s, v21.4s, v22.s[0]
	ldr	s23, [x9, #512]
	fmla	v2.4s, v20.4s, v23.s[0]
	add	x10, x10, #1
	fmla	v3.4s, v21.4s, v23.s[0]
	mov	v22.d[1], x12
	cmp	x10, #8
	b.lt	.LBB0_2
	stp	q0, q1, [x1]
	add	x11, x11, #1
	cmp	x11, #4
	b.lt	.LBB0_1
	ldp	x20, x19, [sp], #16             // 16-byte Folded Reload
	ret
.Lfunc_end0:
"""


def report() -> CodeReport:
    """Without what llvm-mca says where it is installed."""
    found = inspect_listing(LISTING, A53)
    hot = found.loops[0]
    kept = tuple(item for item in hot.predictions if "llvm-mca" not in item.model)
    return replace(found, loops=(replace(hot, predictions=kept), *found.loops[1:]))


def test_one_kernel_in_full(golden: Callable[[str, str], None]) -> None:
    golden("static_kernel.txt", static_text("conv", report()) + "\n")


def test_a_line_for_each_kernel(golden: Callable[[str, str], None]) -> None:
    straight = CodeReport(A53, ())
    golden("static_table.txt", static_table([("conv", report()), ("copy", straight)]) + "\n")


def test_the_same_as_data() -> None:
    content = json.loads(document("static-report", static_content([("conv", report())])))
    (kernel,) = content["kernels"]
    assert kernel["name"] == "conv" and kernel["target"] == A53.key
    hot = kernel["hot"]
    assert hot["counts"]["fma"] == 4 and hot["vector_spills"] == 1
    assert [item["model"] for item in hot["predictions"]] == [
        "cortex-a53 issue model", "cortex-a53 issue model, no adder hazard",
    ]  # fmt: skip


def test_a_kernel_without_a_loop_says_so() -> None:
    assert static_text("copy", CodeReport(A53, ())) == "copy for cpu (cortex-a53): no loop"
