"""Every ONNX operator that is supported on any data, by name."""

from __future__ import annotations

from toolkit.model import (
    import_arithmetic,
    import_counted,
    import_indexed,
    import_logic,
    import_norm,
    import_positions,
    import_quantized,
    import_recurrent,
    import_resize,
    import_sampling,
    import_shapes,
    import_signal,
    import_transposed,
    import_windows,
)
from toolkit.model.source import Importer

IMPORTERS: dict[str, Importer] = {
    **import_windows.IMPORTERS,
    **import_transposed.IMPORTERS,
    **import_arithmetic.IMPORTERS,
    **import_indexed.IMPORTERS,
    **import_logic.IMPORTERS,
    **import_norm.IMPORTERS,
    **import_positions.IMPORTERS,
    **import_quantized.IMPORTERS,
    **import_signal.IMPORTERS,
    **import_shapes.IMPORTERS,
    **import_resize.IMPORTERS,
    **import_recurrent.IMPORTERS,
    **import_sampling.IMPORTERS,
    **import_counted.IMPORTERS,
}
