"""Loop context features of whole batches (paper, Table 2), followed by the values of the knobs.

Every structure of a space is lowered once. Its loop lengths, strides and touched ranges are expressions
over knobs; evaluating them with the knob columns of N configurations gives the features of all N at once.
The knobs are there for what the main chain does not show, such as the transforms around the products of a
Winograd convolution. Width and columns depend on the space.
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np

from cross.loopnest.program import Programs
from cross.schedule.space import Batch
from toolkit.features.base import Knobs, NestFeatures, Table
from toolkit.features.configuration import ConfigurationFeatures
from toolkit.features.nest import MainChain
from toolkit.features.vocabulary import vocabulary_for

ACCESS_FEATURES: Final = ("touch", "reuse", "stride")


class ContextFeatures(NestFeatures["_Structure"]):
    """Loops and knobs; the loops of structures with fewer of them than the deepest one end in zeros."""

    kind = "context"

    def __init__(self, programs: Programs) -> None:
        super().__init__(programs, lambda structure: _Structure(programs.described(structure, MainChain)))
        self._knobs = ConfigurationFeatures(programs)

    @functools.cached_property
    def _deepest(self) -> _Structure:
        """Of most columns; all structures are lowered when it is first asked for, which a search does."""
        return max(self.all(), key=lambda structure: structure.width)

    @functools.cached_property
    def width(self) -> int:  # type: ignore[override]  # made when it is first read, as an attribute is
        """Number of columns."""
        return self._deepest.width + self._knobs.width

    def __call__(self, batch: Batch) -> Table:
        """float32 [N, width] for int64 [N, K]."""
        result = super().__call__(batch)
        result[:, self._deepest.width :] = self._knobs(batch)
        return result

    @property
    def names(self) -> list[str]:
        """A name per column, after the structure with the most loops."""
        vocabulary = vocabulary_for(self.programs.space.target)
        names = list(vocabulary.totals)
        for loop in reversed(self._deepest.chain.loops):
            names += [f"{loop.var} {feature}" for feature in vocabulary.loop_features]
            for access in self._deepest.chain.accesses:
                names += [f"{loop.var} {access.buffer.name} {feature}" for feature in ACCESS_FEATURES]
        return names + self._knobs.names


class _Structure:
    """One lowered nest, ready to be evaluated."""

    def __init__(self, main: MainChain) -> None:
        self._main, self.chain = main, main.chain
        own = len(main.vocabulary.loop_features)
        self._per_loop = own + len(ACCESS_FEATURES) * len(self.chain.accesses)
        self._totals = len(main.vocabulary.totals)
        self.width = self._totals + self._per_loop * len(self.chain.loops)

    def features(self, knobs: Knobs, count: int) -> Table:
        """float32 [count, width]."""
        # Columns are rows here: each is written as one contiguous stretch, and log2 runs over all at once.
        result = np.empty((self.width, count), dtype=np.float32)
        result[: self._totals], columns = self._main.columns(knobs, count)
        loops = result[self._totals :].reshape(len(self.chain.loops), self._per_loop, count)
        columns.write(loops, columns.touch, columns.reuse - 1.0, columns.stride)
        result += 1.0
        np.log2(result, out=result)
        return result.T
