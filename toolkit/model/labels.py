"""Short names of operators for people: what an operator computes, and where in the network it stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from math import prod

from cross.expression.language.operations import DOT_BYTES
from cross.expression.language.operator import Operator, reads
from cross.expression.language.tensor import Axis, Read, Reduce, Tensor
from cross.expression.language.terms import Call, Int, Term, walk
from cross.loopnest.affine import affine
from toolkit.records import Records

PLACE_LIMIT = 24  # characters of a place: half a line of 80 columns is left for what is computed
ELSEWHERE = "..."


def short_name(operator: Operator) -> str:
    """What is computed: `conv 3x3 s2 112x112 64->128` (kernel, stride, image, channels in and out; where rows
    are joined, `conv 1x1 196 64->128` has as many pixels), `matmul 4 x 128x64x256` (batch, then rows, depth,
    columns), or the shapes of what is read and written.

    Of a chain: its first link, and the shape of its result, `conv 1x1 56x56 24->144 ... 56x56x24`.
    """
    reductions = [stage for stage in operator.stages if isinstance(stage.body, Reduce)]
    first, *others = [_contraction(operator, stage) for stage in reductions] or [[]]
    words = first or _shapes(operator)
    if first and any(others):
        words = [*words, ELSEWHERE, "x".join(map(str, operator.output.shape[1:]))]
    dtype = operator.output.dtype
    return " ".join([operator.name, *words, *([] if dtype == "float32" else [dtype])])


def operator_names(records: Records) -> dict[str, str]:
    """The short name of every operator that a store describes, by its key; none where it cannot be read."""
    return {key: short_name(operator) for key, operator in records.described().items()}


def short_places(names: Sequence[str]) -> list[str]:
    """At most PLACE_LIMIT characters for each name of a node, without what all share, no two the same.

    Of a node that stands for several (`a;b;c`) the first is named, of a path its last parts.
    """
    paths = [name.split(";")[0].strip("/").split("/") for name in names]
    shared = 0
    while len(names) > 1 and all(
        len(path) > shared + 1 and path[shared] == paths[0][shared] for path in paths
    ):
        shared += 1
    places = [_tail(path[shared:]) for path in paths]
    counts, seen = Counter(places), Counter[str]()
    unique = []
    for place in places:
        seen[place] += 1
        unique.append(place if counts[place] == 1 else f"{place}#{seen[place]}")
    return unique


def _tail(path: Sequence[str]) -> str:
    """The last parts of a path that fit; of a part that is too long its end."""
    whole = "/".join(path)
    if len(whole) <= PLACE_LIMIT:
        return whole
    kept = whole[len(ELSEWHERE) - PLACE_LIMIT :]
    _, slash, parts = kept.partition("/")
    return f"{ELSEWHERE}/{parts}" if slash else ELSEWHERE + kept


def _contraction(operator: Operator, stage: Tensor) -> list[str]:
    """Kernel, image and channels of a stage that slides a window, the extents of a matrix product."""
    operands = list(dict.fromkeys(reads(stage)))
    if not operands:
        return []
    data, weights = operands[0], operands[1:]
    indices = [_axes(index) for index in data.indices]
    of_data = set(chain.from_iterable(indices))
    of_weights = {axis for read in weights for index in read.indices for axis in _axes(index)}
    inner = {axis for axis in stage.reduce_axes if axis in of_data}
    slides = [at for at, found in enumerate(indices) if len(found) == 2 and inner & set(found)]
    if slides:
        return _window(operator, stage, data, slides, of_weights)
    if not weights or operator.name not in ("matmul", "conv"):
        return []
    shared = [axis for axis in stage.axes if axis in of_data and axis in of_weights]
    rows = [axis for axis in stage.axes if axis in of_data and axis not in of_weights]
    columns = [axis for axis in stage.axes if axis not in of_data]
    batch = prod(axis.extent for axis in shared)
    height, depth, width = (prod(axis.extent for axis in axes) for axes in (rows, stage.reduce_axes, columns))
    depth *= _word(stage)
    if operator.name == "conv":
        kernel = [axis.extent for axis in stage.reduce_axes if axis not in of_data]
        if set(kernel) != {1}:
            return []
        return [_by(kernel), str(height), *_channels(depth, width, batch)]
    product = _by([height, depth, width])
    return [f"{batch} x {product}"] if batch > 1 else [product]


def _window(
    operator: Operator, stage: Tensor, data: Read, slides: Sequence[int], of_weights: set[Axis]
) -> list[str]:
    kernel, strides, dilations, seen = [], [], [], set[Axis]()
    for at in slides:
        for axis, factor in _axes(data.indices[at]).items():
            seen.add(axis)
            if axis in stage.reduce_axes:
                kernel.append(axis.extent)
                dilations.append(factor)
            else:
                strides.append(factor)
    image = _source(operator, data.tensor).shape
    words = [_by(kernel), *_unless_one("s", strides), *_unless_one("d", dilations)]
    words.append(_by([image[at] for at in slides]))
    depth = prod(axis.extent for axis in stage.reduce_axes if axis not in seen) * _word(stage)
    of_data = {axis for index in data.indices for axis in _axes(index)}
    free = [axis for axis in stage.axes if axis not in seen]
    groups = prod(axis.extent for axis in free if axis in of_data and axis in of_weights)
    width = prod(axis.extent for axis in free if axis not in of_data)
    if not of_weights:
        return [*words, str(stage.shape[-1])]
    return [*words, *_channels(depth, width, groups)]


def _channels(depth: int, width: int, groups: int) -> list[str]:
    """Channels in and out of all groups, and how many groups."""
    return [f"{depth * groups}->{width * groups}", *([f"g{groups}"] if groups > 1 else [])]


def _word(stage: Tensor) -> int:
    """Elements that one read of a product's operands takes: several where their bytes lie in words."""
    assert stage.body is not None
    calls = [term.function for term in walk(stage.body) if isinstance(term, Call)]
    return max((DOT_BYTES.get(name, 1) for name in calls), default=1)


def _source(operator: Operator, tensor: Tensor) -> Tensor:
    """What a padded tensor was before: the operator's input of the same rank behind it."""
    while tensor not in operator.inputs:
        behind = [read.tensor for read in reads(tensor) if len(read.tensor.shape) == len(tensor.shape)]
        if not behind:
            return tensor
        tensor = behind[0]
    return tensor


def _axes(index: Term) -> dict[Axis, int]:
    """The loop axes of an index with their factors; none where it is not affine in them."""
    terms, _ = affine(index)
    return {
        axis: factor.value
        for axis, factor in terms.items()
        if isinstance(axis, Axis) and isinstance(factor, Int)
    }


def _shapes(operator: Operator) -> list[str]:
    """The shapes that are read, each once with its count, and the one that is written."""
    output = _shape(operator.output)
    computed = [_shape(item) for at, item in enumerate(operator.inputs) if at not in operator.constants]
    inputs = [f"{count} x {shape}" if count > 1 else shape for shape, count in Counter(computed).items()]
    return [output] if inputs in ([output], []) else [*inputs, "->", output]


def _shape(tensor: Tensor) -> str:
    """Extents without the leading ones of a batch of one."""
    shape = list(tensor.shape)
    while len(shape) > 1 and shape[0] == 1:
        shape.pop(0)
    return _by(shape) or "scalar"


def _by(extents: Iterable[int]) -> str:
    return "x".join(map(str, extents))


def _unless_one(letter: str, factors: Sequence[int]) -> list[str]:
    if set(factors) == {1}:
        return []
    return [f"{letter}{factors[0] if len(set(factors)) == 1 else _by(factors)}"]
