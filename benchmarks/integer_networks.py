"""Whole networks on 8-bit integers: ours, ours before it was quantized, and other libraries on the same file.

The networks are quantized as `toolkit quantize` does, on seeded data, tuned and bundled by the tool itself.
Who is measured has a process of its own and a turn in every round, as in benchmarks.kernels; ONNX Runtime and
OpenVINO read the same QDQ file, and LiteRT what litert_networks.py writes of it. Without VNNI ONNX Runtime's
usual sums saturate; "precise" is its way in which they do not. Ratios are taken within a round.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.kernels.networks import MODEL_SEED, Place, tuned_model
from benchmarks.kernels.processes import Contender, LibraryProcess, contenders
from benchmarks.kernels.ratios import Ratio, ratio
from benchmarks.kernels.results import MACHINE, OWN, Case, Series
from benchmarks.kernels.rounds import Plan, measure
from benchmarks.kernels.tune import Effort
from benchmarks.networks import write
from benchmarks.networks.quantized import quantize_as

NAMES: Final = ("resnet50", "mobilenet_v2", "bert")
FOLDER: Final = Path("build/bench/integers")
RIVALS: Final = ("onnxruntime", "openvino", "litert")
FLOATS: Final = "ours in floats"
GOAL: Final = 1.15
FLOAT_GOALS: Final = {"resnet50": 2.2, "mobilenet_v2": 1.6}
WRONG: Final = 0.25
"""Of the largest output: roundings of single layers differ among libraries by a step, and add up."""


@dataclass(frozen=True, slots=True)
class Row:
    """A network's figures: times by who computed it, ours over each rival's, over the best one's and over our
    own floats, and how far outputs lie from numpy's, of the largest one."""

    name: str
    threads: int
    milliseconds: dict[str, float]
    rivals: dict[str, Ratio]
    best: str
    over_floats: Ratio | None
    left_out: dict[str, str]
    errors: dict[str, float]

    @property
    def against(self) -> Ratio | None:
        """Ours over the best rival's, if there is one."""
        return self.rivals.get(self.best)

    def text(self) -> str:
        """A paragraph, with the goals."""
        times = ", ".join(f"{who} {ms:.3f}" for who, ms in self.milliseconds.items())
        lines = [f"{self.name}, {self.threads} threads: {times} ms"]
        lines.append(f"  over the best rival ({self.best or 'none'}): {_said(self.against)}, goal {GOAL}")
        others = (f"{who} {_said(found)}" for who, found in self.rivals.items() if who != self.best)
        lines.append(f"  over the others: {', '.join(others) or 'none'}")
        goal = FLOAT_GOALS.get(self.name.split("-")[0])
        lines.append(f"  over our floats: {_said(self.over_floats)}{f', goal {goal}' if goal else ''}")
        far = ", ".join(f"{who} {error:.1%}" for who, error in self.errors.items())
        lines.append(f"  outputs off by at most: {far or 'no figure'} of the largest")
        lines += [f"  not measured: {who}: {why}" for who, why in self.left_out.items()]
        return "\n".join(lines)


def measure_networks(
    names: Sequence[str],
    threads: int,
    effort: Effort,
    plan: Plan,
    peers: Path,
    records: Path,
    form: str = "onnxruntime",
) -> list[Row]:
    """Tune what is missing, then measure each network in turn with everybody."""
    own = contenders(peers, ("--records", str(records.absolute())), RIVALS)
    _, ours, *others = own  # the machine's own operations say nothing about bytes
    floats = replace(ours, name=FLOATS, arguments=(*ours.arguments, "--floats"))
    pairs = [quantized_network(name, FOLDER, form=form) for name in names]
    return [_row(pair, threads, effort, plan, [ours, floats, *others], records) for pair in pairs]


def quantized_network(
    name: str, folder: Path, size: int | None = None, form: str = "onnxruntime"
) -> tuple[Path, Path]:
    """The files of a network of floats and of the same on integers, written unless they are there.

    `form`: as who writes the second (benchmarks/networks/quantized.py).
    """
    suffix = "" if form == "onnxruntime" else f"-{form}"
    floats, integers = folder / f"{name}.onnx", folder / f"{name}{suffix}-int8.onnx"
    if not integers.exists():
        quantize_as(form, write(name, floats, MODEL_SEED, size), integers, MODEL_SEED)
    return floats, integers


def _row(
    pair: tuple[Path, Path],
    threads: int,
    effort: Effort,
    plan: Plan,
    everybody: Sequence[Contender],
    records: Path,
) -> Row:
    floats, integers = pair
    place = Place(FOLDER)
    before = tuned_model(floats, threads, records, effort, place)
    network = tuned_model(integers, threads, records, effort, place)
    processes = [LibraryProcess(item, threads) for item in everybody]
    try:
        case = measure(replace(network, float_library=before.library), threads, processes, plan)
    finally:
        for process in processes:
            process.close()
    return row(case)


def row(case: Case) -> Row:
    """The figures of a case."""
    left_out = dict(case.not_measured)
    right: list[Series] = []
    for series in case.series:
        if series.error is not None and series.error > WRONG and series.library != FLOATS:
            left_out[series.name] = f"wrong by {series.error:.1e} of the largest output"
        else:
            right.append(series)
    named = {series.library: series for series in right}
    ours, floats = named.get(OWN), named.get(FLOATS)
    rivals = [item for item in right if item.library not in (OWN, FLOATS, MACHINE)]
    ratios = {item.name: found for item in rivals if ours and (found := ratio(ours, item))}
    best = min(ratios, key=lambda name: ratios[name].median, default="")
    times = {item.name: 1e-6 * item.work / item.gflops for item in right if item.gflops}
    over = ratio(ours, floats) if ours and floats else None
    errors = {item.name: item.error for item in right if item.error is not None}
    return Row(case.workload, case.threads, times, ratios, best, over, left_out, errors)


def _said(found: Ratio | None) -> str:
    if found is None:
        return "no figure"
    noise = "" if found.clean else " ~"
    return f"{found.median:.2f} ({found.low:.2f} to {found.high:.2f}){noise}"


def print_networks(rows: Sequence[Row]) -> None:
    """To standard output."""
    print("\n".join(row.text() for row in rows))
    print("~: too few undisturbed rounds, so all count", file=sys.stderr)
