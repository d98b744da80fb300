"""Importers of recurrent layers: LSTM, GRU, RNN and DynamicQuantizeLSTM become loops over their steps.

The products of the inputs do not depend on the step: those of all steps are one matrix product in front of
the loop. In it are the product of the hidden state and what is behind it (families/recurrent.py). A direction
is a loop of its own. Where sequences differ in length, a step beyond the end of one keeps its states: going
backwards they are then what they began as until the sequence begins.

DynamicQuantizeLSTM (com.microsoft; github.com/microsoft/onnxruntime, docs/ContribOperators.md) multiplies
bytes: all inputs are quantized by one scale, and in each step the state of all sequences by one. So does ONNX
Runtime on one thread; on more, the sequences of each thread have a scale of their own. Where sequences differ
in length each has one here, so that a state beyond the end of one decides on no other's.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from toolkit.model.graph import STORED, Attribute, GraphBuilder, Repeat, Value
from toolkit.model.quantized_products import Bytes, product, quantized
from toolkit.model.source import FLOATS, Emitter, Importer, Operand, Source

ACTIVATIONS: dict[str, dict[str, float]] = {
    **{name: {} for name in ("Relu", "Tanh", "Sigmoid", "Softsign", "Softplus")},
    "LeakyRelu": {"alpha": 0.01},
    "ThresholdedRelu": {"alpha": 1.0},
    "Elu": {"alpha": 1.0},
    "Affine": {"alpha": 1.0, "beta": 0.0},
    "ScaledTanh": {"alpha": 1.0, "beta": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
}
QUANTIZED = "DynamicQuantizeLSTM"
BYTES = ("int8", "uint8")
DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
BACKWARDS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


class _Nodes(Emitter, frozen=True):
    """Appends the canonical nodes of a layer."""

    def added(self, left: str, right: str) -> str:
        values = [self.build.values[name] for name in (left, right)]
        if values[0].data is not None and values[1].data is not None:
            return self.build.constant(f"{left}/sum", values[0].data + values[1].data)
        return self.emit("Add", [left, right], np.broadcast_shapes(values[0].shape, values[1].shape))

    def of_direction(self, operand: Operand, direction: int, axis: int = 0) -> str:
        """The part of one direction, without the axis of the directions."""
        part = self.part(operand.name, axis, direction, direction + 1)
        return self.shaped(part, [*operand.shape[:axis], *operand.shape[axis + 1 :]])


class _Layer(msgspec.Struct, frozen=True):
    """What all directions of a layer share; `inputs` are its inputs [steps * batch, features]."""

    source: Source
    inputs: str | Bytes
    steps: int
    batch: int
    hidden: int
    activations: tuple[dict[str, Attribute], ...]  # of each direction: f, g, h with their settings

    @property
    def kind(self) -> str:
        return _kind(self.source)

    @property
    def dtype(self) -> str:
        return self.source.input(0).dtype

    @property
    def state(self) -> tuple[int, int]:
        return self.batch, self.hidden


class _Body(msgspec.Struct):
    """The loop of one direction under construction: its body, and what it reads from outside, in order.

    Of what it reads: the value outside, and the body's input.
    """

    outer: GraphBuilder
    nodes: _Nodes
    carried: list[tuple[str, str]] = []
    scanned: list[tuple[str, str]] = []
    others: list[tuple[str, str]] = []

    def _input(self, kind: list[tuple[str, str]], name: str, shape: tuple[int, ...]) -> str:
        build = self.nodes.build
        own = build.add(Value(build.fresh(name), shape, self.outer.values[name].dtype))
        kind.append((name, own))
        return own

    def carry(self, name: str) -> str:
        """The value that begins as `name`."""
        return self._input(self.carried, name, self.outer.values[name].shape)

    def scan(self, name: str) -> str:
        """A slice of `name` along its first dimension."""
        return self._input(self.scanned, name, self.outer.values[name].shape[1:])

    def read(self, name: str) -> str:
        """`name` as it is."""
        value = self.outer.values[name]
        if value.data is not None:
            return self.nodes.build.constant(name, value.data)
        return self._input(self.others, name, value.shape)

    def read_weights(self, weights: str | Bytes) -> str | Bytes:
        """Weights as they are."""
        if isinstance(weights, str):
            return self.read(weights)
        zero = self.read(weights.zero) if weights.zero else ""
        return Bytes(self.read(weights.integers), self.read(weights.scale), zero)


def _kind(source: Source) -> str:
    """The layer's operator on floats."""
    return "LSTM" if source.op == QUANTIZED else source.op


def _activations(source: Source) -> tuple[dict[str, Attribute], ...]:
    """For each direction its activations f, g, h as attributes; alpha and beta go to those that take them."""
    directions = BACKWARDS.get(source.text("direction", "forward"), ())
    if not directions:
        raise source.invalid(f"direction {source.text('direction', '')!r} is unknown")
    defaults = DEFAULTS[_kind(source)]
    listed = source.attributes.get("activations", ())
    names = [str(item, "utf-8", "replace") for item in listed] if isinstance(listed, (list, tuple)) else []
    names = names or list(defaults) * len(directions)
    settings = {key: list(source.numbers(f"activation_{key}")) for key in ("alpha", "beta")}
    known = {name.lower(): name for name in ACTIVATIONS}
    if len(names) != len(defaults) * len(directions) or any(name.lower() not in known for name in names):
        raise source.invalid(
            f"activations {names} are none of {', '.join(ACTIVATIONS)}, {len(defaults)} for each direction"
        )
    found: list[dict[str, Attribute]] = []
    for number, name in enumerate(names):
        if number % len(defaults) == 0:
            found.append({})
        letter = "fgh"[number % len(defaults)]
        found[-1][letter] = known[name.lower()]
        for key, default in ACTIVATIONS[known[name.lower()]].items():
            found[-1][f"{letter}_{key}"] = settings[key].pop(0) if settings[key] else default
    return tuple(found)


def recurrent(source: Source, build: GraphBuilder) -> None:
    """LSTM, GRU and RNN, and an LSTM of bytes: one loop a direction."""
    nodes, data, activations = _Nodes(source, build), source.input(0), _activations(source)
    layout = source.integer("layout", 0)
    inputs = nodes.transposed(data.name, (1, 0, 2)) if layout else data.name
    steps, batch, features = nodes.shape(inputs)
    hidden = source.input(2).shape[-1]
    if source.op == QUANTIZED:
        hidden //= GATES["LSTM"]
        _check_quantized(source, features, hidden)
        inputs = _without_padding(source, nodes, inputs)
    rows: str | Bytes = nodes.shaped(inputs, (steps * batch, features))
    if source.op == QUANTIZED:
        rows = quantized(nodes, str(rows), (0, 1))
    layer = _Layer(source, rows, steps, batch, hidden, activations)
    backwards = BACKWARDS[source.text("direction", "forward")]
    if source.input(1).shape[0] != len(backwards):
        raise source.invalid(
            f"its weights have {source.input(1).shape[0]} directions, expected {len(backwards)}"
        )
    found = [_direction(layer, nodes, number, back) for number, back in enumerate(backwards)]
    for position, output in enumerate(source.outputs):
        if output is None:
            continue
        parts = [outputs[position] for outputs in found]
        if position == 0 and layout:
            parts = [nodes.transposed(part, (1, 0, 2)) for part in parts]
        plain = nodes.shape(parts[0])
        axis = len(plain) - (1 if layout else 2)  # of the directions
        shape = (*plain[:axis], 1, *plain[axis:])
        if len(parts) == 1:
            source.give(build, output, "Reshape", parts)
        else:
            parts = [nodes.shaped(part, shape) for part in parts]
            source.give(build, output, "Concat", parts, {"axis": axis})


def _check_quantized(source: Source, features: int, hidden: int) -> None:
    """Refuse operands of other dtypes and shapes than ONNX Runtime takes."""
    for place, dtypes in ((0, ("float32",)), (1, BYTES), (2, BYTES)):
        found = source.input(place)
        if found.dtype not in dtypes:
            raise source.invalid(f"{found.name!r} has dtype {found.dtype}, expected {' or '.join(dtypes)}")
    directions, width = len(BACKWARDS[source.text("direction", "forward")]), GATES["LSTM"] * hidden
    expected: dict[int, list[tuple[int, ...]]] = {
        1: [(directions, features, width)],
        2: [(directions, hidden, width)],
    }
    expected |= {place: [(directions,), (directions, width)] for place in (8, 9, 10, 11)}
    for place, shapes in expected.items():
        operand = source.optional(place) if place in (9, 11) else source.input(place)
        if operand is not None and operand.shape not in shapes:
            text = " or ".join(str(list(shape)) for shape in shapes)
            raise source.invalid(f"{operand.name!r} has shape {list(operand.shape)}, expected {text}")


def _without_padding(source: Source, nodes: _Nodes, inputs: str) -> str:
    """The inputs, zeros in the steps that no sequence has, so that those do not decide on a scale."""
    lengths, shape = source.optional(4), nodes.shape(inputs)
    if lengths is None:
        return inputs
    numbers = np.arange(shape[0]).reshape(-1, 1, 1)
    if lengths.data is not None:
        read = nodes.constant("read", numbers < lengths.data.max(), "bool")
    else:
        longest = nodes.emit("ReduceMax", [lengths.name], (1,), {"axes": (0,)})
        known = nodes.constant("steps", numbers, lengths.dtype)
        read = nodes.emit("Less", [known, longest], numbers.shape, dtype="bool")
    return nodes.emit("Where", [read, inputs, nodes.constant("nothing", 0.0, "float32")], shape)


def _weights(layer: _Layer, nodes: _Nodes, direction: int, place: int) -> str | Bytes:
    """A matrix of one direction [data, gates * hidden]: of the inputs at the input 1, of the state at 2."""
    source = layer.source
    own = nodes.of_direction(source.input(place), direction)
    if source.op != QUANTIZED:
        return nodes.transposed(own, (1, 0))
    scale, zero = source.input(6 + 2 * place), source.optional(7 + 2 * place)
    return Bytes(
        own, nodes.of_direction(scale, direction), nodes.of_direction(zero, direction) if zero else ""
    )


def _multiplied(nodes: Emitter, data: str | Bytes, weights: str | Bytes) -> str:
    """The product of rows with weights in floats, of both as floats or both as bytes."""
    if isinstance(weights, Bytes):
        assert isinstance(data, Bytes)
        return product(nodes, data, weights)
    assert isinstance(data, str)
    return nodes.emit("MatMul", [data, weights], (nodes.shape(data)[0], nodes.shape(weights)[1]))


def _direction(layer: _Layer, nodes: _Nodes, direction: int, back: bool) -> list[str]:
    """One loop: the hidden states of all steps, the last one, and of an LSTM the last cell state."""
    source, width = layer.source, GATES[layer.kind] * layer.hidden
    products = _multiplied(nodes, layer.inputs, _weights(layer, nodes, direction, 1))
    separate = source.op == "GRU" and source.integer("linear_before_reset", 0) != 0
    bias = source.optional(3)
    state_bias = ""
    if bias is not None:
        both = nodes.of_direction(bias, direction)
        own, state_bias = nodes.part(both, 0, 0, width), nodes.part(both, 0, width, 2 * width)
        if not separate:
            own, state_bias = nodes.added(own, state_bias), ""
        products = nodes.added(products, own)
    products = nodes.shaped(products, (layer.steps, layer.batch, width))
    states = [
        _initial(layer, nodes, direction, position) for position in (5, 6)[: 2 if layer.kind == "LSTM" else 1]
    ]
    body = _Body(nodes.build, _Nodes(source, GraphBuilder(f"{source.name}/{direction}")))
    old = [body.carry(name) for name in states]
    x = body.scan(products)
    inside = _inside(layer, nodes, body)
    matrix = body.read_weights(_weights(layer, nodes, direction, 2))
    attributes: dict[str, Attribute] = {**layer.activations[direction], "clip": source.number("clip", 0.0)}
    cell = _Cell(layer, body, x, matrix, attributes, inside)
    if layer.kind == "LSTM":
        peepholes = source.optional(7)
        new = cell.lstm(old, body.read(nodes.of_direction(peepholes, direction)) if peepholes else "")
    elif source.op == "GRU":
        new = cell.gru(old[0], body.read(state_bias) if state_bias else "", separate)
    else:
        new = cell.rnn(old[0])
    stacked = [cell.kept(new[0], "")] if source.outputs and source.outputs[0] else []
    results = (*new, *stacked)
    outside, inputs = zip(*body.carried, *body.scanned, *body.others, strict=True)
    graph = body.nodes.build.finish(inputs, list(dict.fromkeys(results)))
    slices = len(body.scanned) + len(stacked)
    repeat = Repeat(graph, layer.steps, len(new), len(body.scanned), results, (back,) * slices)
    values = [nodes.build.fresh(f"{source.name}/last{direction}.{number}") for number in range(len(new))]
    outputs = [Value(name, layer.state, layer.dtype) for name in values]
    if stacked:
        name = nodes.build.fresh(f"{source.name}/states{direction}")
        outputs.append(Value(name, (layer.steps, *layer.state), layer.dtype))
    last = nodes.build.control(repeat, outside, outputs, source.name)
    return [last[-1], *last[: len(new)]]


def _initial(layer: _Layer, nodes: _Nodes, direction: int, position: int) -> str:
    """The state that a direction begins with: zeros where none is given."""
    given = layer.source.optional(position)
    if given is None:
        return nodes.build.constant(f"{layer.source.name}/zeros", np.zeros(layer.state, layer.dtype))
    return nodes.of_direction(given, direction, 1 if layer.source.integer("layout", 0) else 0)


def _inside(layer: _Layer, nodes: _Nodes, body: _Body) -> str:
    """Whether the step is one of each sequence [batch, 1]; "" where all sequences have all steps."""
    lengths, steps = layer.source.optional(4), layer.steps
    if lengths is None or (lengths.data is not None and bool((lengths.data >= steps).all())):
        return ""
    numbers = nodes.build.constant(
        f"{layer.source.name}/steps", np.arange(steps, dtype=lengths.dtype)[:, None]
    )
    ends = body.read(nodes.shaped(lengths.name, (layer.batch, 1)))
    return body.nodes.emit("Less", [body.scan(numbers), ends], (layer.batch, 1), dtype="bool")


class _Cell(msgspec.Struct, frozen=True):
    """What the body of a loop computes: `x` are the products of its inputs, `matrix` the state's weights."""

    layer: _Layer
    body: _Body
    x: str
    matrix: str | Bytes
    attributes: dict[str, Attribute]
    inside: str

    def kept(self, new: str, old: str) -> str:
        """The new value within a sequence, and the old one, or zeros, beyond its end."""
        if not self.inside:
            return new
        nodes = self.body.nodes
        old = old or nodes.build.constant("zero", np.zeros((), self.layer.dtype))
        return nodes.emit("Where", [self.inside, new, old], self.layer.state)

    def _product(self, state: str, first: int, last: int) -> str:
        """The product of a state with the weights of some gates."""
        nodes, hidden, part = self.body.nodes, self.layer.hidden, self.matrix
        if isinstance(part, Bytes):  # of an LSTM, which asks for all gates
            return _multiplied(nodes, quantized(nodes, state, (1,) if self.inside else (0, 1)), part)
        return _multiplied(nodes, state, nodes.part(part, 1, first * hidden, last * hidden))

    def _stage(self, op: str, inputs: Sequence[str], letters: str, coupled: int | None = None) -> str:
        """A stage of all gates with the activations of these letters, called f and g there."""
        attributes: dict[str, Attribute] = {"clip": self.attributes["clip"]}
        for own, letter in zip("fg", letters, strict=True):
            for key in ("", "_alpha", "_beta"):
                if letter + key in self.attributes:
                    attributes[own + key] = self.attributes[letter + key]
        if coupled is not None:
            attributes["coupled"] = coupled
        return self.body.nodes.emit(op, inputs, self.layer.state, attributes)

    def lstm(self, old: Sequence[str], peepholes: str) -> list[str]:
        """The new hidden and cell state."""
        seen = [peepholes] if peepholes else []
        products = self.body.nodes.added(self._product(old[0], 0, 4), self.x)
        coupled = self.layer.source.integer("input_forget", 0)
        cell = self._stage("LstmCell", [products, old[1], *seen], "fg", coupled)
        cell = self.kept(cell, old[1])
        hidden = self._stage("LstmOutput", [products, cell, *seen], "fh")
        return [self.kept(hidden, old[0]), cell]

    def gru(self, old: str, bias: str, separate: bool) -> list[str]:
        """The new hidden state; `separate`: the last gate is reset behind its product."""
        if separate:
            products = self._product(old, 0, 3)
            products = self.body.nodes.added(products, bias) if bias else products
            new = self._stage("GruOutput", [self.x, products, old], "fg")
        else:
            products = self._product(old, 0, 2)
            reset = self._stage("GruReset", [self.x, products, old], "fg")
            new = self._stage("GruOutput", [self.x, products, self._product(reset, 2, 3), old], "fg")
        return [self.kept(new, old)]

    def rnn(self, old: str) -> list[str]:
        """The new hidden state."""
        nodes, limit = self.body.nodes, self.attributes["clip"]
        total = nodes.added(self._product(old, 0, 1), self.x)
        if limit:
            assert isinstance(limit, float)
            total = nodes.emit("Clip", [total], self.layer.state, {"low": -limit, "high": limit})
        op = str(self.attributes["f"])
        settings = {key: self.attributes[f"f_{key}"] for key in ACTIVATIONS[op]}
        return [self.kept(nodes.emit(op, [total], self.layer.state, settings), old)]


_SHARED = {"activations", "activation_alpha", "activation_beta", "clip", "direction", "hidden_size", "layout"}
_OWN = {"LSTM": {"input_forget"}, "GRU": {"linear_before_reset"}, "RNN": set()}

IMPORTERS: dict[str, Importer] = {
    op: Importer(recurrent, _SHARED | own, (FLOATS - set(STORED)) | {"int32"}, extra_outputs=True)
    for op, own in _OWN.items()
}
IMPORTERS[QUANTIZED] = Importer(  # of ours: quantized_bodies.py
    recurrent,
    (_SHARED | _OWN["LSTM"]) - {"layout"},
    frozenset({"float32", "int8", "int32", "uint8"}),
    extra_outputs=True,
    like="LSTM",
)
