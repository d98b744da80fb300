"""The door of this room: an ONNX file in, a graph of fused operators out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from boards.target import Target
from toolkit.model.fuse import fuse
from toolkit.model.graph import Array, Graph, Node, verify
from toolkit.model.half_storage import stored_for
from toolkit.model.heads import read_by_heads
from toolkit.model.join import joined
from toolkit.model.joined_dimensions import dimensions_joined_for
from toolkit.model.layout import assign_layout
from toolkit.model.onnx_import import import_onnx
from toolkit.model.packed_products import packed_for
from toolkit.model.packed_weights import pack_weights
from toolkit.model.recognize import recognize_normalization
from toolkit.model.reference import run_reference
from toolkit.model.scaled_weights import scale_weights
from toolkit.model.shared_products import shared_for
from toolkit.model.simplify import fold_affine, fold_padding, remove_identities
from toolkit.model.tables import tabulate

Pass = Callable[[Graph], Graph]

# constants are folded during the import, where shapes depend on them
PASSES: tuple[Pass, ...] = (
    remove_identities,
    recognize_normalization,
    fold_affine,
    fold_padding,
    assign_layout,
    pack_weights,
    scale_weights,
    read_by_heads,
    tabulate,
    fuse,
)


def load_model(
    path: Path | str,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    floats: Collection[str] = (),
    constants: Mapping[str, Sequence[float]] | None = None,
) -> Graph:
    """Import an ONNX model, simplify it, and fuse it into the operators to tune: `graph.groups`.

    Args:
        path: the .onnx file.
        shapes: shape of every input that the model leaves dynamic (name -> dimensions).
        floats: names of quantized products that are computed in floats between the same integers.
        constants: what inputs always hold (name -> one number for all elements, or one for each in order);
            they are no inputs of the graph.

    Raises:
        ModelError: the file is damaged, or holds something that is not supported; the message names the node.
    """
    return run_passes(import_onnx(Path(path), shapes or {}, computed, floats=floats, constants=constants))


def computed(graph: Graph, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    """The outputs of an imported graph by the numpy reference."""
    return run_reference(run_passes(graph), inputs)


def adapted(graph: Graph, target: Target) -> Graph:
    """The fused graph as a target computes it: its products, chains, and how values are stored."""
    graph = joined(shared_for(packed_for(graph, target), target), target)
    return stored_for(dimensions_joined_for(graph, target), target)


def run_passes(graph: Graph, after: Callable[[str, Graph], None] | None = None) -> Graph:
    """Run PASSES in order, first on inner graphs; verify after each, and show it to `after(name, graph)`."""
    graph = replace(graph, nodes=tuple(_with_passed_bodies(node) for node in graph.nodes))
    for step in PASSES:
        graph = replace(verify(step(graph)), counts=graph.counts)
        if after is not None:
            after(step.__name__, graph)
    return graph


def _with_passed_bodies(node: Node) -> Node:
    if node.control is None:
        return node
    return replace(node, control=node.control.with_bodies([run_passes(body) for body in node.control.bodies]))
