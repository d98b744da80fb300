"""docs/json.md from docs/schemas/answers.json: a table of fields for every answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SCHEMAS = Path(__file__).parents[1] / "docs/schemas/answers.json"
HEAD = """# Answers in JSON

With `--json` a command prints one object on stdout, also where it fails (`error`). This page is made by
`make golden` from the [JSON Schema](schemas/answers.json) (draft 2020-12; the answer NAME is `#/$defs/NAME`),
which tests hold real answers against: no field is missing from it, and none beyond it is printed. Sizes are
in bytes and times in seconds unless a field says otherwise. A figure that is not finite, such as the end of
an interval that nothing bounds, is null. `schema_version` rises with changes that break readers; fields may
be added without.

"""


def document() -> str:
    """The page: answers first, then the types that they share."""
    definitions = json.loads(SCHEMAS.read_text())["$defs"]
    answers = {name: found for name, found in definitions.items() if "schema" in found["properties"]}
    shared = {name: found for name, found in definitions.items() if name not in answers}
    sections = [_section(f"## {name}: {found['title']}", found) for name, found in sorted(answers.items())]
    sections.append("## Types that answers share\n")
    sections += [
        _section(f"### {name}\n\n{found['title'].capitalize()}.", found) for name, found in shared.items()
    ]
    return HEAD + "\n".join(sections)


def _section(title: str, definition: dict[str, Any]) -> str:
    rows = [f"| `{name}` | {kind} | {about} |" for name, kind, about in _rows(definition, "")]
    return "\n".join([title, "", "| field | type | meaning |", "|---|---|---|", *rows, ""])


def _rows(definition: dict[str, Any], prefix: str) -> Iterator[tuple[str, str, str]]:
    """Every field with its type and meaning; those of objects in it follow it."""
    for name, found in definition.get("properties", {}).items():
        optional = "" if name in definition.get("required", ()) else ", may be missing"
        yield prefix + name, f"{_kind(found)}{optional}", found["description"]
        inner, path = found, prefix + name
        while inner.get("type") == "array" or "anyOf" in inner:
            path += "[]" if "items" in inner else ""
            inner = inner["items"] if "items" in inner else inner["anyOf"][0]
        yield from _rows(inner, f"{path}.")


def _kind(found: dict[str, Any]) -> str:
    if "$ref" in found:
        name = found["$ref"].rpartition("/")[2]
        return f"[{name}](#{name})"
    if "anyOf" in found:
        return " or ".join(map(_kind, found["anyOf"]))
    if found.get("type") == "array":
        return f"list of {_kind(found['items'])}"
    if "const" in found:
        return f"`{found['const']}`"
    if "enum" in found:
        return ", ".join(f"`{value}`" for value in found["enum"])
    kinds = found.get("type", "any")
    return " or ".join(kinds) if isinstance(kinds, list) else kinds
