"""Options, events and report of a job that tunes a whole model."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from toolkit.errors import InputError
from toolkit.measure.comparison import Comparison
from toolkit.model_job.tuning_plan import TuningPlan
from toolkit.records.failures import FailureReason
from toolkit.reuse.names import Hops
from toolkit.tuning.operator_search import TuningOptions
from toolkit.tuning.progress import Event
from toolkit.tuning.time_breakdown import TimeBreakdown

Precision = Literal["file", "fastest"]

DEFAULT_TRIALS = 64
DEFAULT_RECORDS = Path.home() / ".local" / "share" / "tune-for-board" / "records.db"

StageName = Literal[
    "import",
    "connect",
    "compile",
    "reference",
    "fallback",
    "precision",
    "plan",
    "tune",
    "confirm",
    "build",
    "measure",
    "pack",
]


class TuneOptions(msgspec.Struct, frozen=True):
    """How to tune a model; the defaults are those of the command.

    `trials` measurements for each distinct operator, or `total` for all of them together, or `seconds` for
    the whole job: one of the three, DEFAULT_TRIALS where none is given. Configurations that an earlier run
    recorded count as trials. Raises InputError for two of them, and for values that mean nothing.
    """

    target: str = ""
    """Name of one of the board's targets; empty: the one with the highest estimated peak."""
    trials: int | None = None
    total: int | None = None
    seconds: float | None = None
    spent_s: float = 0.0
    """Seconds of `seconds` that were used before the job began."""
    tuning: TuningOptions = msgspec.field(default_factory=TuningOptions)
    """Search, batch size, seed."""
    reuse: bool = False
    """Begin operators with the tuned programs of others where that saves trials (ETO); `trials` are those of
    the operators that reuse nothing."""
    bridges: Hops = "one-hop"
    """Operators that no model has, tuned where reusing them saves more trials: none, the smallest common ones
    of two operators, or also those of bridges."""
    shapes: Mapping[str, tuple[int, ...]] = {}
    """Shape of every graph input that the model leaves open."""
    constants: Mapping[str, tuple[float, ...]] = {}
    """What inputs always hold, one number for all elements or one for each: the bundle has no such inputs."""
    records: Path | str = DEFAULT_RECORDS
    """The store of measurements. What an exported file holds is added to the usual store."""
    output: Path | str | None = None
    """The bundle; None: MODEL-BOARD.tfb in the current folder."""
    counter: int | None = None
    """The bundle's counter; None: seconds since 1970. By itself a board takes no bundle of the same name with
    a lower one, whoever signed it, so the clocks of hosts that sign for one board must agree."""
    coverage: float = 0.0
    """Least share (0 to 1) of the operators that must end with a measured kernel."""
    winograd: bool = True
    """Let convolutions be computed by Winograd's algorithms too, which round more (docs/accuracy.md)."""
    precision: Precision = "file"
    """file: compute what the model says. fastest: quantized layers may be computed in floats where that is
    measured faster; takes `trials` as its budget."""
    floats: frozenset[str] = frozenset()
    """Quantized layers that are computed in floats between the same integers, by the names of their nodes."""
    workers: int = 2
    """Compiler processes."""
    wait_s: float = 0.0
    """How long to wait for the board's lease."""
    command: tuple[str, ...] = ()
    """The command line that asked for the job, which its page names; none: it was a program."""
    config_dir: Path | str | None = None
    """Where the signing key is; None: ~/.config/tune-for-board."""
    cache_dir: Path | str | None = None

    def __post_init__(self) -> None:
        budgets = {"trials": self.trials, "total": self.total, "seconds": self.seconds}
        given = [name for name, value in budgets.items() if value is not None]
        if len(given) > 1:
            raise InputError(f"TuneOptions: {' and '.join(given)} exclude each other: give one of them")
        if self.precision == "fastest" and given not in ([], ["trials"]):
            raise InputError(f"TuneOptions: precision fastest needs trials as its budget, found {given[0]}")
        if not given:
            msgspec.structs.force_setattr(self, "trials", DEFAULT_TRIALS)
        for name, least in (("trials", 1), ("total", 1), ("workers", 1), ("seconds", 0), ("wait_s", 0)):
            value = getattr(self, name)
            if value is not None and not least <= value < math.inf:
                raise InputError(f"TuneOptions: expected {name} of at least {least}, found {value}")
        if not 0.0 <= self.coverage <= 1.0:
            raise InputError(f"TuneOptions: expected a coverage between 0 and 1, found {self.coverage}")


class StageStarted(msgspec.Struct, frozen=True):
    """A stage of the job begins."""

    stage: StageName


class StageDone(msgspec.Struct, frozen=True):
    """A stage of the job has ended after `seconds`; `summary`: its result in a few words."""

    stage: StageName
    seconds: float
    summary: str


class TuningPlanned(msgspec.Struct, frozen=True):
    """Which operators will be tuned; `recorded` trials of all `trials` are done already.

    `trials` is None where the budget is a time: then tuning gets `seconds` of it, and `plan` says more.
    """

    operators: tuple[str, ...]
    trials: int | None
    seconds: float | None
    recorded: int
    emulated: bool
    plan: TuningPlan | None = None


JobEvent = Event | StageStarted | StageDone | TuningPlanned
JobListener = Callable[[JobEvent], None]


class OperatorReport(msgspec.Struct, frozen=True):
    """One distinct operator of the model: `count` groups compute it, `name` says in few words what it
    computes and where, `operator` all its shapes.

    `default_s` and `best_s` are seconds of one call of the default schedule and of the chosen one, None
    where nothing of that kind ran without failure. `tuned`: the choice was made from measurements.
    """

    name: str
    operator: str
    operator_key: str
    count: int
    flops: int
    default_s: float | None
    best_s: float | None
    trials: int
    failures: int
    tuned: bool
    reasons: tuple[FailureReason, ...] = ()
    """Why the `failures` trials failed, by kind."""
    layers: tuple[str, ...] = ()
    """The nodes of the model that compute it, by their whole names."""
    spent: TimeBreakdown = msgspec.field(default_factory=TimeBreakdown)
    """Where the time of all its trials went, as far as the records know."""

    @property
    def gflops(self) -> float | None:
        """Throughput of the kernel in the bundle; None where it has no time, or nothing to compute."""
        return self.flops / self.best_s / 1e9 if self.best_s and self.flops else None

    @property
    def speedup(self) -> float | None:
        """How many times faster than the default schedule."""
        return self.default_s / self.best_s if self.best_s and self.default_s else None


class Latency(msgspec.Struct, frozen=True):
    """Seconds of each run of the whole model, and its largest relative error.

    `first_s` are the first runs after each check, which warm up and are not among `seconds`.
    """

    seconds: tuple[float, ...]
    max_relative_error: float
    first_s: tuple[float, ...] = ()

    @property
    def best_s(self) -> float:
        """The fastest run, as for operators."""
        return min(self.seconds)

    @property
    def median_s(self) -> float:
        """Median seconds of a run, disturbances by other processes of the board included."""
        return statistics.median(self.seconds)

    def percentile_s(self, percent: float) -> float:
        """The time that `percent` of the runs do not exceed."""
        return float(np.percentile(self.seconds, percent))


class FallbackReport(msgspec.Struct, frozen=True):
    """The CPU variant beside a GPU's: `tuned` of its `operators` were tuned by earlier jobs."""

    target: str
    tuned: int
    operators: int
    latency: Latency


class ChangedOutput(msgspec.Struct, frozen=True):
    """An output of the model with layers in floats, beside that on integers: decibels of signal to noise
    (None: nothing changed), share of rows with the largest element where it was (None: no rows)."""

    name: str
    sqnr_db: float | None
    agreement: float | None

    @property
    def text(self) -> str:
        """For people: y 45.2 dB, agreement 100.0%."""
        noise = "unchanged" if self.sqnr_db is None else f"{self.sqnr_db:.1f} dB"
        same = "" if self.agreement is None else f", agreement {self.agreement:.1%}"
        return f"{self.name} {noise}{same}"


class PrecisionReport(msgspec.Struct, frozen=True):
    """The layers, of all `quantized` ones, that are computed in floats, and what that changes."""

    layers: tuple[str, ...]
    quantized: int
    outputs: tuple[ChangedOutput, ...]

    @property
    def text(self) -> str:
        """For people, in one line."""
        if not self.layers:
            return f"none of {self.quantized} quantized layers"
        names, changed = ", ".join(self.layers), "; ".join(item.text for item in self.outputs)
        return f"{len(self.layers)} of {self.quantized} quantized layers: {names} ({changed})"


class TuneReport(msgspec.Struct, frozen=True):
    """The result of a job.

    `measured` trials were run now, during `tuning_s`, of which the board was busy for `device_s`; `accounts`
    says where the rest went. Where `emulated` is set, no time in here says anything about a chip; where
    `pocl` is, the target is OpenCL on the CPU, and none says anything about a GPU.
    """

    model: str
    board: str
    target: str
    emulated: bool
    peak_gflops: float | None
    operators: tuple[OperatorReport, ...]
    default_latency: Latency | None
    tuned_latency: Latency
    trials: int
    measured: int
    tuning_s: float
    device_s: float
    accounts: TimeBreakdown
    wall_s: float
    records: Path
    bundle: Path
    bundle_id: str
    kind: str = "cpu"
    pocl: bool = False
    fallback: FallbackReport | None = None
    default_failure: str = ""
    """Why there is no `default_latency`: the untuned model does not run here, or computes something wrong."""
    comparison: Comparison | None = None
    """The tuned model against the untuned one; None where that failed, and where both are the same."""
    packed: Literal["tuned", "untuned"] = "tuned"
    """Which model the bundle has: the untuned one unless the tuned one is faster, as far as one can tell."""
    disturbed: tuple[str, ...] = ()
    """What disturbed the times of the models, in sentences."""
    precision: PrecisionReport | None = None
    """Which layers are computed in floats; None where the model is computed as its file says."""
    bridges: int = 0
    """How many bridges were tuned for reuse; `trials`, `measured` and the times count theirs too."""
    job: Path | None = None
    """The file of the job, which its page is made from (toolkit.model_job.job_file)."""
    page: Path | None = None
    """The page, where one was written (toolkit.report.job_page)."""

    @property
    def coverage(self) -> float:
        """Share of the distinct operators whose kernel was chosen from measurements."""
        return sum(item.tuned for item in self.operators) / max(1, len(self.operators))
