"""The whole model on the board: the data that it is checked with, and how long one run takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from boards.target import Target
from cross.expression.language.dtypes import FLOATS
from device_runtime.protocol import BufferRequest, MeasureFailure, MeasureRequest, MeasureResult, Timing
from toolkit.bundle.manifest import AnyVariant, CpuVariant, GpuVariant
from toolkit.bundle.pack import GOLDEN_RTOL, GoldenData
from toolkit.measure.comparison import Comparison, compare
from toolkit.measure.session import Session, put_again
from toolkit.model.graph import Array, Graph, Value
from toolkit.model.reference import run_reference
from toolkit.model.roundings import rounding_spread
from toolkit.model_job.options import Latency

SYMBOL = "tfb_model"
WIDEST_RTOL = 0.5  # a bundle's has to be below 1; so much says that a model is not all wrong
PAIRS = 16  # at most: blocks of runs of either model, in turn: one that is disturbed hides no difference yet
LOOKS = (10, PAIRS)  # after so many pairs a clear verdict ends the comparison; of fewer than 10 there is none
MEASURED_S = 2.0  # that many seconds of single runs of a model, between the two numbers of runs in a block
BLOCK_S = MEASURED_S / PAIRS  # of single runs in a block
STARTED_SHARE = 0.5  # of the time of a short comparison is left for starting blocks, about 40 ms each
LEAST_RUNS, MOST_RUNS = 5, 60
WARMUP = 3  # runs of a block that are not counted, the first one among them
TIMEOUT_S = 60.0


def golden_rtol(graph: Graph, target: Target, golden: GoldenData) -> float:
    """What a model's outputs may differ by: half floats count wherever it has them, and what its roundings to
    integers make of the last bits of floats."""
    dtypes = {value.dtype for value in graph.values.values()} | {target.storage}
    rtol = max(rtol for dtype, rtol in GOLDEN_RTOL.items() if dtype in {*dtypes, "float32"})
    inputs = dict(zip(graph.inputs, golden.inputs, strict=True))
    outputs = dict(zip(graph.outputs, golden.outputs, strict=True))
    return max(rtol, min(WIDEST_RTOL, rounding_spread(graph, inputs, outputs)))


def golden_data(graph: Graph, rng: np.random.Generator) -> GoldenData:
    """Random graph inputs, and the outputs that the numpy reference computes from them."""
    inputs = {name: _random(graph.values[name], rng) for name in graph.inputs}
    outputs = run_reference(graph, inputs)
    return GoldenData(tuple(inputs.values()), tuple(outputs[name] for name in graph.outputs))


class LoadedModel(msgspec.Struct, frozen=True):
    """What a board needs of a model to run it; the variant describes `code`."""

    code: bytes
    variant: AnyVariant
    golden: GoldenData


def measure_model(
    model: LoadedModel,
    session: Session,
    *,
    expected_s: float,
    threads: int = 0,
    block_s: float = BLOCK_S,
) -> Latency | MeasureFailure:
    """Check one run of the model against the golden outputs on the board, then time a block of single runs.

    `expected_s` is about what a run takes; with `block_s` it decides how many there are. The first one and
    those that warm up are not among `seconds`. A CPU's model may run by other `threads` than those that it
    was tuned for. A model that fails, or whose outputs are wrong, is a value: what that means depends on
    which model it is.
    """
    warmup = 0 if session.board.emulated else WARMUP
    repeats = 1 if session.board.emulated else warmup + runs_of_block(expected_s, block_s)
    result = _measured(model, session, repeats, threads)
    if result.error is not None:
        return result.error
    error = result.max_abs_error / max(result.max_abs_reference, 1e-30)
    return Latency(result.seconds[warmup:], error, result.seconds[:1])


def measure_steps(
    model: LoadedModel, session: Session, *, expected_s: float
) -> tuple[float, ...] | MeasureFailure:
    """Median seconds of each kernel call and copy of a model, in the order of its plan, in a block of runs.

    Empty where they are not known: for a GPU's model, and one that was packed by an earlier version. As
    `measure_model`, it checks one run first.
    """
    runs = 1 if session.board.emulated else runs_of_block(expected_s)
    result = _measured(model, session, 1, step_runs=runs)
    return result.step_s if result.error is None else result.error


def _measured(
    model: LoadedModel, session: Session, repeats: int, threads: int = 0, step_runs: int = 0
) -> MeasureResult:
    board, variant = session.board, model.variant
    cores = variant.cores if isinstance(variant, CpuVariant) else ()

    def measured() -> MeasureResult:
        request = MeasureRequest(
            module=session.put(model.code),
            symbol=SYMBOL,
            buffers=_buffers(model.golden, session),
            workspace_bytes=variant.workspace_bytes,
            timing=Timing(number=1, repeat=repeats, min_repeat_ms=0.0, warmup=0),
            threads=threads or variant.threads,
            cores=cores[:threads] if threads else cores,
            timeout_s=max(TIMEOUT_S, board.measure.timeout_s),
            rtol=model.golden.rtol,
            driver=variant.kind,
            device=variant.device if isinstance(variant, GpuVariant) else "",
            step_runs=step_runs,
        )
        return session.measure(request)

    return put_again(measured)


class InTurn(msgspec.Struct, frozen=True):
    """Two models that were measured in turn; a first one that fails leaves nothing to compare.

    `disturbed` says in sentences what disturbed the times, where somebody looked.
    """

    first: Latency | MeasureFailure
    second: Latency
    comparison: Comparison | None
    disturbed: tuple[str, ...] = ()


def measure_in_turn(
    first: Callable[[], Latency | MeasureFailure],
    second: Callable[[], Latency],
    pairs: int,
    more: Callable[[], bool] = lambda: True,
) -> InTurn:
    """Measure either model in `pairs` blocks, which of a pair comes first changing every time.

    What is compared are the fastest runs of the blocks: other load only ever adds time, to any number of the
    runs (Chen and Revels, "Robust benchmarking in noisy environments", 2016). Ends early, after the first
    pair, when there is no time for `more` or the first model fails, and at LOOKS when the verdict is clear.
    """
    blocks: tuple[list[Latency], list[Latency]] = ([], [])
    failure: MeasureFailure | None = None

    def found() -> Comparison:
        before_s, after_s = ([item.best_s for item in block] for block in blocks)
        return compare(before_s, after_s, len(LOOKS))

    for pair in range(pairs):
        if blocks[1] and (failure is not None or not more()):
            break
        if pair in LOOKS and found().verdict in ("faster", "slower"):
            break
        for number in (1, 0) if pair % 2 else (0, 1):
            measured = (first, second)[number]()
            if isinstance(measured, Latency):
                blocks[number].append(measured)
            else:
                failure = measured
    if failure is not None:
        return InTurn(failure, joined(blocks[1]), None)
    return InTurn(joined(blocks[0]), joined(blocks[1]), found())


def runs_of_block(expected_s: float, block_s: float = BLOCK_S) -> int:
    """Runs of a block, about `block_s` seconds of them."""
    return int(min(MOST_RUNS, max(LEAST_RUNS, block_s / max(expected_s, 1e-9))))


def block_within(left_s: float) -> float:
    """Seconds of runs in a block, so that in `left_s` there are as many pairs as a verdict takes."""
    return min(BLOCK_S, (1.0 - STARTED_SHARE) * left_s / (2 * LOOKS[0]))


def joined(several: Sequence[Latency]) -> Latency:
    """Several measurements of one model as one."""
    seconds = tuple(second for item in several for second in item.seconds)
    first_s = tuple(second for item in several for second in item.first_s)
    return Latency(seconds, max(item.max_relative_error for item in several), first_s)


def _buffers(golden: GoldenData, session: Session) -> tuple[BufferRequest, ...]:
    return tuple(
        BufferRequest(role, str(array.dtype), array.size, session.put(np.ascontiguousarray(array).tobytes()))
        for role, arrays in (("input", golden.inputs), ("output", golden.outputs))
        for array in arrays
    )


def _random(value: Value, rng: np.random.Generator) -> Array:
    """Floats in [-1, 1); zeros and ones for integers, which may be indices."""
    if value.dtype in FLOATS:
        return rng.uniform(-1.0, 1.0, value.shape).astype(value.dtype)
    return rng.integers(0, 2, value.shape).astype(value.dtype)
