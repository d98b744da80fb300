"""The specification of the features: one bound nest at a time, in plain arithmetic.

Slow and simple; context.py must give the same numbers. One row per loop of the longest chain, innermost
first (paper, Table 2): see `LOOP_FEATURES` and `ACCESS_FEATURES` for the columns.
"""

from __future__ import annotations

import math

from cross.expression.terms import ITEM_BYTES
from cross.loopnest.nodes import Expr, Int, LoopKind, LoopNest
from toolkit.features.chain import Access, longest_chain

FEATURE_VERSION = 1

LOOP_FEATURES = ("length", "serial", "parallel", "vectorized", "unrolled", "top_down", "bottom_up")
ACCESS_FEATURES = ("touch", "reuse", "stride")
NEST_FEATURES = ("statements", "workspace_bytes", "loops")
KINDS = (LoopKind.SERIAL, LoopKind.PARALLEL, LoopKind.VECTORIZED, LoopKind.UNROLLED)


def plain_features(nest: LoopNest) -> list[float]:
    """Features of a nest that is bound without simplification.

    First NEST_FEATURES, then per loop LOOP_FEATURES and, for every buffer of the innermost statement,
    ACCESS_FEATURES. Lengths, products, counts and strides are log2(1 + x), the reuse ratio is log2.

    Args:
        nest: from `bind(..., simplify=False)`.
    """
    chain = longest_chain(nest)
    workspace_bytes = 0
    for buffer in nest.workspace:
        workspace_bytes += ITEM_BYTES[buffer.dtype] * math.prod(_value(extent) for extent in buffer.shape)
    result = [_log(len(nest.body.statements)), _log(workspace_bytes), _log(len(chain.loops))]
    lengths = [_value(loop.extent) for loop in chain.loops]
    for position in reversed(range(len(chain.loops))):
        loop = chain.loops[position]
        inside = math.prod(lengths[position:])
        result.append(_log(lengths[position]))
        result += [1.0 if loop.kind is kind else 0.0 for kind in KINDS]
        result += [_log(math.prod(lengths[:position])), _log(inside)]
        for access in chain.accesses:
            inner = {item.var: _value(item.extent) for item in chain.loops[position:]}
            touched = touch_count(access, inner)
            stride = abs(_value(access.stride.get(loop.var, Int(0))))
            result += [_log(touched), math.log2(inside / touched), _log(stride)]
    return result


def touch_count(access: Access, inner: dict[str, int]) -> int:
    """Elements of a buffer that the given loops touch (their extents by variable)."""
    count = 1
    for dimension, extent in zip(access.dimensions, access.buffer.shape, strict=True):
        length = 1 + sum(
            abs(_value(coefficient)) * (inner[name] - 1)
            for name, coefficient in dimension.items()
            if name in inner
        )
        count *= min(length, _value(extent))
    return count


def _log(value: float) -> float:
    return math.log2(1.0 + value)


def _value(expr: Expr) -> int:
    assert isinstance(expr, Int)
    return expr.value
