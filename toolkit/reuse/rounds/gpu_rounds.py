"""The rounds of the hierarchical search on GPUs (ETO, Algorithm 1), over all sizes of a block at once.

First the largest contraction of the operator: the program nearest to the reused one and all numbers of
threads, then other numbers of fetches, unrolling, and vectors, each around the best program of its size of a
block. Then, from the best of all sizes, the other contractions and the stages of two levels, one by one: a
Winograd convolution's batched product comes before its transforms. Everything else is as in the reused one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np

from cross.schedule.space import Part, ScheduleSpace
from toolkit.explore.rounds import Known, Rounds, Step, descend, fastest, side_by_side
from toolkit.reuse.rounds.gpu_across import parts_of_threads
from toolkit.reuse.rounds.gpu_block import Reuse, begin_block, begin_reuse
from toolkit.reuse.rounds.gpu_tiles import gpu_tiles
from toolkit.reuse.rounds.gpu_two_level import two_level_stages, two_level_steps
from toolkit.reuse.rounds.program import Program, bare_name, inherited, same_algorithm
from toolkit.reuse.rounds.sizes import block_sizes

UNROLL: Final = "unroll"
CHANGES: Final = 4  # nearest choices of a knob that a round tries


def gpu_rounds(space: ScheduleSpace, reused: Program, known: Known) -> Rounds:
    """The rounds one after the other, int64 [N, K] each, all valid; likely the best come first."""
    same, source = same_algorithm(space, reused)
    for part in parts_of_threads(space, reused) or [same]:
        for rows in _of_one_algorithm(part.space, source, _known_within(part, known)):
            yield part.embedded(rows)


def _known_within(part: Part, known: Known) -> Known:
    """What is known of the configurations of one algorithm."""
    return lambda rows: known(part.embedded(rows))


def _of_one_algorithm(space: ScheduleSpace, reused: Program, known: Known) -> Rounds:
    template = inherited(space, reused)
    begin = np.stack([template, space.batch([space.default()])[0]])
    tried = begin[space.valid(begin)]
    yield tried[:1]
    sources = {bare_name(tiles.stage.owner.name, reused.space): tiles for tiles in gpu_tiles(reused.space)}
    for tiles in gpu_tiles(space):
        source = sources.get(bare_name(tiles.stage.owner.name, space))
        if source is not None:
            for rows in tiled_rounds(begin_reuse(space, tiles, source, reused.row, template), known):
                yield rows
                tried = np.concatenate([tried, rows])
            template = fastest(tried, known)
    steps = [*two_level_steps(space, reused), *_other_steps(space)]
    yield from descend(tried[:0], steps, known, also=tried)


def _other_steps(space: ScheduleSpace) -> Iterator[Step]:
    """Steps for launches without such tiles, as of a Winograd transform: each varies one knob."""
    searched = {column for tiles in gpu_tiles(space) for column in tiles.columns}
    searched |= {column for stage in two_level_stages(space) for column in stage.columns}
    for column, knob in enumerate(space.knobs):
        if column not in searched and not knob.structural and knob.name != UNROLL:
            yield partial(space.neighbours, column=column, most=CHANGES)


def tiled_rounds(reuse: Reuse, known: Known) -> Rounds:
    """The rounds of one contraction: of each size of a block, the sizes nearest to the reused one first."""
    sizes = block_sizes(reuse.tiles.loops, reuse.source, reuse.reused.block)
    ordered = sorted(sizes, key=lambda size: max(size / reuse.reused.block, reuse.reused.block / size))
    searches = [found for size in ordered if (found := begin_block(reuse, size)) is not None]
    return side_by_side([search.rounds(known) for search in searches])
