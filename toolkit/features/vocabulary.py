"""Names of the features of a nest; GPU programs have other ones than CPU programs.

A model reads programs of one vocabulary: the tables of the two have different widths, and a stored model
refuses features of another width.
"""

from __future__ import annotations

from typing import Final

import msgspec

from boards.target import Target
from cross.loopnest.nodes import For, LoopKind, LoopNest, statements
from toolkit.features.totals import COUNTED

NEST_FEATURES: Final = (
    "statements",
    "loops",
    "workspace_bytes",
    "local_bytes",
    *(f"{dtype} operations" for dtype in COUNTED),
)
GPU_NEST_FEATURES: Final = (
    "shared_bytes",
    "register_bytes",
    "barriers",
    "global_bytes",
    "global_accesses",
    "shared_traffic_bytes",
    "shared_accesses",
)


class Vocabulary(msgspec.Struct, frozen=True):
    """Names of the totals of a nest, and the kinds that its loops can have."""

    totals: tuple[str, ...]
    kinds: tuple[LoopKind, ...]

    @property
    def loop_features(self) -> tuple[str, ...]:
        """Names of the features of each loop, without those of the buffers touched inside it."""
        kinds = (kind.name.lower() for kind in self.kinds)
        return ("length", *kinds, "top_down", "bottom_up")


CPU: Final = Vocabulary(
    NEST_FEATURES, (LoopKind.SERIAL, LoopKind.PARALLEL, LoopKind.VECTORIZED, LoopKind.UNROLLED)
)
GPU: Final = Vocabulary(
    (*NEST_FEATURES, *GPU_NEST_FEATURES),
    (
        LoopKind.SERIAL,
        LoopKind.BLOCK,
        LoopKind.VIRTUAL_THREAD,
        LoopKind.THREAD,
        LoopKind.VECTORIZED,
        LoopKind.UNROLLED,
    ),
)


def vocabulary_for(target: Target) -> Vocabulary:
    """The vocabulary of the programs for a target."""
    return CPU if target.gpu is None else GPU


def vocabulary_of(nest: LoopNest) -> Vocabulary:
    """The vocabulary of a nest. Every GPU program has a loop over blocks, be it of one iteration."""
    loops = (item for item in statements(nest.body) if isinstance(item, For))
    return GPU if any(loop.kind is LoopKind.BLOCK for loop in loops) else CPU
