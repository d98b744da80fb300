"""Charts as inline SVG, described in Vega-Lite's grammar and drawn by vl-convert (the extra [benchmarks]).

A page that holds them needs no script and no network; the same data give the same text.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

from toolkit.errors import MissingExtra

RENDERER: Final = "vl_convert"
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#777777")
"""Okabe and Ito's colours, which the colour-blind can tell apart."""
WIDTH, HEIGHT, COLUMNS = 330, 210, 3

Chart = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Series:
    """One curve, or one bar in each group: x or names of groups, y (NaN: none), and the bounds around y."""

    label: str
    x: Sequence[float] | Sequence[str]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    dashed: bool = False

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row of data for each value that there is."""
        bounds = zip(self.low or self.y, self.high or self.y, strict=True)
        return [
            {"of": self.label, "x": x, "y": y, "low": low, "high": high, "dashed": self.dashed}
            for x, y, (low, high) in zip(self.x, self.y, bounds, strict=True)
            if math.isfinite(y)
        ]


def require() -> None:
    """Raise MissingExtra where charts cannot be drawn."""
    if find_spec(RENDERER) is None:
        raise MissingExtra(
            "charts need vl-convert, which is not installed: pip install 'tune-for-board[benchmarks]'"
        )


def svg(charts: Sequence[Chart]) -> str:
    """An <svg> element with all charts in rows, and one legend for them. Raises MissingExtra."""
    require()
    grid = {"columns": COLUMNS, "concat": list(charts), "resolve": {"scale": {"x": "independent"}}}
    drawn: str = importlib.import_module(RENDERER).vegalite_to_svg(grid)
    return drawn


def curves(title: str, x: str, y: str, lines: Sequence[Series], *, best: float | None = None) -> Chart:
    """Lines with bands; `best`: a level that nothing can exceed, as a dotted line."""
    scale = {"domainMin": _floor(lines), "nice": False}
    shapes: list[Chart] = [
        {
            "mark": {"type": "area", "opacity": 0.14, "clip": True},
            "encoding": {"y": _quantity("low", y, scale=scale), "y2": {"field": "high"}},
        },
        {
            "mark": {"type": "line", "clip": True},
            "encoding": {
                "y": _quantity("y", y),
                "strokeDash": {
                    "field": "dashed",
                    "legend": None,
                    "scale": {"domain": [False, True], "range": [[1, 0], [5, 3]]},
                },
            },
        },
    ]
    return _layered(title, lines, {"x": _quantity("x", x)}, shapes, best)


def bars(title: str, y: str, series: Sequence[Series], *, level: float) -> Chart:
    """Groups of bars with whiskers; `level`: the height that is drawn as a dotted line across."""
    groups = {"field": "x", "type": "nominal", "title": None, "sort": None, "axis": {"labelAngle": 0}}
    place = {"field": "of", "sort": None}
    shapes: list[Chart] = [
        {"mark": "bar", "encoding": {"y": _quantity("y", y)}},
        {
            "mark": {"type": "rule", "color": "#555"},
            "encoding": {"y": _quantity("low", y), "y2": {"field": "high"}, "color": {"value": "#555"}},
        },
    ]
    return _layered(title, series, {"x": groups, "xOffset": place}, shapes, level) | {"width": 2 * WIDTH}


def _layered(
    title: str, series: Sequence[Series], place: Chart, shapes: Sequence[Chart], level: float | None
) -> Chart:
    labels = [item.label for item in series]
    colour = {
        "field": "of",
        "type": "nominal",
        "title": None,
        "scale": {"domain": labels, "range": COLOURS[: len(labels)]},
        "legend": {"orient": "top", "labelLimit": 0, "symbolOpacity": 1},
    }
    drawn = [{**shape, "encoding": {**place, "color": colour, **shape["encoding"]}} for shape in shapes]
    if level is not None:
        dotted = {"type": "rule", "color": "#555", "strokeDash": [2, 3]}
        drawn.append({"mark": dotted, "encoding": {"y": {"datum": level}}})
    data = {"values": [row for item in series for row in item.rows]}
    return {"title": title, "width": WIDTH, "height": HEIGHT, "data": data, "layer": drawn}


def _quantity(field: str, title: str, **more: Any) -> Chart:
    return {"field": field, "type": "quantitative", "title": title, **more}


def _floor(lines: Sequence[Series]) -> float:
    """Where the y axis begins: below what is worth seeing, at 0 when that is not far away."""
    top = max((value for line in lines for value in line.high or line.y), default=1.0)
    low = [line.low or line.y for line in lines]
    lowest = min((value for values in low for value in values[len(values) // 16 :]), default=0.0)
    return 0.0 if lowest < 0.4 * top else lowest - 0.08 * (top - lowest)
