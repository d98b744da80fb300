"""The door of this room: reuse as a search, which keeps to the contract of toolkit.explore.proposer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from cross.schedule.space import Batch, ScheduleSpace
from toolkit.explore.neighbourhood.cpu import cpu_rounds, first_round
from toolkit.explore.neighbourhood.loops import MajorLoops, major_loops
from toolkit.explore.neighbourhood.tile_shapes import BLOCK, points, tile_sizes, tiled_reduction
from toolkit.explore.rounds import PATIENCE, Known, Rounds, RoundsProposer
from toolkit.explore.space import Identify
from toolkit.reuse.rounds.gpu_rounds import gpu_rounds
from toolkit.reuse.rounds.program import Program, inherited, same_algorithm
from toolkit.reuse.rounds.sizes import block_sizes


def reuse_proposer(
    space: ScheduleSpace, reused: Program, programs: Identify | None = None, *, waits: bool = True
) -> RoundsProposer:
    """What a tuned program of another operator calls for (ETO, 5), as a search: see RoundsProposer."""
    rounds, patience = ROUNDS["cpu" if space.target.kind == "cpu" else "gpu"]
    return RoundsProposer(space, partial(rounds, space, reused), programs, waits=waits, patience=patience)


def cpu_reuse(space: ScheduleSpace, reused: Program, known: Known) -> Rounds:
    """Tiles of the sizes that the reused ones call for, and the rounds of a local search around them."""
    return cpu_rounds(space, called_for(space, reused), known)


def called_for(space: ScheduleSpace, reused: Program) -> Batch:
    """What the reused program calls for on a CPU, int64 [N, K], each valid; likely the best come first."""
    part, source = same_algorithm(space, reused)
    stage = tiled_reduction(source.space)
    sizes = {} if stage is None else tile_sizes(stage, source.row)

    def blocks(loops: MajorLoops) -> tuple[int, ...]:
        source_loops = major_loops(source.space.program, source.space.operator.name)
        return block_sizes(loops, source_loops, points(sizes, BLOCK))

    return first_round(part, inherited(part.space, source), sizes, blocks)


ROUNDS: Final[dict[str, tuple[Callable[[ScheduleSpace, Program, Known], Rounds], int | None]]] = {
    "cpu": (cpu_reuse, PATIENCE),
    "gpu": (gpu_rounds, None),
}
"""The rounds on each kind of target, and after how many programs without a gain they end early."""
