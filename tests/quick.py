"""Parameters of a test of which few are tried by the quick tests, and the others by the whole suite alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def others_slow(values: Iterable[Any], *quick: Any) -> list[Any]:
    """`values` as the parameters of a test: all but those in `quick` are marked slow."""
    kept = list(quick)
    return [value if value in kept else _slow(value) for value in values]


def _slow(value: Any) -> Any:
    several = value if isinstance(value, tuple) else (value,)
    return pytest.param(*several, marks=pytest.mark.slow)
