"""From a node of the physical graph to its index expression: one small function per operator.

`expression(node, operands)` gives the tensor that the node computes from the tensors of its inputs; fused
nodes are called one after the other, each on the result of the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from cross.expression.families import (
    conv,
    data_movement,
    dense,
    elementwise,
    indexed,
    norm,
    pool,
    positions,
    recurrent,
    sampling,
    selection,
    transposed,
)
from cross.expression.families.window import Window
from cross.expression.language.functions import dot4, summand
from cross.expression.language.tensor import Tensor
from cross.expression.language.terms import Term, call
from toolkit.errors import ModelError
from toolkit.model.graph import Node, computed_in
from toolkit.model.weight_layout import phases_of

Operand = Tensor | Term  # a literal stands for a constant with one element

COMBINERS = {
    "ReduceSum": "sum",
    "ReduceProd": "prod",
    "ReduceMax": "max",
    "ReduceMin": "min",
    "MaxPool": "max",
    "SumPool": "sum",
}
UNBOUNDED = (float("-inf"), float("inf"))
COMPARISONS = frozenset({"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Not"})
BINARY = frozenset(elementwise.BINARY)
UNARY = frozenset(elementwise.UNARY) | {"Cast"}
ELEMENTWISE = BINARY | UNARY | {"Where"}


def expression(node: Node, operands: Sequence[Operand]) -> Tensor:
    """The tensor that `node` computes.

    Raises:
        ModelError: the node's operator has no expression (a bug in the importers).
    """
    if node.op in UNARY:
        return _unary(node, operands)
    if node.op in BINARY:
        return _binary(node, operands)
    if node.op == "Where":
        return _where(node, operands)
    if node.op not in _BUILDERS:
        raise ModelError(f"node {node.name!r}: no expression for {node.op}; this is a bug in the importers")
    return _BUILDERS[node.op](node, [operand for operand in operands if isinstance(operand, Tensor)])


def _unary(node: Node, operands: Sequence[Operand]) -> Tensor:
    function: Callable[..., Term] = elementwise.UNARY.get(node.op, elementwise.convert)
    if node.op == "Clip":
        bounds = {key: node.attributes[key] for key in ("low", "high")}
        function = partial(function, **{key: item for key, item in bounds.items() if item not in UNBOUNDED})
    elif node.op == "Cast":
        function = partial(_converted, dtype=node.text("to"))
    elif node.attributes:
        function = partial(function, **{key: node.number(key) for key in node.attributes})
    data = operands[0]
    assert isinstance(data, Tensor)
    return elementwise.apply(function, data, node.op.lower())


def _converted(x: Term, dtype: str) -> Term:
    """Rounded to a dtype that is only stored, in the one that it is computed in."""
    return elementwise.convert(elementwise.convert(x, dtype), computed_in(dtype))


def _binary(node: Node, operands: Sequence[Operand]) -> Tensor:
    function, name = elementwise.BINARY[node.op], node.op.lower()
    left, right = operands
    if not isinstance(right, Tensor):
        assert isinstance(left, Tensor)
        return elementwise.apply(lambda x: function(x, right), left, name)
    if not isinstance(left, Tensor):
        return elementwise.apply(lambda x: function(left, x), right, name)
    return elementwise.combine(function, left, right, name)


def _where(node: Node, operands: Sequence[Operand]) -> Tensor:
    condition, then, otherwise = operands
    assert isinstance(condition, Tensor)
    return elementwise.where(condition, then, otherwise)


def _window(node: Node) -> Window:
    return Window(node.integers("strides"), node.integers("pads"), node.integers("dilations"))


def _conv(node: Node, operands: Sequence[Tensor]) -> Tensor:
    data, weight = operands
    window = _window(node)
    if len(weight.shape) == window.rank + 1:
        return conv.depthwise_conv(data, weight, window)
    if len(weight.shape) == window.rank + 3:
        return conv.grouped_conv(data, weight, window)
    padding = node.number("padding") if "padding" in node.attributes else 0.0
    return conv.dense_conv(data, weight, window, padding=padding, product=_product(node))


def _product(node: Node) -> Callable[[Term, Term], Term]:
    """What a node sums: products of elements or, where bytes are packed in words, of four each."""
    if "packed" not in node.attributes:
        return summand
    signs = node.integer("signs")
    return (lambda x, w: dot4(call("^", x, signs), w)) if signs else dot4


def _conv_transpose(node: Node, operands: Sequence[Tensor]) -> Tensor:
    data, weight = operands
    rank = len(node.integers("strides"))
    dimensions = phases_of(node, data.shape[1 : 1 + rank])
    if len(weight.shape) == 2:
        return transposed.narrow_transposed_conv(data, weight, dimensions)
    if len(weight.shape) == 2 * rank + 1:
        return transposed.depthwise_transposed_conv(data, weight, dimensions)
    if len(weight.shape) == 2 * rank + 3:
        return transposed.grouped_transposed_conv(data, weight, dimensions)
    return transposed.transposed_conv(data, weight, dimensions)


def _pool(node: Node, operands: Sequence[Tensor]) -> Tensor:
    return pool.pool(operands[0], node.integers("kernel"), _window(node), COMBINERS[node.op])


def _pool_places(node: Node, operands: Sequence[Tensor]) -> Tensor:
    column_major = node.integer("column_major") != 0
    return pool.pool_places(operands[0], node.integers("kernel"), _window(node), column_major)


def _unpool(node: Node, operands: Sequence[Tensor]) -> Tensor:
    data, places = operands
    return pool.unpool(data, places, node.integers("kernel"), _window(node), node.integers("output"))


def _positions(node: Node, operands: Sequence[Tensor]) -> Tensor:
    mode, padding = node.text("mode"), node.text("padding")
    image, align_corners = node.integers("image"), node.integer("align_corners") != 0
    return sampling.unnormalized(operands[0], image, mode, padding, align_corners)


def _sample(node: Node, operands: Sequence[Tensor]) -> Tensor:
    data, positions = operands
    align_corners = node.integer("align_corners") != 0
    return sampling.sample(data, positions, node.text("mode"), node.text("padding"), align_corners)


def _align_regions(node: Node, operands: Sequence[Tensor]) -> Tensor:
    data, regions, batches = operands
    output, points = node.integers("output"), node.integer("points")
    return sampling.align_regions(data, regions, batches, output, points, node.text("combiner"))


def _region_weights(node: Node, operands: Sequence[Tensor]) -> Tensor:
    keys = ("extent", "bins", "dimension")
    return sampling.region_weights(operands[0], *(node.integer(key) for key in keys))


def _region_sums(node: Node, operands: Sequence[Tensor]) -> Tensor:
    data, rows, columns, batches = operands
    return sampling.region_sums(data, rows, columns, batches)


def _normalize(node: Node, operands: Sequence[Tensor]) -> Tensor:
    return norm.normalize(operands[0], node.integers("axes"), node.number("epsilon"))


def _reduce(node: Node, operands: Sequence[Tensor]) -> Tensor:
    return pool.reduce(operands[0], node.integers("axes"), COMBINERS[node.op])


def _matmul(node: Node, operands: Sequence[Tensor]) -> Tensor:
    left, right = operands
    if len(left.shape) == 2 and len(right.shape) == 2:
        return dense.dense(left, right, product=_product(node))
    return dense.batch_matmul(left, right)


def _pad(node: Node, operands: Sequence[Tensor]) -> Tensor:
    before, after = node.integers("before"), node.integers("after")
    if node.text("mode") == "reflect":
        return data_movement.reflect_pad(operands[0], before, after)
    if node.text("mode") == "wrap":
        return data_movement.wrap_pad(operands[0], before, after)
    if node.text("mode") == "edge":
        return data_movement.edge_pad(operands[0], before, after)
    value = node.attributes["value"]
    assert not isinstance(value, (str, tuple))
    return data_movement.pad(operands[0], before, after, value)


def _slice(node: Node, operands: Sequence[Tensor]) -> Tensor:
    shape = node.integers("shape")
    return data_movement.strided_slice(operands[0], node.integers("starts"), node.integers("steps"), shape)


def _lrn(node: Node, operands: Sequence[Tensor]) -> Tensor:
    coefficients = node.number("alpha"), node.number("beta"), node.number("bias")
    return norm.local_response_norm(operands[0], node.integer("size"), coefficients)


def _gates(node: Node) -> recurrent.Gates:
    """The activations f, g, ... of a recurrent node, as attributes."""
    found = []
    for letter in "fg":
        function = elementwise.UNARY[node.text(letter)]
        settings = {
            key: node.number(f"{letter}_{key}")
            for key in ("alpha", "beta")
            if f"{letter}_{key}" in node.attributes
        }
        found.append(partial(function, **settings))
    return recurrent.Gates(tuple(found), node.number("clip"))


def _peepholes(operands: Sequence[Tensor]) -> recurrent.Peepholes | None:
    return recurrent.Peepholes(operands[2]) if len(operands) > 2 else None


def _lstm_cell(node: Node, operands: Sequence[Tensor]) -> Tensor:
    coupled = node.integer("coupled") != 0
    return recurrent.lstm_cell(operands[0], operands[1], _peepholes(operands), _gates(node), coupled)


def _lstm_output(node: Node, operands: Sequence[Tensor]) -> Tensor:
    return recurrent.lstm_output(operands[0], operands[1], _peepholes(operands), _gates(node))


def _gru_output(node: Node, operands: Sequence[Tensor]) -> Tensor:
    inputs, products, *last, state = operands
    return recurrent.gru_output(inputs, products, last[0] if last else None, state, _gates(node))


def _arg_extreme(node: Node, operands: Sequence[Tensor]) -> Tensor:
    combiner = "max" if node.op == "ArgMax" else "min"
    return positions.arg_extreme(operands[0], node.integer("axis"), combiner, node.integer("last") != 0)


def _running(node: Node, operands: Sequence[Tensor]) -> Tensor:
    combiner = "sum" if node.op == "CumSum" else "prod"
    exclusive, reverse = node.integer("exclusive") != 0, node.integer("reverse") != 0
    return positions.running(operands[0], node.integer("axis"), combiner, exclusive, reverse)


def _einsum(node: Node, operands: Sequence[Tensor]) -> Tensor:
    names = node.text("names").split(",")
    return positions.sum_over_names(operands, names, node.text("result"))


def _gather(node: Node, operands: Sequence[Tensor]) -> Tensor:
    data, indices = operands
    if node.op == "GatherND":
        return indexed.gather_tuples(data, indices, node.integer("batches"))
    gather = data_movement.gather if node.op == "Gather" else data_movement.gather_elements
    return gather(data, indices, node.integer("axis"))


def _scatter(node: Node, operands: Sequence[Tensor]) -> Tensor:
    data, indices, updates = operands
    if node.op == "ScatterND":
        return indexed.scatter_tuples(data, indices, updates, node.text("combiner"))
    return indexed.scatter_elements(data, indices, updates, node.integer("axis"), node.text("combiner"))


def _write_at(node: Node, operands: Sequence[Tensor]) -> Tensor:
    data, update, starts = operands
    return indexed.write_at(data, update, starts, node.integer("axis"), node.integer("circular") != 0)


def _reverse_sequences(node: Node, operands: Sequence[Tensor]) -> Tensor:
    return indexed.reverse_sequences(operands[0], operands[1], node.integer("batch"), node.integer("time"))


def _largest_places(node: Node, operands: Sequence[Tensor]) -> Tensor:
    largest = node.integer("largest") != 0
    return indexed.largest_places(operands[0], node.integer("axis"), node.integer("count"), largest)


def _first_equal(node: Node, operands: Sequence[Tensor]) -> Tensor:
    rows, *table = operands
    return selection.first_equal(rows, table[0] if table else None)


def _rank_of_kind(node: Node, operands: Sequence[Tensor]) -> Tensor:
    rows, first, *table = operands
    return selection.rank_of_kind(rows, first, table[0] if table else None, node.integer("ordered") != 0)


def _without_overlaps(node: Node, operands: Sequence[Tensor]) -> Tensor:
    scores, boxes, chosen, threshold = operands
    return selection.without_overlaps(scores, boxes, chosen, threshold, node.integer("centers") != 0)


def _columns_to_image(node: Node, operands: Sequence[Tensor]) -> Tensor:
    geometry = [node.integers(key) for key in ("strides", "dilations", "before")]
    return indexed.columns_to_image(operands[0], node.integers("image"), node.integers("kernel"), geometry)


_BUILDERS: dict[str, Callable[[Node, Sequence[Tensor]], Tensor]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _pool,
    "SumPool": _pool,
    "MaxPoolPlaces": _pool_places,
    "MaxUnpool": _unpool,
    "SamplePositions": _positions,
    "Sample": _sample,
    "RoiAlign": _align_regions,
    "RegionWeights": _region_weights,
    "RegionSums": _region_sums,
    "ReduceSum": _reduce,
    "ReduceProd": _reduce,
    "ReduceMax": _reduce,
    "ReduceMin": _reduce,
    "ReduceL2": lambda node, operands: norm.euclidean_norm(operands[0], node.integers("axes")),
    "MatMul": _matmul,
    "Softmax": lambda node, operands: norm.softmax(operands[0], node.integer("axis")),
    "LogSoftmax": lambda node, operands: norm.log_softmax(operands[0], node.integer("axis")),
    "LRN": _lrn,
    "LstmCell": _lstm_cell,
    "LstmOutput": _lstm_output,
    "GruReset": lambda node, operands: recurrent.gru_reset(
        operands[0], operands[1], operands[2], _gates(node)
    ),
    "GruOutput": _gru_output,
    "Normalize": _normalize,
    "Expand": lambda node, operands: data_movement.expand(operands[0], node.integers("shape")),
    "Pad": _pad,
    "Slice": _slice,
    "Transpose": lambda node, operands: data_movement.transpose(operands[0], node.integers("perm")),
    **dict.fromkeys(("Gather", "GatherElements", "GatherND"), _gather),
    "ReverseSequence": _reverse_sequences,
    "ScatterElements": _scatter,
    "ScatterND": _scatter,
    "TensorScatter": _write_at,
    "TopPlaces": _largest_places,
    "TruePlaces": lambda node, operands: selection.true_places(
        operands[0], operands[1], node.integer("count")
    ),
    "FirstDifference": lambda node, operands: selection.first_difference(operands[0]),
    "FirstEqual": _first_equal,
    "RankOfKind": _rank_of_kind,
    "PlacesOfKinds": lambda node, operands: selection.places_of_kinds(*operands),
    "SizesOfKinds": lambda node, operands: selection.sizes_of_kinds(*operands),
    "WithoutOverlaps": _without_overlaps,
    "Col2Im": _columns_to_image,
    "Det": lambda node, operands: indexed.determinant(operands[0]),
    "ArgMax": _arg_extreme,
    "ArgMin": _arg_extreme,
    "CumSum": _running,
    "CumProd": _running,
    "Einsum": _einsum,
    "Concat": lambda node, operands: data_movement.concat(operands, node.integer("axis")),
}
