"""Charts as Vega-Lite specifications of one view, which page.js draws as wide as there is room.

Their data are named `rows`, so that a page that follows a running job replaces nothing else. Texts take the
page's own colour; what lines and marks have is told apart on light and on dark ground.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8F6BD8", "#808080")
"""Okabe and Ito's colours, which the colour-blind can tell apart, with a violet for their black."""
HEIGHT: Final = 240
SHOWN: Final = "shown"  # the parameter that a Choice of the page sets

Spec = dict[str, Any]
Rows = Sequence[dict[str, Any]]


class Series(msgspec.Struct, frozen=True):
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


def curves(title: str, x: str, y: str, lines: Sequence[Series], *, best: float | None = None) -> Spec:
    """Lines with bands; `best`: a level that nothing can exceed, as a dotted line."""
    scale = {"domainMin": _floor(lines), "nice": False}
    shapes: list[Spec] = [
        {
            "mark": {"type": "area", "opacity": 0.14, "clip": True},
            "encoding": {"y": quantity("low", y, scale=scale), "y2": {"field": "high"}},
        },
        {
            "mark": {"type": "line", "clip": True},
            "encoding": {
                "y": quantity("y", y),
                "strokeDash": {
                    "field": "dashed",
                    "legend": None,
                    "scale": {"domain": [False, True], "range": [[1, 0], [5, 3]]},
                },
            },
        },
    ]
    return _layered(title, lines, {"x": quantity("x", x)}, shapes, best)


def bars(title: str, y: str, series: Sequence[Series], *, level: float) -> Spec:
    """Groups of bars with whiskers; `level`: the height that is drawn as a dotted line across."""
    groups = {"field": "x", "type": "nominal", "title": None, "sort": None, "axis": {"labelAngle": 0}}
    place = {"field": "of", "sort": None}
    shapes: list[Spec] = [
        {"mark": "bar", "encoding": {"y": quantity("y", y)}},
        {
            "mark": {"type": "rule", "color": "gray"},
            "encoding": {"y": quantity("low", y), "y2": {"field": "high"}, "color": {"value": "gray"}},
        },
    ]
    return _layered(title, series, {"x": groups, "xOffset": place}, shapes, level)


def steps(title: str, rows: Rows, x: str, y: str, shown: str) -> Spec:
    """A falling staircase for each `of`, of which the parameter `shown` chooses one; x and y are fields."""
    fields = {name: quantity(name, name) for name in (x, y)}
    fields[y]["scale"] = {"zero": False, "nice": True}
    return {
        **_chosen(title, rows, shown),
        "mark": {
            "type": "line",
            "interpolate": "step-after",
            "point": {"size": 25, "color": COLOURS[0]},
            "color": COLOURS[0],
            "tooltip": True,
        },
        "encoding": {"x": fields[x], "y": fields[y]},
    }


def scatter(title: str, rows: Rows, x: str, y: str, shown: str) -> Spec:
    """A point for each row of the `of` that the parameter `shown` chooses; x and y are fields."""
    return {
        **_chosen(title, rows, shown),
        "mark": {"type": "point", "filled": True, "opacity": 0.6, "size": 30, "tooltip": True},
        "encoding": {"x": quantity(x, x), "y": quantity(y, y), "color": {"value": COLOURS[0]}},
    }


def roofline(title: str, roofs: Rows, points: Rows, x: str, y: str) -> Spec:
    """Lines through `roofs` (x, y, of) and points (x, y, of, label, operator) on logarithmic axes."""
    place = {
        "x": quantity(x, x, scale={"type": "log", "nice": False}),
        "y": quantity(y, y, scale={"type": "log"}),
    }
    names = list(dict.fromkeys(str(row["of"]) for row in [*roofs, *points]))
    colour = kinds(
        scale={"domain": names, "range": list(COLOURS[: len(names)])},
        legend={"orient": "top", "labelLimit": 0, "columns": 1, "symbolOpacity": 1},
    )
    tooltip = [{"field": name} for name in ("operator", "of", x, y)]
    return {
        **chart(title, [*roofs, *points]),
        "height": 320,
        "layer": [
            {
                "transform": [{"filter": "!datum.operator"}],
                "mark": {"type": "line"},
                "encoding": {**place, "color": colour},
            },
            {
                "transform": [{"filter": "!!datum.operator"}],
                "mark": {"type": "point", "filled": True, "size": 45, "opacity": 0.9},
                "encoding": {**place, "color": colour, "tooltip": tooltip},
            },
            {
                "transform": [{"filter": "!!datum.label"}],
                "mark": {"type": "text", "dx": 6, "dy": -6, "align": "left", "fontSize": 10},
                "encoding": {**place, "text": {"field": "label"}},
            },
        ],
    }


def staircases(title: str, rows: Rows, x: str, y: str) -> Spec:
    """A staircase of its own colour for each `of`; x and y are fields."""
    legend = {"orient": "bottom", "labelLimit": 280, "columns": 1}
    colour = kinds(sort=None, scale={"range": list(COLOURS)}, legend=legend)
    return {
        **chart(title, rows),
        "mark": {"type": "line", "interpolate": "step-after", "tooltip": True},
        "encoding": {"x": quantity(x, x), "y": quantity(y, y, scale={"zero": False}), "color": colour},
    }


def shares(title: str, rows: Rows, unit: str) -> Spec:
    """A horizontal bar for each `of` in order, `unit` long."""
    return {
        **chart(title, rows),
        "height": 26 * max(2, len(rows)),
        "mark": {"type": "bar", "tooltip": True},
        "encoding": {
            "y": kinds(sort=None, axis={"labelLimit": 130}),
            "x": quantity(unit, unit),
            "color": {"value": COLOURS[0]},
        },
    }


def ticks(title: str, rows: Rows, unit: str) -> Spec:
    """Every value of each `of` as a tick, one line below the other."""
    return {
        **chart(title, rows),
        "height": 40 * len({row["of"] for row in rows}),
        "mark": {"type": "tick", "thickness": 2, "opacity": 0.5, "tooltip": True},
        "encoding": {
            "y": kinds(sort=None),
            "x": quantity(unit, unit, scale={"zero": False}),
            "color": {"field": "of", "legend": None, "scale": {"range": list(COLOURS)}},
        },
    }


def rectangles(title: str, rows: Rows, x: str, y: str) -> Spec:
    """A rectangle for each row from (x, y) to (x2, y2), told from its neighbours by its colour `of`."""
    return {
        **chart(title, rows),
        "height": 320,
        "mark": {"type": "rect", "stroke": "currentColor", "strokeWidth": 0.4, "tooltip": True},
        "encoding": {
            "x": {**quantity("x", x), "axis": {"tickMinStep": 1}},
            "x2": {"field": "x2"},
            "y": quantity("y", y),
            "y2": {"field": "y2"},
            "color": {
                "field": "of",
                "type": "nominal",
                "legend": None,
                "scale": {"range": list(COLOURS[:7])},
            },
            "tooltip": [{"field": "value"}, {"field": "size"}, {"field": "steps"}],
        },
    }


def line(title: str, rows: Rows, x: str, y: str) -> Spec:
    """One curve; x and y are fields."""
    return {
        **chart(title, rows),
        "height": 160,
        "mark": {
            "type": "line",
            "color": COLOURS[1],
            "tooltip": True,
            "point": {"size": 12, "color": COLOURS[1]},
        },
        "encoding": {"x": quantity(x, x), "y": {**quantity(y, y), "scale": {"zero": False}}},
    }


def _chosen(title: str, rows: Rows, shown: str) -> Spec:
    """A chart of the rows whose `of` the parameter SHOWN names, at first `shown`."""
    choice = {"params": [{"name": SHOWN, "value": shown}], "transform": [{"filter": f"datum.of === {SHOWN}"}]}
    return {**chart(title, rows), **choice}


def chart(title: str, rows: Rows) -> Spec:
    """What all have in common; the title is for those who cannot see the chart, the page shows it."""
    return {
        "description": title,
        "width": "container",
        "height": HEIGHT,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": {"name": "rows", "values": list(rows)},
    }


def quantity(field: str, title: str, **more: Any) -> Spec:
    """An axis of numbers."""
    return {"field": field, "type": "quantitative", "title": title, **more}


def kinds(**more: Any) -> Spec:
    """An axis or a colour of the names in `of`."""
    return {"field": "of", "type": "nominal", "title": None, **more}


def _layered(
    title: str, series: Sequence[Series], place: Spec, shapes: Sequence[Spec], level: float | None
) -> Spec:
    labels = [item.label for item in series]
    colour = kinds(
        scale={"domain": labels, "range": list(COLOURS[: len(labels)])},
        legend={"orient": "top", "labelLimit": 0, "symbolOpacity": 1, "columns": 2},
    )
    drawn = [{**shape, "encoding": {**place, "color": colour, **shape["encoding"]}} for shape in shapes]
    if level is not None:
        dotted = {"type": "rule", "color": "gray", "strokeDash": [2, 3], "aria": False}
        drawn.append({"mark": dotted, "encoding": {"y": {"datum": level}}})
    return {**chart(title, [row for item in series for row in item.rows]), "layer": drawn}


def _floor(lines: Sequence[Series]) -> float:
    """Where the y axis begins: below what is worth seeing, at 0 when that is not far away."""
    top = max((value for line in lines for value in line.high or line.y), default=1.0)
    low = [line.low or line.y for line in lines]
    lowest = min((value for values in low for value in values[len(values) // 16 :]), default=0.0)
    return 0.0 if lowest < 0.4 * top else lowest - 0.08 * (top - lowest)
