"""Layout assignment: image data is kept NHWC, and a transpose is computed only where nothing else will do.

A logical value (as ONNX means it) may be held in several *forms*: a form is a permutation and the physical
value that holds the data in that order, `physical = logical.transpose(permutation)`. Operators that need an
order (windows: NHWC, matrix products: as written) ask for it; all others take the order their largest operand
already has. So an ONNX Transpose costs nothing until somebody asks for an order that no form has; pairs of
transposes cancel; and moving unit dimensions only is a free reshape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from toolkit.errors import ModelError
from toolkit.model.graph import Array, Attribute, Graph, GraphBuilder, Node, Value
from toolkit.model.shapes import Permutation, merge_axes, moves_units_only, reshape_groups
from toolkit.model.volumes import AsImages, as_images
from toolkit.model.weight_layout import (
    channels_last,
    grouped_weight,
    kernel_first,
    phase_sums,
    transposed_weight,
)

NHWC = channels_last(4)
WINDOWED = frozenset({"Conv", "MaxPool", "SumPool", "LRN"})
IMAGES = {
    "Sample": 1,
    "RoiAlign": 1,
    "RegionSums": 1,
    "RegionMaxima": 1,
    "MaxUnpool": 2,
}  # how many operands are images, the first ones
INDEXED = frozenset(
    (
        *("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "TensorScatter"),
        *("ReverseSequence", "TopPlaces", "Col2Im", "Det", "SamplePositions"),
        *("RegionWeights", "RegionExtremes", "RegionBins"),
        *("TruePlaces", "FirstDifference", "FirstEqual", "RankOfKind", "PlacesOfKinds", "SizesOfKinds"),
        "WithoutOverlaps",
    )
)
RECURRENT = frozenset({"LstmCell", "LstmOutput", "GruReset", "GruOutput"})
REDUCTIONS = frozenset({"ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin"})


def assign_layout(graph: Graph) -> Graph:
    """The graph over physical values. Constants are transposed here, ahead of time."""
    return _Layout(graph).run()


class _Form(msgspec.Struct, frozen=True):
    permutation: Permutation
    physical: str


class _Layout:
    """State of the pass: the new graph, and the forms of every logical value."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.build = GraphBuilder(graph.name, reserved=graph.values)
        self.forms: dict[str, list[_Form]] = {}
        for name in (*graph.inputs, *graph.constants):
            value = graph.values[name]
            self.build.add(replace(value, permutation=tuple(range(len(value.shape)))))
            self.forms[name] = [_Form(tuple(range(len(value.shape))), name)]

    def run(self) -> Graph:
        for node in self.graph.nodes:
            _RULES.get(node.op, _elementwise)(self, node)
        outputs = [self._output(name) for name in self.graph.outputs]
        return self.build.finish(self.graph.inputs, outputs)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.graph.values[name].shape

    def emit(
        self,
        op: str,
        inputs: Sequence[str],
        output: str,
        permutation: Permutation,
        attributes: Mapping[str, Attribute] | None = None,
        name: str = "",
    ) -> str:
        """Append a node that computes the logical value `output` in the given order."""
        value = self.hold(output, permutation)
        return self.build.emit(op, inputs, value, attributes, name or value.name)

    def hold(self, output: str, permutation: Permutation) -> Value:
        """The value that is to hold the logical value `output` in the given order."""
        logical = self.graph.values[output]
        identity = permutation == tuple(range(len(permutation)))
        taken = output in self.build.values
        physical = output if identity and not taken else self.build.fresh(f"{output}.{_suffix(permutation)}")
        value = Value(
            physical,
            tuple(logical.shape[axis] for axis in permutation),
            logical.dtype,
            source=logical.source,
            permutation=permutation if logical.source else (),
        )
        self.build.add(value)
        self.forms.setdefault(output, []).append(_Form(permutation, physical))
        return value

    def get(self, name: str, wanted: Permutation) -> str:
        """The physical value that holds `name` in the wanted order, made if need be."""
        forms = self.forms[name]
        for form in forms:
            if form.permutation == wanted:
                return form.physical
        if self.graph.values[name].constant:
            return self._constant(name, wanted)
        shape = self.shape(name)
        for form in forms:
            if moves_units_only(shape, form.permutation, wanted):
                return self.emit("Reshape", [form.physical], name, wanted)
        return self._transpose(name, forms[0], wanted)

    def matching(self, name: str, rank: int, wanted: Permutation) -> str:
        """An elementwise operand in the wanted order of a result of `rank` dimensions, broadcast included."""
        shape = self.shape(name)
        value = self.graph.values[name]
        if len(shape) == rank and not value.constant:
            return self.get(name, wanted)
        full = (1,) * (rank - len(shape)) + shape
        if value.data is not None:
            array = value.data.reshape(full).transpose(wanted)
            leading = next((i for i, extent in enumerate(array.shape) if extent != 1), rank)
            return self.build.constant(f"{name}.{_suffix(wanted)}", array.reshape(array.shape[leading:]))
        ordered = tuple(full[axis] for axis in wanted)
        kept = [axis - (rank - len(shape)) for axis in wanted if full[axis] != 1]
        own = (*[axis for axis in range(len(shape)) if shape[axis] == 1], *kept)
        physical = self.get(name, own)
        made = Value(self.build.fresh(f"{name}.aligned"), ordered, value.dtype)
        return self.build.emit("Reshape", [physical], made)

    def leading_form(self, names: Sequence[str], rank: int) -> Permutation:
        """The order of the largest computed operand of full rank."""
        best: Permutation = tuple(range(rank))
        size = -1
        for name in names:
            value = self.graph.values[name]
            if not value.constant and len(value.shape) == rank and value.elements > size:
                best, size = self.forms[name][0].permutation, value.elements
        return best

    def _constant(self, name: str, wanted: Permutation) -> str:
        value = self.graph.values[name]
        assert value.data is not None
        physical = self.build.constant(f"{name}.{_suffix(wanted)}", value.data.transpose(wanted))
        self.forms[name].append(_Form(wanted, physical))
        return physical

    def _transpose(self, name: str, form: _Form, wanted: Permutation) -> str:
        """A computed transpose, with dimensions that move together merged and unit dimensions left out."""
        moved = tuple(form.permutation.index(axis) for axis in wanted)
        held = self.build.values[form.physical]
        merged_shape, merged = merge_axes(held.shape, moved)
        dtype = held.dtype
        flat = form.physical
        if merged_shape != held.shape:
            value = Value(self.build.fresh(f"{form.physical}.flat"), merged_shape, dtype)
            flat = self.build.emit("Reshape", [flat], value)
        if merged == moved:
            return self.emit("Transpose", [flat], name, wanted, {"perm": moved})
        shape = tuple(merged_shape[axis] for axis in merged)
        value = Value(self.build.fresh(f"{name}.moved"), shape, dtype)
        self.build.emit("Transpose", [flat], value, {"perm": merged}, f"{name}.{_suffix(wanted)}")
        return self.emit("Reshape", [value.name], name, wanted)

    def _output(self, name: str) -> str:
        physical = self.get(name, tuple(range(len(self.shape(name)))))
        if physical == name:
            return name
        value = self.graph.values[name]
        named = Value(name, value.shape, value.dtype, None, value.source, tuple(range(len(value.shape))))
        return self.build.emit("Reshape", [physical], named)


def _suffix(permutation: Permutation) -> str:
    return "nhwc" if permutation == NHWC else "p" + "".join(str(axis) for axis in permutation)


def _elementwise(layout: _Layout, node: Node) -> None:
    rank = len(layout.shape(node.output))
    order = layout.leading_form(node.inputs, rank)
    inputs = [layout.matching(name, rank, order) for name in node.inputs]
    layout.emit(node.op, inputs, node.output, order, node.attributes, node.name)


def _windowed(layout: _Layout, node: Node) -> None:
    order = channels_last(len(layout.shape(node.output)))
    inputs = [layout.get(node.inputs[0], order)]
    if node.op == "Conv":
        inputs.append(_conv_weight(layout, node))
        weight = layout.build.values[inputs[1]].data
        images = as_images(node) if len(order) == 5 else None
        if images is not None and weight is not None:
            _of_images(layout, node, inputs, images, weight)
            return
    if node.op == "ConvTranspose":
        image = layout.shape(node.inputs[0])[2:]
        arranged = transposed_weight(node, _known_weight(layout, node), image)
        inputs.append(layout.build.constant(f"{node.inputs[1]}.phases", arranged))
        if node.attributes.get("padding"):
            offsets = np.asarray(node.integer("padding") * phase_sums(node, arranged, image), np.int32)
            inputs.append(layout.build.constant(f"{node.inputs[1]}.offsets", offsets))
    layout.emit(node.op, inputs, node.output, order, node.attributes, node.name)


def _of_images(layout: _Layout, node: Node, inputs: Sequence[str], images: AsImages, weight: Array) -> None:
    """A convolution of volumes as one of images, of data and arranged weights."""
    order, result = channels_last(5), layout.graph.values[node.output]
    held = layout.build.values[inputs[0]]
    data = Value(layout.build.fresh(f"{held.name}.images"), images.shape(held.shape), held.dtype)
    shape = images.shape([result.shape[axis] for axis in order])
    made = Value(layout.build.fresh(f"{node.output}.images"), shape, result.dtype)
    read = [
        layout.build.emit("Reshape", inputs[:1], data),
        layout.build.constant(f"{node.inputs[1]}.plane", images.weight(weight)),
    ]
    layout.build.emit(node.op, read, made, images.attributes(node), node.name)
    layout.emit("Reshape", [made.name], node.output, order)


def _conv_weight(layout: _Layout, node: Node) -> str:
    """The weights [co, ci / g, kernel...] as the convolution's family wants them."""
    name = node.inputs[1]
    if node.integer("group") == 1:
        return layout.get(name, kernel_first(len(layout.shape(name))))
    arranged = grouped_weight(node, _known_weight(layout, node))
    return layout.build.constant(f"{name}.grouped", arranged)


def _known_weight(layout: _Layout, node: Node) -> Array:
    name = node.inputs[1]
    data = layout.graph.values[name].data
    if data is None:
        raise ModelError(
            f"model {layout.graph.name!r}: node {node.name!r} ({node.op}): its weights {name!r} are "
            "computed; grouped and transposed convolutions are supported with constant weights only; fold "
            "them before the export"
        )
    return data


def _as_written(layout: _Layout, node: Node) -> None:
    """Operands and result in the order that ONNX gives them."""
    inputs = [layout.get(name, tuple(range(len(layout.shape(name))))) for name in node.inputs]
    order = tuple(range(len(layout.shape(node.output))))
    layout.emit(node.op, inputs, node.output, order, node.attributes, node.name)


def _with_image(layout: _Layout, node: Node) -> None:
    """Images channels last, all other operands in the order that ONNX gives them."""
    inputs = []
    for number, name in enumerate(node.inputs):
        rank = len(layout.shape(name))
        image = number < IMAGES[node.op]
        inputs.append(layout.get(name, channels_last(rank) if image else tuple(range(rank))))
    order = channels_last(len(layout.shape(node.output)))
    layout.emit(node.op, inputs, node.output, order, node.attributes, node.name)


def _resampled(layout: _Layout, node: Node) -> None:
    """An image channels last; places and weights along each of the axes, in the order of these."""
    rank = len(layout.shape(node.output))
    order = channels_last(rank) if rank > 2 else tuple(range(rank))
    inputs = [layout.get(node.inputs[0], order), *(layout.get(name, (0, 1)) for name in node.inputs[1:])]
    attributes: dict[str, Attribute] = dict(node.attributes)
    attributes["axes"] = tuple(order.index(axis) for axis in node.integers("axes"))
    layout.emit(node.op, inputs, node.output, order, attributes, node.name)


def _control(layout: _Layout, node: Node) -> None:
    """Choices and loops keep the ONNX file's order of dimensions; the graphs inside are laid out already."""
    assert node.control is not None
    inputs = [layout.get(name, tuple(range(len(layout.shape(name))))) for name in node.inputs]
    outputs = [layout.hold(name, tuple(range(len(layout.shape(name))))) for name in node.outputs]
    layout.build.control(node.control, inputs, outputs, node.name)


def _transpose(layout: _Layout, node: Node) -> None:
    """No node: each form of the input is a form of the output under another permutation."""
    perm = node.integers("perm")
    layout.forms[node.output] = [
        _Form(tuple(perm.index(axis) for axis in form.permutation), form.physical)
        for form in layout.forms[node.inputs[0]]
    ]


def _reshape(layout: _Layout, node: Node) -> None:
    """Reshape in memory where dimensions that merge or split lie together, after a transpose where not.

    That one moves dimensions to the innermost of their run, whose elements may then stay where they are.
    """
    name = node.inputs[0]
    before, after = layout.shape(name), layout.shape(node.output)
    groups = reshape_groups(before, after)
    best: tuple[Permutation, list[int]] | None = None
    for form in layout.forms[name]:
        place = {axis: position for position, axis in enumerate(form.permutation)}
        order = sorted(
            range(len(groups)),
            key=lambda g: max((place[a] for a in groups[g][0] if before[a] != 1), default=-1),
        )
        wanted = tuple(axis for g in order for axis in groups[g][0])
        free = moves_units_only(before, form.permutation, wanted)
        if best is None or free:
            best = wanted, order
        if free:
            break
    assert best is not None
    wanted, order = best
    physical = layout.get(name, wanted)
    layout.emit(
        "Reshape", [physical], node.output, tuple(axis for g in order for axis in groups[g][1]), {}, node.name
    )


def _concat(layout: _Layout, node: Node) -> None:
    order = layout.leading_form(node.inputs, len(layout.shape(node.output)))
    inputs = [layout.get(name, order) for name in node.inputs]
    attributes = {"axis": order.index(node.integer("axis"))}
    layout.emit("Concat", inputs, node.output, order, attributes, node.name)


def _along_axes(layout: _Layout, node: Node) -> None:
    """One operand, attributes that name axes or have one entry per axis."""
    order = layout.leading_form(node.inputs, len(layout.shape(node.output)))
    attributes: dict[str, Attribute] = dict(node.attributes)
    for key in ("before", "after", "starts", "steps", "shape"):
        if key in attributes:
            entries = node.integers(key)
            attributes[key] = tuple(entries[axis] for axis in order)
    if "axis" in attributes:
        attributes["axis"] = order.index(node.integer("axis"))
    if "axes" in attributes:
        attributes["axes"] = tuple(sorted(order.index(axis) for axis in node.integers("axes")))
    layout.emit(node.op, [layout.get(node.inputs[0], order)], node.output, order, attributes, node.name)


_RULES: dict[str, Callable[[_Layout, Node], None]] = {
    **dict.fromkeys((*WINDOWED, "ConvTranspose", "MaxPoolPlaces"), _windowed),
    **dict.fromkeys(IMAGES, _with_image),
    **dict.fromkeys(
        (
            *(*REDUCTIONS, "Softmax", "LogSoftmax", "ReduceL2", "Normalize", "Slice", "Pad"),
            *("ArgMax", "ArgMin", "CumSum", "CumProd"),
        ),
        _along_axes,
    ),
    **dict.fromkeys(("MatMul", "Expand", "Einsum", *INDEXED, *RECURRENT), _as_written),
    **dict.fromkeys(("Repeat", "Choose"), _control),
    "Resample": _resampled,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Concat": _concat,
}
