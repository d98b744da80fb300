"""The tables, character by character; emulated times are marked wherever one stands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from toolkit.measure.comparison import Comparison
from toolkit.model_job.options import FallbackReport, Latency, OperatorReport, TuneReport
from toolkit.report.columns import table
from toolkit.report.tables import duration, time_text, tune_table
from toolkit.tuning.time_breakdown import TimeBreakdown

CONV = OperatorReport(
    name="n3", operator="conv 1x55x55x64 1x1x64x16 16 -> 1x55x55x16", operator_key="6730c1479f2beb0d",
    count=2, flops=6_292_000, default_s=83e-6, best_s=20.75e-6, trials=32, failures=1, tuned=True,
)  # fmt: skip
CONCAT = OperatorReport(
    name="n9", operator="concat 1x55x55x64 1x55x55x64 -> 1x55x55x128", operator_key="d4d04a7a4d3b5596",
    count=1, flops=0, default_s=None, best_s=None, trials=0, failures=0, tuned=False,
)  # fmt: skip
REPORT = TuneReport(
    model="small", board="rpi3b", target="cpu", emulated=False, peak_gflops=606.5, operators=(CONV, CONCAT),
    default_latency=Latency((2.5e-3, 2e-3), 1e-6, (3e-3,)), tuned_latency=Latency((1e-3, 1.25e-3), 2e-6),
    comparison=Comparison(2.0, 1.9, 2.1, 12, "faster"), trials=32,
    measured=16, tuning_s=8.0, device_s=4.0,
    accounts=TimeBreakdown(8.0, 4.0, 4.25, 3.0, 0.5), wall_s=12.0, records=Path("r.db"),
    bundle=Path("small.tfb"), bundle_id="0123456789abcdef",
)  # fmt: skip


def test_the_table_of_a_job(golden: Callable[[str, str], None]) -> None:
    golden("tune_table.txt", tune_table(REPORT) + "\n")


def test_the_table_of_an_emulated_job(golden: Callable[[str, str], None]) -> None:
    golden("tune_table_emulated.txt", tune_table(replace(REPORT, emulated=True, peak_gflops=None)) + "\n")


def test_every_line_with_a_time_says_that_it_is_emulated() -> None:
    lines = tune_table(replace(REPORT, emulated=True)).splitlines()
    head = next(line for line in lines if line.startswith("operator"))
    assert head.count("(emulated)") == 3
    for line in lines:
        if line.startswith(("end to end", "peak")):
            assert "(emulated)" in line
    assert "emulated, the times say nothing about a chip" in lines[0]


def test_the_table_of_a_job_for_opencl_on_the_cpu(golden: Callable[[str, str], None]) -> None:
    """It says that this is no GPU, and what the bundle holds beside the OpenCL variant."""
    fallback = FallbackReport("cpu", 1, 2, Latency((0.5e-3,), 1e-6))
    report = replace(REPORT, board="pocl", target="opencl", kind="opencl", pocl=True, fallback=fallback)
    golden("tune_table_pocl.txt", tune_table(report) + "\n")


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert table(("a", "b"), [("xxx", "1"), ("y", "22")]) == "a     b\n---  --\nxxx   1\ny    22"


def test_times_for_people() -> None:
    assert [duration(seconds) for seconds in (0, 59.4, 61, 3723)] == ["0:00", "0:59", "1:01", "1:02:03"]
    assert [time_text(seconds) for seconds in (None, 1.25, 0.0012345, 2.5e-5, 4e-7)] == [
        "-", "1250.000 ms", "1.234 ms", "25.00 µs", "0.40 µs",
    ]  # fmt: skip


def test_figures_of_an_operator() -> None:
    assert CONV.speedup == 4.0
    assert CONV.gflops is not None
    assert round(CONV.gflops, 1) == 303.2
    assert CONCAT.gflops is None
    assert CONCAT.speedup is None
    assert REPORT.coverage == 0.5


def test_only_an_interval_calls_a_model_faster_and_a_slower_one_is_not_packed_silently() -> None:
    same = replace(REPORT, comparison=Comparison(1.01, 0.97, 1.05, 12, "no difference found"))
    text = tune_table(same)
    assert "verdict                   no difference found: 1.01x as fast, 99% interval 0.97 to 1.05" in text
    assert "faster:" not in text
    slower = Comparison(0.9, 0.88, 0.93, 12, "slower")
    text = tune_table(replace(REPORT, comparison=slower, packed="untuned", disturbed=("heat: 80 °C (cpu)",)))
    assert (
        "bundled                   the untuned schedules, because no tuned model was found to be faster"
        in text
    )
    assert "disturbed by              heat: 80 °C (cpu)" in text
    few = replace(REPORT, comparison=Comparison(2.0, 0.0, None, 1, "too few runs to tell"))
    assert "verdict                   too few runs to tell\n" in tune_table(few)
