"""Tune the operators of a model by reuse: generation by generation, as the plan says (ETO).

The operators that nothing is reused for are searched first; those that begin with their programs follow, and
so on. An operator whose reuse fails is searched itself, and what hangs on it follows from there. Programs
that the records know of other operators, tuned for the same code on this board or on one of its family, are
reused too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from cross.errors import CrossError
from cross.expression.language.description import from_json
from cross.expression.language.operator import Operator
from cross.schedule.choose import space_of
from cross.schedule.space import ScheduleSpace
from toolkit.explore.neighbourhood.loops import IrregularLoops, MajorLoops, major_loops
from toolkit.measure.live import LiveRunner
from toolkit.model.tasks import TuningTask
from toolkit.model_job.context import Bench, OpenTask, open_task
from toolkit.records import TuningRecord
from toolkit.reuse.plan.bridge_operator import Bridge, bridge_operators
from toolkit.reuse.plan.expected_trials import expected_cpu_rounds, expected_gpu_rounds
from toolkit.reuse.plan.reuse_plan import (
    Candidate,
    ReuseOptions,
    ReusePlan,
    ReuseStep,
    plan_reuse,
)
from toolkit.reuse.rounds.program import Program
from toolkit.reuse.rounds.proposer import reuse_proposer
from toolkit.tuning.algorithm import TuningJob, tune_all
from toolkit.tuning.on_board import target_key
from toolkit.tuning.progress import Budget, Listener, TuningResult
from toolkit.version import TOOL_VERSION

KNOWN_TRIALS = 32  # an operator with fewer records does not count as tuned


@dataclass(frozen=True, slots=True)
class KnownProgram:
    """An operator that was tuned before: what it is called, and its fastest program."""

    name: str
    operator_key: str
    loops: MajorLoops | None
    program: Program


@dataclass(frozen=True, slots=True)
class ModelReuse:
    """The plan of a model: its tasks come first among the candidates, then the programs of the records, then
    the bridges."""

    candidates: tuple[Candidate, ...]
    known: tuple[KnownProgram, ...]
    bridges: tuple[Bridge, ...]
    plan: ReusePlan

    def bridge(self, position: int) -> Bridge | None:
        """The bridge among the candidates; None for other candidates."""
        first = len(self.candidates) - len(self.bridges)
        return self.bridges[position - first] if position >= first else None

    def source_name(self, step: ReuseStep) -> str:
        """Whom a step reuses; "" for nobody."""
        return "" if step.parent is None else self.candidates[step.parent].name


def plan_model_reuse(bench: Bench, options: ReuseOptions) -> ModelReuse:
    """Who reuses whom in a model."""
    work = sum(item.task.flops * item.task.count for item in bench.tasks)
    mine = []
    for item in bench.tasks:
        count = len(bench.records.for_key(item.job.key))
        mine.append(
            Candidate(
                item.job.name,
                _loops(item.task.operator),
                item.task.flops * item.task.count / max(1, work),
                tuned=count >= min(options.trials, item.job.space.size),
                most=float(item.job.space.size),
            )
        )
    own = {item.job.key.operator_key for item in bench.tasks}
    bridges = _bridges(bench, mine, options)
    recorded = _recorded(bench)
    begun = {bridge.operator.key for bridge in bridges} & recorded.keys()
    known = tuple(item for item in known_programs(bench) if item.operator_key not in own | begun)
    candidates = (
        *mine,
        *(Candidate(program.name, program.loops, 0.0, tuned=True) for program in known),
        *(
            Candidate(
                bridge.name,
                bridge.loops,
                0.0,
                tuned=recorded.get(bridge.operator.key, 0) >= options.trials,
                bridge=True,
            )
            for bridge in bridges
        ),
    )
    expected = expected_cpu_rounds if bench.target.kind == "cpu" else expected_gpu_rounds
    return ModelReuse(candidates, known, bridges, plan_reuse(candidates, options, expected))


def _bridges(bench: Bench, mine: Sequence[Candidate], options: ReuseOptions) -> tuple[Bridge, ...]:
    """Bridges between a model's operators, where some are to be tuned; none that the model has itself."""
    own = {item.job.key.operator_key for item in bench.tasks}
    if all(candidate.tuned for candidate in mine):
        return ()
    pairs = [
        (item.task.operator, candidate.loops)
        for item, candidate in zip(bench.tasks, mine, strict=True)
        if candidate.loops is not None
    ]
    found = bridge_operators(pairs, options.bridges)
    return tuple(bridge for bridge in found if bridge.operator.key not in own)


def _recorded(bench: Bench) -> dict[str, int]:
    """How many records there are of each operator on the bench's board and target."""
    mine = target_key(bench.board.name, bench.target)
    found: dict[str, int] = {}
    for key, count in bench.records.keys():  # noqa: SIM118 - not a mapping
        if key.target_key == mine and key.tool_version == TOOL_VERSION:
            found[key.operator_key] = max(count, found.get(key.operator_key, 0))
    return found


def known_programs(bench: Bench) -> Iterator[KnownProgram]:
    """Tuned programs of the records that are code for the bench's target."""
    records, target = bench.records, bench.target
    described = {line.operator_key: line.description for line in records.operators()}
    for key, count in records.keys():  # noqa: SIM118 - not a mapping
        family = key.target_key.partition(":")[2]
        if count < KNOWN_TRIALS or family != target.key or key.tool_version != TOOL_VERSION:
            continue
        try:
            operator = from_json(described[key.operator_key])
            space = space_of(operator, target, winograd=bench.options.winograd)
        except (KeyError, CrossError):
            continue
        program = best_program(space, records.best(key)) if space.key == key.space_key else None
        if program is not None:
            yield KnownProgram(operator.name, key.operator_key, _loops(operator), program)


def best_program(space: ScheduleSpace, best: TuningRecord | None) -> Program | None:
    """The program of a record; None without one."""
    return None if best is None else Program(space, space.parse(best.configuration))


def tune_by_reuse(
    bench: Bench,
    options: ReuseOptions,
    allowed_s: Callable[[], float] | None,
    on_event: Listener,
) -> tuple[list[TuningResult], list[TuningResult]]:
    """Tune all tasks and the bridges of the plan, and return what came of both.

    With `allowed_s` in about so many seconds, and what is left goes to the search of the tasks. Raises what
    `tune_all` raises.
    """
    return _Reuse(bench, options, plan_model_reuse(bench, options), allowed_s, on_event).run()


class _Reuse:
    def __init__(
        self,
        bench: Bench,
        options: ReuseOptions,
        found: ModelReuse,
        allowed_s: Callable[[], float] | None,
        on_event: Listener,
    ) -> None:
        self.bench = bench
        self.options = options
        self.found = found
        self.allowed_s = allowed_s
        self.on_event = on_event
        self.begun_s = bench.passed_s
        self.results: dict[int, TuningResult] = {}
        self.opened = dict(enumerate(bench.tasks))

    def run(self) -> tuple[list[TuningResult], list[TuningResult]]:
        left = self.found.plan.trials
        for generation in self.found.plan.generations:
            expected = sum(step.trials for step in generation)
            part = expected / left if left else 1.0
            failed = self.generation(generation, part)
            self.generation([ReuseStep(step.position, None, step.trials) for step in failed], part)
            left -= expected
        rest = [ReuseStep(position, None, 0.0) for position in range(len(self.bench.tasks))]
        if self.allowed_s is not None:
            self.generation(rest, 1.0)
        self.generation([step for step in rest if step.position not in self.results], 0.0)
        results = [self.results[position] for position in sorted(self.results)]
        return results[: len(self.bench.tasks)], results[len(self.bench.tasks) :]

    def generation(self, steps: Sequence[ReuseStep], part: float) -> list[ReuseStep]:
        """Tune the operators of some steps together, in `part` of the time that is left; failed reuses."""
        if not steps:
            return []
        results = tune_all(
            [self.job(step) for step in steps],
            self.bench.records,
            Budget(None if self.allowed_s else self.limit(steps), self.seconds(part)),
            options=self.bench.tuning,
            on_event=self.on_event,
        )
        for step, result in zip(steps, results, strict=True):
            earlier = self.results.get(step.position)
            self.results[step.position] = result if earlier is None else _together(earlier, result)
        return [step for step in steps if step.parent is not None and self.has_failed(step.position)]

    def limit(self, steps: Sequence[ReuseStep]) -> int:
        """Trials of each operator: a reuse ends by itself before it has as many as a search."""
        return 0 if all(step.trials == 0.0 for step in steps) else self.options.trials

    def seconds(self, part: float) -> Callable[[], float] | None:
        """For a budget: seconds from now."""
        allowed_s = self.allowed_s
        if allowed_s is None:
            return None
        now_s = self.bench.passed_s - self.begun_s
        return lambda: part * max(0.0, allowed_s() - now_s)

    def has_failed(self, position: int) -> bool:
        """Whether an operator was measured, but of what it reused nothing ran without failure."""
        item = self.task(position)
        space, records = item.job.space, self.bench.records.for_key(item.job.key)
        untuned = [space.describe(default) for default in space.defaults()]
        tried = [record for record in records if record.configuration not in untuned]
        return bool(tried) and all(record.error_kind for record in tried)

    def job(self, step: ReuseStep) -> tuple[TuningJob, LiveRunner]:
        """A task as the tuner takes it, begun with the program of the step's parent where that has one."""
        item = self.task(step.position)
        program = None if step.parent is None else self.program(step.parent)
        if step.parent is None or program is None:
            return (item.job if step.trials > 0.0 else replace(item.job, rounds=None)), item.runner
        rounds = functools.partial(reuse_proposer, item.programs.space, program, item.job.programs)
        reused = self.key(step.parent)
        return replace(item.job, rounds=rounds, rounds_alone=True, reused=reused), item.runner

    def task(self, position: int) -> OpenTask:
        """A task of the model, or a bridge as one, opened when it is needed."""
        if position not in self.opened:
            bridge = self.found.bridge(position)
            assert bridge is not None
            self.opened[position] = _open_bridge(self.bench, bridge)
        return self.opened[position]

    def is_known(self, position: int) -> bool:
        """Whether a candidate is a program of the records."""
        return position >= len(self.bench.tasks) and self.found.bridge(position) is None

    def program(self, position: int) -> Program | None:
        """The tuned program of a candidate, if anything of it ran."""
        if self.is_known(position):
            return self.found.known[position - len(self.bench.tasks)].program
        item = self.task(position)
        return best_program(item.programs.space, self.bench.records.best(item.job.key))

    def key(self, position: int) -> str:
        """The operator key of a candidate."""
        if self.is_known(position):
            return self.found.known[position - len(self.bench.tasks)].operator_key
        return self.task(position).job.key.operator_key


def _open_bridge(bench: Bench, bridge: Bridge) -> OpenTask:
    """A bridge like a task that no group of the model computes."""
    operator = bridge.operator
    task = TuningTask(operator, operator.key, 0, (bridge.name,), operator.flops)
    opened = open_task(
        task, bench.board, bench.target, bench.builder, bench.session, bench.records, bench.options
    )
    return replace(opened, job=replace(opened.job, weight=1.0, bridge=True))


def _together(earlier: TuningResult, later: TuningResult) -> TuningResult:
    """Two runs of one operator as one."""
    return replace(
        later, measured=earlier.measured + later.measured, accounts=earlier.accounts + later.accounts
    )


def _loops(operator: Operator) -> MajorLoops | None:
    try:
        return major_loops(operator, operator.name)
    except IrregularLoops:
        return None
