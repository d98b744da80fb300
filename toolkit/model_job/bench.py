"""How fast a bundle runs on a board, a file's or the installed one; and beside another one, in turn.

    report = bench("squeezenet.tfb", load("rpi3b@192.168.1.7"), BenchOptions(against="older.tfb"))

What is measured, and how two models are compared, is what `tune` does with its two (latency.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from boards.description import Board
from device_runtime.protocol import MeasureFailure
from toolkit.bundle.manifest import AnyVariant, CpuVariant, GpuVariant
from toolkit.bundle.model_plan import described_leaves
from toolkit.bundle.pack import GoldenData
from toolkit.bundle.verify import VerifiedBundle, open_bundle, trusted_keys
from toolkit.errors import BoardUnreachable, InputError, VerificationError
from toolkit.flash.installed_bundle import installed_bundle
from toolkit.measure.comparison import Comparison
from toolkit.measure.fit import fitted
from toolkit.measure.session import Session, open_session
from toolkit.model_job.disturbances import disturbances
from toolkit.model_job.latency import (
    PAIRS,
    LoadedModel,
    joined,
    measure_in_turn,
    measure_model,
    measure_steps,
)
from toolkit.model_job.onnxruntime_peer import open_peer
from toolkit.model_job.options import Latency

ONNXRUNTIME: Final = "onnxruntime"
ROUNDS: Final = 4  # blocks of runs for each number of threads, which take turns

Progress = Callable[[int, int], None]
"""Blocks measured, blocks in all."""


class BenchOptions(msgspec.Struct, frozen=True):
    """What to measure beside the bundle as it was tuned; the defaults are those of the command."""

    target: str = ""
    """The variant; empty: the bundle's first."""
    threads: tuple[int, ...] = ()
    """Further numbers of threads of a CPU's variant."""
    against: Path | str = ""
    """Another bundle, or "onnxruntime", which then runs `model` on this machine."""
    model: Path | str | None = None
    constants: Mapping[str, tuple[float, ...]] = {}
    """What inputs of `model` always hold that the bundle does not have, as in TuneOptions."""
    wait_s: float = 0.0
    config_dir: Path | str | None = None
    cache_dir: Path | str | None = None


class Timed(msgspec.Struct, frozen=True):
    """The times of a model run by so many threads (of a GPU's variant, those of the host: 1)."""

    threads: int
    latency: Latency


class MemoryUse(msgspec.Struct, frozen=True):
    """What a running model needs beside its inputs and outputs, in bytes; `code` holds the parameters."""

    code: int
    parameters: int
    workspace: int


class LayerTime(msgspec.Struct, frozen=True):
    """Median seconds of one kernel call or copy; `operator` says what it computes, empty for a copy."""

    layer: str
    operator: str
    seconds: float


class BenchReport(msgspec.Struct, frozen=True):
    """The times of a bundle's variant, the first as it was tuned; `comparison`: of that with the `other`."""

    bundle: Path
    """The file; of an installed bundle, its folder on the board."""
    installed: bool
    bundle_id: str
    model: str
    board: str
    target: str
    emulated: bool
    pocl: bool
    memory: MemoryUse
    timed: tuple[Timed, ...]
    layers: tuple[LayerTime, ...] = ()
    """In the order of the model; empty where they are not known (`measure_steps`)."""
    against: str = ""
    other: Latency | None = None
    comparison: Comparison | None = None
    disturbed: tuple[str, ...] = ()


def bench(
    bundle: Path | str | None,
    board: Board,
    options: BenchOptions | None = None,
    progress: Progress = lambda *_: None,
) -> BenchReport:
    """Measure a bundle on a board; it is checked there against its own data first. None: the installed one,
    of which nothing is uploaded.

    Raises InputError (options that do not fit), MissingExtra, VerificationError (a bundle that is not what
    was signed, or computes something wrong), UnfitBoard, BoardUnreachable, BoardBusy, TimedOut.
    """
    options = options or BenchOptions()
    check(options, board)
    given = None if bundle is None else _opened(bundle, board, options)
    with open_session(board, cache_dir=options.cache_dir, wait_s=options.wait_s) as session:
        opened = given or installed_bundle(session, trusted_keys(options.config_dir))
        model = loaded_model(opened, options.target)
        numbers = _threads(model.variant, options.threads)
        target = board.target(model.variant.target)
        fitted(session, target)
        blocks = len(numbers) * (1 if board.emulated else ROUNDS)
        pairs = 1 if board.emulated else PAIRS
        running = _Running(session, progress, blocks + (2 * pairs if options.against else 0))
        ours = running.model(model, opened.manifest.name)
        expected_s = ours(model.variant.threads, 1.0).median_s
        rounds = [[ours(number, expected_s) for number in numbers] for _ in range(blocks // len(numbers))]
        timed = [
            Timed(number, joined(found))
            for number, found in zip(numbers, zip(*rounds, strict=True), strict=True)
        ]
        other, comparison = None, None
        if options.against:
            theirs = _other(options, board, opened, model, running)
            found = measure_in_turn(
                partial(theirs, expected_s), partial(ours, model.variant.threads, expected_s), pairs
            )
            assert isinstance(found.first, Latency)  # one that fails has been raised
            other, comparison = found.first, None if board.emulated else found.comparison
            timed[0] = Timed(numbers[0], joined([timed[0].latency, found.second]))
        layers = _layers(opened, model, measure_steps(model, session, expected_s=expected_s), board)
        known = [timed[0].latency, *([other] if other else [])]
        return BenchReport(
            bundle=opened.path,
            installed=given is None,
            bundle_id=opened.id,
            model=opened.manifest.name,
            board=board.name,
            target=target.name,
            emulated=board.emulated,
            pocl=target.is_pocl,
            memory=MemoryUse(len(model.code), model.variant.parameters_bytes, model.variant.workspace_bytes),
            timed=tuple(timed),
            layers=layers,
            against=str(options.against),
            other=other,
            comparison=comparison,
            disturbed=() if board.emulated else disturbances(known, session.probe(gpus=False)),
        )


def loaded_model(bundle: VerifiedBundle, target: str = "") -> LoadedModel:
    """A variant of a bundle, by default the first. Raises InputError, VerificationError."""
    said, variant = bundle.manifest, bundle.variant(target)
    code = variant.library if isinstance(variant, CpuVariant) else variant.model
    arrays = [
        tuple(
            np.frombuffer(bundle.read_part(path), spec.dtype).reshape(spec.shape)
            for spec, path in zip(specs, paths, strict=True)
        )
        for specs, paths in ((said.inputs, said.golden.inputs), (said.outputs, said.golden.outputs))
    ]
    return LoadedModel(bundle.read_part(code), variant, GoldenData(arrays[0], arrays[1], said.golden.rtol))


class _Running:
    """Measures blocks of runs in a session, and says how many are done."""

    def __init__(self, session: Session, progress: Progress, blocks: int) -> None:
        self._session, self._progress = session, progress
        self._done, self._blocks = -1, blocks  # the first block is to learn how long a run takes

    def counted(self, latency: Latency) -> Latency:
        self._done += 1
        self._progress(self._done, self._blocks)
        return latency

    def model(self, model: LoadedModel, name: str) -> Callable[[int, float], Latency]:
        """A block of runs of a model by so many threads that take about so many seconds each."""

        def block(threads: int, expected_s: float) -> Latency:
            own = 0 if isinstance(model.variant, GpuVariant) else threads
            found = measure_model(model, self._session, expected_s=expected_s, threads=own)
            if isinstance(found, MeasureFailure):
                board = self._session.board.name
                raise VerificationError(f"{name} failed on board {board}: {found.kind}: {found.text}")
            return self.counted(found)

        return block


def _other(
    options: BenchOptions, board: Board, opened: VerifiedBundle, model: LoadedModel, running: _Running
) -> Callable[[float], Latency]:
    """A block of runs, which take about so many seconds each, of what the bundle is compared with."""
    if str(options.against) == ONNXRUNTIME:
        threads = model.variant.threads
        peer = open_peer(options.model, opened.manifest, model.golden, threads, options.constants)
        return lambda expected_s: running.counted(peer(expected_s))
    second = _opened(options.against, board, options)
    specs = [
        [(spec.dtype, spec.shape) for spec in (*said.inputs, *said.outputs)]
        for said in (opened.manifest, second.manifest)
    ]
    if specs[0] != specs[1]:
        raise InputError(
            f"{options.against} has other inputs or outputs than {opened.path}: expected a bundle of the "
            "same model, or of one that can stand in its place"
        )
    known = {variant.target for variant in second.manifest.variants}
    loaded = loaded_model(second, model.variant.target if model.variant.target in known else "")
    block = running.model(loaded, str(options.against))
    return lambda expected_s: block(loaded.variant.threads, expected_s)


def _layers(
    bundle: VerifiedBundle, model: LoadedModel, step_s: Sequence[float] | MeasureFailure, board: Board
) -> tuple[LayerTime, ...]:
    """The times of the steps with their names, which the bundle's plan has."""
    if isinstance(step_s, MeasureFailure):
        raise VerificationError(
            f"{bundle.manifest.name} failed on board {board.name}: {step_s.kind}: {step_s.text}"
        )
    operators = {kernel.symbol: kernel.operator for kernel in model.variant.kernels}
    plan = msgspec.json.decode(bundle.read_part(model.variant.plan))
    steps = list(described_leaves(plan["steps"]))
    if len(step_s) not in (0, len(steps)):
        raise BoardUnreachable(
            f"Board {board.name} answered with nonsense: times of {len(step_s)} steps of a model that has "
            f"{len(steps)}"
        )
    return tuple(
        LayerTime(step["layer"], operators.get(step.get("symbol", ""), ""), seconds)
        for step, seconds in zip(steps, step_s, strict=False)
    )


def _opened(path: Path | str, board: Board, options: BenchOptions) -> VerifiedBundle:
    opened = open_bundle(path, trusted_keys(options.config_dir))
    boards = opened.manifest.compatibility.boards
    if board.name not in boards:
        raise InputError(f"{path} is for board {' or '.join(boards)}, not for {board.name}")
    return opened


def _threads(variant: AnyVariant, asked: Sequence[int]) -> tuple[int, ...]:
    """The numbers of threads to measure, those of the tuning first. Raises InputError."""
    if isinstance(variant, GpuVariant) and asked:
        raise InputError(f"target {variant.target} is a GPU, whose threads are chosen by its kernels")
    if wrong := [number for number in asked if not 1 <= number <= variant.threads]:
        raise InputError(
            f"{variant.target} was tuned for {variant.threads} threads: expected 1 to as many, found "
            f"{wrong[0]}"
        )
    return tuple(dict.fromkeys([variant.threads, *asked]))


def check(options: BenchOptions, board: Board) -> None:
    """Raise InputError for options that do not fit the board or each other."""
    against = str(options.against) == ONNXRUNTIME
    if against and (board.link.kind != "local" or board.emulated):
        raise InputError(
            f"ONNX Runtime runs on this machine, which board {board.name} is not: use --board host"
        )
    if options.constants and not against:
        raise InputError("--constant belongs to --against onnxruntime: a bundle has no such inputs")
    if against != (options.model is not None):
        raise InputError("--against onnxruntime and --model FILE.onnx belong together: give both or neither")
