"""Importers of what depends on where elements stand: places of extremes, masks, running sums, einsum."""

from __future__ import annotations

import string

import numpy as np

from toolkit.model.graph import Attribute, GraphBuilder
from toolkit.model.import_arithmetic import cast_to
from toolkit.model.source import NUMBERS, VALUES, Emitter, Importer, Operand, Source


def arg_extreme(source: Source, build: GraphBuilder) -> None:
    """ArgMax and ArgMin: the first place of the extreme, or the last one."""
    data = source.input(0)
    axis = source.integer("axis", 0) % data.rank
    attributes: dict[str, Attribute] = {"axis": axis, "last": source.integer("select_last_index", 0)}
    kept = (*data.shape[:axis], 1, *data.shape[axis + 1 :])
    name = source.emit(build, source.op, [data.name], attributes, kept, "int64")
    source.emit(build, "Identity" if kept == source.output.shape else "Reshape", [name])


def hardmax(source: Source, build: GraphBuilder) -> None:
    """1 at the first largest element along the axis, else 0. Before opset 13 it and those behind are one."""
    data, output = source.input(0), source.output
    axis = source.integer("axis", -1 if source.opset >= 13 else 1) % data.rank
    if source.opset < 13:
        whole = (int(np.prod(data.shape[:axis])), int(np.prod(data.shape[axis:])))
        name = source.emit(build, "Reshape", [data.name], shape=whole)
        data, axis = Operand(name, whole, data.dtype), 1
    kept = (*data.shape[:axis], 1, *data.shape[axis + 1 :])
    place = source.emit(build, "ArgMax", [data.name], {"axis": axis, "last": 0}, kept, "int64")
    places = _places(source, build, range(data.shape[axis]), data.rank - axis - 1)
    found = source.emit(build, "Equal", [places, place], shape=data.shape, dtype="bool")
    ends = data.shape == output.shape
    name = source.emit(build, "Cast", [found], {"to": output.dtype}, None if ends else data.shape)
    if not ends:
        source.emit(build, "Reshape", [name])


def _places(source: Source, build: GraphBuilder, indices: range, behind: int) -> str:
    """The indices along a dimension with `behind` others behind it."""
    places = np.asarray(indices, np.int64).reshape(-1, *(1,) * behind)
    return build.constant(f"{source.output.name}/places", places)


def one_hot_shape(source: Source) -> tuple[int, ...]:
    """The shape of the indices with the depth as a new dimension."""
    shape = source.input(0).shape
    axis = source.integer("axis", -1) % (len(shape) + 1)
    return (*shape[:axis], *(source.known_integers(1, "depth") or ()), *shape[axis:])


def one_hot(source: Source, build: GraphBuilder) -> None:
    """OneHot(indices, depth, [off, on]): a new dimension; an index outside of it gives `off` all along."""
    indices, output = source.input(0), source.output
    depth = (source.known_integers(1, "depth") or (0,))[0]
    axis = source.integer("axis", -1) % output.rank
    name, shape = cast_to(source, build, indices, "int64"), indices.shape
    wide = (*shape[:axis], 1, *shape[axis:])
    name = source.emit(build, "Reshape", [name], shape=wide, dtype="int64")
    found = [
        source.emit(build, "Equal", [places, name], shape=output.shape, dtype="bool")
        for places in (
            _places(source, build, range(start, start + depth), output.rank - axis - 1)
            for start in (0, -depth)  # a negative index counts from the end
        )
    ]
    hot = source.emit(build, "Or", found, shape=output.shape, dtype="bool")
    off, on = (Emitter(source, build).part(source.input(2).name, 0, place, place + 1) for place in (0, 1))
    source.emit(build, "Where", [hot, on, off])


def triangle(source: Source, build: GraphBuilder) -> None:
    """Trilu: zero below or above a diagonal of the last two dimensions."""
    data = source.input(0)
    offset = (source.known_integers(1, "diagonal") or (0,))[0]
    ones = np.ones(data.shape[-2:], bool)
    kept = np.triu(ones, offset) if source.integer("upper", 1) else np.tril(ones, offset)
    mask = build.constant(f"{source.output.name}/kept", kept)
    zero = build.constant(f"{source.output.name}/zero", np.zeros((), data.dtype))
    source.emit(build, "Where", [mask, data.name, zero])


def running(source: Source, build: GraphBuilder) -> None:
    """CumSum and CumProd along a constant axis."""
    data = source.input(0)
    axis = (source.known_integers(1, "axis") or (0,))[0] % data.rank
    settings = {key: source.integer(key, 0) for key in ("exclusive", "reverse")}
    source.emit(build, source.op, [data.name], {"axis": axis, **settings})


def einsum(source: Source, build: GraphBuilder) -> None:
    """Einsum: dots become letters of their own; without an arrow, letters named once are the result."""
    operands = [source.input(position) for position in range(len(source.inputs))]
    equation = source.text("equation", "").replace(" ", "")
    given, arrow, result = equation.partition("->")
    names = given.split(",")
    if len(names) != len(operands):
        raise source.refuse(f"{equation!r} names {len(names)} operands of {len(operands)}", "export it again")
    free = iter(letter for letter in string.ascii_letters if letter not in equation)
    ranks = [o.rank - len(n.replace("...", "")) for n, o in zip(names, operands, strict=True) if "..." in n]
    dots = "".join(next(free) for _ in range(max(ranks, default=0)))
    if not arrow:
        letters = given.replace("...", "").replace(",", "")
        result = "..." * ("..." in given) + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    spelled = [
        name.replace("...", dots[len(dots) - (operand.rank - len(name.replace("...", ""))) :])
        for name, operand in zip(names, operands, strict=True)
    ]
    if any(len(name) != operand.rank for name, operand in zip(spelled, operands, strict=True)):
        raise source.invalid(f"{equation!r} does not fit {[list(o.shape) for o in operands]}")
    attributes: dict[str, Attribute] = {"names": ",".join(spelled), "result": result.replace("...", dots)}
    source.emit(build, "Einsum", [operand.name for operand in operands], attributes)


IMPORTERS: dict[str, Importer] = {
    **dict.fromkeys(
        ("ArgMax", "ArgMin"), Importer(arg_extreme, {"axis", "keepdims", "select_last_index"}, NUMBERS)
    ),
    "Hardmax": Importer(hardmax, {"axis"}),
    "OneHot": Importer(one_hot, {"axis"}, VALUES, shape=one_hot_shape),
    "Trilu": Importer(triangle, {"upper"}, VALUES),
    **{op: Importer(running, {"exclusive", "reverse"}, NUMBERS) for op in ("CumSum", "CumProd")},
    "Einsum": Importer(einsum, {"equation"}, NUMBERS),
}
