"""Importers of what moves or reduces elements: reshapes, slices, pads, concatenation, reductions."""

from __future__ import annotations

import numpy as np

from toolkit.model.graph import Attribute, GraphBuilder
from toolkit.model.source import FLOATS, NUMBERS, TRUTH, VALUES, Importer, Source

REDUCTIONS = {"ReduceProd", "ReduceMax", "ReduceMin", "ReduceL2"}  # others are sums


def reshape(source: Source, build: GraphBuilder) -> None:
    """Reshape, Flatten, Squeeze and Unsqueeze: the output's shape says it all."""
    source.emit(build, "Reshape", [source.input(0).name])


def identity(source: Source, build: GraphBuilder) -> None:
    source.emit(build, "Identity", [source.input(0).name])


def dropout(source: Source, build: GraphBuilder) -> None:
    """Nothing at inference, with a mask of ones; a training mode that may drop something is refused."""
    training = source.known(2, "training mode")
    if training is not None and bool(training.ravel()[0]):
        ratio = source.known(1, "ratio")
        if ratio is None or float(ratio.ravel()[0]) != 0.0:
            raise source.refuse(
                "in training mode it draws random numbers, so that no run repeats another",
                "export the model for inference",
            )
    source.emit(build, "Identity", [source.input(0).name])
    for mask in filter(None, source.outputs[1:]):
        ones = build.constant(f"{mask.name}/ones", np.ones(mask.shape, mask.dtype))
        source.give(build, mask, "Identity", [ones])


def transpose(source: Source, build: GraphBuilder) -> None:
    rank = source.input(0).rank
    perm = source.integers("perm", tuple(reversed(range(rank))))
    if sorted(perm) != list(range(rank)):
        raise source.invalid(f"perm must name each of {rank} dimensions once, found {list(perm)}")
    source.emit(build, "Transpose", [source.input(0).name], {"perm": perm})


def concat(source: Source, build: GraphBuilder) -> None:
    axis = source.integer("axis", 1) % source.output.rank
    parts = [source.input(position) for position in range(len(source.inputs))]
    names = [part.name for part in parts if 0 not in part.shape]
    if len(names) == 1:
        source.emit(build, "Identity", names)
        return
    source.emit(build, "Concat", names, {"axis": axis})


def slice_(source: Source, build: GraphBuilder) -> None:
    """Slice: bounds are attributes before opset 10 and inputs since."""
    data = source.input(0)
    if source.opset < 10:
        begins, ends = source.integers("starts", ()), source.integers("ends", ())
        axes = source.integers("axes", tuple(range(len(begins))))
        strides = (1,) * len(begins)
    else:
        begins = source.known_integers(1, "starts") or ()
        ends = source.known_integers(2, "ends") or ()
        axes = source.known_integers(3, "axes") or tuple(range(len(begins)))
        strides = source.known_integers(4, "steps") or (1,) * len(begins)
    starts, steps = [0] * data.rank, [1] * data.rank
    for begin, end, axis, stride in zip(begins, ends, axes, strides, strict=True):
        dimension = axis % data.rank
        if stride == 0:
            raise source.invalid("a step of 0 is not allowed")
        starts[dimension] = slice(begin, end, stride).indices(data.shape[dimension])[0]
        steps[dimension] = stride
    _emit_slice(source, build, starts, steps)


def _emit_slice(source: Source, build: GraphBuilder, starts: list[int], steps: list[int]) -> None:
    attributes: dict[str, Attribute] = {
        "starts": tuple(starts),
        "steps": tuple(steps),
        "shape": source.output.shape,
    }
    whole = source.output.shape == source.input(0).shape and all(step == 1 for step in steps)
    source.emit(
        build, "Identity" if whole else "Slice", [source.input(0).name], None if whole else attributes
    )


def split(source: Source, build: GraphBuilder) -> None:
    """Split: one slice for each output."""
    data = source.input(0)
    axis = source.integer("axis", 0) % data.rank
    offset = 0
    for position, output in enumerate(source.outputs):
        if output is None:
            raise source.refuse(f"output {position} is left out, so that its size is not known")
        starts = [0] * data.rank
        starts[axis] = offset
        part = Source(
            source.model, f"{source.name}.{position}", "Slice", source.opset, {}, source.inputs[:1], (output,)
        )
        _emit_slice(part, build, starts, [1] * data.rank)
        offset += output.shape[axis]


def pad(source: Source, build: GraphBuilder) -> None:
    """Pad by a constant, by reflection or by the edge; negative padding cuts first."""
    data = source.input(0)
    mode = source.text("mode", "constant")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise source.invalid(f"mode {mode!r} is unknown")
    if source.opset < 11:
        pads = source.integers("pads", ())
        value = source.number("value", 0.0)
        axes: tuple[int, ...] | None = None
    else:
        pads = source.known_integers(1, "pads") or ()
        fill = source.optional(2)
        value = 0.0 if fill is None or fill.data is None else fill.data.ravel()[0].item()
        axes = source.known_integers(3, "axes")
    dimensions = range(data.rank) if axes is None else [axis % data.rank for axis in axes]
    before, after = [0] * data.rank, [0] * data.rank
    for position, dimension in enumerate(dimensions):
        before[dimension] = pads[position]
        after[dimension] = pads[len(dimensions) + position]
    attributes: dict[str, Attribute] = {
        "before": tuple(max(count, 0) for count in before),
        "after": tuple(max(count, 0) for count in after),
        "mode": mode,
        "value": value,
    }
    name = data.name
    cut = [max(-count, 0) for count in before]
    if any(count < 0 for count in (*before, *after)):
        shape = tuple(e + min(b, 0) + min(a, 0) for e, b, a in zip(data.shape, before, after, strict=True))
        slicing = {"starts": tuple(cut), "steps": (1,) * data.rank, "shape": shape}
        name = source.emit(build, "Slice", [name], slicing, shape=shape)
    if not any(count > 0 for count in (*before, *after)):
        source.emit(build, "Identity", [name])
        return
    filled = source.optional(2)
    if mode != "constant" or filled is None or filled.data is not None:
        source.emit(build, "Pad", [name], attributes)
        return
    name = source.emit(build, "Pad", [name], attributes, shape=source.output.shape)
    widths = [(max(b, 0), max(a, 0)) for b, a in zip(before, after, strict=True)]
    inside = np.pad(
        np.ones([e - b - a for e, (b, a) in zip(source.output.shape, widths, strict=True)], bool), widths
    )
    mask = build.constant(f"{source.output.name}/inside", inside)
    source.emit(build, "Where", [mask, name, filled.name])


def reduction(source: Source, build: GraphBuilder) -> None:
    """ReduceSum, Mean, Max, Min, L1, L2 and SumSquare; a mean is a sum and a scale."""
    data = source.input(0)
    axes = _reduced_axes(source)
    if not axes:  # what is done to each element is done all the same
        alone = {"ReduceL1": "Abs", "ReduceL2": "Abs", "ReduceSumSquare": "Mul"}.get(source.op, "Identity")
        source.emit(build, alone, [data.name] * (2 if alone == "Mul" else 1))
        return
    kept = tuple(1 if axis in axes else extent for axis, extent in enumerate(data.shape))
    name = data.name
    truth = data.dtype == "bool"  # which a byte holds: the largest is true if one is
    if truth:
        name = source.emit(build, "Cast", [name], {"to": "uint8"}, data.shape, "uint8")
    if source.op == "ReduceSumSquare":
        name = source.emit(build, "Mul", [name, name], shape=data.shape)
    if source.op == "ReduceL1":
        name = source.emit(build, "Abs", [name], shape=data.shape)
    behind = ["Mul"] if source.op == "ReduceMean" else []
    behind += ["Cast"] if truth else []
    behind += ["Reshape"] if kept != source.output.shape else []
    op = source.op if source.op in REDUCTIONS else "ReduceSum"
    dtype = "uint8" if truth else ""
    name = source.emit(build, op, [name], {"axes": axes}, kept if behind else None, dtype)
    for position, step in enumerate(behind):
        inputs = [name]
        attributes: dict[str, Attribute] = {"to": "bool"} if step == "Cast" else {}
        if step == "Mul":
            count = int(np.prod([data.shape[axis] for axis in axes]))
            inputs.append(source.number_as(build, "scale", 1.0 / count))
        name = source.emit(build, step, inputs, attributes, kept if position < len(behind) - 1 else None)


def _reduced_axes(source: Source) -> tuple[int, ...]:
    since = 13 if source.op == "ReduceSum" else 18
    rank = source.input(0).rank
    given = source.known_integers(1, "axes") if source.opset >= since else source.integers("axes", ())
    if not given:
        return () if source.integer("noop_with_empty_axes", 0) else tuple(range(rank))
    axes = sorted(axis % rank for axis in given)
    if len(set(axes)) < len(axes):
        raise source.invalid(f"its axes {list(given)} name a dimension twice")
    return tuple(axes)


_REDUCE = {"axes", "keepdims", "noop_with_empty_axes"}
_REDUCERS = "ReduceSum ReduceProd ReduceL1 ReduceSumSquare"

IMPORTERS: dict[str, Importer] = {
    "Reshape": Importer(reshape, {"allowzero"}, VALUES),
    "Flatten": Importer(reshape, {"axis"}, VALUES),
    **{op: Importer(reshape, {"axes"}, VALUES) for op in ("Squeeze", "Unsqueeze")},
    **{op: Importer(identity, dtypes=VALUES) for op in ("Identity", "OptionalGetElement")},
    "Dropout": Importer(dropout, {"ratio", "seed"}, FLOATS | TRUTH, extra_outputs=True),
    "Transpose": Importer(transpose, {"perm"}, VALUES),
    "Concat": Importer(concat, {"axis"}, VALUES),
    "Slice": Importer(slice_, {"starts", "ends", "axes"}, VALUES),
    "Split": Importer(split, {"axis", "split", "num_outputs"}, VALUES, extra_outputs=True),
    "Pad": Importer(pad, {"mode", "pads", "value"}, VALUES),
    **{op: Importer(reduction, _REDUCE, NUMBERS) for op in _REDUCERS.split()},
    **{op: Importer(reduction, _REDUCE, VALUES) for op in ("ReduceMax", "ReduceMin")},
    **{op: Importer(reduction, _REDUCE) for op in ("ReduceMean", "ReduceL2")},
}
