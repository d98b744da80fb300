"""What a board can do at most: its float32 peak, by a loop of multiply-adds in registers, and its bandwidth.

`probe_board` asks the board and measures; what it found is kept below the cache folder, and `load_board`
fills it into the board's targets. The loop is an ordinary kernel, checked and timed over the session like any
other: every accumulator goes x -> x / 2 + 1/2 until it is exactly 1, so that the output is known.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np

from boards.board import load
from boards.description import Board
from boards.files import read_sealed, write_sealed
from boards.target import Target
from cross.codegen.instructions import MULTIPLY_ADD
from cross.codegen.llvm.objects import compile_ir
from cross.link import DEFAULT_CACHE_DIR, link, native_objects
from device_runtime.protocol import BufferRequest, MeasureRequest, MeasureResult, Timing
from toolkit.errors import OutputError
from toolkit.measure.bandwidth import measure_bandwidth
from toolkit.measure.fit import require
from toolkit.measure.replies import Probe
from toolkit.measure.session import Session, fastest_s, open_session
from toolkit.measure.trust import check_program

FACTS_VERSION: Final = 2  # version 1 had no bandwidth
SYMBOL: Final = "tfb_peak"
ROUNDS: Final = 1 << 12  # of the loop for one vector; far more than a value needs to become 1
EMULATED_ROUNDS: Final = 1 << 5
VECTORS: Final = 16  # of a core, one after the other: cores of different speed share them out
HALF: Final = "0x3FE0000000000000"  # 0.5 as LLVM writes it


class TargetFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Measured figures of one target; they hold while its `key` and cores stay the same."""

    key: str
    cores: tuple[int, ...]
    peak_gflops: float
    bandwidth_gbs: float | None = None  # None: not measured


class BoardFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was measured on a board, by target name."""

    facts_version: Literal[1, 2] = FACTS_VERSION
    board: str
    emulated: bool
    unix_s: int
    targets: dict[str, TargetFacts]


class BoardProbe(msgspec.Struct, frozen=True):
    """What a board says of itself, and what was measured on it."""

    answer: Probe
    facts: BoardFacts
    stored: Path


def load_board(
    name_or_path: str | Path,
    *,
    cache_dir: Path | str = DEFAULT_CACHE_DIR,
    to_run: bool = True,
    trust: bool = False,
    config_dir: Path | str | None = None,
) -> Board:
    """The board, with the peaks and bandwidths that `probe_board` measured on it.

    `to_run`: it may be connected to, so that a program that its file names must be agreed to, by `trust` or
    before (see trust.py). Raises BoardError, UntrustedBoard.
    """
    config_dir = Path(config_dir) if config_dir else None
    board = load(name_or_path)
    if to_run:
        check_program(board, trust=trust, config_dir=config_dir)
    facts = _stored(facts_path(board, cache_dir))
    if facts is None or facts.board != board.name:
        return board
    filled: Board = msgspec.structs.replace(
        board, targets=tuple(_filled(target, facts.targets.get(target.name)) for target in board.targets)
    )
    return filled


def probe_board(
    board: Board,
    *,
    cache_dir: Path | str = DEFAULT_CACHE_DIR,
    wait_s: float = 0.0,
    runtime_dir: Path | str | None = None,
) -> BoardProbe:
    """Ask the board what it is, measure its CPU targets, and keep the figures for `load_board`.

    `runtime_dir` is `open_session`'s cache_dir. Raises UnfitBoard, BoardUnreachable, BoardBusy,
    VerificationError when the loop fails there.
    """
    with open_session(board, cache_dir=runtime_dir, wait_s=wait_s) as session:
        answer = session.probe()
        require(board, [target for target in board.targets if target.kind == "cpu"], answer)
        measured = {
            target.name: TargetFacts(
                key=target.key,
                cores=target.cores,
                peak_gflops=measure_peak(session, target, cache_dir=Path(cache_dir)),
                bandwidth_gbs=None
                if board.emulated
                else measure_bandwidth(session, target, cache_dir=Path(cache_dir)),
            )
            for target in board.targets
            if target.kind == "cpu"
        }
        fastest = max(measured.values(), key=lambda facts: facts.peak_gflops, default=None)
        measured |= {
            target.name: msgspec.structs.replace(fastest, key=target.key, cores=target.cores)
            for target in board.targets
            if target.is_pocl and fastest is not None  # the same cores
        }
    facts = BoardFacts(board=board.name, emulated=board.emulated, unix_s=round(time.time()), targets=measured)
    path = facts_path(board, cache_dir)
    _store(facts, path)
    return BoardProbe(answer, facts, path)


def facts_path(board: Board, cache_dir: Path | str = DEFAULT_CACHE_DIR) -> Path:
    """Where a board's measured figures are kept."""
    return Path(cache_dir) / "boards" / f"{board.name}.json"


def measure_peak(session: Session, target: Target, *, cache_dir: Path = DEFAULT_CACHE_DIR) -> float:
    """float32 GFLOP/s of all the target's cores together, the best of several repeats.

    Raises VerificationError when the loop fails on the board.
    """
    emulated = session.board.emulated
    rounds = EMULATED_ROUNDS if emulated else ROUNDS
    code = compile_ir(peak_loop(target, rounds, vectors=VECTORS * target.threads), target)
    artifact = link([code], target, extra_objects=native_objects(target, cache_dir), cache_dir=cache_dir)
    elements = VECTORS * target.threads * target.vector_lanes()
    start = np.linspace(0.0, 2.0, elements, dtype=np.float32)
    expected = np.full(elements, accumulators(target), dtype=np.float32)

    def measured() -> MeasureResult:
        request = MeasureRequest(
            module=session.put(artifact),
            symbol=SYMBOL,
            buffers=(
                BufferRequest("input", "float32", elements, session.put(start.tobytes())),
                BufferRequest("output", "float32", elements, session.put(expected.tobytes())),
            ),
            timing=Timing(repeat=1, min_repeat_ms=0.0)
            if emulated
            else Timing(warmup=20, repeat=300, min_repeat_ms=1.0),
            threads=target.threads,
            cores=target.cores,
            timeout_s=60.0,
            rtol=1e-6,
        )
        return session.measure(request)

    seconds = fastest_s(measured, session, target.name, "the multiply-add loop")
    flops = 2.0 * elements * accumulators(target) * rounds
    return flops / seconds / 1e9


def accumulators(target: Target) -> int:
    """Independent chains of multiply-adds: enough to hide their latency, few enough to stay in registers."""
    return min(24, target.vector_registers - 4)


def peak_loop(target: Target, rounds: int, count: int | None = None, vectors: int | None = None) -> str:
    """The kernel as LLVM text: `rounds` rounds on each of some vectors of the input, in parallel.

    count: accumulators, which are added up; None: as many as suit the target.
    vectors: of the input and the output; None: one for each thread.
    """
    lanes, count = target.vector_lanes(), count or accumulators(target)
    vector = f"<{lanes} x float>"
    half = f"<{', '.join([f'float {HALF}'] * lanes)}>"
    operands = f"{vector} {half}, {vector} {half}"
    names = [f"%a{number}" for number in range(count)]
    phis = [f"  {name} = phi {vector} [ %x, %vector ], [ {name}.next, %loop ]" for name in names]
    steps = [
        f"  {name}.next = call {vector} @{MULTIPLY_ADD}.v{lanes}f32({vector} {name}, {operands})"
        for name in names
    ]
    sums = [
        f"  %sum{number} = fadd {vector} {f'%sum{number - 1}' if number > 1 else '%a0.next'}, {name}.next"
        for number, name in enumerate(names)
        if number > 0
    ]
    body = "\n".join([
        f"declare {vector} @{MULTIPLY_ADD}.v{lanes}f32({vector}, {vector}, {vector})",
        "declare i32 @tfb_parallel_for(ptr, ptr, ptr, i64)",
        "define internal void @body(ptr %buffers, i64 %begin, i64 %end) {",
        "entry:",
        "  %in = load ptr, ptr %buffers",
        "  %outs = getelementptr ptr, ptr %buffers, i64 1",
        "  %out = load ptr, ptr %outs",
        "  br label %vector",
        "vector:",
        "  %at = phi i64 [ %begin, %entry ], [ %after, %done ]",
        f"  %from = getelementptr {vector}, ptr %in, i64 %at",
        f"  %to = getelementptr {vector}, ptr %out, i64 %at",
        f"  %x = load {vector}, ptr %from",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [ 0, %vector ], [ %next, %loop ]",
        *phis,
        *steps,
        "  %next = add i64 %i, 1",
        f"  %more = icmp slt i64 %next, {rounds}",
        "  br i1 %more, label %loop, label %done",
        "done:",
        *sums,
        f"  store {vector} %sum{count - 1}, ptr %to",
        "  %after = add i64 %at, 1",
        "  %rest = icmp slt i64 %after, %end",
        "  br i1 %rest, label %vector, label %end_of_all",
        "end_of_all:",
        "  ret void",
        "}",
        f"define i32 @{SYMBOL}(ptr %buffers, ptr %workspace, ptr %pool) {{",
        "  %status = call i32 @tfb_parallel_for("
        f"ptr %pool, ptr @body, ptr %buffers, i64 {vectors or target.threads})",
        "  ret i32 %status",
        "}",
    ])  # fmt: skip
    return body + "\n"


def _filled(target: Target, facts: TargetFacts | None) -> Target:
    if facts is None or (facts.key, facts.cores) != (target.key, target.cores):
        return target
    known: Target = msgspec.structs.replace(
        target, peak_gflops=facts.peak_gflops, measured_bandwidth_gbs=facts.bandwidth_gbs
    )
    return known


def _stored(path: Path) -> BoardFacts | None:
    """The kept figures; None where there are none that are whole, of this version: they only add a column."""
    data = read_sealed(path)
    try:
        return None if data is None else msgspec.json.decode(data, type=BoardFacts)
    except msgspec.DecodeError:
        return None


def _store(facts: BoardFacts, path: Path) -> None:
    """Replace the file as a whole."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_sealed(path, msgspec.json.format(msgspec.json.encode(facts, order="sorted"), indent=1))
    except OSError as error:
        raise OutputError(
            f"the measured figures cannot be kept in {path}: {error.strerror}; make the folder writable"
        ) from error
