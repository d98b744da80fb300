"""How well estimated cycles choose untuned programs on this machine.

    python -m benchmarks.estimates tiles --only resnet18,bert       register tiles of direct programs
    python -m benchmarks.estimates algorithms --only resnet18       direct programs beside Winograd's

Measured are kernels as a network runs them, in turn: the second cache was swept, then what the kernel reads
was written. For an operator, its time by the choice over that of the best that was measured; of all, the
geometric mean, and by how much measured time over estimate scatters (standard deviation of the logarithm).
Tiles: those with the best estimates, and some drawn at random whose estimate is at most LONGEST times that.
With `--threads 2` the buffers are swept and written by one of the cores: what another one read last, weights
among it, may still be in its cache. `--board host:x86-64-v3` measures programs without AVX-512, `--json FILE`
keeps what was measured.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.command import Asked, finished, names, program, subcommands
from benchmarks.harness.place import HOST, board_with, level_of
from benchmarks.kernels.loaded import LoadedCode, aligned
from benchmarks.kernels.networks import NAMES, chosen_networks
from benchmarks.kernels.turn import Call
from benchmarks.networks import write
from boards.target import Target
from cross.compile import compile
from cross.expression import Operator
from cross.loopnest.program import Programs
from cross.schedule import cpu_space
from cross.schedule.alternatives import AlternativeSpaces
from cross.schedule.core import core_of
from cross.schedule.cpu_sketch import inlines_padding
from cross.schedule.cycles import Machine, Nest
from cross.schedule.plan import Plan, make_plan, wide_axes
from cross.schedule.reads import nest_of
from cross.schedule.space import Configuration, ScheduleSpace
from cross.schedule.untuned import Tile, combines_lanes, estimated_tiles, vector_sizes
from toolkit.model.distinct import distinct_operators
from toolkit.model.joined_dimensions import dimensions_joined_for
from toolkit.model.load import load_model

LEAST_FLOPS = 4e6  # of an operator: shorter kernels are mostly the call
BEST, OTHERS, LONGEST = 12, 12, 1.6
SWEPT_BYTES = 6 << 20  # more than second caches hold, less than third ones
ROUNDS = 9


@dataclass(frozen=True, slots=True)
class Found:
    """A program: what chose it, its estimated cycles, and the seconds of its fastest call."""

    choice: str
    cycles: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Case:
    """An operator of a network and its programs; `chosen` is the one that would be taken untuned."""

    network: str
    operator: str
    programs: tuple[Found, ...]
    chosen: int

    @property
    def lost(self) -> float:
        """The time of the choice over the least."""
        return self.programs[self.chosen].seconds / min(found.seconds for found in self.programs)

    @property
    def line(self) -> str:
        best = min(self.programs, key=lambda found: found.seconds)
        chosen = self.programs[self.chosen]
        text = (
            f"{chosen.choice} {1e6 * chosen.seconds:.0f} us, best {best.choice} {1e6 * best.seconds:.0f} us"
        )
        return f"{self.lost:5.2f}  {self.network} {self.operator}: {text}"


def seconds(
    programs: Sequence[tuple[ScheduleSpace, Configuration]], target: Target, rng: np.random.Generator
) -> list[float]:
    """The fastest call of each program of one operator, on the same buffers, in turn."""
    nests = [(f"k{number}", Programs(space).nest(chosen)) for number, (space, chosen) in enumerate(programs)]
    artifact = compile(nests, target)
    code = LoadedCode(artifact.code, target.cores)
    data: dict[tuple[Any, ...], Any] = {}
    buffers: dict[tuple[Any, ...], Any] = {}
    calls: list[Call] = []
    for kernel in artifact.kernels:
        arrays = []
        for argument in kernel.arguments:
            shape = argument.packing.shape if argument.packing else argument.shape
            name = (argument.name, shape, argument.dtype)
            if name not in data:
                data[name] = rng.uniform(-1, 1, shape).astype(argument.dtype)
            packed = argument.packing.apply(data[name]) if argument.packing else data[name]
            arrays.append(buffers.setdefault((*name, repr(argument.packing)), aligned(packed)))
        calls.append(code.kernel(kernel.symbol, arrays, kernel.workspace_bytes))
    read = {
        argument.name: (argument.name, argument.shape, argument.dtype, repr(None))
        for argument in artifact.kernels[0].arguments
        if argument.role == "input"
    }
    written = [(buffers[key], buffers[key].copy()) for key in read.values() if key in buffers]
    swept = np.ones(SWEPT_BYTES // 4, np.float32)
    fastest = [math.inf] * len(calls)
    for _ in range(ROUNDS):
        for number in rng.permutation(len(calls)):
            swept.sum()
            for buffer, content in written:
                np.copyto(buffer, content)
            start_s = time.perf_counter()
            calls[number]()
            fastest[number] = min(fastest[number], time.perf_counter() - start_s)
    code.close()
    return fastest


def tiles(
    network: str, name: str, operator: Operator, target: Target, rng: np.random.Generator
) -> Case | None:
    """Register tiles of the direct program of an operator with one reduction; None for others."""
    space = cpu_space(operator, target, winograd=False)
    plan = None if isinstance(space, AlternativeSpaces) else make_plan(space.program)
    if plan is None or len(plan.groups) != 1 or not (nest := _nest(plan, target)):
        return None
    owner, rated = plan.groups[0].owner, _rated(plan, nest, target)
    near = [tile for tile in rated[BEST:] if tile.cycles <= LONGEST * rated[0].cycles]
    drawn = rng.permutation(len(near))[:OTHERS]
    kept = [*rated[:BEST], *(near[number] for number in drawn)]
    base = space.describe(space.default())
    chosen = []
    for tile in kept:
        described = dict(base)
        for place, axis in enumerate(wide_axes(owner.axes)):
            described[f"{owner.name}.{axis.name}"] = list(tile.choice(place))
        if "space_order" in described:
            described["space_order"] = [int(tile.vector_axis_first)]
        if "padding" in described:
            described["padding"] = [int(inlines_padding(plan, target, {owner.name: tile}))]
        chosen.append((space, space.parse(described)))
    measured = zip(kept, seconds(chosen, target, rng), strict=True)
    found = tuple(Found(_text(tile), tile.cycles, spent) for tile, spent in measured)
    return Case(network, name, found, 0)


def algorithms(
    network: str, name: str, operator: Operator, target: Target, rng: np.random.Generator
) -> Case | None:
    """The untuned program of each algorithm of an operator; None where there is one algorithm."""
    space = cpu_space(operator, target)
    if not isinstance(space, AlternativeSpaces):
        return None
    defaults, default = space.defaults(), space.default()
    measured = seconds([(space, item) for item in defaults], target, rng)
    found = tuple(
        Found(part.label, part.space.cycles, spent) for part, spent in zip(space.parts, measured, strict=True)
    )
    return Case(network, name, found, defaults.index(default))


def _nest(plan: Plan, target: Target) -> Nest | None:
    """The nest of the plan's reduction, where several operands are tiled."""
    group = plan.groups[0]
    if group.reduction is None or not wide_axes(group.owner.axes):
        return None
    core = core_of(target, group.dtype, group.byte_products)
    if core.in_order or combines_lanes(group, core):
        return None
    nest = nest_of(plan, group, core.lanes)
    return nest if len(nest.operands) > 1 else None


def _rated(plan: Plan, nest: Nest, target: Target) -> list[Tile]:
    """All register tiles and orders around them, the fewest cycles first."""
    group = plan.groups[0]
    core = core_of(target, group.dtype, group.byte_products)
    vectors, machine = vector_sizes(plan, group, core), Machine.of(target, core.lanes)
    extents = [axis.extent for axis in wide_axes(group.owner.axes)]
    found = estimated_tiles(extents, core, vectors, nest, machine)
    return sorted(found, key=lambda tile: tile.cycles)


def _text(tile: Tile) -> str:
    return "x".join(map(str, tile.sizes)) + (" vectors first" if tile.vector_axis_first else "")


def _operators(asked: Asked, target: Target) -> Iterator[tuple[str, str, Operator]]:
    """Distinct operators of the networks, no chains of them."""
    seen: set[str] = set()
    for network in chosen_networks(asked.only):
        with tempfile.TemporaryDirectory() as folder:
            graph = dimensions_joined_for(load_model(write(network, Path(folder) / "model.onnx", 0)), target)
        for item in distinct_operators(graph):
            if item.operator.key not in seen and item.operator.flops >= LEAST_FLOPS:
                seen.add(item.operator.key)
                yield network, item.name, item.operator


def _run(asked: Asked) -> None:
    level_of(asked.board)  # refuses a board whose programs do not run here
    _, target = board_with(asked.threads, asked.board)
    measure = {"tiles": tiles, "algorithms": algorithms}[asked.command]
    rng, cases = np.random.default_rng(asked.seed), []
    for network, name, operator in _operators(asked, target):
        if case := measure(network, name, operator, target, rng):
            cases.append(case)
            print(case.line, flush=True)
    if not cases:
        print("no such operator")
        return
    scatter = [
        statistics.pstdev([math.log(found.seconds / found.cycles) for found in case.programs])
        for case in cases
        if all(found.cycles for found in case.programs)
    ]
    lost = statistics.geometric_mean([case.lost for case in cases])
    print(f"{len(cases)} operators: choice over best {lost:.3f}, scatter {statistics.fmean(scatter):.3f}")
    if asked.json:
        asked.json.write_text(json.dumps([asdict(case) for case in cases]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = program("estimates", __doc__)
    add = subcommands(parser)
    for command in (
        add("tiles", _run, "register tiles of direct programs"),
        add("algorithms", _run, "direct programs beside Winograd's"),
    ):
        command.add_argument("--only", type=names, default=[], metavar="NAMES", help=", ".join(NAMES))
        command.add_argument("--threads", type=int, default=1, help="of the programs (default 1)")
        command.add_argument(
            "--board", default=HOST, help=f"or a level of it: host:x86-64-v3 (default {HOST})"
        )
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--json", type=Path, metavar="FILE", help="keep what was measured")
    return finished(parser, arguments)


if __name__ == "__main__":
    sys.exit(main())
