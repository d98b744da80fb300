"""Models of several operators, drawn at random: what one computes another reads, cut or repeated to fit.

The expected values are those of ONNX's reference evaluator, operator by operator in float64. Beside each goes
a second one that begins as the first with a relative error of NOISE after every operator: how far the two are
apart says what errors of float32 may become on the way. What would be ill-conditioned is not drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.fuzz.operator_models import DRAWERS, Draft
from tests.fuzz.test_operator_models import by_onnxruntime
from tests.onnx_models import node

Array = NDArray[Any]

OPSETS = (13, 17, 18, 21)
NOISE = 1e-6  # of a float32's rounding, with room for sums in another order
LARGEST, SMALLEST = 1e4, 1e-37  # below it float32 has no full accuracy
MOST_ELEMENTS = 4000
SHARE_OF_NOISE = 1e-3  # the most that the noise may make of the largest element
# results that jump where their operands pass a point: of operands without error only
JUMPS = frozenset((
    *("Ceil", "Floor", "Round", "Sign", "ArgMax", "ArgMin", "Hardmax", "Mod", "IsInf", "IsNaN", "TopK"),
    *("ThresholdedRelu", "GridSample", "RoiAlign", "DeformConv", "MaxUnpool"),
))  # fmt: skip
COUNTED = frozenset(("Compress", "NonMaxSuppression", "NonZero", "Unique"))  # whose size depends on data
# results that are exact where the operands are
EXACT = JUMPS | frozenset((
    *("Identity", "Relu", "Abs", "Neg", "Max", "Min", "Clip", "Squeeze", "Unsqueeze", "Reshape", "Flatten"),
    *("Transpose", "Slice", "Split", "Concat", "Expand", "Tile", "Gather", "DepthToSpace", "SpaceToDepth"),
    *("Pad", "Trilu", "MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin", "Dropout", "Where"),
))  # fmt: skip


OF_ONE = frozenset({"GRU"})  # has 1 - z in it, which cancels: it is as exact as a number of magnitude 1


class MildDraft(Draft):
    """Draws multiples of 1/8 of one magnitude, which sums and products of a few of them hold exactly."""

    def data(self, shape: Sequence[int], most: float = np.inf) -> Array:
        return (self.rng.integers(-24, 25, shape) / 8).astype(np.float32)


@dataclass(frozen=True)
class Known:
    """A value of the model: floats in float64, what the noise makes of it, and whether it has no error."""

    value: Array
    noisy: Array
    exact: bool
    dtype: str

    @property
    def tolerance(self) -> float:
        """What an element may be off."""
        if self.value.dtype.kind != "f" or not self.value.size:
            return 0.0
        return (
            10 * float(np.abs(self.value - self.noisy).max())
            + 4e-6 * float(np.abs(self.value).max())
            + SMALLEST
        )


@dataclass
class Network:
    """A model under construction; every random choice is drawn from `rng`."""

    rng: np.random.Generator
    opset: int
    nodes: list[Any] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)
    weights: dict[str, Array] = field(default_factory=dict)
    known: dict[str, Known] = field(default_factory=dict)
    ops: list[str] = field(default_factory=list)

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def input(self, array: Array) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = array
        return self._know(name, array)

    def weight(self, array: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(array)
        return self._know(name, self.weights[name])

    def _know(self, name: str, array: Array) -> str:
        value = array.astype(np.float64) if array.dtype == np.float32 else array
        self.known[name] = Known(value, value, True, str(array.dtype))
        return name

    def values(self, kinds: str, exact: bool = False) -> list[str]:
        """Names of values that are no weights, of dtypes of these kinds."""
        return [
            name
            for name, item in self.known.items()
            if name not in self.weights and np.dtype(item.dtype).kind in kinds and (item.exact or not exact)
        ]

    def value(self, kinds: str, exact: bool = False) -> str:
        """One of the values, rather a late one; a new input where there is none."""
        found = self.values(kinds, exact)
        if not found or self.chance(0.05):
            return self.input(self.new(kinds[0], tuple(self.rng.integers(1, 6, self.pick(1, 2, 3)))))
        return found[-1 - int(min(self.rng.geometric(0.4) - 1, len(found) - 1))]

    def joined(self, kinds: str, shape: tuple[int, ...], exact: bool = False) -> str:
        """A value of this shape, rather one that has it already."""
        found = [name for name in self.values(kinds, exact) if self.known[name].value.shape == shape]
        if found and self.chance(0.7):
            return str(self.rng.choice(found))
        return self.fitted(self.value(kinds, exact), shape)

    def new(self, kind: str, shape: tuple[int, ...]) -> Array:
        """Data for an input."""
        if kind == "b":
            return np.asarray(self.rng.integers(0, 2, shape), bool)
        if kind == "i":
            return np.asarray(self.rng.integers(-9, 10, shape), self.pick(np.int32, np.int64))
        return (self.rng.integers(-24, 25, shape) / 8).astype(np.float32)

    def emit(self, op: str, operands: Sequence[str], outputs: int = 1, **attributes: Any) -> list[str]:
        """The names of what a node computes; none where it is left out: nobody can run it, or it is
        ill-conditioned."""
        names = [f"v{len(self.known) + place}" for place in range(outputs)]
        made = node(op, operands, names, **attributes)
        given = {name: self.known[name] for name in operands if name}
        given |= {name: self.known[name] for name in _captured(made) if name in self.known}
        values = evaluated(made, {name: item.value for name, item in given.items()}, self.opset)
        noisy = evaluated(made, {name: item.noisy for name, item in given.items()}, self.opset)
        if values is None or noisy is None:
            return []
        without_error = all(item.exact for item in given.values())
        if op in JUMPS and not without_error:
            return []
        found = []
        for value, other in zip(values, noisy, strict=True):
            if value.shape != other.shape or not np.isfinite(value.astype(np.float64)).all():
                return []
            dtype = "float32" if value.dtype == np.float64 else str(value.dtype)
            exact = without_error and (op in EXACT or value.dtype.kind != "f")
            if value.dtype == np.float64 and not exact:
                rounded = np.maximum(np.abs(other), 1.0) if op in OF_ONE else other
                other = other + NOISE * rounded * self.rng.standard_normal(other.shape)
            found.append(Known(value, other, exact, dtype))
        if not all(map(_sound, found)):
            return []
        self.known |= zip(names, found, strict=True)
        self.nodes.append(made)
        self.ops.append(op)
        return names

    def fitted(self, name: str, shape: Sequence[int]) -> str:
        """The value in another shape: the same elements where their number fits, else some or repeated."""
        item, wanted = self.known[name], math.prod(shape)
        if item.value.shape == tuple(shape):
            return name
        if not item.value.size and wanted:
            return self.input(self.new(np.dtype(item.dtype).kind, tuple(shape)))
        steps: list[tuple[str, list[Any]]] = [("Reshape", [[-1]])]
        if wanted > item.value.size:
            steps.append(("Tile", [[-(-wanted // item.value.size)]]))
        if wanted % max(item.value.size, 1):
            steps.append(("Slice", [[0], [wanted]]))
        if not wanted:
            steps = [("Reshape", [[-1]]), ("Slice", [[0], [0]])]
        steps.append(("Reshape", [list(shape)]))
        for op, operands in steps:
            constants = [self.weight(np.array(numbers, np.int64)) for numbers in operands]
            attributes = {"allowzero": 1} if op == "Reshape" and 0 in operands[0] and self.opset >= 14 else {}
            (name,) = self.emit(op, [name, *constants], **attributes) or [name]
        return name if self.known[name].value.shape == tuple(shape) else self.input(
            self.new(np.dtype(item.dtype).kind, tuple(shape))
        )  # fmt: skip

    def proto(self) -> Any:
        """The model; what nobody reads is an output, and sometimes other values are."""
        read = {name for made in self.nodes for name in (*made.input, *_captured(made))}
        made = [name for item in self.nodes for name in item.output]
        outputs = [name for name in made if name not in read or self.chance(0.1)]
        used = {name for name in (*self.inputs, *self.weights) if name in read}
        graph = helper.make_graph(
            self.nodes,
            "drawn",
            [_info(name, array) for name, array in self.inputs.items() if name in used],
            [_info(name, self.known[name].value, self.known[name].dtype) for name in outputs],
            [numpy_helper.from_array(array, name) for name, array in self.weights.items() if name in used],
        )
        imports = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)


def _info(name: str, array: Array, dtype: str = "") -> Any:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype or array.dtype))
    return helper.make_tensor_value_info(name, kind, array.shape)


def _captured(made: Any) -> list[str]:
    """What the graphs of a node read from around it."""
    graphs = [item.g for item in made.attribute if item.HasField("g")]
    return [name for graph in graphs for inner in graph.node for name in inner.input]


def _sound(item: Known) -> bool:
    """Whether a value is worth going on with."""
    value, noisy = item.value, item.noisy
    if value.size > MOST_ELEMENTS:
        return False
    if value.dtype.kind != "f":
        return bool((value == noisy).all()) and (value.dtype.kind == "b" or _largest(value) < 1 << 20)
    apart = _largest(value - noisy)
    return _largest(value) < LARGEST and apart <= SHARE_OF_NOISE * max(_largest(value), 1e-3)


def _largest(array: Array) -> float:
    return float(np.abs(array.astype(np.float64)).max(initial=0.0))


def evaluated(made: Any, given: Mapping[str, Array], opset: int) -> list[Array] | None:
    """The outputs of a node, floats in float64; None where the evaluator cannot run it as ONNX says."""
    double = onnx.NodeProto()
    double.CopyFrom(made)
    for item in double.attribute:
        if made.op_type == "Cast" and item.name == "to" and item.i == onnx.TensorProto.FLOAT:
            item.i = onnx.TensorProto.DOUBLE
    graph = helper.make_graph(
        [double],
        "one",
        [_info(name, array) for name, array in given.items()],
        [helper.make_empty_tensor_value_info(name) for name in made.output],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    try:
        with np.errstate(all="ignore"):
            found = [np.asarray(item) for item in ReferenceEvaluator(proto).run(None, dict(given))]
        inferred = onnx.shape_inference.infer_shapes(proto).graph.output
    except Exception:  # noqa: BLE001 - whatever it raises, it cannot run it
        return None
    for item, array in zip(inferred, found, strict=True):  # the evaluator counts some windows otherwise
        sizes = [dim.dim_value for dim in item.type.tensor_type.shape.dim if dim.HasField("dim_value")]
        if len(sizes) == array.ndim and tuple(sizes) != array.shape:
            return None
    return found


# ------------------------------------------------------------------------------------- what is drawn


def drawn(net: Network) -> None:
    """Any operator of operator_models.py, which reads other values in place of its own inputs."""
    known = [op for op in sorted(DRAWERS.keys() - COUNTED) if onnx.defs.has(op, net.opset)]
    op = str(net.rng.choice([op for op in known if not onnx.defs.get_schema(op, net.opset).deprecated]))
    draft = MildDraft(op, net.rng, net.opset)
    DRAWERS[op](draft)
    if by_onnxruntime(draft) or (op == "MaxPool" and draft.outputs > 1):  # 1-D places count from each channel
        return
    operands = []
    for name in draft.operands:
        if name in draft.inputs:
            array = draft.inputs[name]
            keeps = array.dtype != np.float32 or net.chance(0.1)
            operands.append(net.input(array) if keeps else net.joined("f", array.shape, op in JUMPS))
        else:
            operands.append(name and net.weight(draft.weights[name]))
    net.emit(op, operands, draft.outputs, **draft.attributes)


def cast(net: Network) -> None:
    """Between floats, integers and truth values."""
    kind = net.pick("f", "i", "b")
    to = net.pick(*{"f": ("INT32", "INT64", "BOOL"), "i": ("FLOAT", "INT32", "INT64", "INT8", "BOOL")}.get(
        kind, ("FLOAT", "INT32", "INT64", "UINT8")
    ))  # fmt: skip
    net.emit("Cast", [net.value(kind, exact=True)], to=getattr(onnx.TensorProto, to))


def _pair(net: Network, kind: str, exact: bool = False) -> list[str]:
    """Two values of one dtype that fit by broadcasting, in either order."""
    first = net.value(kind, exact)
    item = net.known[first]
    same = [name for name in net.values(kind, exact) if net.known[name].dtype == item.dtype]
    other = str(net.rng.choice(same))
    shape = [1 if net.chance(0.3) else extent for extent in item.value.shape]
    pair = [first, net.fitted(other, shape[net.pick(0, 0, 1) :])]
    return pair if net.chance(0.7) else pair[::-1]


def integers(net: Network) -> None:
    """Arithmetic and bits of integers."""
    ops = [
        "Add",
        "Sub",
        "Mul",
        "Max",
        "Min",
        *(("BitwiseAnd", "BitwiseOr", "BitwiseXor") if net.opset >= 18 else ()),
    ]
    op = net.pick(*ops, "Mod", "Neg", "Abs", "ReduceSum", "ReduceMax")
    if op in ("Neg", "Abs"):
        net.emit(op, [net.value("i")])
    elif op.startswith("Reduce"):
        net.emit(op, [net.value("i")], keepdims=int(net.pick(0, 1)))
    elif op == "Mod":
        name = net.value("i")
        net.emit(op, [name, net.weight(np.array(net.pick(2, 3, 7), net.known[name].dtype))])
    else:
        net.emit(op, _pair(net, "i"))


def compare(net: Network) -> None:
    op = net.pick("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
    net.emit(op, _pair(net, net.pick("f", "i"), exact=True))


def logic(net: Network) -> None:
    op = net.pick("And", "Or", "Xor", "Not")
    net.emit(op, [net.value("b")] if op == "Not" else _pair(net, "b"))


def where(net: Network) -> None:
    pair = _pair(net, net.pick("f", "f", "i"))
    shape = np.broadcast_shapes(*(net.known[name].value.shape for name in pair))
    net.emit("Where", [net.fitted(net.value("b"), shape[net.pick(0, 0, 1) :]), *pair])


def _indices(net: Network, extent: int) -> str | None:
    """A value whose elements are from 0 to the extent."""
    name = net.value("i")
    found = net.emit("Mod", [name, net.weight(np.array(extent, net.known[name].dtype))]) if extent else []
    return found[0] if found else None


def gather(net: Network) -> None:
    """By indices that are computed."""
    name = net.value("fi")
    shape = net.known[name].value.shape
    if shape and (indices := _indices(net, shape[axis := int(net.rng.integers(len(shape)))])):
        op = net.pick("Gather", "GatherElements")
        if op == "GatherElements":
            indices = net.fitted(indices, shape)
        net.emit(op, [name, indices], axis=axis)


def top(net: Network) -> None:
    name = net.value("f", exact=True)
    shape = net.known[name].value.shape
    if shape and shape[-1]:
        count = net.weight(np.array([net.rng.integers(1, shape[-1] + 1)], np.int64))
        net.emit("TopK", [name, count], 2, axis=-1, largest=int(net.pick(0, 1)))


def one_hot(net: Network) -> None:
    depth = int(net.pick(1, 3, 6))
    if (indices := _indices(net, depth)) and net.known[indices].value.ndim:
        values = net.weight(np.array([0.0, 1.5], np.float32))
        net.emit("OneHot", [indices, net.weight(np.array(depth, np.int64)), values], axis=net.pick(0, -1))


def join(net: Network) -> None:
    """Two values of one dtype behind each other."""
    first = net.value("fib")
    item = net.known[first]
    same = [name for name in net.known if net.known[name].dtype == item.dtype and name not in net.weights]
    shape = list(item.value.shape)
    if shape:
        axis = int(net.rng.integers(len(shape)))
        shape[axis] = int(net.pick(1, 2, 3))
        net.emit("Concat", [first, net.fitted(str(net.rng.choice(same)), shape)], axis=axis)


def empty(net: Network) -> None:
    """A value without elements, joined with others, summed up, or both."""
    shape = [*net.rng.integers(1, 5, 2)]
    shape[axis := int(net.pick(0, 1))] = 0
    name = net.input(np.zeros(shape, np.float32))
    if net.chance(0.5):
        name = (net.emit("Relu", [name]) or [name])[0]
    shape[axis] = int(net.pick(0, 2, 3))
    net.emit("Concat", [net.fitted(net.value("f"), shape), name], axis=axis)
    if net.chance(0.5):
        net.emit("ReduceSum", [name, net.weight(np.array([axis], np.int64))], keepdims=int(net.pick(0, 1)))


def recurrent(net: Network) -> None:
    op, ways, hidden = net.pick("RNN", "GRU", "LSTM"), net.pick(1, 2), int(net.pick(1, 4, 8))
    steps, batch, features = (int(net.pick(1, 2, 4)) for _ in range(3))
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op] * hidden
    x = net.fitted(net.value("f"), (steps, batch, features))
    shapes = ((ways, gates, features), (ways, gates, hidden))
    weights = [net.weight((net.rng.integers(-8, 9, shape) / 8).astype(np.float32)) for shape in shapes]
    direction = "bidirectional" if ways == 2 else net.pick("forward", "reverse")
    net.emit(op, [x, *weights], 3 if op == "LSTM" else 2, hidden_size=hidden, direction=direction)


def choice(net: Network) -> None:
    """If, with branches that read values from around them."""
    name = net.value("f")
    shape = net.known[name].value.shape
    if 0 in shape:  # refused
        return
    condition = net.fitted(net.value("b"), ())
    branches = []
    for place, op in enumerate((net.pick("Tanh", "Neg"), net.pick("Relu", "Mul"))):
        result = f"b{len(net.known)}_{place}"
        made = node(op, [name, name][: 2 if op == "Mul" else 1], result)
        info = helper.make_tensor_value_info(result, onnx.TensorProto.FLOAT, shape)
        branches.append(helper.make_graph([made], f"branch_{result}", [], [info]))
    net.emit("If", [condition], then_branch=branches[0], else_branch=branches[1])


STEPS: tuple[Callable[[Network], None], ...] = (
    *(drawn,) * 14,
    *(cast, integers, compare, logic, where, gather, top, one_hot, join, empty, recurrent, choice),
)


def random_network(seed: int | Sequence[int], most: int = 8) -> Network:
    """Up to `most` of STEPS, and those that make their operands fit; always at least one."""
    rng = np.random.default_rng(seed)
    net = Network(rng, int(rng.choice(OPSETS)))
    for kind in "ffib"[: net.pick(2, 3, 4)]:
        net.input(net.new(kind, tuple(rng.integers(1, 6, net.pick(1, 2, 3)))))
    wanted = int(rng.integers(2, most + 1))
    for _ in range(4 * wanted):
        before = len(net.ops)
        net.pick(*STEPS)(net)
        wanted -= len(net.ops) > before
        if not wanted:
            break
    if not net.ops:
        net.emit("Relu", [net.value("f")])
    return net
