"""Pages: one HTML file with everything in it, made of blocks such as tables and charts (Vega-Lite).

The file loads nothing and says so in its content security policy: it runs the two scripts that it holds, by
their hashes; no expression of a chart becomes code (Vega has an interpreter). Every text is escaped here.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import msgspec
import vl_convert

from boards.files import read_sealed, write_sealed
from cross.link import DEFAULT_CACHE_DIR
from toolkit.escaping import printable

HERE: Final = Path(__file__).parent
UNKNOWN: Final = "-"
SCRIPTS: Final = "vegaEmbed"  # what the charts' script needs of the bundle


class Heading(msgspec.Struct, frozen=True):
    """The title of a section."""

    text: str
    level: int = 2


class Text(msgspec.Struct, frozen=True):
    """A paragraph; `kind` "note", "finding" or "question" sets it off."""

    text: str
    kind: str = ""


class Code(msgspec.Struct, frozen=True):
    """Lines that are shown as they are."""

    text: str


class Facts(msgspec.Struct, frozen=True):
    """Names and values."""

    rows: Sequence[tuple[str, str]]


class Cell(msgspec.Struct, frozen=True):
    """A table's entry whose text is not what it is sorted by."""

    text: str
    value: float


class Link(msgspec.Struct, frozen=True):
    """A table's entry that leads to another page of the same server."""

    text: str
    address: str


Row = Sequence[str | float | Cell | Link | None]


class Table(msgspec.Struct, frozen=True):
    """Rows that a click on a column sorts; None is unknown."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Row]


class Chart(msgspec.Struct, frozen=True):
    """A Vega-Lite specification of one view, as wide as there is room. A page has one chart of a `name`."""

    name: str
    title: str
    spec: dict[str, Any]


class Choice(msgspec.Struct, frozen=True):
    """A choice of what charts show: their parameter `shown` takes the text of the option."""

    label: str
    options: Sequence[str]
    charts: Sequence[str]


Block = Heading | Text | Code | Facts | Table | Chart | Choice


def page(title: str, blocks: Sequence[Block], *, cache_dir: Path = DEFAULT_CACHE_DIR, live: str = "") -> str:
    """The HTML of a page. `live`: address of server-sent events that each carry the `update` of a page."""
    library, own = vega(cache_dir), (HERE / "page.js").read_text()
    policy = [
        "default-src 'none'",
        f"script-src {_source(library)} {_source(own)}",
        "style-src 'unsafe-inline'",
        *(["connect-src 'self'"] if live else []),
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "\n".join([
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape("; ".join(policy))}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{_text(title)}</title>",
        f"<style>{(HERE / 'page.css').read_text()}</style></head>",
        f'<body data-live="{html.escape(live)}"><main>',
        f"<h1>{_text(title)}</h1>",
        *(block_html(block) for block in blocks),
        "</main>",
        f'<script type="application/json" id="charts">{_json(chart_specs(blocks))}</script>',
        f"<script>{library}</script>",
        f"<script>{own}</script>",
        "</body></html>\n",
    ])  # fmt: skip


def update(title: str, blocks: Sequence[Block]) -> str:
    """What a page shows, as one line of JSON: `blocks`, the HTML of each, and the `charts` by name."""
    shown = [f"<h1>{_text(title)}</h1>", *(block_html(block) for block in blocks)]
    return json.dumps({"blocks": shown, "charts": chart_specs(blocks)}, allow_nan=False)


def chart_specs(blocks: Sequence[Block]) -> dict[str, Any]:
    """The charts among the blocks, by name."""
    return {block.name: block.spec for block in blocks if isinstance(block, Chart)}


def block_html(block: Block) -> str:
    """One element with everything of the block escaped."""
    match block:
        case Heading(text, level):
            return f"<h{level}>{_text(text)}</h{level}>"
        case Text(text, kind):
            return f'<p class="{_text(kind)}">{_text(text)}</p>'
        case Code(text):
            return f'<pre tabindex="0">{_text(text)}</pre>'
        case Facts(rows):
            found = "".join(
                f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in rows
            )
            return f"<dl>{found}</dl>"
        case Table():
            return _table(block)
        case Chart(name, title, _):
            return (
                f'<figure><figcaption>{_text(title)}</figcaption><div class="chart" id="{_text(name)}"></div>'
                "</figure>"
            )
        case Choice(label, options, charts):
            found = "".join(f"<option>{_text(option)}</option>" for option in options)
            return (
                f'<p class="choice"><label>{_text(label)} <select data-charts="{_text(" ".join(charts))}">'
                f"{found}</select></label></p>"
            )


def vega(cache_dir: Path) -> str:
    """Vega, Vega-Lite and vega-embed as one script, kept below `cache_dir`: to bundle it takes seconds."""
    path = cache_dir / "page" / f"vega-{version('vl-convert-python')}.js"
    kept = read_sealed(path)
    if kept is not None:
        return kept.decode()
    script = vl_convert.javascript_bundle(f"window.{SCRIPTS} = {SCRIPTS};").replace("</script", "<\\/script")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_sealed(path, script.encode())
    return script


def _table(table: Table) -> str:
    head = "".join(
        f'<th scope="col"><button type="button">{_text(name)}</button></th>' for name in table.columns
    )
    body = "".join(f"<tr>{''.join(map(_entry, row))}</tr>" for row in table.rows)
    title = _text(table.title)
    return (
        f'<div class="wide" role="region" aria-label="{title}" tabindex="0"><table><caption>{title}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _entry(value: str | float | Cell | Link | None) -> str:
    match value:
        case Link(text, address):
            return f'<td><a href="{html.escape(address)}">{_text(text)}</a></td>'
        case None:
            return f'<td class="number" data-value="">{UNKNOWN}</td>'
        case Cell(text, number):
            return f'<td class="number" data-value="{number:.9g}">{_text(text)}</td>'
        case int() | float():
            return f'<td class="number" data-value="{value:.9g}">{value:.4g}</td>'
        case str():
            return f"<td>{_text(value)}</td>"


def _text(value: str) -> str:
    return html.escape(printable(value))


def _json(value: object) -> str:
    """JSON that ends no script element."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")


def _source(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
