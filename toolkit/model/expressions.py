"""From a node of the physical graph to its index expression: one row of a table per operator.

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
from cross.expression.language.functions import summand
from cross.expression.language.tensor import Tensor
from cross.expression.language.terms import Term, call, cast
from toolkit.errors import ModelError
from toolkit.model.graph import Node, computed_in
from toolkit.model.weight_layout import phases_of

Operand = Tensor | Term  # a literal stands for a constant with one element

PADS = {
    "reflect": data_movement.reflect_pad,
    "wrap": data_movement.wrap_pad,
    "edge": data_movement.edge_pad,
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
    padding = node.number("padding") if "padding" in node.attributes else 0.0
    if len(weight.shape) == window.rank + 1:
        return conv.depthwise_conv(data, weight, window, padding=padding)
    if len(weight.shape) == window.rank + 3:
        return conv.grouped_conv(data, weight, window, padding=padding)
    return conv.dense_conv(data, weight, window, padding=padding, product=_product(node))


def _product(node: Node) -> Callable[[Term, Term], Term]:
    """What a node sums: products of elements, behind their zero points, or of the bytes in packed words."""
    if "zeros" in node.attributes:
        first, second = node.integers("zeros")
        return lambda x, w: (cast("int32", x) - first) * (cast("int32", w) - second)
    if "packed" not in node.attributes:
        return summand
    name, signs = node.text("product"), node.integer("signs")
    return lambda x, w: call(name, call("^", x, signs) if signs else x, w)


def _conv_transpose(node: Node, operands: Sequence[Tensor]) -> Tensor:
    data, weight, *offsets = operands
    rank = len(node.integers("strides"))
    dimensions = phases_of(node, data.shape[1 : 1 + rank])
    padding = node.number("padding") if "padding" in node.attributes else 0.0
    if len(weight.shape) == 2 * rank + 1:
        sums = transposed.depthwise_transposed_conv(data, weight, dimensions, padding=padding)
    elif len(weight.shape) == 2 * rank + 3:
        sums = transposed.grouped_transposed_conv(data, weight, dimensions, padding=padding)
    else:
        narrow = len(weight.shape) == 2
        family = transposed.narrow_transposed_conv if narrow else transposed.transposed_conv
        sums = family(data, weight, dimensions, padding=padding, product=_product(node))
    return transposed.without_offsets(sums, offsets[0]) if offsets else sums


def _matmul(node: Node, operands: Sequence[Tensor]) -> Tensor:
    left, right = operands
    if len(left.shape) == 2 and len(right.shape) == 2:
        return dense.dense(left, right, product=_product(node))
    return dense.batch_matmul(left, right, product=_product(node))


def _pad(node: Node, operands: Sequence[Tensor]) -> Tensor:
    before, after = node.integers("before"), node.integers("after")
    if node.text("mode") in PADS:
        return PADS[node.text("mode")](operands[0], before, after)
    value = node.attributes["value"]
    assert not isinstance(value, (str, tuple))
    return data_movement.pad(operands[0], before, after, value)


def _resample(node: Node, operands: Sequence[Tensor]) -> Tensor:
    data, *taps = operands
    return data_movement.resample(data, taps, node.integers("axes"), node.integers("weighted"))


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


def _first_equal(node: Node, operands: Sequence[Tensor]) -> Tensor:
    rows, *table = operands
    return selection.first_equal(rows, table[0] if table else None)


def _rank_of_kind(node: Node, operands: Sequence[Tensor]) -> Tensor:
    rows, first, *table = operands
    return selection.rank_of_kind(rows, first, table[0] if table else None, node.integer("ordered") != 0)


def _columns_to_image(node: Node, operands: Sequence[Tensor]) -> Tensor:
    geometry = [node.integers(key) for key in ("strides", "dilations", "before")]
    return indexed.columns_to_image(operands[0], node.integers("image"), node.integers("kernel"), geometry)


Builder = Callable[[Node, Sequence[Tensor]], Tensor]
DERIVED: dict[str, Callable[[Node], object]] = {"window": _window, "gates": _gates}
"""What several attributes say together, by the name that stands for it in `_of`."""
FLAGS = frozenset(
    {
        "align_corners",
        "centers",
        "circular",
        "column_major",
        "exclusive",
        "largest",
        "last",
        "ordered",
        "reverse",
    }
)
"""Attributes that are truth values: true where they are not 0."""


def _of(family: Callable[..., Tensor], *keys: str) -> Builder:
    """A function of a family: of all operands, then of the attributes of these names."""

    def build(node: Node, operands: Sequence[Tensor]) -> Tensor:
        return family(*operands, *(_setting(node, key) for key in keys))

    return build


def _setting(node: Node, key: str) -> object:
    if key in DERIVED:
        return DERIVED[key](node)
    return node.attributes[key] != 0 if key in FLAGS else node.attributes[key]


_BUILDERS: dict[str, Builder] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _of(partial(pool.pool, combiner="max"), "kernel", "window"),
    "SumPool": _of(partial(pool.pool, combiner="sum"), "kernel", "window"),
    "MaxPoolPlaces": _of(pool.pool_places, "kernel", "window", "column_major"),
    "MaxUnpool": _of(pool.unpool, "kernel", "window", "output"),
    "SamplePositions": _of(sampling.unnormalized, "image", "mode", "padding", "align_corners"),
    "Sample": _of(sampling.sample, "mode", "padding", "align_corners"),
    "RoiAlign": _of(sampling.align_regions, "output", "points", "combiner"),
    "RegionWeights": _of(sampling.region_weights, "extent", "bins", "dimension"),
    "RegionSums": _of(sampling.region_sums),
    "RegionExtremes": _of(sampling.region_extremes, "extent", "bins", "dimension", "combiner"),
    "RegionBins": _of(sampling.region_bins, "extent", "bins", "dimension", "scale"),
    "RegionMaxima": lambda node, operands: sampling.region_maxima(
        operands[0], operands[1:3], operands[3:5], operands[5]
    ),
    **{
        f"Reduce{combiner.capitalize()}": _of(partial(pool.reduce, combiner=combiner), "axes")
        for combiner in ("sum", "prod", "max", "min")
    },
    "ReduceL2": _of(norm.euclidean_norm, "axes"),
    "MatMul": _matmul,
    "MatMulBlocks": _of(dense.dense_blocks, "bits"),
    "Softmax": _of(norm.softmax, "axis"),
    "LogSoftmax": _of(norm.log_softmax, "axis"),
    "LRN": _lrn,
    "LstmCell": _lstm_cell,
    "LstmOutput": _lstm_output,
    "GruReset": _of(recurrent.gru_reset, "gates"),
    "GruOutput": _gru_output,
    "Normalize": _of(norm.normalize, "axes", "epsilon"),
    "Expand": _of(data_movement.expand, "shape"),
    "Pad": _pad,
    "Slice": _of(data_movement.strided_slice, "starts", "steps", "shape"),
    "Transpose": _of(data_movement.transpose, "perm"),
    "Gather": _of(data_movement.gather, "axis"),
    "Resample": _resample,
    "RowWords": _of(data_movement.row_words, "count"),
    "Words": _of(data_movement.words, "before", "after", "value"),
    "LookUp": _of(data_movement.look_up),
    "GatherElements": _of(data_movement.gather_elements, "axis"),
    "GatherND": _of(indexed.gather_tuples, "batches"),
    "ReverseSequence": _of(indexed.reverse_sequences, "batch", "time"),
    "ScatterElements": _of(indexed.scatter_elements, "axis", "combiner"),
    "ScatterND": _of(indexed.scatter_tuples, "combiner"),
    "TensorScatter": _of(indexed.write_at, "axis", "circular"),
    "TopPlaces": _of(indexed.largest_places, "axis", "count", "largest"),
    "TruePlaces": _of(selection.true_places, "count"),
    "FirstDifference": _of(selection.first_difference),
    "FirstEqual": _first_equal,
    "RankOfKind": _rank_of_kind,
    "PlacesOfKinds": _of(selection.places_of_kinds),
    "SizesOfKinds": _of(selection.sizes_of_kinds),
    "WithoutOverlaps": _of(selection.without_overlaps, "centers"),
    "Col2Im": _columns_to_image,
    "Det": _of(indexed.determinant),
    "ArgMax": _arg_extreme,
    "ArgMin": _arg_extreme,
    "CumSum": _running,
    "CumProd": _running,
    "Einsum": _einsum,
    "Concat": lambda node, operands: data_movement.concat(operands, node.integer("axis")),
}
