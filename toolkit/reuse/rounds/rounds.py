"""The rounds of the hierarchical search (ETO, Algorithm 1): what to measure, given the best program so far.

The first round has the tiles that the reused program's hardware features call for, with everything else as in
that program. Each later round changes one decision of the best program found: length of the reduction's inner
loops, unrolling, the order of loops; then tiles by a step; then the register tiles of two axes trade factors.
Spaces without multi-level tiles, such as those of elementwise operators and Winograd convolutions, have the
later rounds alone, one knob after the other: their first round is the reused program itself.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from boards.target import Target
from cross.schedule.space import Batch, Configuration, Knob, Part, ScheduleSpace
from toolkit.reuse.rounds.cpu_shapes import Machine, register_shapes, rows_of_block
from toolkit.reuse.rounds.cpu_tiles import TiledAxis, Tiles, find_tiles
from toolkit.reuse.rounds.divisors import divisors
from toolkit.reuse.rounds.loops import MajorLoops, NotReusable, major_loops
from toolkit.reuse.rounds.search_cost import block_sizes

REGISTER_TILES = 4
BLOCKS = 5
STEPS = 4  # nearest choices of a knob that a round tries
PASSES = 2
WORTH = 0.99  # of the time of the best program: what a pass must fall below for another one to follow

Known = Callable[[Batch], NDArray[np.float64]]
"""Seconds of configurations, [N]: infinite for one that failed, NaN for one that is not measured yet."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program to reuse: a space and one of its configurations. One that is not `tuned` says what fits into
    registers, but not how large a block should be."""

    space: ScheduleSpace
    configuration: Configuration
    tuned: bool = True

    @property
    def row(self) -> NDArray[np.int64]:
        """The configuration, int64 [K]."""
        found: NDArray[np.int64] = self.space.batch([self.configuration])[0]
        return found


def first_round(space: ScheduleSpace, reused: Program) -> Batch:
    """What the reused program calls for in `space`, int64 [N, K], each valid; likely the best come first."""
    part, source = same_algorithm(space, reused)
    like = inherited(part.space, source)
    rows = _unique(np.concatenate([like[None], _tiled(part.space, source, like)]))
    return part.embedded(rows[part.space.valid(rows)])


class Around(enum.Enum):
    """What a later round changes: one of the decisions, the tiles of one axis, or those of two at once."""

    DECISIONS = enum.auto()
    TILES = enum.auto()
    TRADES = enum.auto()


def later_round(space: ScheduleSpace, best: NDArray[np.int64], around: Around) -> Batch:
    """Valid configurations, int64 [N, K], that differ from the best one, int64 [K], in a knob, after a trade
    in two."""
    part = space.part_of(best)
    return part.embedded(_changed(part.space, part.of(best[None])[0], around))


def _changed(space: ScheduleSpace, best: NDArray[np.int64], around: Around) -> Batch:
    """`later_round` within one algorithm."""
    tiles = find_tiles(space)
    if around is Around.TRADES:
        return trades(space, best, tiles) if tiles else np.zeros((0, len(space.knobs)), np.int64)
    tiled = {axis.column for axis in tiles.axes} if tiles else set()
    columns = [column for column in range(len(space.knobs)) if (column in tiled) == (around is Around.TILES)]
    rows = [neighbours(space, best, column) for column in columns]
    together = np.concatenate([np.zeros((0, len(space.knobs)), np.int64), *rows])
    return together[space.valid(together)]


def cpu_rounds(space: ScheduleSpace, reused: Program, known: Known) -> Iterator[Batch]:
    """The rounds one after the other, each around the fastest program of those before and the untuned ones.

    A pass over all kinds of changes follows another one only where that made the program faster.
    """
    first = first_round(space, reused)
    yield first
    visited = np.concatenate([first, space.batch(space.defaults())])
    pass_from_s = np.inf
    for _ in range(PASSES):
        best_s = fastest(visited, known)[1]
        if pass_from_s < np.inf and best_s > WORTH * pass_from_s:
            return
        pass_from_s = best_s
        for around in Around:
            rows = later_round(space, fastest(visited, known)[0], around)
            yield rows
            visited = np.concatenate([visited, rows])


def fastest(rows: Batch, known: Known) -> tuple[NDArray[np.int64], float]:
    """The fastest of some configurations, [N, K], and its seconds; where none ran the first that is still to
    be measured, or the first of all, and infinity."""
    costs_s = known(rows)
    if np.isfinite(costs_s).any():
        best = int(np.nanargmin(costs_s))
        return rows[best], float(costs_s[best])
    return rows[int(np.isnan(costs_s).argmax())], np.inf


def inherited(space: ScheduleSpace, reused: Program) -> NDArray[np.int64]:
    """The configuration of `space` nearest to the reused one, knob by knob, int64 [K].

    Knobs are told by their names without the operator's; one that the reused program does not have keeps
    its untuned choice. Not always valid.
    """
    row = space.batch([space.default()])[0]
    known = _values(reused)
    for column, knob in enumerate(space.knobs):
        wanted = known.get(bare_name(knob.name, space))
        if wanted is not None and len(wanted) == len(knob.choices[0]):
            row[column] = int(_distances(knob, wanted).argmin())
    found: NDArray[np.int64] = row
    return found


def _tiled(space: ScheduleSpace, reused: Program, like: NDArray[np.int64]) -> Batch:
    """Tiles of the sizes that the reused ones call for; none where either program has no such tiles."""
    none = np.zeros((0, len(space.knobs)), np.int64)
    tiles, source_tiles = find_tiles(space), find_tiles(reused.space)
    if tiles is None or source_tiles is None:
        return none
    sizes = source_tiles.sizes(reused.row)
    try:
        loops, source = _loops(space), _loops(reused.space)
    except NotReusable:
        return none
    machine = machine_of(space.target)
    shapes = register_shapes(space, tiles, loops, sizes, like, machine, REGISTER_TILES)
    fitting = block_sizes(loops, source, sizes.block)
    if not reused.tuned:
        fitting = tuple(size for size in divisors(loops.points) if size >= sizes.register)
    blocks = _spread(fitting, sizes.block)
    rows = []
    for block in blocks:
        for shape in shapes:
            row = rows_of_block(tiles, loops, sizes, shape, block, like, machine)
            rows += [] if row is None else [row]
    return np.stack(rows) if rows else none


def machine_of(target: Target) -> Machine:
    """What the costs of tiles need to know of a CPU target."""
    return Machine(target.vector_lanes(), target.cache_line_bytes)


def _loops(space: ScheduleSpace) -> MajorLoops:
    return major_loops(space.program, space.operator.name)


def _spread(sizes: tuple[int, ...], reused: int) -> list[int]:
    """At most BLOCKS of the sizes: the nearest to the reused one, and others as far apart as they are."""
    ordered = sorted(sizes)
    if len(ordered) > BLOCKS:
        places = np.linspace(0, len(ordered) - 1, BLOCKS - 1).round().astype(int)
        nearest = min(ordered, key=lambda size: max(size / reused, reused / size))
        ordered = sorted({nearest, *(ordered[place] for place in places)})
    return sorted(ordered, key=lambda size: max(size / reused, reused / size))


def same_algorithm(space: ScheduleSpace, reused: Program) -> tuple[Part, Program]:
    """The algorithm of the reused program in `space`, and that program within its own algorithm's space.

    The first algorithm stands for one that `space` does not have.
    """
    source = reused.space.part_of(reused.row)
    row = source.of(reused.row[None])[0]
    program = replace(reused, space=source.space, configuration=source.space.configuration(row))
    same = [part for part in space.parts if part.label == source.label]
    return (same or space.parts)[0], program


def neighbours(space: ScheduleSpace, row: NDArray[np.int64], column: int) -> Batch:
    """The row with the nearest other choices of one knob."""
    knob = space.knobs[column]
    order = np.argsort(_distances(knob, knob.choices[row[column]]), kind="stable")
    chosen = [choice for choice in order.tolist() if choice != row[column]][:STEPS]
    rows = np.repeat(row[None], len(chosen), axis=0)
    rows[:, column] = chosen
    return rows


def trades(space: ScheduleSpace, row: NDArray[np.int64], tiles: Tiles) -> Batch:
    """The row with register tiles of about the same size in other proportions: one axis gives a factor of two
    to another, or takes its length."""
    rows = []
    for one, other in itertools.permutations(tiles.axes, 2):
        mine, theirs = (int(axis.register[row[axis.column]]) for axis in (one, other))
        lengths = [(mine * 2, max(1, theirs // 2))] if theirs > 1 else []
        lengths += [(theirs, mine)] if mine < theirs else []
        for pair in lengths:
            changed = row.copy()
            for axis, length in zip((one, other), pair, strict=True):
                changed[axis.column] = _with_register(axis, int(row[axis.column]), length)
            rows.append(changed)
    together = _unique(np.stack(rows)) if rows else np.zeros((0, len(space.knobs)), np.int64)
    return together[space.valid(together)]


def _with_register(axis: TiledAxis, choice: int, length: int) -> int:
    """The choice with a register tile of about this length and otherwise the tiles of `choice`."""
    outer, middle, register = axis.choices[choice].tolist()
    return int(_ratios(axis.choices, (outer, max(1, middle * register // length), length)).argmin())


def _distances(knob: Knob, wanted: tuple[int, ...]) -> NDArray[np.float64]:
    """How far the choices of a knob are from some values, in ratio, [C]."""
    return _ratios(np.array(knob.choices), wanted)


def _ratios(choices: NDArray[np.int64], wanted: tuple[int, ...]) -> NDArray[np.float64]:
    """How far each row, [C, V], is from some values: the logarithms of the factors, added up, [C]."""
    table = np.log2(np.maximum(choices.astype(np.float64), 0.5))
    goal = np.log2(np.maximum(np.array(wanted, np.float64), 0.5))
    found: NDArray[np.float64] = np.abs(table - goal).sum(axis=1)
    return found


def _values(program: Program) -> Mapping[str, tuple[int, ...]]:
    """Knob values by the name that knobs of other operators have too."""
    pairs = zip(program.space.knobs, program.configuration.indices, strict=True)
    return {bare_name(knob.name, program.space): knob.choices[index] for knob, index in pairs}


def bare_name(name: str, space: ScheduleSpace) -> str:
    """A knob's name without the name of the operator's output, which stages are called after."""
    prefix = space.program.output.name
    return name[len(prefix) :] if name.startswith(prefix) else name


def _unique(rows: Batch) -> Batch:
    """Each row once, in order."""
    return rows[np.sort(np.unique(rows, axis=0, return_index=True)[1])]
