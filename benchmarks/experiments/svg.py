"""Line charts with bands as inline SVG: nothing to install, and the same data give the same text."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#777777")
"""Okabe and Ito's colours, which the colour-blind can tell apart."""
WIDTH: Final = 420
HEIGHT: Final = 280
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 26, 40


@dataclass(frozen=True, slots=True)
class Line:
    """A curve: x ascending, y, and the bounds of its band."""

    label: str
    colour: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    dashed: bool = False


def chart(title: str, x_label: str, y_label: str, lines: Sequence[Line], *, best: float | None = None) -> str:
    """An <svg> element; `best`: a level that nothing can exceed, drawn as a dotted line."""
    shown = [line for line in lines if len(line.x)]
    right = max((line.x[-1] for line in shown), default=1.0)
    top = max([max(line.high) for line in shown] + [best or 0.0], default=1.0) or 1.0
    bottom = _floor([value for line in shown for value in line.low[len(line.low) // 16 :]], top)
    frame = _Frame(0.0, right or 1.0, bottom, top + 0.04 * (top - bottom))
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title)}">',
        f'<text x="{LEFT}" y="16" class="title">{html.escape(title)}</text>',
        *_axes(frame, x_label, y_label),
    ]
    if best is not None:
        y = frame.y(best)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="best"/>')
    parts += [_band(frame, line) for line in shown] + [_curve(frame, line) for line in shown]
    return "\n".join([*parts, "</svg>"])


def legend(lines: Sequence[Line]) -> str:
    """The labels of a study's lines, once for all of its charts."""
    items = []
    for line in lines:
        dash = ' stroke-dasharray="5 3"' if line.dashed else ""
        items.append(
            f'<span><svg width="26" height="10"><line x1="1" x2="25" y1="5" y2="5" stroke="{line.colour}" '
            f'stroke-width="2.5"{dash}/></svg> {html.escape(line.label)}</span>'
        )
    return f'<p class="legend">{"".join(items)}</p>'


@dataclass(frozen=True, slots=True)
class _Frame:
    """The values at the edges of the plot."""

    left: float
    right: float
    bottom: float
    top: float

    def x(self, value: float) -> float:
        return LEFT + (value - self.left) / (self.right - self.left) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = (max(value, self.bottom) - self.bottom) / (self.top - self.bottom)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers within [low, high], at most `most` of them."""
    if high <= low:
        return [low]
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    step *= next(factor for factor in (1.0, 2.0, 5.0, 10.0) if (high - low) / (step * factor) <= most)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _floor(values: Sequence[float], top: float) -> float:
    """Where the y axis begins: below what is worth seeing, at 0 when that is not far away."""
    lowest = min(values, default=0.0)
    return 0.0 if lowest < 0.4 * top else lowest - 0.08 * (top - lowest)


def _axes(frame: _Frame, x_label: str, y_label: str) -> list[str]:
    floor, middle = HEIGHT - BOTTOM, (HEIGHT - BOTTOM + TOP) / 2
    parts = []
    for value in ticks(frame.bottom, frame.top):
        y = frame.y(value)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    for value in ticks(frame.left, frame.right):
        x = frame.x(value)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{floor}" y2="{floor + 4}" class="axis"/>')
        parts.append(f'<text x="{x:.1f}" y="{floor + 17}" text-anchor="middle">{value:.4g}</text>')
    parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}" class="axis"/>')
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{x_label}</text>'
    )
    parts.append(
        f'<text transform="translate(13 {middle}) rotate(-90)" text-anchor="middle">{y_label}</text>'
    )
    return parts


def _curve(frame: _Frame, line: Line) -> str:
    points = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in zip(line.x, line.y, strict=True))
    dash = ' stroke-dasharray="5 3"' if line.dashed else ""
    return (
        f'<polyline points="{points}" fill="none" stroke="{line.colour}" stroke-width="1.8"{dash}>'
        f"<title>{html.escape(line.label)}</title></polyline>"
    )


def _band(frame: _Frame, line: Line) -> str:
    up = [f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in zip(line.x, line.high, strict=True)]
    down = [f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in zip(line.x, line.low, strict=True)]
    return f'<polygon points="{" ".join(up + down[::-1])}" fill="{line.colour}" opacity="0.14"/>'
