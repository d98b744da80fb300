"""Which knobs of a space tile the loops of which stage: sketches say it, `ScheduleSpace.tiles` tells it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from cross.expression.language.tensor import Axis, Tensor
from cross.schedule.knobs import Knob


class StageKnobs(msgspec.Struct, frozen=True):
    """The names of the knobs that tile a stage.

    `owner` has the space loops, `reduction` (None: there is none) the others; `space` and `reduce` name the
    knob of each of their axes that has one. `fetches`: the knob of the vectors that fetch an operand, by its
    name. `launch`: the knobs of a GPU stage of two levels, threads of a block and elements of a thread.
    `is_padding`: the structural knob "padding" may inline the stage, and those knobs then say nothing.
    """

    owner: Tensor
    reduction: Tensor | None = None
    space: Mapping[Axis, str] = {}
    reduce: Mapping[Axis, str] = {}
    fetches: Mapping[str, str] = {}
    launch: tuple[str, str] | None = None
    is_padding: bool = False

    def tiles(self, knobs: Sequence[Knob]) -> TiledStage:
        """The tiles of the stage in a space with these knobs."""
        columns = {knob.name: column for column, knob in enumerate(knobs)}

        def loops(axes: tuple[Axis, ...], names: Mapping[Axis, str]) -> tuple[TiledLoop, ...]:
            places = [(place, axis, columns[names[axis]]) for place, axis in enumerate(axes) if axis in names]
            return tuple(
                TiledLoop(axis.name, place, column, axis.extent, np.array(knobs[column].choices, np.int64))
                for place, axis, column in places
            )

        return TiledStage(
            self.owner,
            self.reduction,
            loops(self.owner.axes, self.space),
            loops(self.reduction.reduce_axes, self.reduce) if self.reduction else (),
            {operand: columns[name] for operand, name in self.fetches.items()},
            None if self.launch is None else (columns[self.launch[0]], columns[self.launch[1]]),
            self.is_padding,
        )


class TiledLoop(msgspec.Struct, frozen=True):
    """A loop with tiles: its place among its stage's space or reduction loops, the column of its knob, its
    extent, and the choices, int64 [C, levels], outermost level first, each in units of the next one."""

    name: str
    place: int
    column: int
    extent: int
    choices: NDArray[np.int64]

    def points(self, level: int) -> NDArray[np.int64]:
        """Points of the tile of a level with each choice, [C]."""
        return np.asarray(self.choices[:, level:].prod(axis=1))


class TiledStage(msgspec.Struct, frozen=True, eq=False):
    """A stage whose loops knobs of the space tile: see StageKnobs. Knobs are told by their columns."""

    owner: Tensor
    reduction: Tensor | None
    space: tuple[TiledLoop, ...]
    reduce: tuple[TiledLoop, ...]
    fetches: Mapping[str, int]
    launch: tuple[int, int] | None
    is_padding: bool

    @property
    def iterations(self) -> int:
        """Multiply-adds, or other combining steps, of the whole reduction; 0 for a stage without one."""
        if self.reduction is None:
            return 0
        return self.reduction.elements * math.prod(axis.extent for axis in self.reduction.reduce_axes)

    @property
    def columns(self) -> set[int]:
        """The columns of all its knobs."""
        loops = {loop.column for loop in (*self.space, *self.reduce)}
        return loops | {*self.fetches.values()} | {*(self.launch or ())}
