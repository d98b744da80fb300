"""What must be reached, and whether it was: one Finding for each goal that a report says anything about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median

from benchmarks.harness.text import aligned, thread_count
from benchmarks.kernels.inference import SUITE as NETWORKS
from benchmarks.kernels.networks import NAMES
from benchmarks.kernels.random_shapes import SUITE as RANDOM
from benchmarks.kernels.ratios import Ratio, Standing, by_suite, launch_us, named, own_series, ratio, standing
from benchmarks.kernels.results import OWN, Case, Finding
from benchmarks.kernels.workloads import SUITES


@dataclass(frozen=True, slots=True)
class Goal:
    """What a suite must reach: geometric mean and minimum of our ratios to the best library; `direct`: the
    mean without Winograd's algorithms."""

    mean: float
    worst: float | None = None
    direct: float | None = None


GOALS = {
    "conv": Goal(1.1, 0.9, direct=1.0),
    "depthwise": Goal(1.0, 0.8),
    "transposed": Goal(1.3),
    "matmul": Goal(1.0, 0.8),
    RANDOM: Goal(1.0, 1.0),  # untuned, against numpy
    NETWORKS: Goal(1.45, 1.12),
}

# whole networks: some have goals of their own, against the best library or against ONNX Runtime
NETWORK_GOALS = {"mobilenet_v2": 1.25, "mobilenet_v3": 1.8}
ONNXRUNTIME_GOALS = {"lstm_lm": 1.2, "gru_spotter": 1.2, "transformer": 1.0}

# AutoTVM itself (TVM 0.17, its x86 templates, 200 trials), GFLOP/s on one thread of a machine of
# AUTOTVM_PEAK_GFLOPS; compared as fractions of the peak.
AUTOTVM_GFLOPS = {"C2": 133.0, "C3": 99.0, "C6": 138.0, "C7": 112.0, "C9": 131.0}
AUTOTVM_PEAK_GFLOPS = 153.0
AUTOTVM_GOAL = 1.05

LAUNCH_GOAL_US = 5.0
TRIALS_GOAL = 400
RANDOM_COUNT = 50
COMPILE_GOAL_MS = 60.0


def findings(cases: Sequence[Case]) -> list[Finding]:
    """The goals that these cases are about, suite by suite, fewer threads first."""
    suites = by_suite(cases)
    return [found for threads, suite, members in suites for found in _suite(suite, threads, members)]


def finding(
    name: str, goal: float, found: float | None, *, at_most: bool = False, detail: str = ""
) -> Finding:
    """A goal and what was found, judged; nothing is judged that was not found."""
    reached = None if found is None else found <= goal if at_most else found >= goal
    return Finding(name=name, goal=goal, at_most=at_most, found=found, reached=reached, detail=detail)


def against_autotvm(found: Standing) -> float | None:
    """Our fraction of the peak over AutoTVM's; None where AutoTVM's is not known."""
    theirs = AUTOTVM_GFLOPS.get(found.case.workload)
    if theirs is None or found.case.threads != 1 or found.peak is None:
        return None
    return found.peak.median / (theirs / AUTOTVM_PEAK_GFLOPS)


def _suite(suite: str, threads: int, cases: Sequence[Case]) -> Iterator[Finding]:
    where = f"{suite}, {thread_count(threads)}"
    goal = GOALS.get(suite)
    standings = [found for case in cases if (found := standing(case)) is not None]
    if goal is not None:
        yield from _ratios(where, suite, goal, standings)
    if suite == NETWORKS:
        yield from _networks(where, standings)
    if suite == RANDOM:
        yield _right_answers(where, cases)
    if suite == "conv" and threads == 1:
        yield from _autotvm(standings)
    yield from _made(where, cases)
    yield from _launch(where, cases)


def _networks(where: str, standings: Sequence[Standing]) -> Iterator[Finding]:
    for item in standings:
        name, theirs = item.case.workload, named(item.case, "onnxruntime", "all")
        if name in NETWORK_GOALS:
            yield _network(f"{where}: {name}, ours / best library", NETWORK_GOALS[name], item.against)
        if name in ONNXRUNTIME_GOALS:
            found = ratio(item.ours, theirs) if theirs else None
            yield _network(f"{where}: {name}, ours / ONNX Runtime", ONNXRUNTIME_GOALS[name], found)


def _network(name: str, goal: float, found: Ratio | None) -> Finding:
    spread = f"quartiles {found.low:.2f} to {found.high:.2f}" if found else "not measured"
    return finding(name, goal, found.median if found else None, detail=spread)


def _right_answers(where: str, cases: Sequence[Case]) -> Finding:
    """Random shapes must be many, and none may be wrong."""
    wrong = [case.workload for case in cases if own_series(case) is None]
    few = f"{len(cases)} shapes, {RANDOM_COUNT} wanted" if len(cases) < RANDOM_COUNT else ""
    count = None if few else float(len(wrong))
    name = f"{where}: shapes without a right answer"
    return finding(name, 0, count, at_most=True, detail=few or ", ".join(wrong))


def _made(where: str, cases: Sequence[Case]) -> Iterator[Finding]:
    """How our kernels came to be: trials of an operator, spills of the winners."""
    winners = [
        (case.workload, series.facts)
        for case in cases
        for series in case.series
        if series.library == OWN and series.variant in ("tuned", "direct")
    ]
    trials = [float(facts["trials"]) for _, facts in winners if "trials" in facts]
    if trials:
        yield finding(f"{where}: most trials of an operator", TRIALS_GOAL, max(trials), at_most=True)
    spills = [(name, float(facts["spills"])) for name, facts in winners if "spills" in facts]
    if spills:
        spilling = [f"{name} {count:g}" for name, count in spills if count]
        name = f"{where}: winners with spills in the hottest loop"
        yield finding(name, 0, float(len(spilling)), at_most=True, detail=", ".join(spilling))


def _launch(where: str, cases: Sequence[Case]) -> Iterator[Finding]:
    """What a parallel loop with nothing to do takes."""
    if times_us := launch_us(cases):
        yield finding(f"{where}: an empty parallel loop, us", LAUNCH_GOAL_US, median(times_us), at_most=True)


def _ratios(where: str, suite: str, goal: Goal, standings: Sequence[Standing]) -> Iterator[Finding]:
    """Mean and worst against the best library; the mean needs every operator of the suite."""
    ratios = {item.case.workload: item.against.median for item in standings if item.against}
    lacking = _lacking(suite, ratios)
    yield _mean(f"{where}: mean of ours / best library", goal.mean, ratios, lacking)
    if goal.worst is not None:
        limit = goal.worst
        below = [f"{name} {value:.2f}" for name, value in ratios.items() if value < limit]
        worst = min(ratios.values(), default=None)
        if lacking and not below:
            worst = None
        detail = f"below: {', '.join(below)}" if below else lacking
        yield finding(f"{where}: worst of ours / best library", limit, worst, detail=detail)
    if goal.direct is not None:
        direct = {item.case.workload: item.direct.median for item in standings if item.direct}
        name = f"{where}: mean of ours without Winograd / best library"
        yield _mean(name, goal.direct, direct, _lacking(suite, direct))


def _mean(name: str, goal: float, ratios: dict[str, float], lacking: str) -> Finding:
    return finding(name, goal, None if lacking else geometric_mean(ratios.values()), detail=lacking)


def _lacking(suite: str, ratios: dict[str, float]) -> str:
    """Which of a suite's operators have no ratio; empty for none. Other suites are whatever was measured."""
    members = NAMES if suite == NETWORKS else SUITES.get(suite, ())
    missing = [name for name in members if name not in ratios]
    if missing:
        return f"no figure for {', '.join(missing)}"
    return "" if ratios else "nothing to compare with"


def _autotvm(standings: Sequence[Standing]) -> Iterator[Finding]:
    values = {item.case.workload: against_autotvm(item) for item in standings}
    for name in AUTOTVM_GFLOPS:
        found = values.get(name)
        detail = "" if found is not None else "not measured"
        yield finding(f"{name} / AutoTVM, as fractions of the peak", AUTOTVM_GOAL, found, detail=detail)


# ------------------------------------------------------------------------------------------------ as text


def summary(goals: Sequence[Finding]) -> list[str]:
    """One line a goal, and how many are reached."""
    if not goals:
        return []
    counts = {state: sum(item.reached is state for item in goals) for state in (True, False, None)}
    head = f"goals: {counts[True]} reached, {counts[False]} NOT reached, {counts[None]} not measured"
    return [head, *aligned([_row(item) for item in goals])]


def _row(item: Finding) -> list[str]:
    found = "-" if item.found is None else f"{item.found:.2f}"
    state = {True: "reached", False: "NOT reached", None: "not measured"}[item.reached]
    return [
        item.name,
        found,
        f"{'at most' if item.at_most else 'at least'} {item.goal:g}",
        state,
        item.detail,
    ]
