"""The operator sets of ETO's Table 2: every distinct operator of a network, and how often it runs.

| set | operators |
|---|---|
| resnet-50 | 20 conv2d |
| mobilenet-v2 | 20 conv2d, 1 conv2d that also has the cross-thread sketch, 10 depthwise |
| resnest-50 | 22 conv2d, 4 that also have the cross-thread sketch, 7 grouped |
| 1d-ir | 35 conv1d, one of which has both sketches at 299 elements |
| r2plus1d-18 | 25 conv3d |
| dcgan | 5 transposed |
| bert-base | 5 batch matmul (128 tokens) |
| resnet-50-l | 40 conv2d: batch 1 and 16 |
| bert-l | 36 batch matmul: Base and Large, batch 1 and 16, 64 and 128 tokens |

Of BERT(L)'s 8 times 5 products 4 coincide: with 64 tokens and heads of 64, scores and context are the same.
networks.py says how each network is derived. Frequencies of the (L) sets count all their networks once.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from benchmarks.harness.operators import Layer
from benchmarks.reuse.networks import (
    bert,
    dcgan,
    inception_resnet_1d,
    mobilenet_v2,
    r2plus1d_18,
    resnest50,
    resnet50,
)
from cross.expression.language.operator import Operator
from toolkit.explore.neighbourhood.loops import MajorLoops, major_loops

CROSS_THREAD: Final = " or cross-thread"


@dataclass(frozen=True, slots=True)
class SetOperator:
    """A distinct operator: `count` layers compute it. `kind`: type and sketches, as reuse compares them."""

    layer: Layer
    count: int
    operator: Operator
    loops: MajorLoops

    @property
    def kind(self) -> str:
        return self.loops.kind


def _bert_l() -> list[Layer]:
    several = itertools.product((False, True), (1, 16), (64, 128))
    return [
        layer for large, batch, tokens in several for layer in bert(large=large, batch=batch, tokens=tokens)
    ]


NETWORKS: Final[Mapping[str, Callable[[], list[Layer]]]] = {
    "resnet-50": resnet50,
    "mobilenet-v2": mobilenet_v2,
    "resnest-50": resnest50,
    "1d-ir": inception_resnet_1d,
    "r2plus1d-18": r2plus1d_18,
    "dcgan": dcgan,
    "bert-base": bert,
    "resnet-50-l": lambda: [*resnet50(), *resnet50(16)],
    "bert-l": _bert_l,
}


@cache
def operator_set(name: str) -> tuple[SetOperator, ...]:
    """The distinct operators of a set in the order of their first use."""
    return tuple(_made(layer, count) for layer, count in Counter(NETWORKS[name]()).items())


def union(names: tuple[str, ...]) -> tuple[SetOperator, ...]:
    """The distinct operators of several sets; frequencies of the set where each comes first."""
    found: dict[Layer, SetOperator] = {}
    for name in names:
        for item in operator_set(name):
            found.setdefault(item.layer, item)
    return tuple(found.values())


def _made(layer: Layer, count: int) -> SetOperator:
    operator = layer.operator()
    loops = major_loops(operator, layer.form)
    # A backend such as Ansor also splits the reduction over threads where there are fewer points than that.
    few = loops.points * loops.points < loops.size
    kind = layer.form + CROSS_THREAD if few else layer.form
    return SetOperator(layer, count, operator, major_loops(operator, kind))
