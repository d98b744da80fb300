"""Products of bytes, two or four at a time: what processors have instructions for.

Four neighbouring channels of 8-bit data are one word of 32 bits, two are one of 16 bits, and so are their
weights; a convolution or matrix product sums products of words instead of products of bytes. Nothing moves:
the data are the same bytes. Which products a target has, cross/codegen/llvm/dot_products.py knows.

Instructions of x86-64 take data without sign, those of Arm with one, and weights have one. Data of the other
kind have their highest bits flipped where they are read: that moves each by 128, and 128 times the weights
is added or taken away behind the sum. Tile registers (AMX) take either kind, and data as they lie in memory.

x86-64 without VNNI multiplies 16-bit numbers. There data and weights are such numbers, two in a word: the
weights of all times, and data are widened by whoever computes them.

Of a product of two computed operands (attention) the second is written as words at run time, where it is read
by one row after the other; one that is a transposed matrix is transposed by the word. Zero points of both are
taken away behind the sum:

    sum (a - za) * (b - zb) = sum a * b - zb * (sum a - k * za) - za * sum b
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import numpy as np
from msgspec.structs import replace

from boards.target import Target
from cross.codegen.llvm.dot_products import product_of
from cross.expression.language.dtypes import ITEM_BYTES
from cross.expression.language.operations import DOT_BYTES, OPERATIONS, UNSIGNED_DATA
from toolkit.model.fuse import fuse
from toolkit.model.graph import Array, Attribute, Graph, GraphBuilder, Node, Value, verify
from toolkit.model.weight_layout import phase_sums

_DATA = ("int8", "uint8")
_PACKED = ("Conv", "ConvTranspose", "MatMul")
_LARGEST = 128  # magnitude of a computed byte
_BYTES_OF_A_WORD = 4


def packed_for(graph: Graph, target: Target) -> Graph:
    """The fused graph with products of bytes packed as the target multiplies them."""
    nodes = tuple(_with_packed_bodies(node, target) for node in graph.nodes)
    packed = joined_offsets(pack_products(replace(graph, nodes=nodes), target))
    if packed.nodes == graph.nodes:
        return graph
    return replace(verify(fuse(verify(packed))), counts=graph.counts)


def _with_packed_bodies(node: Node, target: Target) -> Node:
    if node.control is None:
        return node
    bodies = [packed_for(body, target) for body in node.control.bodies]
    return replace(node, control=node.control.with_bodies(bodies))


def pack_products(graph: Graph, target: Target) -> Graph:
    """The physical graph with products of bytes packed where the channels fill words."""
    producer = {node.output: node for node in graph.nodes}
    build = GraphBuilder(graph.name, graph.values.values())
    for node in graph.nodes:
        if node.op == "MatMul" and "zeros" in node.attributes:
            _pack_computed(graph, node, build, target, producer)
            continue
        padded = node.inputs and node.inputs[0] in producer and producer[node.inputs[0]].op == "Pad"
        product = _product(graph, node, target) if node.op in _PACKED and not padded else None
        if product is None:
            build.nodes.append(node)
        else:
            _pack(graph, node, build, product, producer)
    return build.finish(graph.inputs, graph.outputs)


def joined_offsets(graph: Graph) -> Graph:
    """The graph with constants that are added to int32 in a row, as zero points and biases are, as one."""
    readers = graph.consumers()
    build = GraphBuilder(graph.name, graph.values.values())
    merged: dict[str, tuple[str, Array]] = {}  # by a value: what it was computed of, and what was added
    for node in graph.nodes:
        found = _offset(graph, node)
        if found is None:
            build.nodes.append(node)
            continue
        name, added = found
        if name in merged:
            name, before = merged[name]
            added = np.asarray(before + added, np.int32)
        (following,) = readers[node.output] if len(readers[node.output]) == 1 else (None,)
        goes_on = following is not None and node.output not in graph.outputs
        if goes_on and following is not None and _offset(graph, following) is not None:
            merged[node.output] = name, added
        else:
            constant = build.constant(f"{node.output}/offset", added)
            build.emit("Add", (name, constant), graph.values[node.output], name=node.name)
    return build.finish(graph.inputs, graph.outputs)


def _offset(graph: Graph, node: Node) -> tuple[str, Array] | None:
    """The int32 data of an Add or Sub of a constant, of the same shape as the result, and what is added."""
    output = graph.values[node.output]
    if node.op not in ("Add", "Sub") or output.dtype != "int32":
        return None
    for data, constant in (node.inputs, node.inputs[::-1]) if node.op == "Add" else (node.inputs,):
        known, value = graph.values[constant].data, graph.values[data]
        if known is not None and value.data is None and value.shape == output.shape:
            return data, known if node.op == "Add" else np.negative(known)
    return None


class _Product(msgspec.Struct, frozen=True):
    """What multiplies a node's bytes: an operation, numbers of a word, whether it takes data with signs."""

    name: str
    count: int
    signed: bool

    @property
    def word(self) -> str:
        """The dtype of words."""
        return OPERATIONS[self.name].only

    @property
    def number(self) -> str:
        """The integers, with signs, that words are made of."""
        return f"int{8 * ITEM_BYTES[self.word] // self.count}"

    @property
    def wide(self) -> bool:
        """Whether bytes are widened before."""
        return self.number not in _DATA

    def repeated(self, number: int) -> int:
        """A number in each place of a word, as an integer with a sign."""
        return int(np.full(self.count, number).astype(self.number).view(self.word)[0])


def _product(graph: Graph, node: Node, target: Target) -> _Product | None:
    """How to multiply 8-bit data by known int8 weights [..., ci, co]; None for anything else."""
    data, weight = (graph.values[name] for name in node.inputs[:2])
    if data.dtype not in _DATA or weight.dtype != "int8" or weight.data is None or data.constant:
        return None
    fits = len(weight.shape) in _ranks(node) and (node.op != "MatMul" or len(data.shape) == 2)
    if not fits or data.shape[-1] != weight.shape[-2]:
        return None
    largest = int(np.abs(weight.data.astype(np.int16)).max(initial=0))
    rows = math.prod(graph.values[node.output].shape[:-1])
    signed = data.dtype == "int8"
    name = product_of(target, largest, rows, weight.data.nbytes, data.shape[-1], signed)
    if name == "wide_dot2" and data.shape[-1] < _BYTES_OF_A_WORD:
        name = "dot4"  # three channels are words of an image
    count = DOT_BYTES[name]
    few = data.shape[-1] < count - 1  # most of a word would be filling
    return None if few else _Product(name, count, name not in UNSIGNED_DATA)


def _ranks(node: Node) -> tuple[int, ...]:
    """Of weights whose bytes along the last dimension but one are read together."""
    if node.op == "MatMul":
        return (2,)
    image = len(node.integers("strides"))
    return (image + 2,) if node.op == "Conv" else (2, 2 * image + 2)


def _pack(
    graph: Graph, node: Node, build: GraphBuilder, product: _Product, producer: Mapping[str, Node]
) -> None:
    name, output, data = node.inputs[1], graph.values[node.output], graph.values[node.inputs[0]]
    weight = graph.values[name].data
    assert weight is not None
    flipped = not product.wide and (data.dtype == "int8") != product.signed
    attributes = {**node.attributes, "packed": product.count, "product": product.name}
    attributes["signs"] = product.repeated(-128) if flipped else 0
    if node.attributes.get("padding"):  # it is flipped like the data
        attributes["padding"] = product.repeated(node.integer("padding"))
    rest = -weight.shape[-2] % product.count
    image = (
        _image(graph, data, producer) if rest and data.shape[-1] < product.count == _BYTES_OF_A_WORD else None
    )
    if image is not None and node.op == "Conv":
        read = _words_of(image, node, attributes, build)
    else:
        read = _filled(data, rest, -1, build) if rest else data.name
        read = _widened(build.values[read], product, build) if product.wide else read
    words = build.constant(f"{name}/words", _words(weight, rest, product))
    moved = 0 if not flipped else -128 if product.signed else 128
    if node.op == "ConvTranspose":
        offsets = _offsets(graph, node, build, moved)
        build.emit(node.op, (read, words, *offsets), output, attributes, node.name)
        return
    if not flipped:
        build.emit(node.op, (read, words), output, attributes, node.name)
        return
    value = Value(build.fresh(f"{node.output}/shifted"), output.shape, output.dtype)
    build.emit(node.op, (read, words), value, attributes, node.name)
    sums = moved * weight.sum(axis=tuple(range(weight.ndim - 1)), dtype=np.int32)
    build.emit("Sub", (value.name, build.constant(f"{name}/signs", sums)), output, name=node.name)


def _offsets(graph: Graph, node: Node, build: GraphBuilder, moved: int) -> tuple[str, ...]:
    """The third input of a transposed convolution whose data are moved by so much; none where all are 0."""
    if not moved:
        return node.inputs[2:]
    weight, image = graph.values[node.inputs[1]].data, graph.values[node.inputs[0]].shape[1:-1]
    assert weight is not None
    before = [graph.values[name].data for name in node.inputs[2:]]
    offsets = moved * phase_sums(node, weight, image)
    for known in before:
        assert known is not None
        offsets = offsets + known
    return (build.constant(f"{node.inputs[1]}/offsets", offsets),)


def _pack_computed(
    graph: Graph, node: Node, build: GraphBuilder, target: Target, producer: Mapping[str, Node]
) -> None:
    """A product of two computed operands of bytes, each with a zero point."""
    left, right = (graph.values[name] for name in node.inputs)
    output, length, name = graph.values[node.output], left.shape[-1], product_of(target, _LARGEST)
    count, signed = DOT_BYTES[name], name not in UNSIGNED_DATA
    if length < count - 1:  # most of a word would be filling
        build.nodes.append(node)
        return
    first, second = node.integers("zeros")
    flipped = (left.dtype == "int8") != signed
    moved = first + ((-128 if signed else 128) if flipped else 0)
    attributes: dict[str, Attribute] = {"packed": count, "product": name}
    words = _words_of_rows(graph, right, build, count, producer)
    if right.dtype == "uint8":
        words, second = _flipped(words, build, count), second - 128
    signs: dict[str, Attribute] = {"signs": _repeated(-128, count) if flipped else 0}
    read = _filled(left, -length % count, -1, build) if length % count else left.name
    subtracted = []
    if second:
        subtracted.append(_row_sums(left, build, first, second))
    if moved:
        ones = build.constant(f"{right.name}/ones", _ones(build.values[words].shape[-2], count))
        shape = (*right.shape[:-2], 1, right.shape[-1])
        sums = Value(build.fresh(f"{right.name}/sums"), shape, "int32")
        build.emit("MatMul", (ones, words), sums, attributes | {"signs": 0})
        subtracted.append(_times(sums, moved, build))
    result = output
    for place, taken in enumerate(("", *subtracted)):
        last = place == len(subtracted)
        value = output if last else Value(build.fresh(f"{output.name}/products"), output.shape, "int32")
        if taken:
            build.emit("Sub", (result.name, taken), value, name=node.name)
        else:
            build.emit("MatMul", (read, words), value, attributes | signs, node.name)
        result = value


def _words_of_rows(
    graph: Graph, right: Value, build: GraphBuilder, count: int, producer: Mapping[str, Node]
) -> str:
    """The second operand [..., k, n] of bytes as words [..., k / count, n] of `count` rows."""
    *outer, rows, columns = right.shape
    shape, dtype = (*outer, -(-rows // count), columns), f"int{8 * count}"
    made = Value(build.fresh(f"{right.name}/words"), shape, dtype)
    move = _transposing(graph, right, producer)
    if move is not None and rows % count == 0:  # its words lie as its bytes do
        *before, length, last = graph.values[move.output].shape
        moved = Value(build.fresh(f"{right.name}/moved"), (*before, length // count, last), dtype)
        build.emit("Transpose", move.inputs, moved, {**move.attributes, "packed": count}, move.name)
        return build.emit("Reshape", (moved.name,), made)
    nothing = 128 if right.dtype == "uint8" else 0
    read = _filled(right, -rows % count, -2, build, nothing) if rows % count else right.name
    return build.emit("RowWords", (read,), made, {"count": count})


def _transposing(graph: Graph, right: Value, producer: Mapping[str, Node]) -> Node | None:
    """The Transpose that alone makes rows of what lay innermost, if a matrix is made so."""
    name, (rows, columns) = right.name, right.shape[-2:]
    while name in producer and producer[name].op == "Reshape":
        name = producer[name].inputs[0]
    node = producer.get(name)
    if node is None or node.op != "Transpose":
        return None
    perm, shape = node.integers("perm"), graph.values[name].shape
    innermost = len(shape) > 1 and perm[-2] == len(shape) - 1
    return node if innermost and shape[-1] == columns and shape[-2] % rows == 0 else None


def _flipped(words: str, build: GraphBuilder, count: int) -> str:
    """The words with the highest bit of each byte turned: uint8 as int8, 128 less."""
    value = build.values[words]
    bits = build.constant(f"{words}/bits", np.array(_repeated(-128, count), value.dtype))
    flipped = replace(value, name=build.fresh(f"{words}/signed"))
    return build.emit("BitwiseXor", (words, bits), flipped)


def _row_sums(left: Value, build: GraphBuilder, zero: int, factor: int) -> str:
    """factor * (sum of each row of bytes - k * zero)."""
    wide = Value(build.fresh(f"{left.name}/wide"), left.shape, "int32")
    build.emit("Cast", (left.name,), wide, {"to": "int32"})
    sums = Value(build.fresh(f"{left.name}/sums"), (*left.shape[:-1], 1), "int32")
    build.emit("ReduceSum", (wide.name,), sums, {"axes": (len(left.shape) - 1,)})
    if zero:
        all_zeros = build.constant(f"{left.name}/zeros", np.array(left.shape[-1] * zero, np.int32))
        centered = replace(sums, name=build.fresh(f"{left.name}/centered"))
        build.emit("Sub", (sums.name, all_zeros), centered)
        sums = centered
    return _times(sums, factor, build)


def _times(value: Value, factor: int, build: GraphBuilder) -> str:
    if factor == 1:
        return value.name
    number = build.constant(f"{value.name}/zero", np.array(factor, np.int32))
    return build.emit("Mul", (value.name, number), replace(value, name=build.fresh(f"{value.name}/scaled")))


def _ones(rows: int, count: int) -> Array:
    """One row of words whose bytes are 1."""
    return np.full((1, rows), _repeated(1, count), f"int{8 * count}")


def _image(graph: Graph, data: Value, producer: Mapping[str, Node]) -> Value | None:
    """The image [n, c, ...] that data with channels last are moved from; None for others."""
    ops = []
    name = data.name
    while name in producer and producer[name].op in ("Reshape", "Transpose"):
        ops.append(producer[name])
        name = producer[name].inputs[0]
    moves = [node for node in ops if node.op == "Transpose"]
    image = graph.values[name]
    if len(moves) != 1 or len(image.shape) != len(data.shape) or image.dtype != data.dtype:
        return None
    batch, *place, channels = data.shape
    read = graph.values[moves[0].inputs[0]].shape
    turned = {(batch, channels, math.prod(place)): (0, 2, 1), (channels, math.prod(place)): (1, 0)}
    fits = turned.get(read) == moves[0].integers("perm") and (len(read) == 3 or batch == 1)
    return image if fits and image.shape == (batch, channels, *place) else None


def _words_of(image: Value, node: Node, attributes: dict[str, Attribute], build: GraphBuilder) -> str:
    """The words that a convolution reads, its padding included: one pass over the image."""
    pads = node.integers("pads")
    half = len(pads) // 2
    batch, _, *extents = image.shape
    shape = [sum(item) for item in zip(extents, pads[:half], pads[half:], strict=True)]
    made = Value(build.fresh(f"{image.name}/words"), (batch, *shape, 1), "int32")
    value = attributes.pop("padding", 0)
    attributes["pads"] = (0,) * len(pads)
    around: dict[str, Attribute] = {"before": pads[:half], "after": pads[half:], "value": value}
    return build.emit("Words", (image.name,), made, around)


def _filled(data: Value, rest: int, axis: int, build: GraphBuilder, value: int = 0) -> str:
    """The data with `rest` elements more along an axis; the other operand, or this one, is 0 there."""
    after = [0] * len(data.shape)
    after[axis] = rest
    shape = tuple(extent + more for extent, more in zip(data.shape, after, strict=True))
    filled = Value(build.fresh(f"{data.name}/filled"), shape, data.dtype)
    attributes: dict[str, Attribute] = {
        "before": (0,) * len(shape),
        "after": tuple(after),
        "mode": "constant",
        "value": value,
    }
    return build.emit("Pad", (data.name,), filled, attributes)


def _widened(data: Value, product: _Product, build: GraphBuilder) -> str:
    """The data as the numbers that words are made of, once for all products that read them."""
    for node in build.nodes:
        if node.op == "Cast" and node.inputs == (data.name,) and node.text("to") == product.number:
            return node.output
    wide = Value(build.fresh(f"{data.name}/wide"), data.shape, product.number)
    return build.emit("Cast", (data.name,), wide, {"to": product.number})


def _words(weight: Array, rest: int, product: _Product) -> Array:
    """[..., ci, co] of int8 as [..., ceil(ci / count), co] of words, the first channel in the lowest bits."""
    weight = np.pad(weight, [(0, 0)] * (weight.ndim - 2) + [(0, rest), (0, 0)])
    *outer, read, written = weight.shape
    groups = weight.reshape(*outer, read // product.count, product.count, written).astype(product.number)
    packed = np.ascontiguousarray(np.moveaxis(groups, -2, -1)).view(np.dtype(product.word).newbyteorder("<"))
    return np.asarray(packed[..., 0], product.word)


def _repeated(byte: int, count: int) -> int:
    """A byte `count` times, as an integer with a sign."""
    return int.from_bytes([byte % 256] * count, "little", signed=True)
