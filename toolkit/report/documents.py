"""Everything a command answers, as JSON: one object with a schema name and version."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

import msgspec

SCHEMA_VERSION: Final = 1


def document(schema: str, content: object) -> str:
    """`content` (a mapping, dataclass or Struct) as one indented JSON object.

    The first keys are `schema` ("tune-for-board/" and the name of the command) and `schema_version`. What a
    terminal would obey is written as its JSON escape, a number that is not finite as null.
    """
    plain: Any = msgspec.to_builtins(content, enc_hook=_encode, str_keys=True)
    head = {"schema": f"tune-for-board/{schema}", "schema_version": SCHEMA_VERSION}
    text = json.dumps(_finite(head | plain), indent=2, ensure_ascii=False, allow_nan=False)
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def _finite(plain: Any) -> Any:
    """The same without the numbers that JSON does not have."""
    if isinstance(plain, dict):
        return {key: _finite(value) for key, value in plain.items()}
    if isinstance(plain, list):
        return [_finite(value) for value in plain]
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain


def _encode(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
