"""Which whole model goes into the bundle: the tuned one where it is the faster one, as far as one can tell.

What is compared are runs of whole models, in turn: kernels that are each faster by themselves may together be
slower in a network. While they are, those that should save least go back to their default schedules.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from device_runtime.protocol import MeasureFailure
from toolkit.bundle.build import BuiltModel
from toolkit.bundle.pack import GoldenData
from toolkit.model_job.confirm import Winner
from toolkit.model_job.context import JobContext, stage
from toolkit.model_job.disturbances import disturbances
from toolkit.model_job.in_network import build_network, wrong_model
from toolkit.model_job.kernels import TunedOperator
from toolkit.model_job.latency import PAIRS, InTurn, LoadedModel, block_within, measure_in_turn, measure_model
from toolkit.model_job.options import Latency


class Settled(msgspec.Struct, frozen=True):
    """The model that was measured last beside the untuned one, and whether it goes into the bundle."""

    tuned: list[TunedOperator]
    built: BuiltModel
    measured: InTurn
    faster: bool


def measure(
    job: JobContext,
    untuned: BuiltModel,
    golden: GoldenData,
    tuned: list[TunedOperator],
    built: BuiltModel,
    until_s: float,
) -> Settled:
    """The default and the tuned model, in turn; which of a pair is measured first changes every time.

    While the tuned one is not faster, and until `until_s` on the job's clock, the next one has only those of
    its kernels that should save most. A model whose kernels are all the default ones is measured once, beside
    nothing. Raises VerificationError when a tuned model fails.
    """
    with stage("measure", job.on_event) as running:
        while True:
            found = _in_turn(job, (untuned, built), golden, tuned, until_s)
            faster = not _loses(job, found)
            fewer = most_saving(tuned)
            if faster or job.passed_s > until_s or not changed(fewer):
                break
            tuned = fewer
            built = build_network(job, [item.result for item in tuned], [item.winner for item in tuned])
        running.summary = f"relative error {found.second.max_relative_error:.1e}"
        if isinstance(found.first, MeasureFailure):
            running.summary += f"; the untuned model failed: {found.first.kind}: {found.first.text}"
        elif found.comparison is not None:
            running.summary += f", {found.comparison.verdict}"
        known = [item for item in (found.first, found.second) if isinstance(item, Latency)]
        disturbed = () if job.board.emulated else disturbances(known, job.session.probe(gpus=False))
    return Settled(tuned, built, replace(found, disturbed=disturbed), faster)


def _in_turn(
    job: JobContext,
    models: tuple[BuiltModel, BuiltModel],
    golden: GoldenData,
    tuned: Sequence[TunedOperator],
    until_s: float,
) -> InTurn:
    """The untuned and the tuned one of two models; the latter alone where they are the same."""
    expected_s = sum(item.task.weight * (item.winner.seconds or 0.0) for item in tuned)
    unchecked = [item.task.name for item in tuned if item.result.best is None]
    block_s = block_within(until_s - job.passed_s)

    def measured(model: BuiltModel) -> Latency | MeasureFailure:
        loaded = LoadedModel(model.code, model.variant, golden)
        return measure_model(loaded, job.session, expected_s=expected_s, block_s=block_s)

    def checked() -> Latency:
        found = measured(models[1])
        if not isinstance(found, Latency):
            raise wrong_model(job, models[1].plan.name, found, unchecked)
        return found

    if same_code(*models):
        latency = checked()
        return InTurn(latency, latency, None)
    untuned = functools.partial(measured, models[0])
    return measure_in_turn(untuned, checked, pairs_of(job), lambda: job.passed_s < until_s)


def same_code(one: BuiltModel, other: BuiltModel) -> bool:
    """Whether two models of one graph have the same machine code and packed weights."""
    codes = [[kernel.code for kernel in built.plan.kernels] for built in (one, other)]
    return codes[0] == codes[1] and one.plan.parameters == other.plan.parameters


def _loses(job: JobContext, found: InTurn) -> bool:
    """Whether a tuned model was, by all that is known, not faster; emulated times tell nothing."""
    if job.board.emulated or isinstance(found.first, MeasureFailure):
        return False
    return found.comparison is None or found.comparison.verdict == "slower" or found.comparison.ratio < 1.0


def changed(tuned: Sequence[TunedOperator]) -> int:
    """How many operators have another schedule than the default."""
    return sum(item.winner.configuration != item.task.space.default() for item in tuned)


def most_saving(tuned: Sequence[TunedOperator]) -> list[TunedOperator]:
    """With the default schedule for all but that half of the changed operators that saves most; one without a
    time of its default schedule saves most of all."""

    def saved_s(item: TunedOperator) -> float:
        winner = item.winner
        if winner.configuration == item.task.space.default() or winner.seconds is None:
            return 0.0
        return item.task.weight * ((winner.default_s or math.inf) - winner.seconds)

    order = sorted(range(len(tuned)), key=lambda place: -saved_s(tuned[place]))
    kept = order[: changed(tuned) // 2]
    return [
        item if place in kept else replace(item, winner=_default(item)) for place, item in enumerate(tuned)
    ]


def _default(item: TunedOperator) -> Winner:
    default_s = item.winner.default_s
    return Winner(item.task.space.default(), default_s, default_s)


def pairs_of(job: JobContext) -> int:
    """How often either model is measured; emulated times are not compared."""
    return 1 if job.board.emulated else PAIRS
