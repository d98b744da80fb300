"""Which nodes of a physical graph share a group: an anchor and the elementwise nodes behind it.

A chain goes on while only it reads its last result and the reader works element by element on as many
elements. It goes through reshapes, which compute nothing, where all other operands can be seen in the
anchor's shape; and through branches that meet again, such as x * sigmoid(x). A convolution or product that
needs one element for a vector of results, or reads along memory, reads it where a Slice or Transpose would
take it from: of images whose channels come first, of shuffled channels, of an attention's queries and values.

What is computed of an image element by element, to become words of a pixel, is computed where these are made.

Floats that are made of 8-bit integers element by element are computed inside each reader that reads an
element about once: memory holds the integers, a quarter of the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from cross.expression.families.data_movement import pieces
from cross.expression.language.tensor import Read, Tensor, placeholder
from cross.expression.language.terms import Term
from toolkit.errors import ModelError
from toolkit.model.expressions import COMPARISONS, ELEMENTWISE, expression
from toolkit.model.graph import Graph, Node, computed_in
from toolkit.model.layout import WINDOWED

MOVES = frozenset({"Slice", "Transpose"})
READERS_IN_PLACE = frozenset({"Conv", "MatMul"})
TRUTH_READERS = frozenset({"Where", "Not"})
LONGEST_BRANCH = 6  # operators of a side path that is drawn into a chain, as in a hard swish or a GELU
# A chain is one expression, which is walked recursively and repeats what it reads: both within what compiles
# in well under a second and leaves most of Python's stack of 1,000 calls.
MOST_TERMS, MOST_LEVELS = 400, 64
# Functions of many instructions are worth full vectors: a pass of their own behind few channels.
LONG_FUNCTIONS = frozenset(
    (
        "Tanh",
        "Sigmoid",
        "Exp",
        "Log",
        "Erf",
        "Gelu",
        "GeluTanh",
        "Mish",
        "Softplus",
        "Pow",
        "Elu",
        "Selu",
        "Celu",
    )
)
_BYTES = frozenset({"int8", "uint8"})
# Operators behind which a dequantized operand is as well computed where it is read, about once. Not those
# that add up floats: bytes of a trial's data, far from their zero point and near each other, cancel there,
# and what is rounded to bytes again is a step off in right kernels.
READERS_OF_BYTES = frozenset(
    ("Expand", "Gather", "Pad", "Resample", "Slice", "Transpose", "ReduceMax", "ReduceMin")
)
_SCALING = frozenset({"Add", "Cast", "Mul", "Sub"})
FEW_CHANNELS = 8  # fewer leave vectors half empty: a long function is computed apart, on full ones


class Chain(msgspec.Struct, frozen=True):
    """The members of a group in the order they are computed; all are computed in the shape of the anchor's
    result. What stands before the anchor is what it alone reads.
    """

    members: tuple[Node, ...]
    anchor: Node


def chains(graph: Graph) -> list[Chain]:
    """The groups of a graph.

    A comparison is computed inside each Where that reads it: that is cheaper than a tensor of truth values.
    So are dequantized numbers inside each element by element reader, and moved elements inside what reads
    them where they were.
    """
    readers = graph.consumers()
    producer = {node.output: node for node in graph.nodes}
    inside = {
        node.output
        for node in graph.nodes
        if node.op in COMPARISONS
        and node.output not in graph.outputs
        and all(reader.op in TRUTH_READERS for reader in readers[node.output])
    }
    dequantized = _dequantized(graph, readers)
    inside |= dequantized | _prepared(graph, readers) | _read_in_place(graph, readers)
    search = _Search(graph, readers, set(inside), dequantized)

    def members(node: Node) -> list[Node]:
        """The node, with what it reads and is computed inside it in front."""
        read = map(graph.root, node.inputs)
        front = [member for name in read if name in inside for member in members(producer[name])]
        return [*front, node]

    result: list[Chain] = []
    for node in graph.nodes:
        if node.op == "Reshape" or node.control or node.output in search.taken:
            continue
        chain, anchor = members(node), node
        sizes: dict[str, _Size] = {}
        if not _hold(graph, chain, sizes):
            raise ModelError(
                f"model {graph.name!r}: node {node.name!r} ({node.op}) reads truth values of {len(chain)} "
                "nodes in a row; expected fewer, as they are computed together; export the model without them"
            )
        while following := search.following(chain[-1], anchor):
            found = dict.fromkeys(member.output for item in following for member in members(item))
            behind = [producer[name] for name in found if producer[name] not in chain]
            if not _hold(graph, behind, sizes):
                break
            chain += behind
            search.taken.update(item.output for item in following)
            anchor = following[0] if following[0].op in WINDOWED else anchor
        result.append(Chain(tuple(chain), anchor))
    return result


def _dequantized(graph: Graph, readers: Mapping[str, list[Node]]) -> set[str]:
    """Values that are scaled and shifted bytes, read element by element in their shape only, or by operators
    that may compute what they read."""
    made: set[str] = set()
    for node in graph.nodes:
        computed = [name for name in node.inputs if not graph.values[name].constant]
        if len(computed) != 1 or graph.values[node.output].dtype not in ("int32", "float32"):
            continue
        of_bytes = node.op == "Cast" and graph.values[computed[0]].dtype in _BYTES
        if of_bytes or (node.op in _SCALING and computed[0] in made):
            made.add(node.output)

    def inside(name: str) -> bool:
        shape = graph.values[name].shape
        fit = [
            (reader.op in ELEMENTWISE and graph.values[reader.output].shape == shape)
            or (reader.op in READERS_OF_BYTES and reader.inputs[0] == name)
            or (reader.op == "ReduceSum" and graph.values[name].dtype == "int32")
            for reader in readers[name]
        ]
        return bool(fit) and all(fit) and name not in graph.outputs

    return {name for name in made if inside(name)}


def _prepared(graph: Graph, readers: Mapping[str, list[Node]]) -> set[str]:
    """What is computed element by element of one image that becomes words, and nothing else reads."""
    found: set[str] = set()
    for node in reversed(graph.nodes):
        name = node.output
        alone = len(readers[name]) == 1 and name not in graph.outputs
        if not alone or node.op not in ELEMENTWISE or node.op in COMPARISONS | LONG_FUNCTIONS:
            continue
        (reader,) = readers[name]
        computed = [item for item in node.inputs if not graph.values[item].constant]
        if len(computed) == 1 and (reader.op == "Words" or reader.output in found):
            found.add(name)
    return found


def _read_in_place(graph: Graph, readers: Mapping[str, list[Node]]) -> set[str]:
    """What is moved, and read by one node that reads it where it was before and is no slower."""
    found: set[str] = set()
    for node in graph.nodes:
        name, behind = node.output, readers[node.output]
        while len(behind) == 1 and behind[0].op == "Reshape" and name not in graph.outputs:
            name, behind = behind[0].output, readers[behind[0].output]
        alone = node.op in MOVES and len(behind) == 1 and name not in graph.outputs
        if alone and _takes_elements(graph, node, behind[0]):
            found.add(node.output)
    return found


def _takes_elements(graph: Graph, moved: Node, reader: Node) -> bool:
    """Whether a convolution or product can read what was moved where it was before and be no slower."""
    if reader.op not in READERS_IN_PLACE or "packed" in reader.attributes:
        return False
    roots = list(map(graph.root, reader.inputs))
    place = roots.index(moved.output)
    shape, other = (graph.values[reader.inputs[item]].shape for item in (place, 1))
    fits = pieces(graph.values[moved.output].shape, shape) is not None
    if roots.count(moved.output) > 1 or not fits:
        return False
    if reader.op == "MatMul":  # rows of which each is read along memory, wherever it is
        return moved.op == "Transpose" and moved.integers("perm")[-1] == len(moved.integers("perm")) - 1
    if place > 0 or len(other) != len(shape):
        return False  # it has groups of channels
    near = moved.op == "Slice" and max(map(abs, moved.integers("steps"))) < FEW_CHANNELS
    return other[-2] < FEW_CHANNELS or (near and set(other[:-2]) == {1})


_Size = tuple[int, int]  # of an expression: its nodes as a tree, and its levels


def _hold(graph: Graph, nodes: Sequence[Node], sizes: dict[str, _Size]) -> bool:
    """Whether a chain can take these nodes; `sizes` has its results so far, by value, and gets theirs.

    An expression repeats the ones before wherever it reads them: x * sigmoid(x) doubles them.
    """
    for node in nodes:
        if node.op not in ELEMENTWISE:
            continue
        reads = [placeholder((1,), name, computed_in(graph.values[name].dtype)) for name in node.inputs]
        body = expression(node, reads).body
        assert body is not None
        own, levels = _size(body, {read: sizes.get(graph.root(read.name), (1, 1)) for read in reads})
        if own > MOST_TERMS or levels > MOST_LEVELS:
            return False
        sizes[node.output] = own, levels
    return True


def _size(term: Term, inside: Mapping[Tensor, _Size]) -> _Size:
    """Nodes and levels of a term in which reads stand for expressions of known size."""
    if isinstance(term, Read):
        return inside[term.tensor]
    parts = [_size(part, inside) for part in term.parts]
    return 1 + sum(nodes for nodes, _ in parts), 1 + max((levels for _, levels in parts), default=0)


class _Search(msgspec.Struct):
    """Looks for what can follow a chain; `taken` are the results that have a group already, `dequantized`
    those of them that their readers compute.
    """

    graph: Graph
    readers: Mapping[str, list[Node]]
    taken: set[str]
    dequantized: set[str]

    def following(self, last: Node, anchor: Node) -> list[Node]:
        """The next members of the chain that ends in `last`: one, a branch up to where it meets, or none."""
        found = self.readers[last.output]
        if last.output in self.graph.outputs:
            return []
        if last.op == "Pad" and len(found) == 1 and found[0].op in WINDOWED:
            # packed ones read other elements, words
            fits = found[0].inputs[0] == last.output and "packed" not in found[0].attributes
            return found if fits and found[0].output not in self.taken else []
        while len(found) == 1 and self._is_passed(found[0]):
            found = self.readers[found[0].output]
        if len(found) == 2:
            return self._branch(found[0], found[1], anchor) or self._branch(found[1], found[0], anchor)
        if len(found) != 1:
            return []
        return found if self._joins(found[0], anchor) else []

    def _is_passed(self, node: Node) -> bool:
        """Whether a chain may go on with what reads the node: a reshape, or computed inside its readers."""
        return node.output in self.dequantized or (
            node.op == "Reshape" and node.output not in self.graph.outputs
        )

    def _branch(self, first: Node, meeting: Node, anchor: Node) -> list[Node]:
        """The nodes from `first` to `meeting`, if they all may join and nobody else reads between."""
        path = [first]
        while path[-1] is not meeting:
            behind = self.readers[path[-1].output]
            if len(path) > LONGEST_BRANCH or len(behind) != 1 or path[-1].output in self.graph.outputs:
                return []
            path.append(behind[0])
        return path if all(self._joins(node, anchor) for node in path) else []

    def _joins(self, node: Node, anchor: Node) -> bool:
        """Whether a node may be computed element by element along with the anchor's result."""
        if node.op not in ELEMENTWISE or node.output in self.taken:
            return False
        base, shape = (self.graph.values[name].shape for name in (anchor.output, node.output))
        windowed = anchor.op in ("Conv", "ConvTranspose")
        if windowed and base[-1] < FEW_CHANNELS and node.op in LONG_FUNCTIONS:
            return False
        if shape != base and node.op in TRUTH_READERS:
            return False
        return shape == base or all(self._is_viewable(name, shape, base) for name in node.inputs)

    def _is_viewable(self, name: str, shape: tuple[int, ...], base: tuple[int, ...]) -> bool:
        """Whether an operand of a result of `shape` can be seen as one of the same result as `base`."""
        return viewed(self.graph.values[name].shape, shape, base) is not None


def viewed(own: tuple[int, ...], shape: tuple[int, ...], base: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape of an operand against `base`, of as many elements as `shape`, which it is written for.

    >>> [viewed(own, (1, 8, 4), (8, 4)) for own in ((1, 8, 4), (4,), (8, 1))]
    [(8, 4), (4,), None]
    """
    elements = int(np.prod(own, dtype=np.int64))
    if np.prod(shape, dtype=np.int64) != np.prod(base, dtype=np.int64):
        return None
    if elements == np.prod(base, dtype=np.int64):
        return base
    if elements == 1:
        return (1,)
    return own[-1:] if own[-1] == elements == shape[-1] == base[-1] else None
