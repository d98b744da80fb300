"""Winners beside each other: a search's own times are of different moments, and the best of many is lucky."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from boards.description import Board
from cross.loopnest.program import Programs
from cross.schedule.space import Configuration
from toolkit.measure.builder import Builder
from toolkit.measure.live import LiveRunner
from toolkit.measure.session import Session
from toolkit.model_job.confirm import confirming

ROUNDS: Final = 6


def timed_in_turn(
    programs: Programs,
    configurations: Sequence[Configuration],
    board: Board,
    session: Session,
    builder: Builder,
) -> list[float]:
    """The least seconds per call of each configuration, all timed in turn, forwards and backwards."""
    timing, space = confirming(board), programs.space
    best_s = dict.fromkeys(configurations, np.inf)
    runner = LiveRunner(programs, builder, session, timing)
    for number in range(ROUNDS):
        turn = list(best_s)[:: -1 if number % 2 else 1]
        measured = runner.afresh(timing).prepare(space.batch(turn))
        for item, result in zip(turn, measured, strict=True):
            best_s[item] = float(np.fmin(best_s[item], result.cost_s))
    return [best_s[item] for item in configurations]
