"""Groups of bars with whiskers as inline SVG, in the style of svg.py."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.experiments.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, Line, legend, ticks

WIDTH: Final = 860
GAP: Final = 0.25  # of a group, between it and the next


@dataclass(frozen=True, slots=True)
class Bars:
    """One bar in each group: heights, NaN where there is none, and the ends of the whiskers."""

    label: str
    colour: str
    heights: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


def bars(title: str, y_label: str, groups: Sequence[str], series: Sequence[Bars], *, level: float) -> str:
    """An <svg> element; `level`: the height that is drawn as a dotted line across."""
    highest = [value for item in series for value in (*item.heights, *item.high) if math.isfinite(value)]
    top = 1.05 * max([*highest, level])
    floor, plot = HEIGHT - BOTTOM, HEIGHT - BOTTOM - TOP
    wide = (WIDTH - LEFT - RIGHT) / max(1, len(groups))
    each = wide * (1.0 - GAP) / max(1, len(series))
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title)}">',
        f'<text x="{LEFT}" y="16" class="title">{html.escape(title)}</text>',
        f'<text transform="translate(13 {floor - plot / 2}) rotate(-90)" text-anchor="middle">'
        f"{y_label}</text>",
    ]
    for value in ticks(0.0, top):
        y = floor - plot * value / top
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    for place, item in enumerate(series):
        for group, height in enumerate(item.heights):
            if not math.isfinite(height):
                continue
            x = LEFT + wide * (group + GAP / 2) + each * place
            tall = plot * height / top
            parts.append(
                f'<rect x="{x:.1f}" y="{floor - tall:.1f}" width="{0.92 * each:.1f}" height="{tall:.1f}" '
                f'fill="{item.colour}"><title>{html.escape(f"{item.label}: {height:.3g}")}</title></rect>'
            )
            if item.low and item.high and math.isfinite(item.low[group]):
                ends = [floor - plot * max(0.0, bound[group]) / top for bound in (item.low, item.high)]
                middle = x + 0.46 * each
                parts.append(
                    f'<line x1="{middle:.1f}" x2="{middle:.1f}" y1="{ends[0]:.1f}" y2="{ends[1]:.1f}" '
                    'class="axis"/>'
                )
    for group, name in enumerate(groups):
        x = LEFT + wide * (group + 0.5)
        parts.append(f'<text x="{x:.1f}" y="{floor + 17}" text-anchor="middle">{html.escape(name)}</text>')
    y = floor - plot * level / top
    parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="best"/>')
    return "\n".join([*parts, "</svg>"])


def bars_legend(series: Sequence[Bars]) -> str:
    """The labels, once for several charts."""
    return legend([Line(item.label, item.colour, (), (), (), ()) for item in series])
