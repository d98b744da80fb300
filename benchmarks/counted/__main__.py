"""Count what plans of networks move, compute and hold, without measuring anything.

    python -m benchmarks.counted traffic                  bytes moved, 1 MiB of cache a core
    python -m benchmarks.counted memory                   activations at their peak over the proved bound
    python -m benchmarks.counted board --board rpi3b      cycles of all instructions, bytes from memory
    python -m benchmarks.counted balance --board rpi3b    the part of 1 to 4 threads' time in which they work
    python -m benchmarks.counted clusters --board rock960 --target a72+a53    big and little cores together
    python -m benchmarks.counted launches --board h100    kernels that a GPU starts, bytes that they write

Cycles are by the issue model of a Cortex-A53 and need qemu-aarch64 (`toolkit runtime emulation`).
By the schedules that need no measurement; `--only mobilenet_v2,bert` for some networks.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from benchmarks.counted.networks import balance, cycles, gpu_launches, programs, traffic
from benchmarks.harness.command import Asked, finished, names, program, share, subcommands
from benchmarks.harness.place import board_with
from benchmarks.harness.text import aligned
from benchmarks.kernels.networks import NAMES, chosen_networks
from benchmarks.networks import write
from boards.board import load
from boards.joined import SIGN
from boards.target import Target
from toolkit.model.graph import Graph
from toolkit.model.load import adapted, load_model
from toolkit.model.memory import plan_memory

FOLDER = Path("build/counted")
MIB = 1 << 20
ON_BOARD = ("mobilenet_v1", "mobilenet_v2", "resnet18")


def _graphs(asked: Asked, target: Target) -> Iterator[tuple[str, Graph]]:
    for name in chosen_networks(asked.only):
        path = FOLDER / f"{name}.onnx"
        yield name, adapted(load_model(path if path.exists() else write(name, path, 0)), target)


def _traffic(asked: Asked) -> None:
    """The plans are those for cores with the cache that is counted."""
    board, target = board_with(asked.threads, asked.board)
    target = replace(target, l2_bytes=MIB)
    rows = [["network", "least MB", "moved MB", "moved / least"]]
    for name, graph in _graphs(asked, target):
        found = traffic(graph, programs(graph, board, target), MIB, asked.threads)
        rows.append([name, f"{found.least / 1e6:.2f}", f"{found.moved / 1e6:.2f}", f"{found.ratio:.2f}"])
    print("\n".join(aligned(rows)))


def _memory(asked: Asked) -> None:
    _, target = board_with(1, asked.board)
    rows = [["network", "arena MB", "bound MB", "arena / bound"]]
    for name, graph in _graphs(asked, target):
        found = plan_memory(graph)
        arena, bound = found.arena_bytes, found.lower_bound_bytes
        rows.append(
            [name, f"{arena / 1e6:.3f}", f"{bound / 1e6:.3f}", f"{arena / bound:.3f}" if bound else "-"]
        )
    print("\n".join(aligned(rows)))


def _board(asked: Asked) -> None:
    """One core has the second cache alone, as in a run on one thread."""
    board, target = board_with(1, asked.board)
    rows = [["network", "Mcycles", "ms", "MB from memory", "least MB"]]
    for name, graph in _graphs(asked, target):
        nests = programs(graph, board, target)
        found, spent = traffic(graph, nests, target.l2_bytes, 1), cycles(graph, nests, target)
        moved = [f"{found.moved / 1e6:.2f}", f"{found.least / 1e6:.2f}"]
        rows.append([name, f"{spent / 1e6:.1f}", f"{1e3 * spent / target.clock_hz:.1f}", *moved])
    print("\n".join(aligned(rows)))


def _balance(asked: Asked) -> None:
    board, whole = board_with(1, asked.board)
    counts = range(1, max(item.threads for item in board.targets if item.kind == "cpu") + 1)
    rows = [["network", *(f"{count} threads" for count in counts)]]
    for name, graph in _graphs(asked, whole):
        parts = []
        for count in counts:
            nests = programs(graph, board, board_with(count, asked.board)[1])
            parts.append(f"{balance(graph, nests, [1.0] * count):.3f}")
        rows.append([name, *parts])
    print("\n".join(aligned(rows)))


def _clusters(asked: Asked) -> None:
    """A core does its clock times its operations a cycle, those of later targets a part of it; in memory and
    between kernels nobody waits."""
    board = load(asked.board)
    parts = [board.target(name) for name in asked.target.split(SIGN)]
    reached = (1.0, *[asked.reach] * (len(parts) - 1))
    rates = [part.clock_hz * part.flops_per_cycle * reach for part, reach in zip(parts, reached, strict=True)]
    speeds = [rate for part, rate in zip(parts, rates, strict=True) for _ in part.cores]
    together = board.target(asked.target)
    rows = [["network", *(part.name for part in parts), "equal shares", "helping"]]
    for name, graph in _graphs(asked, together):
        done = []
        for part, rate in zip(parts, rates, strict=True):
            own = [rate] * part.threads
            done.append(math.fsum(own) * balance(graph, programs(graph, board, part), own))
        nests = programs(graph, board, together)
        for helping in (False, True):
            done.append(math.fsum(speeds) * balance(graph, nests, speeds, helping=helping))
        rows.append([name, *(f"{rate / done[0]:.2f}" for rate in done)])
    print("\n".join(aligned(rows)))


def _launches(asked: Asked) -> None:
    board = load(asked.board)
    target = next((item for item in board.targets if item.kind != "cpu"), None)
    if target is None:
        kinds = ", ".join(item.kind for item in board.targets)
        raise ValueError(f"board {asked.board}: expected one with a GPU target, found {kinds}")
    rows = [["network", "operators", "launches", "MB written"]]
    for name, graph in _graphs(asked, target):
        found = gpu_launches(graph, programs(graph, board, target))
        rows.append([name, str(len(graph.groups)), str(found.count), f"{found.written_bytes / 1e6:.2f}"])
    print("\n".join(aligned(rows)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = program("counted", __doc__)
    add = subcommands(parser)
    moved = add("traffic", _traffic, "bytes moved over the least possible")
    moved.add_argument("--threads", type=int, default=1)
    held = add("memory", _memory, "activations at their peak over the proved bound")
    spent = add("board", _board, "cycles of all instructions on one core, bytes from memory")
    shared = add("balance", _balance, "the part of threads' time in which they work")
    joint = add("clusters", _clusters, "speed of clusters of cores alone and together, over the first's")
    started = add("launches", _launches, "kernels that a GPU starts in a run, and bytes that they write")
    boards = {moved: "host", held: "host", joint: "rock960", started: "jetson-nano"}
    joint.add_argument("--target", default="a72+a53", help="targets of the board, joined")
    joint.add_argument("--reach", type=share, default=1.0, help="part of their peak that later ones reach")
    for command in (moved, held, spent, shared, joint, started):
        default = list(ON_BOARD) if command in (spent, joint) else []
        command.add_argument("--only", type=names, default=default, metavar="NAMES", help=", ".join(NAMES))
        command.add_argument("--board", default=boards.get(command, "rpi3b"))
    return finished(parser, arguments)


if __name__ == "__main__":
    sys.exit(main())
