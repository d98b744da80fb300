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

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.harness.statistics import rank_correlation
from benchmarks.harness.text import aligned
from benchmarks.kernels.expressions import operator as workload_operator
from benchmarks.kernels.workloads import WORKLOADS
from boards.board import load, names
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
RESERVED_BYTES: Final = {
    "sm_90": 1024
}  # of shared memory, which the driver keeps for itself and cubins count
HOST: Final = "host"  # has no CUDA target, and takes a while to probe
FULL: Final = 1.0 + 1e-9


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
        """What must not be."""
        return [
            *([self.error] if self.error else []),
            *(
                f"{item.name} takes {item.share:.2f} of the {item.limit}"
                for item in self.launches
                if item.share > FULL
            ),
            *(
                f"{item.name} takes {item.shared_bytes} bytes of shared memory, {item.expected_shared_bytes} "
                "expected"
                for item in self.launches
                if item.shared_bytes != item.expected_shared_bytes
            ),
        ]


# ------------------------------------------------------------------------------------------- compiling


def other_operators() -> dict[str, Callable[[], Operator]]:
    """Operators without sums of products: by elements, by windows, and across the threads of a block."""

    def one(name: str, shape: tuple[int, ...], build: Callable[..., object]) -> Callable[[], Operator]:
        def made() -> Operator:
            data = placeholder(shape, "data")
            return Operator(name, (data,), build(data))  # type: ignore[arg-type]

        return made

    def normed() -> Operator:
        data, scale, shift = (placeholder(shape, name) for shape, name in (
            ((128, 768), "data"), ((768,), "scale"), ((768,), "shift"),
        ))  # fmt: skip
        return Operator("layer_norm", (data, scale, shift), layer_norm(data, scale, shift))

    halved = Window((2, 2), (1, 1, 1, 1))
    return {
        "max_pool": one("max_pool", (1, 112, 112, 64), lambda x: pool2d(x, (3, 3), halved, "max")),
        "global_pool": one("global_pool", (1, 7, 7, 512), lambda x: reduce(x, (1, 2), "sum")),
        "softmax": one("softmax", (12, 128, 128), lambda x: softmax(x, 2)),
        "layer_norm": normed,
    }


def operators() -> dict[str, Callable[[], Operator]]:
    """Everything that pairs are drawn from, by name."""

    def of(name: str) -> Callable[[], Operator]:
        return lambda: workload_operator(WORKLOADS[name])

    return {**{name: of(name) for name in WORKLOADS}, **other_operators()}


def target_of(architecture: str) -> tuple[str, Target]:
    """A board with that architecture, and its CUDA target. Raises ValueError where none has it."""
    known: dict[str, tuple[str, Target]] = {}
    for board in names():
        for target in load(board).targets if board != HOST else ():
            if target.gpu is not None and target.gpu.compute_capability:
                known.setdefault(target.gpu.compute_capability, (board, target))
    if architecture not in known:
        raise ValueError(f"no board has the architecture {architecture}: expected one of {', '.join(known)}")
    return known[architecture]


def pairs(target: Target, count: int, seed: int) -> Iterator[Pair]:
    """So many pairs, drawn and compiled one after the other."""
    rng = np.random.default_rng(seed)
    builds = operators()
    programs: dict[str, Programs] = {}
    for _ in range(count):
        name = list(builds)[int(rng.integers(len(builds)))]
        if name not in programs:
            programs[name] = Programs(space_of(builds[name](), target))
        space = programs[name].space
        yield compiled(name, programs[name], space.configuration(space.sample(rng, 1)[0]))


def compiled(name: str, programs: Programs, configuration: Configuration) -> Pair:
    """One pair. Raises NvrtcMissing."""
    space = programs.space
    knobs, started = space.describe(configuration), time.perf_counter()
    try:
        launches = tuple(_launches(programs, configuration))
    except NvrtcMissing:
        raise
    except CompileError as error:
        return Pair(name, knobs, time.perf_counter() - started, (), str(error))
    return Pair(name, knobs, time.perf_counter() - started, launches)


def _launches(programs: Programs, configuration: Configuration) -> Iterator[Launch]:
    target, needs = programs.space.target, programs.space.needs(configuration)
    inner = programs.space.alternative(programs.structure(configuration))[0]
    stages = {identifier(f"{SYMBOL}_{stage.name}"): stage.name for stage in inner.program.stages}
    assert target.gpu is not None
    architecture = target.gpu.compute_capability
    program = gpu_program(SYMBOL, programs.nest(configuration), target)
    used = usage(compile_cubin(program.source, architecture))
    for function in program.functions:
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


# ------------------------------------------------------------------------------------------- reporting

HEAD: Final = (
    "operator", "launch", "threads", "registers: expected", "taken", "shared bytes: expected", "taken",
    "spilled", "of the limit",
)  # fmt: skip
CLOSEST: Final = 10
SAID_EVERY: Final = 50  # pairs


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


@dataclass(frozen=True, slots=True)
class Summary:
    """What was found for one architecture; registers of the launches for which a number is expected."""

    architecture: str
    board: str
    pairs: int
    compiled: int
    launches: int
    over_a_limit: int
    other_shared_memory: int
    spilling: int
    most_spilled_bytes: int
    with_expected_registers: int
    rank_correlation: float
    median_taken_of_expected: float
    more_than_expected: int
    longest_s: float
    seconds: float


def summary(architecture: str, board: str, found: Sequence[Pair]) -> Summary:
    """The figures of an architecture's pairs."""
    launches = [item for pair in found for item in pair.launches]
    known = [(item.expected_registers, item.registers) for item in launches if item.expected_registers]
    expected, taken = np.array(known, dtype=np.float64).reshape(-1, 2).T
    return Summary(
        architecture=architecture,
        board=board,
        pairs=len(found),
        compiled=sum(not pair.error for pair in found),
        launches=len(launches),
        over_a_limit=sum(item.share > FULL for item in launches),
        other_shared_memory=sum(item.shared_bytes != item.expected_shared_bytes for item in launches),
        spilling=sum(item.local_bytes > 0 for item in launches),
        most_spilled_bytes=max((item.local_bytes for item in launches), default=0),
        with_expected_registers=len(known),
        rank_correlation=rank_correlation(expected.tolist(), (1.0 / taken).tolist()) if known else 0.0,
        median_taken_of_expected=float(np.median(taken / expected)) if known else 0.0,
        more_than_expected=int((taken > expected).sum()),
        longest_s=max((pair.seconds for pair in found), default=0.0),
        seconds=sum(pair.seconds for pair in found),
    )


def conclusion(item: Summary) -> Iterator[str]:
    """The figures of an architecture in words."""
    yield f"{item.compiled} of {item.pairs} pairs compile, {item.launches} launches"
    yield f"{item.over_a_limit} launches exceed a limit of the board"
    yield f"{item.other_shared_memory} launches take other shared memory than expected"
    yield f"{item.spilling} launches spill, at most {item.most_spilled_bytes} bytes a thread"
    yield (
        f"registers of {item.with_expected_registers} launches: rank correlation with what is expected "
        f"{item.rank_correlation:.2f}, median {item.median_taken_of_expected:.2f} times it, "
        f"{item.more_than_expected} take more"
    )
    yield f"{item.seconds:.0f} s, the longest pair {item.longest_s:.1f} s"


# --------------------------------------------------------------------------------------------- command


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile the pairs of every architecture and print what they take; returns the exit code."""
    asked = _parser().parse_args(arguments)
    results: dict[str, tuple[Summary, list[Pair]]] = {}
    try:
        for architecture in asked.arch or ARCHITECTURES:
            board, target = target_of(architecture)
            found = []
            for pair in pairs(target, asked.pairs, asked.seed):
                found.append(pair)
                if len(found) % SAID_EVERY == 0:
                    print(f"{architecture}: {len(found)} of {asked.pairs} pairs", file=sys.stderr)
            results[architecture] = summary(architecture, board, found), found
    except (ValueError, NvrtcMissing) as error:
        print(error, file=sys.stderr)
        return 2
    for item, found in results.values():
        print(f"{item.architecture}, limits of {item.board}")
        for line in aligned([HEAD, *rows(found, asked.all)]):
            print(line)
        for line in (*conclusion(item), *(problem for pair in found for problem in pair.wrong)):
            print(line)
    if asked.json is not None:
        asked.json.write_text(document("gpu-registers", _content(asked.seed, results)) + "\n")
    return int(any(pair.wrong for _, found in results.values() for pair in found))


def _content(seed: int, results: dict[str, tuple[Summary, list[Pair]]]) -> dict[str, object]:
    return {
        "seed": seed,
        "architectures": [
            {**asdict(item), "pairs_compiled": [asdict(pair) for pair in found]}
            for item, found in results.values()
        ],
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_registers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pairs", type=int, default=300, help="pairs for each architecture")
    parser.add_argument(
        "--arch", action="append", metavar="SM", help=f"default: {' and '.join(ARCHITECTURES)}"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--all", action="store_true", help="print every launch")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
