"""What machine code says without running it, for any board: python -m benchmarks.static_report COMMAND

kernels: the inner loop of each workload's best recorded kernel (otherwise of the schedule that needs no
measurement), its spills and the cycles that models predict; of GPU kernels, the launches against the limits
of the board. No board is needed.
mali: AutoTVM's best programs for a Mali, from its public logs, and our configurations that equal them.
tiles: compiles register tiles around the edge of what fits, and says which spill in the inner loop and
whether the space's constraint on registers says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.autotvm.mali import equal, space_of
from benchmarks.autotvm.rows import rows
from benchmarks.gpu_launches import launches_of
from benchmarks.kernels.expressions import operator
from benchmarks.kernels.workloads import Workload, chosen
from boards.board import load
from boards.description import Board
from boards.target import Target
from cross.expression import Operator, placeholder
from cross.expression.families.conv import conv2d
from cross.expression.families.window import Window
from cross.inspection import cortex_a53
from cross.inspection.cpu_loops import LoopReport, inspect
from cross.loopnest import LoopNest, Programs
from cross.schedule.cpu_sketch import cpu_space
from toolkit.inspection.cpu_report import static_content, static_table, static_text
from toolkit.records import Records
from toolkit.report.documents import document
from toolkit.report.tables import table
from toolkit.tuning.on_board import open_job

CHANNELS = 16
REDUCTIONS = ((1, 0), (4, 192), (16, 0), (16, 192))  # channels inside, unroll limit
MOST_PIXELS = 28
BELOW = 8  # registers: tiles that take fewer than that below all of them are not at the edge
AVX2 = Target(
    name="avx2", kind="cpu", triple="x86_64-unknown-linux-gnu", cpu="x86-64-v3", vector_bytes=32,
    vector_registers=16, l2_bytes=1 << 20, clock_hz=3e9, flops_per_cycle=32.0,
)  # fmt: skip


COMPILED = click.option("--compile", "compiled", is_flag=True, help="Ask PoCL and clang to accept OpenCL C.")


@click.group(help=__doc__)
def main() -> None:
    pass


@main.command()
@click.argument("names", nargs=-1)
@click.option("--board", "board_name", default="rpi3b", show_default=True)
@click.option("--target", "target_name", default="", help="Default: the one with the highest peak.")
@click.option("--records", type=click.Path(path_type=Path), help="Records to take the best kernels from.")
@click.option("--json", "as_json", is_flag=True)
@click.option("--full", is_flag=True, help="Every CPU kernel in full, not a line each.")
@COMPILED
def kernels(
    names: tuple[str, ...],
    board_name: str,
    target_name: str,
    records: Path | None,
    as_json: bool,
    full: bool,
    compiled: bool,
) -> None:
    """The inner loops of NAMES (default: all workloads) on a board; for a GPU, the launches."""
    board = load(board_name)
    target = board.target(target_name or None)
    nests = [(workload.name, _nest(workload, board, target, records)) for workload in chosen(names)]
    if target.kind != "cpu":
        content, text = launches_of(nests, target, compiled)
    else:
        found = [(name, inspect("kernel", nest, target)) for name, nest in nests]
        content = static_content(found)
        text = (
            "\n\n".join(static_text(name, report) for name, report in found) if full else static_table(found)
        )
    click.echo(document("static-report", {"board": board.name, **content}) if as_json else text)


def _nest(workload: Workload, board: Board, target: Target, records: Path | None) -> LoopNest:
    job, programs = open_job(workload.name, operator(workload), board, target, winograd=False)
    best = None
    if records is not None:
        with Records(records, read_only=True) as store:
            best = store.best(job.key)
    space = programs.space
    return programs.nest(space.default() if best is None else space.parse(best.configuration))


@main.command()
@click.option("--board", "board_name", default="rock960", show_default=True)
@click.option("--json", "as_json", is_flag=True)
@COMPILED
def mali(board_name: str, as_json: bool, compiled: bool) -> None:
    """Workload, AutoTVM's knobs, and our configuration that is the same program; then their launches."""
    target = load(board_name).target("mali")
    lines, workloads, nests = [], [], []
    for row in rows():
        space = space_of(row, target)
        same = equal(row, space)
        workloads.append({"workload": row.text, "autotvm": row.knobs, "ours": same.configuration})
        lines.append(f"{row.text}, {row.seconds * 1e3:.2f} ms")
        lines += [f"  AutoTVM {_knobs(row.knobs)}", f"  ours    {_knobs(same.configuration)}"]
        nests.append((row.text, Programs(space).nest(space.parse(same.configuration))))
    content, text = launches_of(nests, target, compiled)
    content |= {"board": board_name, "workloads": workloads}
    click.echo(document("autotvm-mali", content) if as_json else "\n".join([*lines, "", text]))


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


@main.command()
@click.option("--board", "board_names", multiple=True, default=("host", "rpi3b"), show_default=True)
@click.option(
    "--all", "everything", is_flag=True, help="Every tile, not only those where code and rule differ."
)
def tiles(board_names: tuple[str, ...], everything: bool) -> None:
    """Which register tiles spill in the inner loop, on boards and on any x86-64 with AVX2."""
    for target in [AVX2, *(load(name).target(None) for name in board_names)]:
        found = list(sweep(target))
        wrong = [tile for tile in found if tile.allowed and tile.loop.vector_spills]
        strict = [tile for tile in found if not tile.allowed and not tile.loop.vector_spills]
        click.echo(f"{target.name} {target.cpu}, {target.vector_registers} registers: {len(found)} tiles")
        click.echo(f"  allowed and spilling: {len(wrong)}; ruled out without need: {len(strict)}")
        shown = found if everything else wrong
        if shown:
            headers = [
                "tile",
                "channels",
                "unroll",
                "allowed",
                "fma",
                "share",
                "spills",
                "moves",
                "cycles/fma",
            ]
            click.echo(table(headers, [tile.row for tile in shown]))


def sweep(target: Target) -> Iterator[Tile]:
    """Tiles from `BELOW` registers under the edge to past it, under each inner reduction."""
    for vectors in (1, 2, 3, 4):
        for pixels in range(1, MOST_PIXELS + 1):
            if abs(pixels * vectors - target.vector_registers) <= BELOW:
                yield from _tiles(target, pixels, vectors)


def _tiles(target: Target, pixels: int, vectors: int) -> Iterator[Tile]:
    wide = vectors * target.vector_lanes()
    data, weight = (
        placeholder((1, 4, 2 * pixels, CHANNELS), "X"),
        placeholder((3, 3, CHANNELS, 2 * wide), "W"),
    )
    output = conv2d(data, weight, Window(pads=(1, 1, 1, 1)), name="conv")
    space = cpu_space(Operator("conv", (data, weight), output, frozenset({1})), target, winograd=False)
    programs = Programs(space)
    for channels, unroll in REDUCTIONS:
        knobs = {"conv.y": [1, 1, 1], "conv.x": [1, 1, pixels], "conv.c": [1, 1, wide]}
        knobs |= {"conv.acc.kc": [channels], "tiling": [0], "unroll": [unroll]}
        configuration = space.parse(space.describe(space.default()) | knobs)
        predict = (
            target.cpu in cortex_a53.CPU_NAMES
        )  # llvm-mca, which all others need, takes longer than LLVM
        hot = inspect("kernel", programs.nest(configuration), target, predict=predict).hot
        if hot is not None:
            yield Tile(
                pixels, vectors, channels, unroll, bool(space.valid(space.batch([configuration]))[0]), hot
            )


if __name__ == "__main__":
    main()
