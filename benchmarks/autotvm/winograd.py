"""AutoTVM's conv2d_nchw_winograd for Mali and ours: the same matrix products, tile by tile.

Both are three launches with the transformed data and the products in global memory between them. Compared are
the products, where the time goes, and how many threads of a block transform. What differs by design:

- Vectors of the products run along the tiles of the image there, along output channels here. So only tiles
  of as many channels as tiles (bna = bnb) can be equal.
- A thread there transforms a vector of bnb tiles, of 36 numbers each: more than twice the registers that a
  Mali's thread has. Ours transforms one tile of one channel.
- Threads of the inverse transform are neighbours along the image there, along channels here.
"""

from __future__ import annotations

from benchmarks.autotvm.programs import NoEqual, Program, contraction_of, threads_of
from benchmarks.autotvm.rows import Row, operator
from boards.target import Target
from cross.loopnest import LoopNest
from cross.schedule.gpu_sketch import gpu_space
from cross.schedule.space import ScheduleSpace


def space_of(row: Row, target: Target) -> ScheduleSpace:
    """Our space of the row's Winograd algorithm. Raises NoEqual where there is none."""
    space = gpu_space(operator(row), target)
    size = _tile_size(row)
    name = f"F({size}x{size},3x3)"
    for part in space.parts:
        if part.label == name:
            return part.space
    raise NoEqual(f"{name} is no algorithm of ours for {row.text}")


def theirs(row: Row) -> Program:
    """The program that the knobs describe. Raises NoEqual where its tiles are not square."""
    knobs = row.knobs
    channels, tiles, threads = knobs["tile_bna"], knobs["tile_bnb"], knobs["yt"]
    if channels != tiles:
        raise NoEqual(f"vectors of {tiles} tiles of the image by {channels} channels")
    size = _tile_size(row)
    images, _, height, width = row.shapes[0]
    count = images * -(-height // size) * -(-width // size)
    return Program(
        blocks={"p": -(-count // tiles), "c": row.shapes[1][0] // channels // threads},
        threads={"p": 1, "c": threads},
        elements={"p": tiles, "c": channels},
        lanes=tiles,
        written_out={"kc": knobs["c_unroll"][1]},
        others=(knobs["tile_t1"][1], knobs["tile_t2"][1]),
    )


def tiles(row: Row, space: ScheduleSpace) -> dict[str, list[int]]:
    """The knobs of our space with a row's tiles."""
    program = theirs(row)
    data, output = program.others
    wanted = {
        "products.p": [1, 1, program.elements["p"], 1],
        "products.c": [1, program.threads["c"], 1, program.lanes],
        "products.acc.kc": [program.written_out["kc"], 1],
        "data.channels": [data, 1],
        "data.p.threads": [1],
        "channels": [output, 1],
        "x.threads": [1],
        "y.threads": [1],
    }
    names = {knob.name for knob in space.knobs}
    return {f"y.{name}": size for name, size in wanted.items() if f"y.{name}" in names}


def ours(nest: LoopNest) -> Program:
    """The program of a bound nest: the products, and the threads that transform."""
    data, products, output = nest.body.statements[-3:]
    found = contraction_of(products, ["p", "c"], ["kc"])
    return Program(
        found.blocks, found.threads, found.elements, found.lanes, found.written_out,
        (threads_of(data), threads_of(output)),
    )  # fmt: skip


def _tile_size(row: Row) -> int:
    """Outputs of a tile each way: AutoTVM takes four where the height is a multiple of it."""
    return 4 if row.shapes[0][2] % 4 == 0 else 2
