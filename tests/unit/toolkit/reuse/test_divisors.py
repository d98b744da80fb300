"""The range rule of ETO, section 5.1."""

from __future__ import annotations

import pytest

from cross.schedule.tiles import divisors
from toolkit.reuse.rounds.sizes import divisors_between


def test_divisors_ascend() -> None:
    assert divisors(36) == (1, 2, 3, 4, 6, 9, 12, 18, 36)
    assert divisors(7) == (1, 7)
    with pytest.raises(ValueError, match="at least 1, found 0"):
        divisors(0)


@pytest.mark.parametrize(
    ("start", "end", "number", "expected"),
    [
        (4, 12, 36, (3, 4, 6, 9, 12)),  # one wider on both sides
        (12, 4, 36, (12, 9, 6, 4, 3)),  # in the direction of the end
        (13.5, 15, 36, (18,)),  # none inside: the first beyond the end
        (14.5, 13.5, 36, (12,)),
        (40, 50, 36, ()),  # nothing inside or beyond
        (2, 15, 36, (1, 2, 3, 4, 6, 9, 12, 18)),  # 18 is as close to 15 as 12 in ratio
        (2, 14, 36, (1, 2, 3, 4, 6, 9, 12)),  # here it is not
    ],
)
def test_a_range(start: float, end: float, number: int, expected: tuple[int, ...]) -> None:
    assert divisors_between(start, end, number) == expected
