"""Random loop trees in the layout of the "tree" features (toolkit/features/tree.py)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

CHANNELS = 12
LOOPS = 10


def tree_features(n: int, *, seed: int = 0) -> NDArray[np.float32]:
    """float32 [n, LOOPS * CHANNELS]: from 6 to LOOPS loops, each inside one of those before it.

    Channels: exists, parent, variable, operations, log length, four of annotation, three of context.
    """
    rng = np.random.default_rng(seed)
    loops = np.zeros((n, LOOPS, CHANNELS), np.float32)
    places = np.arange(LOOPS)
    depths = rng.integers(6, LOOPS + 1, n)
    exists = places < depths[:, None]
    loops[:, :, 0] = 1.0
    loops[:, 1:, 1] = np.maximum(places[:-1] - rng.integers(0, 2, (n, LOOPS - 1)), 0)
    loops[:, 0, 1] = -1.0
    loops[:, :, 2] = places
    loops[:, :, 3] = 1.0
    loops[:, :, 4] = np.log2(1.0 + rng.integers(1, 33, (n, LOOPS)))
    annotation = rng.integers(0, 4, (n, LOOPS))
    np.put_along_axis(loops, 5 + annotation[:, :, None], 1.0, axis=2)
    loops[:, :, 9:] = rng.normal(size=(n, LOOPS, CHANNELS - 9))
    loops *= exists[:, :, None]
    return loops.reshape(n, -1)
