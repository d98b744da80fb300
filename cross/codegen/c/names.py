"""C names of loops and buffers: short, readable, never one that is in use where it stands."""

from __future__ import annotations

import re

from cross.codegen.c.dialect import KEYWORDS
from cross.expression.language.operations import OPERATIONS

_TEXTS = " ".join(text for row in OPERATIONS.values() for text in row.c.values())
RESERVED = KEYWORDS | frozenset(re.findall(r"([a-z]\w*)(?:{f})?\(", _TEXTS)) | {"min", "max", "abs"}


def identifier(name: str) -> str:
    """The name with what C does not allow replaced."""
    plain = re.sub(r"[^0-9A-Za-z_]", "_", name)
    if plain[:1].isdigit():
        plain = f"_{plain}"
    return f"{plain}_" if plain in RESERVED else plain


def loop_name(var: str) -> str:
    """`x_2_init` for the variable `conv.acc.x.2.init`: the axis and what tells its loops apart."""
    parts = var.split(".")
    first = len(parts) - 1
    while first > 0 and (parts[first].isdigit() or parts[first] in ("init", "load", "store")):
        first -= 1
    return identifier("_".join(parts[first:]))


class Names:
    """Names in use; `fresh` takes one, `free` gives it back at the end of its scope."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def fresh(self, wanted: str) -> str:
        """The wanted name, with a number where it is taken."""
        name, number = wanted, 2
        while name in self._taken or name in RESERVED:
            name, number = f"{wanted}_{number}", number + 1
        self._taken.add(name)
        return name

    def free(self, name: str) -> None:
        """Ends the scope of a name."""
        self._taken.discard(name)
