"""How much of a thread's loops is unrolled on a GPU, and the registers that takes (ETO, section 5.2).

What a thread runs for one fetch are the loops R1, S1, S3, R2, S4 of the sketch SSSRRSRS, each level with one
loop for each loop of the operator. An option unrolls from the innermost loop outwards as long as the product
of the extents stays below a limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from toolkit.explore.neighbourhood.footprint import input_elements
from toolkit.explore.neighbourhood.loops import MajorLoops

Sides = Sequence[int]


class BodyLoop(msgspec.Struct, frozen=True):
    """A loop of a thread: which of the operator's loops it is a part of, how often it runs, how many
    statements it makes of one (a vector: 1), and whether it is unrolled whatever the option."""

    loop: int
    extent: int
    statements: int
    always: bool


class ThreadBody(msgspec.Struct, frozen=True):
    """The loops that a thread runs for one fetch, innermost first; the operator's loops are `spaces` space
    loops and then `reduces` reduction loops."""

    loops: tuple[BodyLoop, ...]
    spaces: int
    reduces: int

    def unrolled(self, below: int) -> tuple[int, ...]:
        """How many iterations of each of the operator's loops the unrolled body holds."""
        held = [1] * (self.spaces + self.reduces)
        product = 1
        for item in self.loops:
            product *= item.statements
            if item.extent > 1 and not item.always and product >= below:
                break
            held[item.loop] *= item.extent
        return tuple(held)

    def registers(self, loops: MajorLoops, below: int) -> int:
        """Elements of the inputs that the unrolled body uses, and a thread's outputs."""
        used = sum(input_elements(loops, self.unrolled(below)))
        return used + math.prod(item.extent for item in self.loops if item.loop < self.spaces)


def thread_body(
    virtual: Sides, outer: Sides, inner: Sides, middle: Sides, innermost: Sides, *, written: bool = False
) -> ThreadBody:
    """The body with S1, S3, S4 of the space loops and R1, R2 of the reduction loops.

    written: the space loops are unrolled in any case and the last one of S4 is a vector, as in
    cross.schedule.gpu_multi_level.
    """
    spaces = len(virtual)
    levels = ((0, inner), (spaces, innermost), (0, outer), (0, virtual), (spaces, middle))
    found: list[BodyLoop] = []
    for first, sides in levels:
        for place in reversed(range(len(sides))):
            vector = written and not found
            statements = 1 if vector else sides[place]
            found.append(BodyLoop(first + place, sides[place], statements, written and first == 0))
    return ThreadBody(tuple(found), spaces, len(middle))


def default_unroll(
    body: ThreadBody, loops: MajorLoops, wanted: float, options: Mapping[int, int], like: int
) -> int:
    """The option that takes about `wanted` registers; of equal ones `like`, or the largest.

    options: what products must stay below, by option.
    """
    away = {option: abs(body.registers(loops, below) - wanted) for option, below in options.items()}
    nearest = [option for option in options if away[option] == min(away.values())]
    return like if like in nearest else max(nearest)


def other_unrolls(body: ThreadBody, chosen: int, options: Mapping[int, int]) -> tuple[int, ...]:
    """The smallest option for each set of unrolled loops other than that of `chosen`."""
    found = {body.unrolled(options[chosen]): chosen}
    for option in sorted(options):
        found.setdefault(body.unrolled(options[option]), option)
    return tuple(option for option in found.values() if option != chosen)
