"""What ETO's authors measured on a Tesla P100 (Fang et al., PVLDB 15(2), 2022, Figures 7 to 10).

Throughput relative to that of Ansor with 1,000 trials, and how much sooner than Ansor had found its best.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Reported(NamedTuple):
    """Throughput as a part of the backend tuner's, and the speed-up of the search."""

    throughput: float
    speedup: float


PAIRS: Final[Mapping[str, Reported]] = {
    "conv1d": Reported(0.989, 2.7),
    "conv2d": Reported(1.068, 2.2),
    "conv3d": Reported(1.078, 3.0),
    "batch_matmul": Reported(1.010, 4.2),
    "grouped": Reported(1.102, 6.9),
    "depthwise": Reported(1.071, 4.3),
    "transposed": Reported(0.947, 4.8),
    "capsule": Reported(1.067, 12.1),
    "winograd": Reported(1.141, 3.6),
    "norm": Reported(2.571, 1.1),
}
SETS: Final[Mapping[str, Reported]] = {
    "mobilenet-v2": Reported(0.970, 5.9),
    "resnest-50": Reported(0.976, 8.3),
    "1d-ir": Reported(0.914, 11.3),
    "r2plus1d-18": Reported(0.962, 6.1),
    "dcgan": Reported(1.013, 3.1),
    "resnet-50": Reported(0.975, 7.0),
    "bert-base": Reported(1.008, 3.2),
}
