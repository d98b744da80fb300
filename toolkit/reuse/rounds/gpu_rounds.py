"""The rounds of the hierarchical search on GPUs (ETO, Algorithm 1), over all sizes of a block at once.

First the largest contraction of the operator: the program nearest to the reused one and all numbers of
threads, then other numbers of fetches, unrolling, and vectors, each around the best program of its size of a
block. Then, from the best of all sizes, the other contractions and the stages of two levels, one by one: a
Winograd convolution's batched product comes before its transforms. Everything else is as in the reused one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np

from cross.schedule.space import Batch, Part, ScheduleSpace
from toolkit.reuse.rounds.gpu_across import parts_of_threads
from toolkit.reuse.rounds.gpu_block import BlockSearch, Reuse, begin_block, begin_reuse
from toolkit.reuse.rounds.gpu_tiles import gpu_tiles
from toolkit.reuse.rounds.gpu_two_level import (
    expected_two_level_rounds,
    two_level_rounds,
    two_level_stages,
)
from toolkit.reuse.rounds.loops import MajorLoops
from toolkit.reuse.rounds.rounds import (
    Known,
    Program,
    bare_name,
    fastest,
    inherited,
    neighbours,
    same_algorithm,
)
from toolkit.reuse.rounds.search_cost import block_sizes, expected_trials

UNROLL = "unroll"


def gpu_rounds(space: ScheduleSpace, reused: Program, known: Known) -> Iterator[Batch]:
    """The rounds one after the other, int64 [N, K] each, all valid; likely the best come first."""
    same, source = same_algorithm(space, reused)
    for part in parts_of_threads(space, reused) or [same]:
        for rows in _of_one_algorithm(part.space, source, _known_within(part, known)):
            yield part.embedded(rows)


def _known_within(part: Part, known: Known) -> Known:
    """What is known of the configurations of one algorithm."""
    return lambda rows: known(part.embedded(rows))


def _of_one_algorithm(space: ScheduleSpace, reused: Program, known: Known) -> Iterator[Batch]:
    template = inherited(space, reused)
    begin = np.stack([template, space.batch([space.default()])[0]])
    tried = begin[space.valid(begin)]
    yield tried[:1]
    sources = {bare_name(tiles.name, reused.space): tiles for tiles in gpu_tiles(reused.space)}
    for tiles in gpu_tiles(space):
        source = sources.get(bare_name(tiles.name, space))
        if source is not None:
            for rows in tiled_rounds(begin_reuse(space, tiles, source, reused.row, template), known):
                yield rows
                tried = np.concatenate([tried, rows])
            template = fastest(tried, known)[0]
    for rows in two_level_rounds(space, reused, fastest(tried, known)[0], known):
        yield rows
        tried = np.concatenate([tried, rows])
    yield from _other_rounds(space, tried, known)


def _other_rounds(space: ScheduleSpace, tried: Batch, known: Known) -> Iterator[Batch]:
    """Of launches that are neither, such as a Winograd transform's, one knob after the other by a step."""
    searched = {column for tiles in gpu_tiles(space) for column in tiles.columns}
    searched |= {column for stage in two_level_stages(space) for column in (stage.threads, stage.vector)}
    for column, knob in enumerate(space.knobs):
        if column not in searched and not knob.structural and knob.name != UNROLL:
            rows = neighbours(space, fastest(tried, known)[0], column)
            rows = rows[space.valid(rows)]
            yield rows
            tried = np.concatenate([tried, rows])


def expected_gpu_rounds(target: MajorLoops, source: MajorLoops) -> float:
    """Expected trials of the rounds on a GPU, over what the reused program may be."""
    rounds = expected_trials if is_tiled(target) else expected_two_level_rounds
    return rounds(target, source)


def is_tiled(loops: MajorLoops) -> bool:
    """Whether inputs are combined that are read again along a space loop, as in contractions."""
    wide = {loop for loop, extent in enumerate(loops.space) if extent > 1}
    used = [{loop for dimension in item for loop, _ in dimension.steps} for item in loops.inputs]
    return bool(loops.reduce) and len(used) > 1 and any(not wide <= loops_of for loops_of in used)


def tiled_rounds(reuse: Reuse, known: Known) -> Iterator[Batch]:
    """The rounds of one contraction: of each size of a block, the sizes nearest to the reused one first."""
    sizes = block_sizes(reuse.tiles.loops, reuse.source, reuse.reused.block)
    ordered = sorted(sizes, key=lambda size: max(size / reuse.reused.block, reuse.reused.block / size))
    searches = [found for size in ordered if (found := begin_block(reuse, size)) is not None]
    steps: list[Callable[[BlockSearch], Batch]] = [BlockSearch.with_fetches, BlockSearch.with_unrolling]
    for number, column in reuse.tiles.vectors:
        steps.append(functools.partial(BlockSearch.with_vectors, number=number, column=column))
    yield np.concatenate([reuse.none(), *(search.with_threads() for search in searches)])
    for step in steps:
        searches = [search for search in searches if search.settle(known)]
        yield np.concatenate([reuse.none(), *(step(search) for search in searches)])
