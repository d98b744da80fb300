"""The configuration of ours that is the same program as one of AutoTVM's for a Mali.

    for row in rows(): found = equal(row, space); found.configuration, found.program

Its templates conv2d_nchw_spatial_pack, depthwise_conv2d_nchw and dense tile the same loops as our
contractions do: blocks, threads and elements of a thread along channels, height and width, one of them in
vectors, the input channels outside, the taps of the kernel inside and written out or not. Its
conv2d_nchw_winograd is in winograd.py. `equal` builds the configuration from the knobs, lowers it, and reads
the tiles back from the loop nest. What it does not compare, because it differs by design:

- Layout: theirs is NCHW and packs data and weights by tiles before the kernel; ours is NHWC, packs the
  weights ahead of time, and pads the data. A vector of output channels is contiguous in both.
- Numbering: their threads have three dimensions with the width fastest; ours have one, channels fastest.
- Sums: spatial pack adds up in global memory; ours and its other templates in registers.
"""

from __future__ import annotations

from benchmarks.autotvm import winograd
from benchmarks.autotvm.programs import Equal, NoEqual, Program, contraction_of
from benchmarks.autotvm.rows import Row, operator
from boards.target import Target
from cross.errors import ScheduleError
from cross.loopnest import LoopNest, Programs
from cross.schedule.gpu_sketch import gpu_space
from cross.schedule.gpu_tiles import UNROLL_LIMITS
from cross.schedule.space import ScheduleSpace


def space_of(row: Row, target: Target) -> ScheduleSpace:
    """The space of a row's operator on a GPU, of the algorithm that the row takes.

    Raises:
        NoEqual: the algorithm is none of ours for the operator.
    """
    if row.family == "winograd":
        return winograd.space_of(row, target)
    return gpu_space(operator(row), target, winograd=False)


def equal(row: Row, space: ScheduleSpace) -> Equal:
    """The configuration of a space of the row's operator that is the row's program.

    Raises:
        NoEqual: there is none.
    """
    program = theirs(row)
    programs = Programs(space)
    found: Program | None = None
    for limit in UNROLL_LIMITS:
        described = space.describe(space.default()) | tiles(row, space) | {"unroll": [limit]}
        try:
            configuration = space.parse(described)
        except ScheduleError as error:
            raise NoEqual(str(error)) from error
        batch = space.batch([configuration])
        if not space.valid(batch)[0]:
            broken = [rule.rule for rule in space.constraints if not rule.holds(space.values(batch))[0]]
            raise NoEqual(f"not {', '.join(broken)}")
        found = ours(programs.nest(configuration), row)
        if found == program:
            return Equal(described, program)
    raise NoEqual(f"expected {program}, found {found}")


# --------------------------------------------------------------------------------------------- AutoTVM's


def theirs(row: Row) -> Program:
    """The program that a row's knobs describe, axes under our names.

    Raises:
        NoEqual: its vectors run along another axis than ours, or a loop runs that ours write out.
    """
    if row.family == "winograd":
        return winograd.theirs(row)
    splits = _splits(row)
    annotated = _annotations(row)
    along = [axis for axis, kind in annotated.items() if kind == "vec" and splits[axis][2] > 1]
    last = next(reversed(splits))
    if along not in ([], [last]):
        raise NoEqual(f"vectors along {along[0]}, ours run along {last}")
    running = [axis for axis, kind in annotated.items() if kind == "none" and splits[axis][2] > 1]
    if running:
        raise NoEqual(f"the loop over {running[0]} within a thread runs, ours are written out")
    blocks, threads, elements = ({axis: tile[level] for axis, tile in splits.items()} for level in range(3))
    return Program(blocks, threads, elements, elements[last] if along else 1, _written_out(row))


def _splits(row: Row) -> dict[str, tuple[int, int, int]]:
    """Blocks, threads and elements along our axes, the last of them last."""
    names = {
        "conv": {"y": "tile_oh", "x": "tile_ow", "c": "tile_co"},
        "depthwise": {"y": "tile_y", "x": "tile_x", "c": "tile_c"},
        "dense": {"i": "tile_y", "j": "tile_x"} if len(row.shapes) == 2 else {"i0": "tile_y", "i1": "tile_x"},
    }[row.family]
    found = {}
    for axis, knob in names.items():
        blocks, threads, elements = row.knobs[knob]
        found[axis] = (blocks, threads, elements)
    return found


def _annotations(row: Row) -> dict[str, str]:
    if row.family == "dense":
        return {next(reversed(_splits(row))): "vec"}
    order = "yxc" if row.family == "conv" else "cyx"
    return dict(zip(order, row.knobs["ann_spatial"], strict=True))


def _written_out(row: Row) -> dict[str, int]:
    if row.family == "dense":
        return {"k": row.knobs["c_unroll"][1]}
    taps = dict(zip(("kh", "kw"), row.shapes[1][2:], strict=True))
    if row.family == "depthwise":
        return taps
    kinds = dict(zip(taps, row.knobs["ann_reduce"], strict=True))
    found = {axis: extent if kinds[axis] == "unroll" else 1 for axis, extent in taps.items()}
    if found["kh"] > 1 and found["kw"] < taps["kw"]:
        raise NoEqual("the loop over kh is written out around one over kw that runs")
    return found


# -------------------------------------------------------------------------------------------------- ours


def tiles(row: Row, space: ScheduleSpace) -> dict[str, list[int]]:
    """The knobs of our space with a row's tiles; elements in as few levels as the space has for them."""
    if row.family == "winograd":
        return winograd.tiles(row, space)
    program = theirs(row)
    knobs = {knob.name.rpartition(".")[2]: knob for knob in space.knobs}
    last = next(reversed(program.elements))
    found = {}
    for axis, elements in program.elements.items():
        if axis in knobs:
            inner = program.lanes if axis == last else _inner(elements)
            found[knobs[axis].name] = [1, program.threads[axis], elements // inner, inner]
    for axis, extent in _inside(row).items():
        if axis in knobs:
            found[knobs[axis].name] = [extent, 1]
    return found


def _inner(elements: int) -> int:
    """The innermost of two levels, of which neither has more than 8 elements."""
    return next(inner for inner in range(1, elements + 1) if elements % inner == 0 and elements // inner <= 8)


def _inside(row: Row) -> dict[str, int]:
    """How far the reduction's loops run inside the one over input channels."""
    if row.family == "dense":
        return {"k": row.knobs["c_unroll"][1]}
    return {"kh": row.shapes[1][2], "kw": row.shapes[1][3], "kc": 1}


def ours(nest: LoopNest, row: Row) -> Program:
    """The program of a bound nest of the row's operator."""
    if row.family == "winograd":
        return winograd.ours(nest)
    return contraction_of(nest.body.statements[-1], list(_splits(row)), list(_written_out(row)))
