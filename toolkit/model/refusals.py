"""What a model is refused for: every node in the way at once, grouped by what would help."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from toolkit.errors import ModelError

MOST_NAMES: Final = 3  # of nodes in one line
TENSORS_ONLY: Final = (
    "sequences, optional values, maps, sparse tensors, strings and sizes that stay open at run time are not "
    "supported; export the model with tensors of fixed shapes"
)
SUPPORTED_TEXT: Final = "docs/operators.md lists the supported operators"


class NodeRefused(ModelError):
    """A node that is not supported, or not as it is; the walk goes on to find the others."""

    def __init__(self, model: str, node: str, op: str, what: str, remedy: str) -> None:
        super().__init__(f"model {model}: node {node!r} ({op}): {what}; {remedy}")
        self.node, self.op, self.what, self.remedy = node, op, what, remedy


def refusal(model: str, found: Sequence[NodeRefused]) -> ModelError:
    """One error for all nodes in the way: each group's advice, its nodes and what is wrong."""
    if len(found) == 1:
        return found[0]
    groups: dict[tuple[str, str, str], list[str]] = {}
    for item in found:
        remedy = item.remedy.removesuffix(f"; {SUPPORTED_TEXT}")
        groups.setdefault((remedy, item.op, item.what), []).append(item.node)
    lines = [
        f"{remedy}: {_names(nodes)} ({op}): {what}"
        for (remedy, op, what), nodes in sorted(groups.items(), key=lambda group: -len(group[1]))
    ]
    if any(item.remedy.endswith(SUPPORTED_TEXT) for item in found):
        lines.append(SUPPORTED_TEXT)
    return ModelError(f"model {model}: {len(found)} nodes are in the way\n  " + "\n  ".join(lines))


def _names(nodes: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in nodes[:MOST_NAMES])
    more = len(nodes) - MOST_NAMES
    return f"nodes {shown} and {more} more" if more > 0 else f"node{'s' * (len(nodes) > 1)} {shown}"
