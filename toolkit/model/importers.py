"""Every ONNX operator that is supported on any data, by name."""

from __future__ import annotations

from toolkit.model import import_arithmetic, import_shapes, import_windows
from toolkit.model.source import Importer

IMPORTERS: dict[str, Importer] = {
    **import_windows.IMPORTERS,
    **import_arithmetic.IMPORTERS,
    **import_shapes.IMPORTERS,
}


def supported_text() -> str:
    """The supported operators in alphabetical order, for messages."""
    return ", ".join(sorted(IMPORTERS))
