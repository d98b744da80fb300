"""Shapes of which dimensions are moved, merged and split."""

from __future__ import annotations

import math
from collections.abc import Sequence

Permutation = tuple[int, ...]


def merged_shape(shape: Sequence[int], runs: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The shape with each run of dimensions as one.

    >>> merged_shape((2, 3, 4), ((0, 1), (2,)))
    (6, 4)
    """
    return tuple(math.prod(shape[dimension] for dimension in run) for run in runs)


def moves_units_only(shape: Sequence[int], before: Permutation, after: Permutation) -> bool:
    """Whether going from one order to the other leaves the elements where they are in memory."""
    return [axis for axis in before if shape[axis] != 1] == [axis for axis in after if shape[axis] != 1]


def merge_axes(shape: Sequence[int], moved: Permutation) -> tuple[tuple[int, ...], Permutation]:
    """The smallest equal transpose: (shape, permutation) without unit axes, neighbours merged.

    >>> merge_axes((1, 13, 13, 1000), (0, 3, 1, 2))
    ((169, 1000), (1, 0))
    """
    order = [axis for axis in moved if shape[axis] != 1]
    runs: list[list[int]] = []
    kept = sorted(order)
    for axis in order:
        if runs and kept.index(axis) == kept.index(runs[-1][-1]) + 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    ranked = sorted(runs)
    return merged_shape(shape, ranked), tuple(ranked.index(run) for run in runs)


def reshape_groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The finest split of both shapes into runs of dimensions with equal products.

    >>> reshape_groups((1, 6, 4), (1, 2, 3, 4))
    [([0], [0]), ([1], [1, 2]), ([2], [3])]
    """
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        left: list[int] = []
        right: list[int] = []
        left_size = right_size = 1
        while not (left or right) or left_size != right_size:
            if (left_size <= right_size and i < len(before)) or j >= len(after):
                left_size *= before[i]
                left.append(i)
                i += 1
            else:
                right_size *= after[j]
                right.append(j)
                j += 1
            if left_size == right_size == 1 and not right and j < len(after) and after[j] == 1:
                right.append(j)
                j += 1
        groups.append((left, right))
    return groups
