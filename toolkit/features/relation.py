"""Context relation features: one width for every operator, whatever its loops (paper, section 4 and A.2.2).

The loops of the main chain are a bag of points, one for each buffer; the statement inside is one more point
(it touches one element, once, in every iteration). For thresholds beta_t = 2, 4, 8, ... and infinity:

    reuse | touch      the largest reuse ratio of points that touch fewer than beta_t elements
    touch | reuse      the largest touch count of points whose reuse ratio is below beta_t
    top_down | touch   the smallest product of outer lengths of points that touch fewer than beta_t elements
    touch | top_down   the smallest touch count of points whose product of outer lengths is below beta_t

The pairs and their thresholds are the paper's. It writes a maximum for all; along a chain, though, touch
counts rise outwards while products of outer lengths fall, so that their maximum would always be the one of
the innermost or outermost loop, whatever the threshold. The minimum says how often a working set of that size
is gone through. Annotations enter as the products and the largest of the lengths of the loops of each kind.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from cross.expression.language.dtypes import ITEM_BYTES
from cross.loopnest.program import Programs
from toolkit.features.base import Knobs, NestFeatures, Table
from toolkit.features.loops import LoopColumns
from toolkit.features.nest import MainChain
from toolkit.features.slots import SLOTS, slot_of, slotted
from toolkit.features.tape import Values
from toolkit.features.vocabulary import Vocabulary, vocabulary_for

BETAS: Final = (*(2.0**exponent for exponent in range(1, 20)), float("inf"))
SLOT_FEATURES: Final = ("item_bytes", "touch", "innermost stride")
RELATIONS: Final = ("reuse | touch", "touch | reuse", "top_down | touch", "touch | top_down")


def fixed_features(vocabulary: Vocabulary) -> list[str]:
    """The columns before the relations."""
    kinds = [f"{kind.value} {name}" for kind in vocabulary.kinds for name in ("product", "longest")]
    slots = [f"{slot} {name}" for slot in SLOTS for name in SLOT_FEATURES]
    return [*vocabulary.totals, *kinds, *slots]


class RelationFeatures(NestFeatures["_Structure"]):
    """See NestFeatures."""

    kind = "relation"

    def __init__(self, programs: Programs) -> None:
        super().__init__(programs, lambda structure: _Structure(programs.described(structure, MainChain)))
        self.width = len(self.names)

    @property
    def names(self) -> list[str]:
        """A name per column."""
        relations = [f"{slot} {name} < {beta:g}" for name in RELATIONS for slot in SLOTS for beta in BETAS]
        return [*fixed_features(vocabulary_for(self.programs.space.target)), *relations]


class _Structure:
    """One lowered nest, ready to be evaluated."""

    def __init__(self, main: MainChain) -> None:
        self._main, chain, vocabulary = main, main.chain, main.vocabulary
        self._kinds = len(vocabulary.totals)
        self._slots_start = self._kinds + 2 * len(vocabulary.kinds)
        self._fixed = len(fixed_features(vocabulary))
        self.width = self._fixed + len(RELATIONS) * len(SLOTS) * len(BETAS)
        self._slots = np.array([slot_of(place) for place in range(len(chain.accesses))], dtype=np.intp)
        item_bytes = [float(ITEM_BYTES[access.buffer.dtype]) for access in chain.accesses]
        self._item_bytes = slotted(np.array(item_bytes).reshape(-1, 1, 1))[:, 0, :]

    def features(self, knobs: Knobs, count: int) -> Table:
        """float32 [count, width]."""
        totals, columns = self._main.columns(knobs, count)
        result = np.empty((self.width, count), dtype=np.float32)
        kinds, slots, fixed = self._kinds, self._slots_start, self._fixed
        result[:kinds] = totals
        lengths = np.where(columns.kinds > 0.0, columns.lengths[:, None], 1.0)  # [L, kinds, N]
        result[kinds:slots:2] = lengths.prod(axis=0)
        result[kinds + 1 : slots : 2] = lengths.max(axis=0, initial=1.0)
        result[slots:fixed:3] = self._item_bytes
        whole = columns.touch[:, -1:] if len(columns.lengths) else np.ones((len(self._slots), 1, count))
        result[slots + 1 : fixed : 3] = slotted(whole)[:, 0]
        result[slots + 2 : fixed : 3] = slotted(columns.stride[:, :1])[:, 0] if len(columns.lengths) else 0.0
        np.log2(result[:fixed] + np.float32(1.0), out=result[:fixed])
        result[fixed:] = relations(columns, self._slots).reshape(-1, count)
        return result.T


def relations(columns: LoopColumns, slots: NDArray[np.intp]) -> Table:
    """RELATIONS in the places of SLOTS, float32 [relations, slots, betas, N]; empty places are 0.

    slots: the place of each of the A accesses. Top-down products and touch counts are log2(1 + x), reuse
    ratios log2.
    """
    accesses, count = len(slots), columns.lengths.shape[1]
    inner = np.ones((accesses, 1, count))
    total = columns.inside[-1:] if len(columns.inside) else inner[0]
    touch = np.concatenate([inner, columns.touch], axis=1)  # [A, P, N]: the statement, then the loops
    reuse = np.concatenate([inner, columns.reuse], axis=1)
    outer = np.concatenate([total, columns.top_down])
    first = (slots[:, None, None] * len(BETAS)) * count + np.arange(count)
    by_touch, by_reuse, by_outer = (first + _bins(item) * count for item in (touch, reuse, outer))
    log_touch, log_reuse = np.log2(touch.astype(np.float32) + _ONE), np.log2(reuse.astype(np.float32))
    log_outer = np.broadcast_to(np.log2(outer.astype(np.float32) + _ONE), touch.shape)
    shape = (len(RELATIONS), len(SLOTS), len(BETAS), count)
    result = np.empty(shape, dtype=np.float32)
    result[:2], result[2:] = -np.inf, np.inf
    for table, where, what, combine in (
        (result[0], by_touch, log_reuse, np.maximum),
        (result[1], by_reuse, log_touch, np.maximum),
        (result[2], by_touch, log_outer, np.minimum),
        (result[3], by_outer, log_touch, np.minimum),
    ):
        combine.at(table.reshape(-1), where.ravel(), what.ravel())
    largest, smallest = result[:2], result[2:]
    for beta in range(1, len(BETAS)):  # every point counts for all larger thresholds too
        np.maximum(largest[:, :, beta], largest[:, :, beta - 1], out=largest[:, :, beta])
        np.minimum(smallest[:, :, beta], smallest[:, :, beta - 1], out=smallest[:, :, beta])
    empty = np.ones(len(SLOTS), dtype=np.bool_)
    empty[slots] = False
    result[:, empty] = 0.0
    return result


_ONE: Final = np.float32(1.0)


def _bins(values: Values) -> NDArray[np.int64]:
    """The first t with values < beta_t: the binary exponent of positive float64 numbers."""
    exponents = (np.ascontiguousarray(values).view(np.int64) >> 52) - 1023
    bins: NDArray[np.int64] = np.clip(exponents, 0, len(BETAS) - 1)
    return bins
