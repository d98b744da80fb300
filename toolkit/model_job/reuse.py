"""Tune the operators of a model by reuse: generation by generation, as the plan says (ETO).

The first generation are operators that reuse nothing: they are searched. The operators of each later one
begin with programs of earlier generations. An operator whose reuse fails is searched before the next one.
Programs of other operators in the records are reused too, when they are code for the same target, measured on
this board or on another one with that target.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from cross.errors import CrossError
from cross.expression.language.operator import Operator
from cross.schedule.choose import space_of
from cross.schedule.space import ScheduleSpace
from toolkit.explore.neighbourhood.loops import IrregularLoops, MajorLoops, major_loops
from toolkit.model_job.context import JobContext
from toolkit.records import TuningRecord
from toolkit.reuse.plan.bridge_operator import Bridge, bridge_operators
from toolkit.reuse.plan.expected_trials import expected_cpu_rounds, expected_gpu_rounds
from toolkit.reuse.plan.reuse_plan import Candidate, ReuseOptions, ReusePlan, ReuseStep, plan_reuse
from toolkit.reuse.rounds.program import Program
from toolkit.reuse.rounds.proposer import reuse_proposer
from toolkit.tuning.algorithm import tune_all
from toolkit.tuning.on_board import OpenTask, target_key
from toolkit.tuning.progress import Budget, Listener, TuningResult
from toolkit.version import TOOL_VERSION

KNOWN_TRIALS = 32  # an operator with fewer records does not count as tuned


class KnownProgram(msgspec.Struct, frozen=True):
    """The fastest program of an operator that was tuned before, and what the operator is called."""

    name: str
    operator_key: str
    loops: MajorLoops | None
    program: Program


Source = OpenTask | KnownProgram | Bridge
"""Whose program may be reused: a task of the model, an operator of the records, or a bridge."""


class ModelReuse(msgspec.Struct, frozen=True):
    """Who reuses whom in a model. Positions in the plan are positions among `sources`."""

    options: ReuseOptions
    sources: tuple[Source, ...]
    plan: ReusePlan

    @property
    def bridges(self) -> list[str]:
        """Names of the bridges that the plan tunes."""
        return [item.name for item in map(self.source, self.plan.steps) if isinstance(item, Bridge)]

    @property
    def named_steps(self) -> dict[str, tuple[int, str]]:
        """By operator to be tuned: expected trials, and the operator whose program it reuses ("": none)."""
        return {
            _name(self.source(step)): (
                round(step.trials),
                "" if step.parent is None else _name(self.sources[step.parent]),
            )
            for step in self.plan.steps
        }

    def source(self, step: ReuseStep) -> Source:
        """Who is tuned in a step."""
        return self.sources[step.position]


def plan_model_reuse(job: JobContext, options: ReuseOptions) -> ModelReuse:
    """The cheapest plan for the tasks of a model, with programs of the records and bridges to reuse."""
    work = sum(task.flops * task.weight for task, _ in job.tasks)
    mine = [
        Candidate(
            task.name,
            _loops(task.operator),
            task.flops * task.weight / max(1, work),
            tuned=len(job.records.for_key(task.key)) >= min(options.trials, task.space.size),
            most=float(task.space.size),
        )
        for task, _ in job.tasks
    ]
    own = {task.key.operator_key for task, _ in job.tasks}
    bridges = [] if all(candidate.tuned for candidate in mine) else _bridges(job, mine, options)
    recorded = _recorded(job)
    begun = {bridge.operator.key for bridge in bridges} & recorded.keys()
    known = [item for item in known_programs(job) if item.operator_key not in own | begun]
    candidates = [
        *mine,
        *(Candidate(item.name, item.loops, 0.0, tuned=True) for item in known),
        *(
            Candidate(
                item.name, item.loops, 0.0,
                tuned=recorded.get(item.operator.key, 0) >= options.trials, bridge=True,
            )
            for item in bridges
        ),
    ]  # fmt: skip
    expected = expected_cpu_rounds if job.target.kind == "cpu" else expected_gpu_rounds
    return ModelReuse(options, (*job.tasks, *known, *bridges), plan_reuse(candidates, options, expected))


def _name(source: Source) -> str:
    return source.task.name if isinstance(source, OpenTask) else source.name


def _bridges(job: JobContext, mine: Sequence[Candidate], options: ReuseOptions) -> list[Bridge]:
    """Bridges between a model's operators, without those that the model computes itself."""
    operators = [task.operator for task, _ in job.tasks]
    pairs = zip(operators, [candidate.loops for candidate in mine], strict=True)
    found = bridge_operators([(one, loops) for one, loops in pairs if loops is not None], options.bridges)
    own = {operator.key for operator in operators}
    return [bridge for bridge in found if bridge.operator.key not in own]


def _recorded(job: JobContext) -> dict[str, int]:
    """How many records there are of each operator on the job's board and target."""
    mine = target_key(job.board.name, job.target)
    found: dict[str, int] = {}
    for key, count in job.records.keys():  # noqa: SIM118 - not a mapping
        if key.target_key == mine and key.tool_version == TOOL_VERSION:
            found[key.operator_key] = max(count, found.get(key.operator_key, 0))
    return found


def known_programs(job: JobContext) -> Iterator[KnownProgram]:
    """Tuned programs of the records that are code for the job's target."""
    records, target = job.records, job.target
    described = records.described()
    for key, count in records.keys():  # noqa: SIM118 - not a mapping
        family = key.target_key.partition(":")[2]
        operator = described.get(key.operator_key)
        stale = count < KNOWN_TRIALS or family != target.key or key.tool_version != TOOL_VERSION
        if stale or operator is None:
            continue
        try:
            space = space_of(operator, target, winograd=job.winograd)
        except CrossError:
            continue
        program = best_program(space, records.best(key)) if space.key == key.space_key else None
        if program is not None:
            yield KnownProgram(operator.name, key.operator_key, _loops(operator), program)


def best_program(space: ScheduleSpace, best: TuningRecord | None) -> Program | None:
    """The program of a record; None without one."""
    return None if best is None else Program(space, space.parse(best.configuration))


def tune_by_reuse(
    job: JobContext, reuse: ModelReuse, allowed_s: Callable[[], float] | None, on_event: Listener
) -> tuple[list[TuningResult], list[TuningResult]]:
    """Tune all tasks and the bridges of the plan, and return what came of both.

    With `allowed_s` in about so many seconds, and what is left goes to the search of the tasks. Raises what
    `tune_all` raises.
    """
    return _ReuseRun(job, reuse, allowed_s, on_event, job.passed_s).run()


class _ReuseRun(msgspec.Struct, frozen=True):
    """`results` and the bridges that are `opened` are by position among the sources; the tasks come first."""

    job: JobContext
    reuse: ModelReuse
    allowed_s: Callable[[], float] | None
    on_event: Listener
    begun_s: float
    results: dict[int, TuningResult] = {}
    opened: dict[int, OpenTask] = {}

    def run(self) -> tuple[list[TuningResult], list[TuningResult]]:
        left, count = self.reuse.plan.trials, len(self.job.tasks)
        for generation in self.reuse.plan.generations:
            expected = sum(step.trials for step in generation)
            part = expected / left if left else 1.0
            failed = self.generation(generation, part)
            self.generation([ReuseStep(step.position, None, step.trials) for step in failed], part)
            left -= expected
        rest = [ReuseStep(position, None, 0.0) for position in range(count)]
        if self.allowed_s is not None:
            self.generation(rest, 1.0)
        self.generation([step for step in rest if step.position not in self.results], 0.0)
        results = [self.results[position] for position in sorted(self.results)]
        return results[:count], results[count:]

    def generation(self, steps: Sequence[ReuseStep], part: float) -> list[ReuseStep]:
        """Tune the operators of some steps together, in `part` of the time that is left; failed reuses."""
        if not steps:
            return []
        searched_only = all(step.trials == 0.0 for step in steps)
        # A reuse ends by itself before it has as many trials as a search.
        trials = None if self.allowed_s else 0 if searched_only else self.reuse.options.trials
        results = tune_all(
            [self.begun(step) for step in steps],
            self.job.records,
            Budget(trials, self.seconds(part)),
            options=self.job.tuning,
            on_event=self.on_event,
        )
        for step, result in zip(steps, results, strict=True):
            earlier = self.results.get(step.position)
            self.results[step.position] = result if earlier is None else _together(earlier, result)
        return [step for step in steps if step.parent is not None and self.has_failed(step.position)]

    def seconds(self, part: float) -> Callable[[], float] | None:
        """For a budget: seconds from now."""
        allowed_s = self.allowed_s
        if allowed_s is None:
            return None
        now_s = self.job.passed_s - self.begun_s
        return lambda: part * max(0.0, allowed_s() - now_s)

    def has_failed(self, position: int) -> bool:
        """Whether every program that an operator tried beside its untuned ones failed."""
        task = self.open(position).task
        untuned = [task.space.describe(default) for default in task.space.defaults()]
        records = self.job.records.for_key(task.key)
        tried = [record for record in records if record.configuration not in untuned]
        return bool(tried) and all(record.error_kind for record in tried)

    def begun(self, step: ReuseStep) -> OpenTask:
        """The task of a step, begun with the program of the step's parent where that has one."""
        task, runner = self.open(step.position)
        found = None if step.parent is None else self.program(step.parent)
        if found is None:
            return OpenTask(task if step.trials > 0.0 else replace(task, rounds=None), runner)
        program, key = found
        rounds = functools.partial(reuse_proposer, task.programs.space, program, task.identify)
        return OpenTask(replace(task, rounds=rounds, rounds_alone=True, reused=key), runner)

    def open(self, position: int) -> OpenTask:
        """A task of the model, or a bridge as one, opened when it is needed."""
        source = self.reuse.sources[position]
        if isinstance(source, OpenTask):
            return source
        assert isinstance(source, Bridge), "programs of the records are not tuned"
        if position not in self.opened:
            task, runner = self.job.open(source.name, source.operator)
            self.opened[position] = OpenTask(replace(task, bridge=True), runner)
        return self.opened[position]

    def program(self, position: int) -> tuple[Program, str] | None:
        """The tuned program of a source and the key of its operator; None where nothing of it ran."""
        source = self.reuse.sources[position]
        if isinstance(source, KnownProgram):
            return source.program, source.operator_key
        task = self.open(position).task
        program = best_program(task.programs.space, self.job.records.best(task.key))
        return None if program is None else (program, task.key.operator_key)


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
