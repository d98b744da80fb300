"""Algorithm 1 of AutoTVM: propose a batch, build it, measure it, learn from it; until the budget is spent.

`tune_all` is the door; it tunes the operators of a model together, batch by batch, each batch where the whole
model gets faster soonest (allocation.py). Every measurement is stored before the answer for the next
candidate is taken, so that the same call continues where an interrupted one stopped.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from toolkit.explore.space import Batch
from toolkit.measure.runner import Runner
from toolkit.records import Records
from toolkit.tuning.operator_search import OperatorSearch, TuningOptions
from toolkit.tuning.progress import Budget, Listener, TuningResult, silent
from toolkit.tuning.run import Prepared, TuningRun
from toolkit.tuning.task import Task
from toolkit.tuning.time_breakdown import ActivityTimer, Clock

NOTHING: Batch = np.zeros((0, 0), np.int64)
SWITCH_S = 0.5e-3  # a tenth of Python's default; a quick trial takes a few milliseconds
_one_thread = functools.partial(ThreadPoolExecutor, max_workers=1, thread_name_prefix="prepare")


def tune_all(
    tasks: Iterable[tuple[Task, Runner]],
    records: Records,
    budget: Budget,
    *,
    options: TuningOptions = TuningOptions(),
    on_event: Listener = silent,
    clock: Clock = time.monotonic,
) -> list[TuningResult]:
    """Measure configurations of all operators until the budget is spent or nothing is left to try.

    Raises RecordsError when recorded configurations do not fit a space, BoardUnreachable when the board is
    lost; records up to then are kept, as they are after KeyboardInterrupt. The same seed, measurements and
    clock give the same sequence of trials.
    """
    timer = ActivityTimer(clock)
    searches = [OperatorSearch(task, runner, records, options) for task, runner in tasks]
    run = TuningRun(searches, records, budget, options, on_event, clock, timer, clock())
    for batch in ahead_of_time(run) if options.overlap else in_turn(run):
        run.measure(batch)
    return run.ended()


def in_turn(run: TuningRun) -> Iterator[Prepared]:
    """Prepared batches for a board that shares its cores with the compiler: nothing runs beside a kernel.

    While the batch of one operator is built, that of another operator is proposed; the next batch of the same
    operator is proposed after its measurements.
    """
    with _one_thread() as thread:
        turn = run.turn()
        rows = run.propose(turn) if turn else NOTHING
        while turn is not None and not run.out_of_time:
            following = run.turn()
            if following is not None and following.search is turn.search:
                following = None
            ahead = thread.submit(run.propose, following) if following else None
            batch = run.build(turn, rows)
            proposed = ahead.result() if ahead else NOTHING
            yield batch
            run.learn(batch)
            turn = following or run.turn()
            rows = run.propose(turn) if turn and not following else proposed


def ahead_of_time(run: TuningRun) -> Iterator[Prepared]:
    """Prepared batches for a board with cores of its own: it measures one while the next is prepared."""
    with _one_thread() as thread, _short_turns():
        batch = run.prepare(run.turn())
        while batch is not None and not run.out_of_time:
            ahead = thread.submit(run.prepare, run.turn())
            yield batch
            following = ahead.result()
            run.learn(batch)
            batch = following or run.prepare(run.turn())


@contextmanager
def _short_turns() -> Iterator[None]:
    """Let Python switch threads after SWITCH_S, so that the one that talks with the board waits less."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(usual_s)
