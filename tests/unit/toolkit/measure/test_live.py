"""What a live runner asks of a board, seen from a board that only writes it down."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from msgspec.structs import replace

from boards.board import load
from boards.description import MeasureDefaults
from cross.errors import ScheduleError
from cross.expression import Operator, cast, compute, placeholder, reduce_axis
from cross.expression import sum as sum_of
from cross.expression.language.terms import call
from cross.expression.reference import evaluate
from cross.loopnest.nodes import LoopNest
from cross.loopnest.program import Programs
from cross.schedule.cpu_sketch import cpu_space
from cross.schedule.space import Configuration
from device_runtime.measure.repeats import time_until_enough
from device_runtime.protocol import (
    NOT_FOUND,
    REFUSED,
    MeasureFailure,
    MeasureRequest,
    MeasureResult,
    ProtocolError,
    Timing,
)
from tests.loopback.tuning_process import small_dense
from toolkit.errors import BoardUnreachable
from toolkit.explore.space import Batch
from toolkit.measure.builder import Builder
from toolkit.measure.live import LiveRunner, RunnerOptions, short_repeats
from toolkit.measure.measurement import CODE, GIVEN_UP_S, IDENTICAL_CODE, Measurement
from toolkit.measure.session import DeviceError
from toolkit.measure.trial_data import trial_data

TARGET = load("host").target()
PROGRAMS = Programs(cpu_space(small_dense(), TARGET))
DEFAULT = PROGRAMS.space.batch([PROGRAMS.space.default()])


class NotedBoard:
    """Answers 2 ms, 1 ms, ... for every request; `errors` are raised first."""

    def __init__(self, *errors: str) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: list[MeasureRequest] = []
        self.errors = list(errors)
        self.begun = 0

    def measuring(self, request: MeasureRequest) -> Callable[[], MeasureResult]:
        self.begun += 1
        return functools.partial(self.measure, request)

    def put(self, data: bytes) -> str:
        sha = hashlib.sha256(data).hexdigest()
        self.objects[sha] = data
        return sha

    def measure(self, request: MeasureRequest) -> MeasureResult:
        self.requests.append(request)
        if self.errors:
            self.objects.clear()
            raise DeviceError("measure", ProtocolError(self.errors.pop(0), "the object is gone", {"sha": ""}))
        return MeasureResult(seconds=(2e-3 / len(self.requests),) * 3, number=1, device_s=0.01)


def different(count: int) -> Batch:
    """Configurations that make different programs."""
    rows = PROGRAMS.space.sample(np.random.default_rng(0), 20 * count)
    programs = {PROGRAMS.nest(PROGRAMS.space.configuration(row)): place for place, row in enumerate(rows)}
    return rows[sorted(programs.values())[:count]]


@pytest.fixture(scope="module", name="builder")
def _builder() -> Iterator[Builder]:
    with Builder(TARGET, workers=1) as builder:
        yield builder


def test_the_request_carries_the_data_as_the_kernel_wants_it(builder: Builder) -> None:
    board = NotedBoard()
    runner = LiveRunner(PROGRAMS, builder, board, seed=4)
    (measured,) = runner.prepare(DEFAULT)
    (request,) = board.requests
    data, large, *others = trial_data(small_dense(), np.random.default_rng(4))
    assert measured.cost_s == 2e-3
    assert board.objects[request.module].startswith(b"\x7fELF")
    assert [buffer.role for buffer in request.buffers] == ["input", "input", "output"]
    assert board.objects[request.buffers[0].sha] == data.inputs[0].tobytes()
    assert board.objects[request.buffers[2].sha] == data.expected.tobytes()
    packed = np.frombuffer(board.objects[request.buffers[1].sha], np.float32)
    assert len(packed) == request.buffers[1].elements
    assert set(packed.tolist()) <= set(data.inputs[1].ravel().tolist())
    assert (request.threads, request.cores, request.rtol) == (TARGET.threads, TARGET.cores, 1e-4)
    alone, *together = request.more_data
    assert alone[1] == together[-1][1] == request.buffers[1].sha != together[0][1]
    for place in (0, 2):
        wanted = [item.expected if place == 2 else item.inputs[place] for item in (large, *others)]
        uploaded = [board.objects[more[place]] for more in (alone, *together)]
        assert uploaded[0] == wanted[0].tobytes()
        assert b"".join(uploaded) == b"".join(array.tobytes() for array in wanted)


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_roundings_of_sums_are_uploaded_with_their_bounds(builder: Builder, dtype: str) -> None:
    """Of every set the least right integers, then the largest; most elements have one right answer."""
    x, k = placeholder((512, 64), "x"), reduce_axis(64, "k")
    sums = compute((512,), lambda i: sum_of(x[i, k], k), name="sums")
    rounded = compute((512,), lambda i: cast(dtype, call("round", sums[i])), name="rounded")
    operator = Operator("rounded", (x,), rounded)
    programs, board = Programs(cpu_space(operator, TARGET)), NotedBoard()
    (measured,) = LiveRunner(programs, builder, board).prepare(
        programs.space.batch([programs.space.default()])
    )
    (request,) = board.requests
    data = trial_data(operator, np.random.default_rng(0))
    assert measured.cost_s == 2e-3
    assert [buffer.bounds for buffer in request.buffers] == [False, True]
    uploaded = b"".join(board.objects[shas[1]] for shas in request.data_sets)
    expected = []
    for item in data:
        assert item.most is not None and (item.expected <= item.most).all()
        nearest = evaluate(operator, item.inputs)
        assert (item.expected <= nearest).all() and (nearest <= item.most).all()
        assert (item.most - item.expected <= 1).all() and (item.most == item.expected).mean() > 0.9
        expected += [item.expected, item.most]
    assert uploaded == b"".join(array.tobytes() for array in expected)
    assert any((item.expected < item.most).any() for item in data if item.most is not None)


@pytest.mark.parametrize(
    ("timing", "call_s", "repeat", "min_repeat_ms"),
    [
        (Timing(repeat=3, min_repeat_ms=10.0), 1e-5, 20, 0.5),
        (Timing(repeat=3, min_repeat_ms=10.0), 2e-3, 15, 0.5),
        (Timing(repeat=3, min_repeat_ms=10.0), 1.0, 3, 0.5),
        (Timing(repeat=2, min_repeat_ms=0.5), 1e-5, 2, 0.5),
        (Timing(repeat=3, min_repeat_ms=10.0, cooldown_s=0.1), 1e-5, 3, 10.0),
    ],
)
def test_the_time_is_spent_in_short_repeats(
    timing: Timing, call_s: float, repeat: int, min_repeat_ms: float
) -> None:
    short = short_repeats(timing, call_s)
    assert (short.repeat, short.min_repeat_ms) == (repeat, min_repeat_ms)


class UnevenBoard(NotedBoard):
    """The k-th of all repeats takes the k-th of `seconds`; where these end, it gives up."""

    def __init__(self, seconds: list[float]) -> None:
        super().__init__()
        self.seconds = seconds

    def measure(self, request: MeasureRequest) -> MeasureResult:
        self.requests.append(request)
        assert request.timing is not None
        taken, _, _ = time_until_enough(self.taken, request.timing)
        return MeasureResult(seconds=tuple(taken), number=1, device_s=0.01)

    def taken(self, timing: Timing) -> tuple[list[float], int]:
        taken, self.seconds = self.seconds[: timing.repeat], self.seconds[timing.repeat :]
        return taken, 1


QUIET = [1e-3, 1.03e-3, 2e-3, 1.04e-3, 3e-3, 5e-3]
DISTURBED = [1e-3, 1.03e-3, 2e-3, 1.2e-3, 3e-3, 5e-3]


@pytest.mark.parametrize(
    ("seconds", "beaten", "repeats"),
    [
        (QUIET, 3.0, 6),
        (QUIET * 4, 3.0, 6),
        (DISTURBED + [0.9e-3] * 14, 3.0, 9),
        ([1.2**n for n in range(20)], 3.0, 20),
        (DISTURBED[:2], 3.0, 2),  # given up by the board
        (QUIET * 4, 0.0, 20),
    ],
)
def test_repeats_that_agree_are_enough(
    builder: Builder, seconds: list[float], beaten: float, repeats: int
) -> None:
    board = UnevenBoard(seconds)
    runner = LiveRunner(PROGRAMS, builder, board, RunnerOptions(Timing(repeat=3), beaten=beaten))
    (measured,) = runner.prepare(DEFAULT)
    assert measured.seconds == tuple(seconds[:repeats])
    assert measured.cost_s == min(measured.seconds)
    assert len(board.requests) == 1


@pytest.mark.parametrize(
    ("seconds", "repeats"), [([1.15e-3] * 20, 3), ([1.05e-3] * 20, 6), ([1.15e-3, 1.3e-3] * 10, 6)]
)
def test_a_candidate_that_is_slower_than_the_best_for_certain_gets_three_repeats(
    builder: Builder, seconds: list[float], repeats: int
) -> None:
    runner = LiveRunner(PROGRAMS, builder, UnevenBoard([1e-3] * 6 + seconds), RunnerOptions(Timing(repeat=3)))
    best, slower = runner.prepare(different(2))
    assert (len(best.seconds), slower.seconds) == (6, tuple(seconds[:repeats]))
    assert slower.facts.keys() == {CODE}


class RefusingBoard(NotedBoard):
    """Cannot load what it is given, so often."""

    def __init__(self, refusals: int) -> None:
        super().__init__()
        self.refusals = refusals

    def measure(self, request: MeasureRequest) -> MeasureResult:
        answer = super().measure(request)
        if len(self.requests) > self.refusals:
            return answer
        return MeasureResult(error=MeasureFailure("link", "wrong ELF class"))


@pytest.mark.parametrize(("refusals", "asked", "kind"), [(2, 3, ""), (3, 3, "link")])
def test_what_cannot_be_loaded_is_tried_again_and_not_remembered(
    builder: Builder, refusals: int, asked: int, kind: str
) -> None:
    board = RefusingBoard(refusals)
    runner = LiveRunner(PROGRAMS, builder, board)
    (measured,) = runner.prepare(DEFAULT)
    assert len(board.requests) == asked
    assert (measured.error.kind if measured.error else "") == kind
    assert measured.says_nothing == bool(kind)
    (again,) = runner.prepare(DEFAULT)
    assert again.error is None


def test_candidates_much_slower_than_the_best_give_up(builder: Builder) -> None:
    board = NotedBoard()
    runner = LiveRunner(PROGRAMS, builder, board, RunnerOptions(Timing(repeat=5, cooldown_s=0.1), beaten=3.0))
    for row in different(3):
        list(runner.prepare(row[None]))
    timings = [request.timing for request in board.requests]
    assert [timing.give_up_s for timing in timings if timing] == pytest.approx([0.0, 6e-3, 3e-3])
    assert all(timing is not None and timing.repeat == 5 for timing in timings)


def test_configurations_of_one_program_are_measured_once(builder: Builder) -> None:
    board = NotedBoard()
    runner = LiveRunner(PROGRAMS, builder, board)
    first, second = different(2)
    batch = np.stack([first, second, first, first])
    measured = list(runner.prepare(batch)) + list(runner.prepare(batch[2:]))
    assert [m.cost_s for m in measured] == [2e-3, 1e-3, 2e-3, 2e-3, 2e-3, 2e-3]
    assert [m.device_s > 0 for m in measured] == [True, True, False, False, False, False]
    assert len(board.requests) == 2


def test_a_board_has_the_next_candidate_before_a_measurement_is_handed_on(builder: Builder) -> None:
    board = NotedBoard()
    first, second, third = different(3)
    measured = LiveRunner(PROGRAMS, builder, board).prepare(np.stack([first, second, second, third]))
    seen = [(board.begun, len(board.requests)) for _ in measured]
    assert seen == [(2, 1), (2, 2), (3, 2), (3, 3)]
    timings = [request.timing for request in board.requests]
    assert [timing.give_up_s for timing in timings if timing] == pytest.approx([0.0, 6e-3, 3e-3])


@pytest.mark.parametrize("end", [BoardUnreachable("gone"), KeyboardInterrupt("gone")])
def test_what_ends_a_search_early_costs_no_measurement_before(end: BaseException, builder: Builder) -> None:
    class GoingBoard(NotedBoard):
        """Takes one candidate."""

        def measuring(self, request: MeasureRequest) -> Callable[[], MeasureResult]:
            if self.begun == 1:
                raise end
            return super().measuring(request)

    measured = LiveRunner(PROGRAMS, builder, GoingBoard()).prepare(different(2))
    assert next(measured).cost_s == 2e-3
    with pytest.raises(type(end), match="gone"):
        next(measured)


def test_what_is_taken_over_is_marked(builder: Builder) -> None:
    runner = LiveRunner(PROGRAMS, builder, NotedBoard())
    first, second = different(2)
    own, other, again = runner.prepare(np.stack([first, second, first]))
    assert own.facts.keys() == {CODE} and own.facts[CODE] != other.facts[CODE]
    assert again.facts == {CODE: own.facts[CODE], IDENTICAL_CODE: True}


def test_equal_machine_code_of_other_programs_is_measured_once(builder: Builder) -> None:
    class Renamed(Programs):
        """Every second program has another name: not the same value, but the same instructions."""

        odd = False

        def nest(self, configuration: Configuration) -> LoopNest:
            self.odd = not self.odd
            return replace(super().nest(configuration), name="odd" if self.odd else "even")

    programs, board = Renamed(PROGRAMS.space), NotedBoard()
    assert programs.nest(PROGRAMS.space.default()) != programs.nest(PROGRAMS.space.default())
    runner = LiveRunner(programs, builder, board)
    first, second = (next(iter(runner.prepare(DEFAULT))) for _ in range(2))
    assert len(board.requests) == 1
    assert first.seconds == second.seconds and second.facts[IDENTICAL_CODE]


def test_what_an_earlier_run_measured_is_taken_over_and_not_failures(builder: Builder) -> None:
    batch = different(3)
    board = NotedBoard()
    earlier = list(LiveRunner(PROGRAMS, builder, board).prepare(batch))
    earlier[2] = replace(earlier[2], seconds=(), error=MeasureFailure("timeout", "no answer in 10 s"))
    later = LiveRunner(PROGRAMS, builder, board, RunnerOptions(Timing(repeat=3)), recorded=earlier)
    measured = list(later.prepare(batch))
    assert [m.facts.get(IDENTICAL_CODE, False) for m in measured] == [True, True, False]
    assert [m.seconds for m in measured[:2]] == [m.seconds for m in earlier[:2]]
    assert [m.device_s > 0 for m in measured] == [False, False, True]
    assert len(board.requests) == 4
    assert board.requests[-1].timing is not None
    assert board.requests[-1].timing.give_up_s == pytest.approx(3 * earlier[1].cost_s)


def test_a_candidate_that_was_given_up_says_so_and_keeps_its_times(builder: Builder) -> None:
    first, second = different(2)
    board = UnevenBoard([1e-3] * 6 + [9e-3, 8e-3])
    runner = LiveRunner(PROGRAMS, builder, board, RunnerOptions(Timing(repeat=3)))
    fast, slow, again = runner.prepare(np.stack([first, second, second]))
    assert GIVEN_UP_S not in fast.facts
    assert slow.error is None and slow.seconds == (9e-3, 8e-3) and slow.cost_s == 8e-3
    assert slow.facts[GIVEN_UP_S] == pytest.approx(3e-3)
    assert again.facts[GIVEN_UP_S] == slow.facts[GIVEN_UP_S] and again.facts[IDENTICAL_CODE]


def test_a_configuration_that_cannot_be_lowered_is_a_failure_in_its_place(builder: Builder) -> None:
    class Refusing(Programs):
        def nest(self, configuration: Configuration) -> LoopNest:
            if configuration == refused:
                raise ScheduleError("tile 3 of axis i does not fit")
            return super().nest(configuration)

    batch = different(3)
    refused = PROGRAMS.space.configuration(batch[1])
    measured = list(LiveRunner(Refusing(PROGRAMS.space), builder, NotedBoard()).prepare(batch))
    assert [m.error is None for m in measured] == [True, False, True]
    assert measured[1].error == MeasureFailure("build", "tile 3 of axis i does not fit")


def test_what_the_board_dropped_is_uploaded_again(builder: Builder) -> None:
    board = NotedBoard()
    runner = LiveRunner(PROGRAMS, builder, board)
    first, second = different(2)
    list(runner.prepare(first[None]))
    board.errors = [NOT_FOUND]
    (measured,) = runner.prepare(second[None])
    assert measured.error is None
    assert {buffer.sha for buffer in board.requests[-1].buffers} <= board.objects.keys()
    assert board.requests[-1].module in board.objects


def test_other_refusals_are_errors(builder: Builder) -> None:
    runner = LiveRunner(PROGRAMS, builder, NotedBoard(REFUSED))
    with pytest.raises(DeviceError):
        list(runner.prepare(DEFAULT))
    runner = LiveRunner(PROGRAMS, builder, NotedBoard(NOT_FOUND, NOT_FOUND))
    with pytest.raises(DeviceError):
        list(runner.prepare(DEFAULT))


def test_the_boards_file_says_how_to_measure() -> None:
    options = RunnerOptions.of(
        MeasureDefaults(number=2, repeat=5, min_repeat_ms=1.5, cooldown_s=0.1, timeout_s=7.0)
    )
    assert options.timing == Timing(number=2, repeat=5, min_repeat_ms=1.5, cooldown_s=0.1, warmup=0)
    assert options.timeout_s == 7.0


def test_a_result_becomes_a_measurement() -> None:
    worked = Measurement.of(MeasureResult(seconds=(3e-3, 2e-3), number=4, max_abs_error=1e-6, device_s=0.1))
    assert (worked.cost_s, worked.number, worked.max_abs_error, worked.device_s) == (2e-3, 4, 1e-6, 0.1)
    wrong = MeasureFailure("wrong_answer", "3 of 9 elements are not finite")
    failed = Measurement.of(MeasureResult(error=wrong, max_abs_error=float("inf"), device_s=0.1))
    assert failed.error == wrong and failed.seconds == () and failed.max_abs_error is None
    assert failed.cost_s != failed.cost_s
