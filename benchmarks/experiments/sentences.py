"""What was found, in plain sentences. Ties are called ties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness.statistics import NEAR

Found = Mapping[str, Any]  # one comparison of results.py


def finding(comparisons: Sequence[Found], landscapes: Sequence[str], trials: int) -> str:
    """One sentence for each compared pair: the best found at the end, and the trials to come near it."""
    if not comparisons:
        return "Nothing was compared: see the notes."
    at_end = [item for item in comparisons if item["of"] == "speed" and item["trial"] == trials]
    needed = {(item["method"], item["other"]): item for item in comparisons if item["of"] == "trials"}
    said = []
    for item in at_end:
        text = verdict(item)
        way = needed.get((item["method"], item["other"]))
        if way is not None:
            text += f", and {_way(way)}"
        said.append(text)
    return f"On {listed(landscapes)}, after {trials} trials: " + ". ".join(said) + "."


def verdict(item: Found) -> str:
    """A comparison as a sentence: "GBT found programs 1.12 times as fast as random did (1.081 to 1.17)"."""
    method, other, ratio = item["method"], item["other"], item["ratio"]["estimate"]
    if item["of"] == "trials":
        return f"{method} against {other}: {_way(item)}"
    if item["verdict"] == "too few":
        return f"{method} against {other}: too few seeds to tell ({_figure(ratio)} times)"
    if item["verdict"] == "tie":
        return f"{method} and {other} tie ({_figure(ratio)} times, {_range(item)})"
    return f"{method} found programs {_figure(ratio)} times as fast as {other} did ({_range(item)})"


def _way(item: Found) -> str:
    """How many trials it took to come near the fastest: the inverse of the ratio, where less is better."""
    ratio = item["ratio"]
    many = f"{_figure(1.0 / ratio['estimate'])} times as many trials until {NEAR:.0%} of the fastest"
    if item["verdict"] == "too few":
        return f"{many}, too few seeds to tell"
    bounds = f"{_figure(1.0 / ratio['high'])} to {_figure(1.0 / ratio['low'])}"
    return f"{many}, a tie ({bounds})" if item["verdict"] == "tie" else f"it needed {many} ({bounds})"


def listed(names: Sequence[str]) -> str:
    """C6, C9 and M1024."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "nothing"


def _range(item: Found) -> str:
    return f"{_figure(item['ratio']['low'])} to {_figure(item['ratio']['high'])}"


def _figure(ratio: float) -> str:
    """Three digits; near 1 three after the point, so that 0.998 to 1.002 does not read as 1 to 1."""
    return f"{ratio:.3f}" if 0.9 < ratio < 1.1 else f"{ratio:.3g}"
