"""Which operators can reuse each other, and bridges between those that cannot (ETO, section 6.2).

Nobody asked for a bridge operator, but what is tuned for it serves several.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from toolkit.explore.neighbourhood.loops import MajorLoops
from toolkit.reuse.names import Hops

Extents = tuple[int, ...]


def reusable(one: MajorLoops, other: MajorLoops) -> bool:
    """Whether either can reuse the program of the other (ETO, section 4): same kind, loops that compare."""
    alike = [(item.kind, len(item.space), len(item.reduce)) for item in (one, other)]
    if alike[0] != alike[1] or one.extents == other.extents:
        return False
    return comparable(one.extents, other.extents)


def comparable(one: Extents, other: Extents) -> bool:
    """Whether the loops of one are nowhere longer than those of the other."""
    pairs = list(zip(one, other, strict=True))
    return all(left <= right for left, right in pairs) or all(left >= right for left, right in pairs)


def one_hop_bridges(operators: Sequence[Extents]) -> tuple[Extents, ...]:
    """The elementwise minimum of every pair that cannot reuse each other, where it is new.

    operators: loop extents of operators of one kind. In the order of the pairs.
    """
    known = set(operators)
    found: dict[Extents, None] = {}
    for one, other in itertools.combinations(dict.fromkeys(operators), 2):
        if not comparable(one, other):
            found[tuple(map(min, one, other))] = None
    return tuple(extents for extents in found if extents not in known)


def all_bridges(operators: Sequence[Extents]) -> tuple[Extents, ...]:
    """The bridges, the bridges between bridges and operators, and so on until there is no new one."""
    known = list(dict.fromkeys(operators))
    while new := one_hop_bridges(known):
        known += new
    return tuple(known[len(dict.fromkeys(operators)) :])


def bridges_of(operators: Sequence[Extents], hops: Hops) -> tuple[Extents, ...]:
    """The bridges of operators of one kind, as far as they are wanted."""
    if hops == "none":
        return ()
    return one_hop_bridges(operators) if hops == "one-hop" else all_bridges(operators)
