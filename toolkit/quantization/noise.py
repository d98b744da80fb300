"""What a quantized model changes: power of the values, and of their differences from those of floats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from toolkit.model.change import Change
from toolkit.quantization.samples import Array, Feeds
from toolkit.quantization.sessions import ModelSession


def changes(
    reference: Iterable[Mapping[str, Array]], session: ModelSession, samples: Iterable[Feeds],
    names: Mapping[str, str],
) -> dict[str, Change]:  # fmt: skip
    """The change of each value; `names`: of a value of the reference, that of the session's model."""
    found = dict.fromkeys(names, Change())
    for expected, feeds in zip(reference, samples, strict=True):
        values = session.run(feeds)
        for name, own in names.items():
            found[name] = found[name].with_sample(expected[name], values[own])
    return found


def worst_db(found: Iterable[Change]) -> float | None:
    """The lowest ratio of signal to noise; None where nothing changed."""
    return min((item.sqnr_db for item in found if item.sqnr_db is not None), default=None)


def quantized_names(model: Any, values: Sequence[str]) -> dict[str, str]:
    """What a quantized model (onnx.ModelProto) calls values of that of floats, as their readers see them."""
    nodes = model.graph.node
    known = {item for node in nodes for item in node.output}
    seen = {value: f"{value}_DequantizeLinear_Output" for value in values}
    return {value: name if name in known else value for value, name in seen.items() if {name, value} & known}
