"""What configurations cost: the contract of a runner, and the runner that answers from a table.

A runner's `prepare` does all that needs no board (lowering, compiling, linking) for a whole batch, and
returns an iterator that measures one candidate each time it is advanced: whoever drives it can store every
measurement as it comes, and prepare the next batch while the board is busy with this one. A runner may begin
with the next candidate before it hands a measurement on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from device_runtime.protocol import MeasureFailure
from toolkit.explore.space import Batch, SearchSpace
from toolkit.measure.measurement import Measurement


class Runner(Protocol):
    """The contract; tests/conformance/test_runners.py runs one suite over all of them."""

    def prepare(self, batch: Batch) -> Iterator[Measurement]:
        """Build every configuration of an int64 batch [N, K] now; measure the next one at each step.

        The iterator yields N measurements in the batch's order. Failures are measurements.
        Raises BoardUnreachable when the board is lost.
        """
        ...


class ReplayRunner:
    """Answers from a table of measurements by configuration id; one that is not there is a failure."""

    def __init__(self, space: SearchSpace, table: Mapping[int, Measurement]) -> None:
        self._space = space
        self._table = table

    def prepare(self, batch: Batch) -> Iterator[Measurement]:
        """See Runner.prepare."""
        unknown = MeasureFailure("build", "this configuration was never measured: the table does not hold it")
        missing = Measurement.failed(unknown)
        return iter([self._table.get(number, missing) for number in self._space.ids(batch).tolist()])
