"""A schedule is data: a tuple of primitives. cross/loopnest/lower.py gives each its meaning.

Stages are named by their tensors, loops by their axis ("h", after a split "h.0", "h.1", ...). A factor
is an integer or the name of a knob, so one schedule stands for a whole family of programs.
"""

from __future__ import annotations

import msgspec

from cross.schedule.packing import Maps

Factor = int | str | tuple[str, ...]
"""An integer, the name of a knob, or the names of knobs that are multiplied."""


class Split(msgspec.Struct, frozen=True):
    """Cuts a loop into len(factors) + 1 loops; the factors are the inner extents, outermost first.

        for i in 28                     Split(s, "i", (2, 7))        for i.0 in 2
                                                                         for i.1 in 2
                                                                             for i.2 in 7

    Where the product of the factors does not divide the extent, the last outer tile starts earlier, so
    that it ends with the axis (it computes some elements a second time). Reduction axes must divide.

    With `whole_tiles` every tile starts at a multiple of the last factor, an integer: the axis is rounded up
    to whole ones, and what lies past its end is computed but not stored. With `guarded`, for stages without a
    reduction, tiles start at their multiples and what lies past the end of the loop is left out; what is
    attached inside computes the last element there once more.
    """

    stage: str
    axis: str
    factors: tuple[Factor, ...]
    whole_tiles: bool = False
    guarded: bool = False


class Fuse(msgspec.Struct, frozen=True):
    """Makes one loop of loops that directly follow one another, outermost first.

    for i in 4                      Fuse(s, ("i", "j"), "f")     for f in 28
        for j in 7                                                   i = f // 7, j = f % 7
    """

    stage: str
    loops: tuple[str, ...]
    name: str


class Reorder(msgspec.Struct, frozen=True):
    """Puts the loops of a stage in the given order, all of them named.

    for i                           Reorder(s, ("k", "i"))       for k
        for k                                                        for i
    """

    stage: str
    loops: tuple[str, ...]


class Parallel(msgspec.Struct, frozen=True):
    """Spreads the iterations of a loop over the cores; adjacent outermost ones collapse into one."""

    stage: str
    loop: str


class Bind(msgspec.Struct, frozen=True):
    """Spreads the iterations of a loop over a GPU's blocks, a block's threads, or virtual threads."""

    stage: str
    loop: str
    to: str  # "block", "thread" or "virtual thread"


class Vectorize(msgspec.Struct, frozen=True):
    """Runs all iterations of an innermost loop in vector registers."""

    stage: str
    loop: str


class Unroll(msgspec.Struct, frozen=True):
    """Writes out all iterations; with a limit only while the body stays within so many statements."""

    stage: str
    loop: str
    limit: Factor | None = None


class Inline(msgspec.Struct, frozen=True):
    """Replaces every read of an elementwise stage by its body; the stage has no loops of its own."""

    stage: str


class CacheWrite(msgspec.Struct, frozen=True):
    """Computes a stage in a buffer `<stage>.acc` of its own and copies it out.

    for i, k: C[i] += A[i, k]       CacheWrite("C")              for i, k: C.acc[i] += A[i, k]
                                                                 for i: C[i] = C.acc[i]
    """

    stage: str


class CacheRead(msgspec.Struct, frozen=True):
    """Lets a stage read an input from a copy `<input>.<scope>`, which ComputeAt then attaches to its loops.

    for i, k: C[i] += A[k]          CacheRead("C", "A", "shared")    for k: A.shared[k] = A[k]
                                                                     for i, k: C[i] += A.shared[k]
    """

    stage: str
    tensor: str
    scope: str


class ComputeAt(msgspec.Struct, frozen=True):
    """Computes the region of a stage that one iteration of a consumer's loop needs, inside that loop.

    The consumer reads the stage itself, or a stage that does is already attached to that loop or deeper.

    for i: C.acc[i] = ...           ComputeAt("C.acc", "C", "i.0")   for i.0
    for i.0, i.1: C[..] = C.acc[..]                                      for i: C.acc[i] = ...
                                                                         for i.1: C[..] = C.acc[i.1]

    Along the axes in `clamped` the consumer reads through a padding: a region that reaches over the ends of
    the stage is moved inside. Along those in `whole` all of the stage is computed. Several attached stages
    may read it, if their regions start at the same element along all other axes.
    """

    stage: str
    consumer: str
    loop: str
    scope: str  # "register", "tile", "local" or "shared"
    clamped: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()


class Slide(msgspec.Struct, frozen=True):
    """Keeps what an attached stage computed for the iteration before, where both need it along an axis.

    The buffer then outlives the iterations of the loop that the stage is attached to, and is a ring: what an
    iteration computes takes the place of what none needs any more. What the first one would find there is
    computed before the loop.

    for y:                              Slide("P", "r")     for r in 2: P[r] = f(r)
      for r in 3: P[r] = f(y + r)                           for y:
      C[y] = P[0] + P[1] + P[2]                               P[(y + 2) % 3] = f(y + 2)
                                                              C[y] = P[y % 3] + P[(y+1) % 3] + P[(y+2) % 3]

    Directly behind the ComputeAt. A region may reach over an end of the stage by as much as is kept.
    """

    stage: str
    axis: str


class TileLike(msgspec.Struct, frozen=True):
    """Gives an attached stage the loops that its consumer has inside the loop it is attached to.

    Each iteration of such loops, a thread's too, then computes the elements that the consumer reads in the
    same iteration, and the buffer has one dimension a loop, so that every thread holds its own part of it.
    """

    stage: str
    consumer: str


class HoldInRegisters(msgspec.Struct, frozen=True):
    """Below `loop`, the elements of a reduction stage that the inner space loops touch live in registers:
    they are loaded before the inner reduction loops and stored after them.
    """

    stage: str
    loop: str


class Pack(msgspec.Struct, frozen=True):
    """Lays a constant operand out in the order in which the loops of the stage read it.

    With `maps` the operand that is handed over is not the one that the stage reads, but becomes it by linear
    maps ahead of time (see Packing). Without `reordered` it is laid out as the tensor is, which may then be
    read in any order.
    """

    tensor: str
    stage: str
    maps: Maps = ()
    reordered: bool = True


Primitive = (
    Split | Fuse | Reorder | Parallel | Bind | Vectorize | Unroll | Inline | CacheWrite | CacheRead
    | ComputeAt | Slide | TileLike | HoldInRegisters | Pack
)  # fmt: skip
Schedule = tuple[Primitive, ...]
