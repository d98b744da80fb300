"""What `toolkit quantize` says for people."""

from __future__ import annotations

from typing import Final

from toolkit.quantization.quantize import QuantizeReport
from toolkit.report.columns import named, table

WORST: Final = 10  # layers in the text; the data have all


def quantize_text(report: QuantizeReport, width: int = 0) -> str:
    """The layers that hurt most, those left in floats, then the outputs and the file."""
    worst = sorted(report.layers, key=lambda item: (item.alone_db is None, item.alone_db))
    shown = [item for number, item in enumerate(worst) if number < WORST or not item.quantized]
    rows = [
        [
            item.name,
            item.operator,
            _db(item.alone_db),
            _db(item.sqnr_db),
            "int8" if item.quantized else "float",
        ]
        for item in shown
    ]
    headers = ["layers that hurt most", "operator", "alone, dB", "in the network, dB", "in"]
    lines = [table(headers, rows, left=2, width=width, optional=[1]), ""]
    for item in report.outputs:
        same = "" if item.agreement is None else f", the same largest element in {item.agreement:.1%}"
        lines += named([(f"output {item.name}", f"signal to noise {_db(item.sqnr_db)} dB{same}")])
    quantized = sum(item.quantized for item in report.layers)
    lines += named([
        ("layers", f"{quantized} of {len(report.layers)} on integers"),
        ("samples", f"{report.calibrated} to find ranges, {report.held_out} held out to compare by"),
        ("file", f"{report.output}, {_kib(report.quantized_bytes)} instead of {_kib(report.float_bytes)}"),
    ])  # fmt: skip
    return "\n".join(lines)


def _db(value: float | None) -> str:
    return "no change" if value is None else f"{value:.1f}"


def _kib(count: int) -> str:
    return f"{count / 1024:.0f} KiB"
