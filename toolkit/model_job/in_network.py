"""Which of its finalists each operator gets: the one that takes the least time inside the network.

Timed by itself, again and again, a kernel finds its weights and inputs in the caches; in the network it
finds what the kernels before it have left there. So whole networks are timed in turn, step by step: the
untuned one, one with the fastest recorded kernel of every operator, one with the second fastest, and so on.
What is timed is checked: each block of runs begins with one whose outputs are compared with the golden ones.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence

from cross.schedule.space import Configuration
from device_runtime.protocol import MeasureFailure
from toolkit.bundle.build import BuiltModel
from toolkit.bundle.build import build as build_code
from toolkit.bundle.model_plan import ModelPlan, Step, leaves
from toolkit.bundle.pack import GoldenData
from toolkit.errors import VerificationError
from toolkit.model_job.confirm import FINALISTS, Winner, finalists
from toolkit.model_job.context import JobContext
from toolkit.model_job.kernels import TunedOperator, plan_model, symbol_of
from toolkit.model_job.latency import LoadedModel, measure_steps
from toolkit.tuning.progress import TuningResult

ROUNDS = 4  # blocks of runs of each network, which take turns
BUILDING = 0.5  # of the time, at most, goes into building networks
MARGIN = 0.01  # of the default schedule's time: who saves less may save nothing, the default stays
NEAR = 1.1  # times the fastest recorded time: what was slower by itself is not tried in the network

Finalists = Mapping[Configuration, float]
"""Recorded seconds of an operator's finalists; empty where nothing ran without failure."""
KernelTimes = Mapping[str, float]
"""Seconds of one call by the kernel's symbol; kernels that never ran are missing."""


def chooses_in_network(job: JobContext) -> bool:
    """Whether networks can be timed step by step: a GPU's cannot, and emulated times say nothing."""
    return job.target.kind == "cpu" and not job.board.emulated


def chosen_in_network(
    job: JobContext,
    untuned: BuiltModel,
    golden: GoldenData,
    results: Sequence[TuningResult],
    until_s: float,
) -> list[Winner]:
    """The winner of each task, from networks built and timed until about `until_s` on the job's clock.

    Where any operator has a finalist beside its default schedule, at least one network is built and timed
    once. Raises VerificationError for a network that fails; the untuned one may.
    """
    found = [finalists(item.task.space, job.records, item.task.key, FINALISTS) for item in job.tasks]
    defaults = [item.task.space.default() for item in job.tasks]
    networks = lineups(list(zip(defaults, found, strict=True)))
    built, begun_s, took_s = [untuned], job.passed_s, 0.0
    for configurations in networks[1:]:
        if job.passed_s + took_s > begun_s + BUILDING * (until_s - begun_s) and len(built) > 1:
            break
        started_s = time.monotonic()
        built.append(build_network(job, results, [Winner(item, None, None) for item in configurations]))
        took_s = time.monotonic() - started_s
    runs_s = [
        item.task.weight * min(s.values(), default=0.0) for item, s in zip(job.tasks, found, strict=True)
    ]
    times = _timed(job, built, golden, sum(runs_s), until_s)
    return [
        winner_of(
            symbol_of(item.task),
            found[place],
            [(network[place], known) for network, known in zip(networks, times, strict=False)],
        )
        for place, item in enumerate(job.tasks)
    ]


def build_network(job: JobContext, results: Sequence[TuningResult], winners: Sequence[Winner]) -> BuiltModel:
    """The model with one configuration for each task, compiled and on the board."""
    tuned = [
        TunedOperator(item.task, result, winner)
        for item, result, winner in zip(job.tasks, results, winners, strict=True)
    ]
    plan = plan_model(job.graph, tuned, job.builder, job.target, job.objects)
    host = next((target for target in job.board.targets if target.kind == "cpu"), None)
    built = build_code(plan, job.target, host)
    job.session.put(built.code)
    return built


def _timed(
    job: JobContext, networks: Sequence[BuiltModel], golden: GoldenData, expected_s: float, until_s: float
) -> list[KernelTimes]:
    """What the kernels take in each network, of which the first, untuned one may fail."""
    blocks: list[dict[int, KernelTimes]] = [{} for _ in networks]
    places = range(len(networks) if len(networks) > 1 else 0)
    for number in range(ROUNDS):
        if number and job.passed_s > until_s:
            break
        for place in places[:: -1 if number % 2 else 1]:
            built = networks[place]
            model = LoadedModel(built.code, built.variant, golden)
            step_s = measure_steps(model, job.session, expected_s=expected_s)
            if not isinstance(step_s, MeasureFailure):
                blocks[place][number] = kernel_times(built.plan, step_s)
            elif place:
                raise wrong_model(job, built.plan.name, step_s)
    return in_pairs(blocks)


def wrong_model(
    job: JobContext, name: str, failure: MeasureFailure, unchecked: Sequence[str] = ()
) -> VerificationError:
    """What to raise for a tuned model that fails. `unchecked`: operators whose kernel never ran by itself."""
    known = "although each of its kernels was checked by itself"
    if unchecked:
        known = f"which has kernels of which no trial succeeded, those of {', '.join(unchecked)}"
    return VerificationError(
        f"the tuned model {name!r}, {known}, failed as a whole on board {job.board.name}: {failure.kind}: "
        f"{failure.text}; no bundle was written, the records are kept"
    )


# ------------------------------------------------------------------------------------------- arithmetic


def lineups(contenders: Sequence[tuple[Configuration, Finalists]]) -> list[list[Configuration]]:
    """The networks to time, each with one configuration for each operator; the first one is the untuned one.

    `contenders`: of each operator the default configuration and its finalists. Network n has the n-th fastest
    of each operator, and the last one of those that have fewer.
    """
    choices = []
    for default, recorded_s in contenders:
        limit_s = NEAR * min(recorded_s.values(), default=math.inf)
        ordered = sorted(recorded_s, key=lambda item: recorded_s[item])
        near = [item for item in ordered if recorded_s[item] <= limit_s]
        choices.append([default, *(item for item in near if item != default)])
    most = max(map(len, choices), default=1)
    return [[items[min(number, len(items) - 1)] for items in choices] for number in range(most)]


def kernel_times(plan: ModelPlan, step_s: Sequence[float]) -> KernelTimes:
    """Mean seconds of a call of each kernel, from the seconds of all steps, loops' runs added up."""
    seconds: dict[str, float] = {}
    calls: dict[str, int] = {}
    for (step, counts), spent_s in zip(leaves(plan.steps), step_s, strict=True):
        if isinstance(step, Step):
            seconds[step.symbol] = seconds.get(step.symbol, 0.0) + spent_s
            calls[step.symbol] = calls.get(step.symbol, 0) + math.prod(counts)
    return {symbol: spent_s / calls[symbol] for symbol, spent_s in seconds.items() if spent_s > 0}


def in_pairs(blocks: Sequence[Mapping[int, KernelTimes]]) -> list[KernelTimes]:
    """The time of each kernel in each network, from blocks of runs by their round.

    In the first network it is the least of all rounds: other load only ever adds time. In another one it is
    that times the median ratio of both in a round: load that lasts for a block would decide between the least
    times, but mostly meets both of a pair. A kernel without pairs has the least of its own times.
    """
    least = [_least(found) for found in blocks]
    return [own | _paired(blocks[0], least[0], found) for found, own in zip(blocks, least, strict=True)]


def _least(found: Mapping[int, KernelTimes]) -> dict[str, float]:
    """The least time of each kernel over several blocks of runs."""
    seconds: dict[str, float] = {}
    for block in found.values():
        seconds |= {symbol: min(spent_s, seconds.get(symbol, math.inf)) for symbol, spent_s in block.items()}
    return seconds


def _paired(
    first: Mapping[int, KernelTimes], first_s: KernelTimes, other: Mapping[int, KernelTimes]
) -> dict[str, float]:
    """The kernels that ran in blocks of one round of both networks, by their ratios there."""
    ratios: dict[str, list[float]] = {}
    for number in first.keys() & other.keys():
        for symbol in first[number].keys() & other[number].keys():
            ratios.setdefault(symbol, []).append(other[number][symbol] / first[number][symbol])
    return {symbol: first_s[symbol] * statistics.median(found) for symbol, found in ratios.items()}


def winner_of(
    symbol: str,
    recorded_s: Finalists,
    tried: Sequence[tuple[Configuration, KernelTimes]],
) -> Winner:
    """The winner of an operator whose kernel is called `symbol`, from the networks that were timed.

    `tried`: its configuration in each of them, in the untuned one first, and what the kernels took there. One
    that never ran in a network is judged by its recorded time.
    """
    default = tried[0][0]
    if not recorded_s:
        return Winner(default, None, None)
    seconds: dict[Configuration, float] = {}
    for configuration, times in tried:
        if symbol in times:
            seconds[configuration] = min(times[symbol], seconds.get(configuration, math.inf))
    if not seconds:
        seconds = {configuration: recorded_s.get(configuration, math.inf) for configuration, _ in tried}
    default_s = seconds.get(default, math.inf)
    best = min(seconds, key=lambda item: seconds[item])
    if seconds[best] > (1.0 - MARGIN) * default_s:
        best = default
    return Winner(best, seconds[best], default_s if math.isfinite(default_s) else None)
