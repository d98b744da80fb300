"""What a Winograd convolution consists of: its stages by role, and whether it is worth computing so.

The sketches of CPUs (cpu.py) and GPUs (gpu.py) start from `algorithms`. Stages have the axes that
cross/expression/rewrites/winograd/convolution.py gives them, or, for GPUs, one axis for all tiles (flat.py
there); those of a transposed convolution have its phases besides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from boards.target import Target
from cross.expression.language.dtypes import ITEM_BYTES
from cross.expression.language.naming import unique_tensors
from cross.expression.language.operator import Operator, reads
from cross.expression.language.tensor import Axis, Tensor
from cross.expression.language.terms import Lookup, Select, walk
from cross.expression.rewrites.winograd.flat import with_flat_tiles
from cross.expression.rewrites.winograd.form import winograd_form
from cross.expression.rewrites.winograd.matrices import TILES, Planar
from cross.schedule.packing import Maps
from cross.schedule.primitives import Primitive, Reorder, Split, Unroll, Vectorize

RANKS = ((4, 6), (6, 8))  # of the output and the tiles, without phases and with them
FLAT_RANKS = ((4, 4), (6, 6))  # with one axis for all tiles
GPU_SIDE = 6  # positions along a dimension with stride 1, at most: with more no GPU was measured
LEAST_GAIN = 1.3  # in multiplications, counting tiles that reach beyond the image
FILLED = 0.75  # of a vector with space to depth, by which the three colours of an image are 12 channels
WEIGHT_COST = 8  # in multiplications: what reading a weight from beyond the L2 cache costs, at least


class WinogradStages(msgspec.Struct, frozen=True):
    """The stages of an operator in the order of the computation; see `winograd_conv2d`."""

    paddings: tuple[Tensor, ...]
    inlined: tuple[str, ...]
    rows: Tensor
    data: Tensor
    products: Tensor
    half: Tensor
    tile: Tensor
    output: Tensor
    weights: str
    weight_maps: Maps = ()

    @property
    def size(self) -> tuple[int, int]:
        """m and m': outputs of a tile in (height, width), of every phase."""
        return self.tile.shape[-3], self.tile.shape[-2]

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles in (height, width)."""
        return self.tile.shape[1], self.tile.shape[2]

    @property
    def image(self) -> tuple[Axis, Axis]:
        """The axes of the output that the tiles divide."""
        inner = self.output.axes[1:-1]
        return inner[0], inner[len(inner) // 2]

    @property
    def phases(self) -> tuple[str, ...]:
        """The axes of the output for the phases of a transposed convolution; empty for another."""
        inner = self.output.axes[1:-1]
        return tuple(axis.name for axis in inner if axis not in self.image)

    @property
    def depths(self) -> tuple[int, int]:
        """Neighbouring (rows, columns) of the image that are channels of one; see Filtering."""
        extents = {axis.name: axis.extent for axis in self.products.reduce_axes}
        return extents.get("kh", 1), extents.get("kw", 1)

    @property
    def multiplications(self) -> int:
        """Of one tile, input and output channel: one multiplication at each position of each phase."""
        return math.prod(self.products.shape[: 2 - len(self.data.shape)])

    @property
    def tiles(self) -> int:
        """Tiles of all images."""
        return math.prod(self.data.shape[2:-1])


def algorithms(
    operator: Operator, target: Target, *, flat: bool
) -> Iterator[tuple[str, Operator, WinogradStages]]:
    """The Winograd forms of an operator that are worth a look: algorithm, program, and its stages.

    They take the weights as they are; packing transforms them. `flat`: with one axis for all tiles. One with
    larger tiles, which rounds more, is worth a look where it multiplies less.
    """
    fewest = math.inf
    for tile in TILES:
        form = winograd_form(operator, tile)
        if form is None or (flat and not _is_for_gpus(form.algorithm)):
            continue
        program = with_flat_tiles(form.operator) if flat else form.operator
        stages = winograd_stages(program, FLAT_RANKS if flat else RANKS)
        if stages is None or stages.tiles * stages.multiplications >= fewest:
            continue
        fewest = stages.tiles * stages.multiplications
        if is_worth_a_look(stages, form.algorithm, target):
            maps = tuple(
                (dimension, item.weight)
                for dimension, item in enumerate(form.algorithm.both, start=form.first)
                if item.taps > 1
            )
            yield form.algorithm.name, program, replace(stages, weight_maps=maps)


def _is_for_gpus(algorithm: Planar) -> bool:
    """Whether a thread holds a transformed tile. Space to depth is for CPUs: it was measured on no GPU."""
    wide = [item for item in algorithm.both if item.stride == 1 and item.side > GPU_SIDE]
    return algorithm.depths == (1, 1) and not wide


def winograd_stages(operator: Operator, known: tuple[tuple[int, int], ...] = RANKS) -> WinogradStages | None:
    """The roles of the stages, None where the operator is no Winograd convolution of those ranks."""
    renamed = unique_tensors(operator)
    stages = [renamed[tensor] for tensor in operator.stages]
    reductions = [stage for stage in stages if stage.reduce_axes]
    if [_has_literals(stage) for stage in reductions] != [True, True, False, True, True]:
        return None
    rows, data, products, half, tile = reductions
    output = renamed[operator.output]
    constants = {renamed[operator.inputs[position]].name for position in operator.constants}
    read = {term.tensor.name for term in reads(products)}
    weights = read - {data.name}
    ranks = len(output.shape), len(tile.shape)
    if ranks not in known or len(weights) != 1 or not weights <= constants:
        return None
    elementwise = [stage for stage in stages if not stage.reduce_axes and stage is not output]
    paddings = tuple(stage for stage in elementwise if _pads(stage, rows))
    inlined = tuple(stage.name for stage in elementwise if stage not in paddings)
    return WinogradStages(paddings, inlined, rows, data, products, half, tile, output, next(iter(weights)))


def transform(
    name: str, stage: Tensor, position: int, *, whole: bool = False, halves: bool = False
) -> list[Primitive]:
    """One of the two sums of a transform, a line of a tile at a time: an input is added to all of the line.

    Unrolled over the sum and axis number `position`; `whole`: over all lines of the tile, too. `halves`:
    inputs of even number come before the others, if there are as many, so that results share sums of them
    (_interpolated in cross/expression/rewrites/winograd/matrices.py): equal instructions are written once.
    """
    axis, along, vector = stage.reduce_axes[0], stage.axes[position].name, stage.axes[-1].name
    halved = halves and axis.extent % 2 == 0
    summed = (f"{axis.name}.1", f"{axis.name}.0") if halved else (axis.name,)
    others = [item.name for number, item in enumerate(stage.axes[:-1]) if number != position]
    return [
        *([Split(name, axis.name, (2,))] if halved else ()),
        Reorder(name, (*others, *summed, along, vector)),
        *(Unroll(name, loop) for loop in (*(others if whole else ()), *summed, along)),
        Vectorize(name, vector),
    ]


def _has_literals(stage: Tensor) -> bool:
    assert stage.body is not None
    return any(isinstance(term, Lookup) for term in walk(stage.body))


def _pads(stage: Tensor, rows: Tensor) -> bool:
    """Whether a stage is the padding that the input transform reads."""
    assert stage.body is not None
    guards = any(isinstance(term, Select) for term in walk(stage.body))
    return guards and any(read.tensor.name == stage.name for read in reads(rows))


def is_worth_a_look(stages: WinogradStages, algorithm: Planar, target: Target) -> bool:
    """Whether channels fill vectors, and there is clearly less to do than directly.

    There are more weights than directly. With few tiles each is used too seldom to be worth reading.
    """
    lanes = target.vector_lanes(ITEM_BYTES[stages.output.dtype])
    channels_in, channels_out = stages.data.shape[-1], stages.output.shape[-1]
    depth = math.prod(algorithm.depths)
    fewest = lanes if depth == 1 else FILLED * lanes
    direct = math.prod(item.taps for item in algorithm.both) * math.prod(stages.output.shape[:-1])
    multiplications = max(stages.tiles, WEIGHT_COST) * stages.multiplications * depth
    return channels_in >= fewest and channels_out >= lanes and direct >= LEAST_GAIN * multiplications
