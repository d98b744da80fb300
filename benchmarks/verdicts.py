"""How often equal models are called different, and how often a slower one is found, by the verdict of `tune`.

    python -m benchmarks.verdicts [--comparisons 50] [--slowdown 0.03] [--threads 1] [--neighbour]

The model is a loop of matrix products, so that a slowdown is a number of products more: known, not measured.
Compared in turn, as `tune` compares, are the model and a copy of it (a file of its own on the board), and the
model and the one that does more. With --neighbour another process computes meanwhile, on and off at random.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
from msgspec.structs import replace

from benchmarks.harness.command import Asked, finished, program
from benchmarks.harness.place import Place, board_with, open_place
from cross.compile import compile_object, kernel_of
from cross.expression import Operator, compute, placeholder, reduce_axis
from cross.expression import sum as sum_of
from cross.loopnest.program import Programs
from cross.schedule.choose import space_of
from toolkit.bundle.build import BuiltModel, build
from toolkit.bundle.manifest import KernelProvenance, TensorSpec
from toolkit.bundle.model_plan import BufferRef, Loop, ModelPlan, PlannedKernel, Step
from toolkit.bundle.pack import GoldenData
from toolkit.errors import ToolkitError
from toolkit.measure.comparison import Comparison
from toolkit.model_job.latency import PAIRS, LoadedModel, measure_in_turn, measure_model
from toolkit.model_job.options import Latency

SIDE: Final = 64  # of a product's matrices: they stay in the first caches, so that all products take as long
PRODUCTS: Final = 100  # of the model that is compared: a slowdown is a whole number of them
SYMBOL: Final = "product"
BURST_S: Final = 0.2  # mean time for which the neighbour computes, and for which it sleeps
FALSE_SHARE, FOUND_SHARE = 0.05, 0.9  # goals: of equal models called different, of slower ones found


def model(place: Place, products: int) -> tuple[BuiltModel, GoldenData]:
    """A model that multiplies two matrices so many times, with the data that it is checked with."""
    a, b = placeholder((SIDE, SIDE), "a"), placeholder((SIDE, SIDE), "b")
    k = reduce_axis(SIDE, "k")
    product = compute((SIDE, SIDE), lambda i, j: sum_of(a[i, k] * b[k, j], k), name=SYMBOL)
    operator = Operator(SYMBOL, (a, b), product)
    space = space_of(operator, place.target)
    nest = Programs(space).nest(space.default())
    code = compile_object(SYMBOL, nest, place.target)
    kernel = PlannedKernel(
        code,
        kernel_of(SYMBOL, nest).workspace_bytes,
        KernelProvenance(symbol=SYMBOL, operator_key=operator.key, tuned=False),
    )
    step = Step(SYMBOL, (BufferRef("input", 0), BufferRef("input", 1), BufferRef("output", 0)))
    plan = ModelPlan(
        name="products",
        inputs=(TensorSpec("a", (SIDE, SIDE)), TensorSpec("b", (SIDE, SIDE))),
        outputs=(TensorSpec("c", (SIDE, SIDE)),),
        kernels=(kernel,),
        parameters=b"",
        arena_bytes=0,
        steps=(Loop(products, (step,)),),
        threads=place.target.threads,
    )
    left, right = np.random.default_rng(0).uniform(-1, 1, (2, SIDE, SIDE)).astype(np.float32)
    expected = (left.astype(np.float64) @ right).astype(np.float32)
    return build(plan, place.target), GoldenData((left, right), (expected,))


def compared(place: Place, slowdown: float, pairs: int, name: int = 0) -> Comparison:
    """The model against one that does `slowdown` more; 0: a copy, another file for each `name`."""
    (first, golden), (second, _) = model(place, PRODUCTS), model(place, round(PRODUCTS * (1 + slowdown)))
    second = replace(
        second, code=second.code + name.to_bytes(8, "little")
    )  # what follows an ELF file is free
    warm = measured(place, first, golden, 1e-3)

    def of(built: BuiltModel) -> Latency:
        return measured(place, built, golden, warm.median_s)

    found = measure_in_turn(lambda: of(first), lambda: of(second), pairs)
    assert found.comparison is not None
    return found.comparison


def measured(place: Place, built: BuiltModel, golden: GoldenData, expected_s: float) -> Latency:
    """One block of runs. Raises ToolkitError where the model fails."""
    loaded = LoadedModel(built.code, built.variant, golden)
    found = measure_model(loaded, place.session, expected_s=expected_s)
    if not isinstance(found, Latency):
        raise ToolkitError(f"{built.plan.name} failed on {place.board.name}: {found.kind}: {found.text}")
    return found


@contextmanager
def neighbour(wanted: bool) -> Iterator[None]:
    """Another process that computes, on and off; none unless `wanted`."""
    if not wanted:
        yield
        return
    process = multiprocessing.get_context("spawn").Process(target=_compute, args=(15,), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _compute(seed: int) -> None:
    """Sums of numbers that no cache holds, for a while, then nothing for a while."""
    rng = np.random.default_rng(seed)
    numbers = rng.random(1 << 23)
    while True:
        until_s = time.monotonic() + rng.exponential(BURST_S)
        while time.monotonic() < until_s:
            numbers.sum()
        time.sleep(rng.exponential(BURST_S))


def run(asked: Asked) -> int:
    """Compare, print each verdict as it comes, and the counts; 1 where a goal is missed."""
    (board, target), missed = board_with(asked.threads), 0
    with open_place(board, target, "verdicts") as place, neighbour(asked.neighbour):
        for slowdown in (0.0, asked.slowdown):
            right = "slower" if slowdown else "no difference found"
            verdicts: Counter[str] = Counter()
            for number in range(asked.comparisons):
                found = compared(place, slowdown, asked.pairs, number)
                verdicts[found.verdict] += 1
                high = "" if found.high is None else f"{found.high:.4f}"
                print(f"{found.ratio:.4f} [{found.low:.4f}, {high}] {found.verdict}", flush=True)
            share = verdicts[right] / asked.comparisons
            reached = share >= (FOUND_SHARE if slowdown else 1 - FALSE_SHARE)
            missed += not reached
            counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
            what = f"{slowdown:.1%} slower" if slowdown else "equal"
            goal = "reached" if reached else "missed"
            print(f"{what}, {asked.comparisons} comparisons: {counts}; goal {goal}")
    return int(missed > 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = program("verdicts", __doc__)
    parser.add_argument("--comparisons", type=int, default=50, help="of each kind (default 50)")
    parser.add_argument("--slowdown", type=float, default=0.03, help="share of work more (default 0.03)")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"blocks of each model (default {PAIRS})")
    parser.add_argument("--threads", type=int, default=1, help="of the models (default 1)")
    parser.add_argument("--neighbour", action="store_true", help="let another process compute on and off")
    return finished(parser, arguments, run)


if __name__ == "__main__":
    sys.exit(main())
