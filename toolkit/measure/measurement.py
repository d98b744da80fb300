"""The measurement of one candidate: what it cost, or why there is no number."""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from device_runtime.protocol import MeasureFailure, MeasureResult

NOT_THE_PROGRAMS: Final = ("link", "transport")
"""Kinds of failures that say nothing about a program: it could not be linked, brought to the board or loaded
there, because of the tools, the connection, or another board than it was built for."""
CODE: Final = "code"
"""Fact: what tells the machine code of a candidate, and how it is called, from any other's."""
IDENTICAL_CODE: Final = "identical_code"
"""Fact: the measurement was taken over from a candidate with the same machine code."""
GIVEN_UP_S: Final = "given_up_s"
"""Fact: slower than so many seconds per call, the candidate got no more repeats."""


class Measurement(msgspec.Struct, frozen=True):
    """One measured candidate. `seconds` per call, one entry a repeat; empty exactly when `error` is set.

    `max_abs_error` compares the output with the expected one, None where that was not a finite number.
    `device_s` is how long the board was busy with it. `facts` are the board's: clock, temperature, governor.
    """

    seconds: tuple[float, ...] = ()
    error: MeasureFailure | None = None
    number: int = 0
    max_abs_error: float | None = None
    device_s: float = 0.0
    facts: dict[str, Any] = {}

    @property
    def cost_s(self) -> float:
        """Seconds per call of the fastest repeat, which candidates are compared by; NaN for a failure."""
        return best_s(self.seconds) if self.seconds else math.nan

    @property
    def says_nothing(self) -> bool:
        """It failed, but not by the program's fault: it is no record, and another attempt may do better."""
        return self.error is not None and self.error.kind in NOT_THE_PROGRAMS

    @classmethod
    def failed(cls, error: MeasureFailure) -> Measurement:
        """A candidate that never reached the board."""
        return cls(error=error)

    @classmethod
    def of(cls, result: MeasureResult) -> Measurement:
        """What the board answered."""
        known = math.isfinite(result.max_abs_error)
        return cls(
            seconds=result.seconds if result.error is None else (),
            error=result.error,
            number=result.number,
            max_abs_error=result.max_abs_error if known else None,
            device_s=result.device_s,
            facts=dict(result.facts),
        )


def best_s(seconds: tuple[float, ...]) -> float:
    """The fastest of one measurement's repeats: whatever else runs on a board only ever adds time."""
    return min(seconds)
