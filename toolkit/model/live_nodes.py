"""Which ONNX nodes a model's outputs need; the others are never looked at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def live(nodes: Sequence[Any], outputs: Iterable[str]) -> list[Any]:
    """The nodes that some of the outputs depend on, in order."""
    needed = set(outputs)
    kept = []
    for node in reversed(nodes):
        if any(item in needed for item in node.output):
            kept.append(node)
            needed.update(reads(node))
    return kept[::-1]


def reads(node: Any) -> set[str]:
    """The values that a node reads, those that its inner graphs take from around it among them."""
    found = {item for item in node.input if item}
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            own = {item.name for item in (*graph.input, *graph.initializer)}
            for inner in graph.node:
                found |= reads(inner) - own
                own.update(inner.output)
            found |= {item.name for item in graph.output} - own
    return found
