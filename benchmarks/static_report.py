"""What machine code says without running it, for any board: python -m benchmarks.static_report COMMAND

kernels: the inner loop of each workload's best recorded kernel (otherwise of the schedule that needs no
measurement), its spills and the cycles that models predict; of GPU kernels, the launches against the limits
of the board. No board is needed. (`toolkit inspect` says more of one kernel.)
mali: AutoTVM's best programs for a Mali, from its public logs, and our configurations that equal them.
tiles: compiles register tiles around the edge of what fits, and says which spill in the inner loop and
whether the space's constraint on registers says so.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.autotvm.mali import equal, space_of
from benchmarks.autotvm.rows import rows
from benchmarks.front_ends import SYMBOL, Kernels, accepted
from benchmarks.harness.command import Asked, finished, program, subcommands
from benchmarks.harness.operators import Convolution
from benchmarks.harness.place import fastest
from benchmarks.kernels.expressions import operator
from benchmarks.kernels.workloads import Workload, chosen
from boards.board import load
from boards.description import Board
from boards.target import Target
from cross.inspection import cortex_a53
from cross.inspection.cpu_loops import LoopReport, inspect
from cross.inspection.gpu_launches import inspect_gpu
from cross.loopnest import LoopNest, Programs
from cross.schedule.cpu_sketch import cpu_space
from toolkit.inspection.cpu_report import static_content, static_table, static_text
from toolkit.inspection.gpu_report import static_gpu_content, static_gpu_table
from toolkit.records import Records
from toolkit.report.columns import table
from toolkit.report.documents import document
from toolkit.tuning.on_board import open_task

CHANNELS = 16
REDUCTIONS = ((1, 0), (4, 192), (16, 0), (16, 192))  # channels inside, unroll limit
MOST_PIXELS = 28
BELOW = 8  # registers: tiles that take fewer than that below all of them are not at the edge
TILE_HEAD = ("tile", "channels", "unroll", "allowed", "fma", "share", "spills", "moves", "cycles/fma")
AVX2 = Target(
    name="avx2", kind="cpu", triple="x86_64-unknown-linux-gnu", cpu="x86-64-v3", vector_bytes=32,
    vector_registers=16, l2_bytes=1 << 20, clock_hz=3e9, flops_per_cycle=32.0,
)  # fmt: skip


def kernels(asked: Asked) -> None:
    """The inner loops of workloads on a board; for a GPU, the launches."""
    board = load(asked.board)
    target = board.target(asked.target or None)
    nests = [(item.name, _nest(item, board, target, asked.records)) for item in chosen(asked.names)]
    if target.kind != "cpu":
        content, text = launches_of(nests, target, asked.compile)
    else:
        found = [(name, inspect(SYMBOL, nest, target)) for name, nest in nests]
        content = static_content(found)
        full = "\n\n".join(static_text(name, report) for name, report in found)
        text = full if asked.full else static_table(found)
    print(document("static-report", {"board": board.name, **content}) if asked.json else text)


def _nest(workload: Workload, board: Board, target: Target, records: Path | None) -> LoopNest:
    """The program of the fastest record, or the untuned one where there is no record."""
    task = open_task(workload.name, operator(workload), board, target, winograd=False)
    space, best = task.programs.space, []
    if records is not None:
        with Records(records, read_only=True) as store:
            best = fastest(space, store.for_key(task.key))
    return task.programs.nest([*best, space.default()][0])


def launches_of(nests: Kernels, target: Target, compiled: bool) -> tuple[dict[str, object], str]:
    """The report as data and as text; `compiled` asks OpenCL's front ends, too."""
    found = [(name, inspect_gpu(SYMBOL, nest, target)) for name, nest in nests]
    content, text = static_gpu_content(found, target), static_gpu_table(found, target)
    if not compiled or target.kind != "opencl":
        return content, text
    with tempfile.TemporaryDirectory(prefix="tfb-front-ends-") as scratch:
        verdicts = accepted(nests, target, scratch)
    return content | {"front_ends": verdicts}, "\n".join([text, *verdicts])


def mali(asked: Asked) -> None:
    """Workload, AutoTVM's knobs, and our configuration that is the same program; then their launches."""
    target = load(asked.board).target("mali")
    lines, workloads, nests = [], [], []
    for row in rows():
        space = space_of(row, target)
        same = equal(row, space)
        workloads.append({"workload": row.text, "autotvm": row.knobs, "ours": same.configuration})
        lines.append(f"{row.text}, {row.seconds * 1e3:.2f} ms")
        lines += [f"  AutoTVM {_knobs(row.knobs)}", f"  ours    {_knobs(same.configuration)}"]
        nests.append((row.text, Programs(space).nest(space.parse(same.configuration))))
    content, text = launches_of(nests, target, asked.compile)
    content |= {"board": asked.board, "workloads": workloads}
    print(document("autotvm-mali", content) if asked.json else "\n".join([*lines, "", text]))


def _knobs(knobs: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in knobs.items()).replace("'", "")


# ----------------------------------------------------------------------------------------- register tiles


@dataclass(frozen=True, slots=True)
class Tile:
    """One register tile of a 3x3 convolution, compiled."""

    pixels: int
    vectors: int
    channels: int  # of the inner reduction loop
    unroll: int
    allowed: bool  # by the space
    loop: LoopReport

    @property
    def row(self) -> list[str]:
        loop = self.loop
        cycles = f"{loop.predictions[0].cycles / loop.fma:.2f}" if loop.predictions else "-"
        return [
            f"{self.pixels}x{self.vectors}", str(self.channels), str(self.unroll),
            "yes" if self.allowed else "no", str(loop.fma), f"{loop.fma_share:.2f}",
            str(loop.vector_spills), str(loop.moves), cycles,
        ]  # fmt: skip


def tiles(asked: Asked) -> None:
    """Which register tiles spill in the inner loop, on boards and on any x86-64 with AVX2."""
    for target in [AVX2, *(load(name).target(None) for name in asked.board or ("host", "rpi3b"))]:
        found = list(sweep(target))
        wrong = [tile for tile in found if tile.allowed and tile.loop.vector_spills]
        strict = [tile for tile in found if not tile.allowed and not tile.loop.vector_spills]
        print(f"{target.name} {target.cpu}, {target.vector_registers} registers: {len(found)} tiles")
        print(f"  allowed and spilling: {len(wrong)}; ruled out without need: {len(strict)}")
        if shown := found if asked.all else wrong:
            print(table(TILE_HEAD, [tile.row for tile in shown]))


def sweep(target: Target) -> Iterator[Tile]:
    """Tiles from `BELOW` registers under the edge to past it, under each inner reduction."""
    for vectors in (1, 2, 3, 4):
        for pixels in range(1, MOST_PIXELS + 1):
            if abs(pixels * vectors - target.vector_registers) <= BELOW:
                yield from _tiles(target, pixels, vectors)


def _tiles(target: Target, pixels: int, vectors: int) -> Iterator[Tile]:
    wide = vectors * target.vector_lanes()
    layer = Convolution("conv2d", (4, 2 * pixels), CHANNELS, 2 * wide, (3, 3), (1, 1), (1, 1))
    space = cpu_space(layer.operator("conv", ("X", "W", "conv")), target, winograd=False)
    programs = Programs(space)
    predict = target.cpu in cortex_a53.CPU_NAMES  # llvm-mca, which all others need, takes longer than LLVM
    for channels, unroll in REDUCTIONS:
        knobs = {"conv.y": [1, 1, 1], "conv.x": [1, 1, pixels], "conv.c": [1, 1, wide]}
        knobs |= {"conv.acc.kc": [channels], "tiling": [0], "unroll": [unroll]}
        configuration = space.parse(space.describe(space.default()) | knobs)
        hot = inspect(SYMBOL, programs.nest(configuration), target, predict=predict).hot
        if hot is not None:
            allowed = bool(space.valid(space.batch([configuration]))[0])
            yield Tile(pixels, vectors, channels, unroll, allowed, hot)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = program("static_report", __doc__)
    add = subcommands(parser)
    inner = add("kernels", kernels, "the inner loops of workloads on a board; for a GPU, the launches")
    inner.add_argument("names", nargs="*", help="workloads or suites (default: all)")
    inner.add_argument("--target", default="", help="default: the one with the highest peak")
    inner.add_argument("--records", type=Path, help="records to take the best kernels from")
    inner.add_argument("--full", action="store_true", help="every CPU kernel in full, not a line each")
    equals = add("mali", mali, "AutoTVM's best programs for a Mali in our space")
    for command, board in ((inner, "rpi3b"), (equals, "rock960")):
        command.add_argument("--board", default=board, help=f"default: {board}")
        command.add_argument("--json", action="store_true")
        command.add_argument("--compile", action="store_true", help="ask PoCL and clang to accept OpenCL C")
    edges = add("tiles", tiles, "which register tiles spill in the inner loop")
    edges.add_argument("--board", action="append", help="may be repeated (default: host and rpi3b)")
    edges.add_argument("--all", action="store_true", help="every tile, not only where code and rule differ")
    return finished(parser, arguments)


if __name__ == "__main__":
    sys.exit(main())
