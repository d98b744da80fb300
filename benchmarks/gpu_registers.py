"""What GPU kernels take, as our spaces expect it and as NVRTC's cubins state it; no GPU is needed.

    python -m benchmarks.gpu_registers                                     300 pairs each for sm_53 and sm_90
    python -m benchmarks.gpu_registers --pairs 20 --arch sm_87 --all       every launch of 20 pairs

A pair is an operator of the benchmarks (or one of a few poolings and norms) and a configuration of its space,
both drawn from --seed. Each pair is written as CUDA C, compiled to a cubin for the board of the architecture,
and its registers, shared memory and spills are read back. The command fails (exit code 1) where a program
does not compile, exceeds a limit of its board, or takes other shared memory than its space says.

Registers as predicted are those of a constraint of the space, for kernels that keep sums in registers. They
are an estimate: the compiler knows how many threads a block has, and spills rather than exceed the limit.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.harness.command import Asked, finished, program
from benchmarks.harness.documents import write_text
from benchmarks.harness.place import HOST
from benchmarks.harness.progress import Bar
from benchmarks.harness.statistics import rank_correlation
from benchmarks.harness.text import aligned
from benchmarks.kernels.expressions import operator as workload_operator
from benchmarks.kernels.workloads import WORKLOADS
from boards.board import board_names, load
from boards.target import Target
from cross.codegen.c.gpu_code import gpu_program
from cross.codegen.c.names import identifier
from cross.errors import CompileError
from cross.expression import Operator, placeholder
from cross.expression.families.norm import layer_norm, softmax
from cross.expression.families.pool import pool2d, reduce
from cross.expression.families.window import Window
from cross.inspection.gpu_launches import shares
from cross.loopnest import Programs
from cross.nvrtc import NvrtcMissing, compile_cubin, usage
from cross.schedule.choose import space_of
from cross.schedule.gpu_operands import shared_size
from cross.schedule.space import Configuration
from toolkit.report.documents import document

SYMBOL: Final = "k"
ARCHITECTURES: Final = ("sm_53", "sm_90")
RESERVED_BYTES: Final = {"sm_90": 1024}  # of shared memory, which the driver keeps and cubins count
FULL: Final = 1.0 + 1e-9
CLOSEST: Final = 10
HEAD: Final = (
    "operator", "launch", "threads", "registers: expected", "taken", "shared bytes: expected", "taken",
    "spilled", "of the limit",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: what its space expects of it, what its cubin takes, and the limit that is nearest."""

    name: str
    threads: int
    expected_registers: int | None
    registers: int
    expected_shared_bytes: int
    shared_bytes: int
    local_bytes: int
    limit: str
    share: float

    @property
    def wrong(self) -> Iterator[str]:
        """What must not be."""
        if self.share > FULL:
            yield f"{self.name} takes {self.share:.2f} of the {self.limit}"
        if self.shared_bytes != self.expected_shared_bytes:
            expected = f"{self.expected_shared_bytes} expected"
            yield f"{self.name} takes {self.shared_bytes} bytes of shared memory, {expected}"


@dataclass(frozen=True, slots=True)
class Pair:
    """An operator and a configuration, compiled; with what NVRTC said where it refused."""

    operator: str
    knobs: dict[str, list[int]]
    seconds: float
    launches: tuple[Launch, ...]
    error: str = ""

    @property
    def wrong(self) -> list[str]:
        """What must not be, of all of its launches."""
        errors = [self.error] if self.error else []
        return errors + [problem for launch in self.launches for problem in launch.wrong]


def operators() -> dict[str, Operator]:
    """Everything that pairs are drawn from, by name: the benchmarks' operators, and some without sums of
    products: by elements, by windows, and across the threads of a block."""
    image, pixels = placeholder((1, 112, 112, 64), "data"), placeholder((1, 7, 7, 512), "data")
    scores, rows = placeholder((12, 128, 128), "data"), placeholder((128, 768), "data")
    scale, shift = placeholder((768,), "scale"), placeholder((768,), "shift")
    halved = Window((2, 2), (1, 1, 1, 1))
    others = (
        Operator("max_pool", (image,), pool2d(image, (3, 3), halved, "max")),
        Operator("global_pool", (pixels,), reduce(pixels, (1, 2), "sum")),
        Operator("softmax", (scores,), softmax(scores, 2)),
        Operator("layer_norm", (rows, scale, shift), layer_norm(rows, scale, shift)),
    )
    found = {name: workload_operator(workload) for name, workload in WORKLOADS.items()}
    return found | {operator.name: operator for operator in others}


def target_of(architecture: str) -> tuple[str, Target]:
    """A board with that architecture, and its CUDA target. Raises ValueError where none has it."""
    known: dict[str, tuple[str, Target]] = {}
    for board in board_names():
        for target in load(board).targets if board != HOST else ():  # the host takes a while to probe
            if target.gpu is not None and target.gpu.compute_capability:
                known.setdefault(target.gpu.compute_capability, (board, target))
    if architecture not in known:
        raise ValueError(f"no board has the architecture {architecture}: expected one of {', '.join(known)}")
    return known[architecture]


def pairs(target: Target, count: int, seed: int) -> Iterator[Pair]:
    """So many pairs, drawn and compiled one after the other. Raises NvrtcMissing."""
    rng = np.random.default_rng(seed)
    known = operators()
    programs: dict[str, Programs] = {}
    for _ in range(count):
        name = list(known)[int(rng.integers(len(known)))]
        if name not in programs:
            programs[name] = Programs(space_of(known[name], target))
        space, started_s = programs[name].space, time.perf_counter()
        configuration = space.configuration(space.sample(rng, 1)[0])
        launches: tuple[Launch, ...] = ()
        refused = ""
        try:
            launches = tuple(_launches(programs[name], configuration))
        except NvrtcMissing:
            raise
        except CompileError as error:
            refused = str(error)
        seconds = time.perf_counter() - started_s
        yield Pair(name, space.describe(configuration), seconds, launches, refused)


def _launches(programs: Programs, configuration: Configuration) -> Iterator[Launch]:
    target, needs = programs.space.target, programs.space.needs(configuration)
    inner = programs.space.alternative(programs.structure(configuration))[0]
    stages = {identifier(f"{SYMBOL}_{stage.name}"): stage.name for stage in inner.program.stages}
    assert target.gpu is not None
    architecture = target.gpu.compute_capability
    made = gpu_program(SYMBOL, programs.nest(configuration), target)
    used = usage(compile_cubin(made.source, architecture))
    for function in made.functions:
        taken, stage = used[function.name], stages[function.name]
        shared = shared_size(max(taken.shared_bytes - RESERVED_BYTES.get(architecture, 0), 0))
        found = shares(target.gpu, function.threads, shared, taken.registers)
        limit, share = max(found.items(), key=lambda item: item[1])
        yield Launch(
            name=function.name,
            threads=function.threads,
            expected_registers=needs.get(f"{stage}.registers"),
            registers=taken.registers,
            expected_shared_bytes=needs.get(f"{stage}.shared", 0),
            shared_bytes=shared,
            local_bytes=taken.local_bytes,
            limit=limit,
            share=share,
        )


def rows(found: Sequence[Pair], everything: bool) -> Iterator[list[str]]:
    """The launches, or those that come closest to a limit, closest first."""
    launches = [(pair, item) for pair in found for item in pair.launches]
    if not everything:
        launches = sorted(launches, key=lambda item: (-item[1].share, -item[1].local_bytes))[:CLOSEST]
    for pair, item in launches:
        expected = "-" if item.expected_registers is None else str(item.expected_registers)
        numbers = (item.expected_shared_bytes, item.shared_bytes, item.local_bytes)
        yield [
            pair.operator, item.name, str(item.threads), expected, str(item.registers),
            *map(str, numbers), f"{item.share:.0%} ({item.limit})",
        ]  # fmt: skip


def summary(architecture: str, board: str, found: Sequence[Pair]) -> dict[str, object]:
    """The figures of an architecture's pairs; registers of the launches for which a number is expected."""
    launches = [item for pair in found for item in pair.launches]
    known = [(item.expected_registers, item.registers) for item in launches if item.expected_registers]
    expected, taken = np.array(known, dtype=np.float64).reshape(-1, 2).T
    return {
        "architecture": architecture,
        "board": board,
        "pairs": len(found),
        "compiled": sum(not pair.error for pair in found),
        "launches": len(launches),
        "over_a_limit": sum(item.share > FULL for item in launches),
        "other_shared_memory": sum(item.shared_bytes != item.expected_shared_bytes for item in launches),
        "spilling": sum(item.local_bytes > 0 for item in launches),
        "most_spilled_bytes": max((item.local_bytes for item in launches), default=0),
        "with_expected_registers": len(known),
        "rank_correlation": rank_correlation(expected, 1.0 / taken) if known else 0.0,
        "median_taken_of_expected": float(np.median(taken / expected)) if known else 0.0,
        "more_than_expected": int((taken > expected).sum()),
        "longest_s": max((pair.seconds for pair in found), default=0.0),
        "seconds": sum(pair.seconds for pair in found),
    }


CONCLUSION: Final = """\
{compiled} of {pairs} pairs compile, {launches} launches
{over_a_limit} launches exceed a limit of the board
{other_shared_memory} launches take other shared memory than expected
{spilling} launches spill, at most {most_spilled_bytes} bytes a thread
registers of {with_expected_registers} launches: rank correlation with what is expected \
{rank_correlation:.2f}, median {median_taken_of_expected:.2f} times it, {more_than_expected} take more
{seconds:.0f} s, the longest pair {longest_s:.1f} s"""


def run(asked: Asked) -> int:
    """Compile the pairs of every architecture and print what they take; 1 where something is wrong."""
    results: list[tuple[Mapping[str, object], list[Pair]]] = []
    for architecture in asked.arch or ARCHITECTURES:
        board, target = target_of(architecture)
        found = list(Bar(architecture, asked.pairs)(pairs(target, asked.pairs, asked.seed)))
        results.append((summary(architecture, board, found), found))
    for item, found in results:
        print("{architecture}, limits of {board}".format_map(item))
        wrong = [problem for pair in found for problem in pair.wrong]
        print("\n".join([*aligned([HEAD, *rows(found, asked.all)]), CONCLUSION.format_map(item), *wrong]))
    if asked.json is not None:
        figures = [{**item, "pairs_compiled": [asdict(pair) for pair in found]} for item, found in results]
        write_text(
            document("gpu-registers", {"seed": asked.seed, "architectures": figures}) + "\n", asked.json
        )
    return int(any(pair.wrong for _, found in results for pair in found))


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = program("gpu_registers", __doc__)
    add = parser.add_argument
    add("--pairs", type=int, default=300, help="pairs for each architecture")
    add("--arch", action="append", metavar="SM", help=f"default: {' and '.join(ARCHITECTURES)}")
    add("--seed", type=int, default=0)
    add("--all", action="store_true", help="print every launch")
    add("--json", type=Path, metavar="FILE", help="write everything there")
    return finished(parser, arguments, run)


if __name__ == "__main__":
    sys.exit(main())
