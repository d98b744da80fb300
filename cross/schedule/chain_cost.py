"""What computing a chain block by block saves, before any measurement: counted traffic and arithmetic.

Nest after nest, what one reduction hands to the next goes out to the second cache and comes back, or to the
last cache or memory where the second ones do not hold it until it is read. Block by block it stays with the
core. What that costs: elements where blocks overlap are computed again, weights are read once a block where
they do not stay beside it, and blocks may not divide evenly among the cores.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from boards.target import IN_ORDER_CPUS, Target
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import Axis, Tensor, reads_in
from cross.schedule.chain import Chain, chain_of
from cross.schedule.cycles import CACHE_SHARE, L2_BYTES_PER_CYCLE, L2_HIDDEN
from cross.schedule.lane_packing import with_packed_lanes
from cross.schedule.plan import Group, Plan, make_plan, varying_axes, wide_axes
from cross.schedule.tiles import MOST_FACTORS, divisors, factors, waste
from cross.schedule.untuned import Tile, untuned_tiles
from cross.schedule.vector_axis import with_vector_axes
from cross.schedule.winograd.stages import algorithms

BLOCK_SHARE = 0.5  # of a cache for what is handed over; inputs, weights and outputs pass through beside it
BLOCK_WASTE = 1.1  # elements computed to elements needed, where blocks do not divide an axis
LARGEST_BLOCK = 128  # along one axis
BLOCK_CYCLES = 300  # to begin a block: mispredicted branches of a few loops; an estimate
ROWS_CYCLES = 100
"""The same of a chain of rows, whose loops are short: what blocks of 4 rows of 256 elements take more than
blocks of 8 on one Zen 4 is 30 cycles a block in a layer normalization, 100 in a softmax."""
ROWS_SHARE = 7 / 8
"""Of the first cache for what a block of rows reads again, hands over and writes. On one Zen 4 (32 KiB) layer
normalizations with 14 and 24 KiB were 1.05 to 1.1 times as fast as with twice as much, with 16 KiB as fast;
softmax with 14 and 24 KiB 1.01 times, but with 18 and 27 KiB 0.93 and 0.97 times as fast as with 36."""
REACHED = 0.5
"""Of the peak, by what is computed a second time, activations included. Pointwise convolutions reach more,
depthwise ones about this, first ones of images less: on one Sapphire Rapids Xeon 0.8 made MobileNet-v3 slower
by its first one, and 0.25 left MobileNet-v2 as fast, but it moved a third more."""
MOST_WINDOWS = 4  # along an axis, for each core: what a window begins with is computed by each
LEAST_SAVED = 0.05  # of the time at the peak: less is within the error of these estimates
HANDED_BYTES_PER_CYCLE = 10.0
"""Of a core, for what is written and read again by way of its second cache or a third one. Measured on one
Sapphire Rapids Xeon as what chains of MobileNets save: 6 to 9 by way of the second, 10 to 23 of the third."""
LARGE_BLOCK = 0.5
"""Of what is saved is left to pay by a block that fills its share of the second cache (measured there); by
smaller ones that do not fit the first cache in proportion: with that MobileNets were as fast or faster."""


class Block(msgspec.Struct, frozen=True):
    """The sizes of a block along the outer axes of a chain, in how many steps it is computed while a window
    slides over the first link, and the seconds that such blocks save."""

    sizes: Mapping[Axis, int]
    steps: int
    saved_s: float
    step: Mapping[Axis, int]  # the sizes of a step: the block's where there is one


def saved_seconds(separate: Sequence[Operator], chain: Operator, target: Target) -> float:
    """What computing operators, each of which feeds the next, as a chain is expected to save; 0.0: nothing.

    One that Winograd's algorithms compute stays alone: a chain has no place for them.
    """
    if any(any(algorithms(item, target, flat=False)) for item in separate):
        return 0.0
    program = with_packed_lanes(with_vector_axes(chain, target), target)
    plan = make_plan(program)
    found = chain_of(plan)
    if found is None or len(found.links) + 1 != len(plan.groups):
        return 0.0
    if len(plan.groups) != len(separate) and all(group.reduction for group in plan.groups):
        return 0.0  # sums in several parts
    if best_block(plan, found, target, {}) is None:  # a bound: with tiles that fit everywhere
        return 0.0
    block = best_block(plan, found, target, untuned_tiles(plan, target))
    return 0.0 if block is None else block.saved_s


def best_block(plan: Plan, chain: Chain, target: Target, tiles: Mapping[str, Tile]) -> Block | None:
    """The block that saves most, with tiles of registers by owners' names; None where none surely saves."""
    cost = _Cost(plan, chain, target, tiles)
    found = [
        (sizes, steps)
        for sizes in _sizes(chain, target, tiles)
        for steps in (1, *_steps(chain, sizes, target))
    ]
    all_sizes = {axis: np.array([sizes[axis] for sizes, _ in found]) for axis in chain.outer}
    saved_s = cost.saved_seconds(all_sizes, np.array([steps for _, steps in found]))
    best = int(np.argmax(saved_s))
    if saved_s[best] <= LEAST_SAVED * cost.arithmetic_s:
        return None
    sizes, steps = found[best]
    return Block(sizes, steps, float(saved_s[best]), _step(chain, sizes, steps))


def _sizes(chain: Chain, target: Target, tiles: Mapping[str, Tile]) -> Iterator[dict[Axis, int]]:
    """Blocks to consider: parts of each outer axis that cover it with little overlap.

    The vector axis, as of the channels of a depthwise convolution, is cut evenly into whole tiles, where one
    second cache is there for all cores. In front of a third one it stays whole: what is read next lies with
    other cores then. On one Emerald Rapids Xeon and two threads a MobileNet-v2 in such blocks was 0.96 times
    as fast, a MobileNet-v1 0.95 to 1.03 times by the size of the blocks; on one thread they were 0.98 to 1.0.
    """
    vector = wide_axes(chain.last.owner.axes)[-1]
    parts = [vector.extent] if target.l3_bytes else _even_parts(vector, tiles.get(chain.last.owner.name))
    choices = [parts if axis is vector else block_sizes(axis) for axis in chain.outer]
    for sizes in itertools.product(*choices):
        yield dict(zip(chain.outer, sizes, strict=True))


def _even_parts(vector: Axis, tile: Tile | None) -> list[int]:
    """Sizes that cut a vector axis evenly into whole tiles, as far as its knob has them, and all of it."""
    each = tile.sizes[-1] if tile else 1
    counts = [count for count in divisors(vector.extent) if count <= MOST_FACTORS]
    return sorted({vector.extent, *(each * count for count in counts if vector.extent % (each * count) == 0)})


def block_sizes(axis: Axis) -> list[int]:
    """Parts of an axis that cover it with little overlap."""
    return [size for size in factors(axis.extent, LARGEST_BLOCK) if waste(axis.extent, size) <= BLOCK_WASTE]


def _share(group: Group, computed: Mapping[str, Sequence[Any]]) -> Any:
    """How much of its vector axis a group computes for a block, and so of its weights, which lie along it,
    reads; a number or an array."""
    return computed[group.owner.name][-1] / group.owner.axes[-1].extent


def _step(chain: Chain, sizes: Mapping[Axis, Any], steps: Any) -> Mapping[Axis, Any]:
    """The sizes of each of so many steps of a block; numbers or arrays."""
    if chain.sliding is None:
        return sizes
    return {**sizes, chain.sliding.axis: sizes[chain.sliding.axis] // steps}


def _steps(chain: Chain, sizes: Mapping[Axis, int], target: Target) -> Iterator[int]:
    """In how many steps a block may be computed; more blocks than cores need only begin more windows."""
    sliding = chain.sliding
    if sliding is None or -(-sliding.axis.extent // sizes[sliding.axis]) > MOST_WINDOWS * target.threads:
        return
    for size in divisors(sizes[sliding.axis]):
        if sliding.fits(size) and size < sizes[sliding.axis]:
            yield sizes[sliding.axis] // size


class _Cost:
    """Times of one chain on one target, all cores at work."""

    def __init__(self, plan: Plan, chain: Chain, target: Target, tiles: Mapping[str, Tile]) -> None:
        self.chain, self.target = chain, target
        self.steps: dict[str, int] = {}
        self.read_bytes: dict[str, int] = {}  # but for weights
        self.tiles = {
            axis: size
            for group in (chain.last, *chain.producers)
            if group.owner.name in tiles
            for axis, size in zip(wide_axes(group.owner.axes), tiles[group.owner.name].sizes, strict=True)
        }
        self.weight_bytes: dict[str, int] = {}
        # What no stage computes: the group that reads it, bytes, and whether along the group's vector axis.
        self.inputs: list[tuple[Group, int, bool]] = []
        passes: Counter[Tensor] = Counter()
        for group in (chain.last, *chain.producers):
            reading = group.reading
            steps = math.prod(axis.extent for axis in reading.reduce_axes) if group.reduction else 0
            self.steps[group.owner.name] = steps * group.owner.elements
            reads = reads_in(plan.body(reading, padding_inlined=True))
            read = {item.tensor for item in reads}
            weights = {item for item in read if item.name in plan.constants}
            self.weight_bytes[group.owner.name] = sum(item.size_bytes for item in weights)
            self.read_bytes[group.owner.name] = sum(item.size_bytes for item in read - weights)
            axes = wide_axes(reading.axes)
            along = {item.tensor for item in reads if len(axes) - 1 in varying_axes(item, axes)}
            inputs = [item for item in read - weights if item.body is None]
            self.inputs += [(group, item.size_bytes, item in along) for item in inputs]
            passes.update(inputs)
        rate = target.clock_hz * target.threads
        self.step_s = 2.0 / (target.flops_per_cycle * rate)
        self.arithmetic_s = self.step_s * sum(self.steps.values())
        # Seconds a byte: what cores that run in order wait for their second cache is not known.
        cached_s = 1.0 / (HANDED_BYTES_PER_CYCLE * rate)
        self.near_s = 0.0 if target.cpu in IN_ORDER_CPUS else cached_s
        memory_s = 1e-9 / target.memory_gbs if target.memory_gbs else cached_s
        self.far_s = cached_s if target.l3_bytes else memory_s
        # Operands that a chain of rows reads more than once, and how often: its time is that of the passes.
        least = chain.last.owner.elements if chain.of_rows else math.inf
        self.again = {item: times for item, times in passes.items() if times > 1 and item.elements >= least}
        self.arithmetic_s += self.near_s * sum(item.size_bytes * times for item, times in self.again.items())

    def saved_seconds(
        self, sizes: Mapping[Axis, NDArray[np.int64]], steps: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """What blocks of these sizes save, in so many steps each: an element for each choice. Less than 0
        where they cost, 0 where they are not whole tiles, not several, or too large for a cache."""
        step, slides = _step(self.chain, sizes, steps), steps > 1
        extents = {axis: step.get(axis, axis.extent) for axis in self.chain.last.owner.axes}
        blocks = math.prod(-(-axis.extent // size) for axis, size in sizes.items())
        handed = self.chain.handed_bytes(self.chain.regions(extents, slides))
        part = math.prod(extents.values()) / self.chain.last.owner.elements
        if self.chain.of_rows:
            passing = (*self.again, self.chain.last.owner)
            handed = handed + part * sum(item.size_bytes for item in passing)
        possible = (blocks * steps > 1) & (handed <= BLOCK_SHARE * self._core_bytes())
        most = -(-blocks // self.target.threads)  # of one core
        computed = self.chain.computed(extents, slides)
        computed[self.chain.last.owner.name] = tuple(extents.values())
        for axis, size in self._in_whole_tiles(step, computed):
            possible &= size % np.minimum(self.tiles.get(axis, 1), size) == 0
        uneven = most * self.target.threads / blocks - 1.0
        lost = uneven * self.arithmetic_s
        if self.chain.of_rows:
            lost = lost + (blocks * part - 1.0) * self.arithmetic_s
        else:
            lost = lost + self._again(blocks, steps, computed) / REACHED * self.step_s
        vector = wide_axes(self.chain.last.owner.axes)[-1]
        parts = -(-vector.extent // extents[vector])  # into which blocks cut the vector axis
        weight_bytes = sum(
            self.weight_bytes[group.owner.name] * _share(group, computed)
            for group in (self.chain.last, *self.chain.producers)
        )
        weight_cycles = (1.0 - L2_HIDDEN) * weight_bytes / L2_BYTES_PER_CYCLE
        begun_cycles = ROWS_CYCLES if self.chain.of_rows else BLOCK_CYCLES
        lost = lost + most * steps * (begun_cycles + weight_cycles) / self.target.clock_hz
        displaced = weight_bytes + handed > CACHE_SHARE * self._core_bytes()
        lost = lost + displaced * (blocks * steps - parts) * weight_bytes * self.far_s
        lost = lost + self._inputs_again_s(blocks / parts, parts, handed, computed)
        left_s = self._left_s(handed)
        saved = sum(
            2.0 * group.owner.size_bytes * ((self.far_s if self._is_far(group) else self.near_s) - left_s)
            for group in self.chain.producers
        )
        for item, times in self.again.items():
            is_far = item.size_bytes > CACHE_SHARE * self._all_bytes()
            again_s = (self.far_s if is_far else self.near_s) - left_s
            saved = saved + (times - 1) * item.size_bytes * again_s
        return np.where(possible, saved - lost, 0.0)

    def _inputs_again_s(
        self, others: Any, parts: Any, handed: Any, computed: Mapping[str, Sequence[Any]]
    ) -> Any:
        """Seconds to read inputs again for each of the `parts` of the vector axis, with so many blocks along
        the `others`: from beyond the caches where these do not hold, for every core, its part of an input
        with what is handed over and made."""
        made = self.chain.last.owner.size_bytes / (parts * others)
        free = CACHE_SHARE * self._all_bytes() - self.target.threads * (handed + made)
        seconds: Any = 0.0
        for group, size_bytes, along in self.inputs:
            again = np.maximum(parts * (_share(group, computed) if along else 1.0) - 1.0, 0.0)
            held = np.minimum(others, self.target.threads) * size_bytes / others
            seconds = seconds + again * size_bytes * np.where(held > free, self.far_s, self.near_s)
        return seconds

    def _in_whole_tiles(
        self, step: Mapping[Axis, Any], computed: Mapping[str, Sequence[Any]]
    ) -> list[tuple[Axis, Any]]:
        """Axes along which steps are whole tiles of registers, with how much of them a step takes: of the
        last group, or where that has no tiles of those in front of it."""
        if not self.chain.of_rows:
            return list(step.items())
        owners = [group.owner for group in self.chain.producers]
        return [pair for owner in owners for pair in zip(owner.axes, computed[owner.name], strict=True)]

    def _again(
        self, blocks: Any, steps: NDArray[np.int64], computed: Mapping[str, Sequence[Any]]
    ) -> NDArray[np.float64]:
        """Steps of reductions that so many blocks, in so many steps of these regions, compute once more."""
        begun = self._begun_before()
        each = [
            blocks
            * (steps + (steps > 1) * (group in begun))
            * self._computed(group, computed[group.owner.name])
            - self._computed(group, group.owner.shape)
            for group in (self.chain.last, *self.chain.producers)
        ]
        return np.asarray(sum(each))

    def _begun_before(self) -> tuple[Group, ...]:
        """What is computed before the first step: the link over which a window slides, and what feeds it."""
        sliding, producers = self.chain.sliding, self.chain.producers
        return () if sliding is None else producers[self.chain.links.index(sliding.link) :]

    def _computed(self, group: Group, region: Sequence[Any]) -> Any:
        """The steps of a group's reduction for a region of its owner, in whole tiles of registers; numbers or
        arrays."""
        each: Any = self.steps[group.owner.name] / group.owner.elements
        for axis, extent in zip(group.owner.axes, region, strict=True):
            tile = self.tiles.get(axis, 1)
            each = each * (-(-extent // tile) * tile)
        return each

    def _left_s(self, handed: NDArray[np.int64]) -> NDArray[np.float64]:
        """Seconds a byte to hand so many over within a block, which the first cache may not hold."""
        if self.chain.of_rows:
            return np.where(handed <= ROWS_SHARE * self.target.l1d_bytes, 0.0, self.near_s)
        through_second = LARGE_BLOCK * self.near_s * handed / (BLOCK_SHARE * self._core_bytes())
        return np.where(handed <= self.target.l1d_bytes, 0.0, through_second)

    def _is_far(self, group: Group) -> bool:
        """Whether the second caches lose what a group hands over before it is read.

        While it is written and read, half of what the group reads and of what is made of it pass, too.
        """
        reader = next(link.reader for link in self.chain.links if link.producer is group)
        passing = reader.owner.size_bytes + self.read_bytes[group.owner.name]
        return group.owner.size_bytes + passing / 2 > CACHE_SHARE * self._all_bytes()

    def _all_bytes(self) -> int:
        """Of the second caches: a core's own in front of a third one, otherwise one for all of them."""
        return self.target.l2_bytes * (self.target.threads if self.target.l3_bytes else 1)

    def _core_bytes(self) -> float:
        return self._all_bytes() / self.target.threads
