"""What disturbed the times of whole-model runs: scattered times, a clock that falls, heat, other load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from toolkit.measure.replies import Probe
from toolkit.model_job.options import Latency

SCATTER: Final = 0.10  # of the median: where pyperf calls a benchmark unstable by its standard deviation
OUTLIER: Final = 0.50  # of the median: where pyperf calls the slowest run an outlier
DRIFT: Final = 0.05  # of the first blocks, over the measurement
HOT_CELSIUS: Final = 75.0
SLOW_CLOCK: Final = 0.9  # of the highest one


def disturbances(latencies: Sequence[Latency], probe: Probe) -> tuple[str, ...]:
    """A sentence for each; `probe` is what the board said of itself right after the runs."""
    found = []
    scatter = max(float(np.std(item.seconds) / np.mean(item.seconds)) for item in latencies)
    outlier = max(max(item.seconds) / item.median_s - 1.0 for item in latencies)
    if scatter > SCATTER:
        found.append(f"noise: times scatter by {scatter:.0%} of their mean")
    if outlier > OUTLIER:
        found.append(f"noise: the slowest run took {outlier:.0%} longer than the median")
    drifts = [_drift(item) for item in latencies]
    if min(drifts) > DRIFT:
        found.append(
            f"drift: every model became {min(drifts):.0%} slower while it was measured: the clock fell, or "
            "other load began"
        )
    slow = [
        core.now_hz / core.max_hz
        for core in probe.cores
        if core.now_hz and core.max_hz and core.now_hz < SLOW_CLOCK * core.max_hz
    ]
    if slow:
        found.append(f"throttling: a core ran at {min(slow):.0%} of its highest clock right afterwards")
    hottest = max(probe.thermal, key=lambda zone: zone.celsius, default=None)
    if hottest is not None and hottest.celsius >= HOT_CELSIUS:
        found.append(f"heat: {hottest.celsius:.0f} °C ({hottest.name}), where chips lower their clock")
    wanting, cores = probe.load[0], len(probe.cores)
    if wanting > cores + 1:  # the model's own threads are as many as the cores at most
        found.append(f"other load: {wanting:.1f} processes wanted to run on {cores} cores in the last minute")
    return tuple(found)


def _drift(latency: Latency) -> float:
    """How much slower the last third of the runs was than the first; 0 for fewer than three."""
    third = len(latency.seconds) // 3
    if not third:
        return 0.0
    return float(np.median(latency.seconds[-third:]) / np.median(latency.seconds[:third]) - 1.0)
