"""Measuring on a board: build a batch, upload what the board lacks, time one kernel after the other."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from boards.description import MeasureDefaults
from cross.backends import HashedOnce
from cross.compile import Argument, Artifact
from cross.errors import CrossError
from cross.loopnest.nodes import LoopNest
from cross.loopnest.program import Programs
from cross.schedule.packing import Packing
from device_runtime.protocol import (
    NOT_FOUND,
    BufferRequest,
    MeasureFailure,
    MeasureRequest,
    MeasureResult,
    Timing,
)
from toolkit.errors import ToolkitError
from toolkit.explore.space import Batch
from toolkit.measure.builder import Builder, BuiltKernel, NamedNest
from toolkit.measure.measurement import CODE, GIVEN_UP_S, IDENTICAL_CODE, Measurement
from toolkit.measure.session import DeviceError, Session
from toolkit.measure.trial_data import Array, TrialData, trial_data

RTOL: Final = {"bfloat16": 4e-2, "float16": 1e-2, "float32": 1e-4, "float64": 1e-8}
EXACT: Final = 0.0  # integers
SHORT_REPEAT_MS: Final = 0.5
"""Fits between two bursts of what else runs on a board. For a 3x3 convolution of 28x28x128 on two cores of a
Xeon, times of such repeats scattered as those of 1 ms did."""
MOST_REPEATS: Final = 20
FEW_REPEATS: Final = 6  # are enough if they agree
SLOW: Final = 1.1
"""Times the best: a candidate whose first three repeats agree on more gets no more of them. Twice as far as
those of one candidate may differ (AGREEMENT in device_runtime/measure/repeats.py)."""
ATTEMPTS: Final = 3  # at a candidate that fails by no fault of its own


class RunnerOptions(msgspec.Struct, frozen=True):
    """How candidates are timed: at most repeat * min_repeat_ms in all, in the `short_repeats`.

    One that stays `beaten` times slower than the best is given up early, and one whose first repeats agree is
    not timed further; `beaten` 0: every candidate gets its whole time. No warm-up: the checked call is one.
    """

    timing: Timing = msgspec.field(default_factory=lambda: Timing(warmup=0))
    timeout_s: float = 10.0
    beaten: float = 3.0

    @classmethod
    def of(cls, defaults: MeasureDefaults) -> RunnerOptions:
        """The options that a board's file asks for."""
        timing = Timing(
            number=defaults.number,
            repeat=defaults.repeat,
            min_repeat_ms=defaults.min_repeat_ms,
            cooldown_s=defaults.cooldown_s,
            warmup=0,
        )
        return cls(timing=timing, timeout_s=defaults.timeout_s)


class _Begun(NamedTuple):
    """A measurement that the board was asked for: how it is timed, and what waits for the answer."""

    timing: Timing
    answer: Callable[[], MeasureResult]


class LiveRunner:
    """Measures the configurations of one schedule space on a board, lowered by `programs`.

    Inputs and the expected outputs are drawn from `seed` and uploaded once; weights are packed as each kernel
    wants them, and each packing is uploaded once. Every output is checked on the board, on all sets of data.

    Configurations that make the same program or the same machine code are measured once; the others take
    that measurement (fact IDENTICAL_CODE). `recorded` are measurements of earlier runs to be taken in this
    way; the fastest of all is what candidates are given up against (fact GIVEN_UP_S).
    """

    def __init__(
        self,
        programs: Programs,
        builder: Builder,
        session: Session,
        options: RunnerOptions = RunnerOptions(),
        *,
        seed: int = 0,
        recorded: Iterable[Measurement] = (),
    ) -> None:
        self._programs = programs
        self._space = programs.space
        self._builder = builder
        self._session = session
        self._options = options
        self._seed = seed
        self._uploads: dict[tuple[int, int, Packing | None], str] = {}
        self._modules: set[str] = set()
        self._built: dict[Hashable, BuiltKernel] = {}  # of the last batch
        self._known: dict[Hashable, Measurement] = {}
        self._codes: dict[str, Measurement] = {}
        self._best_s = 0.0
        for measurement in recorded:
            if measurement.seconds:
                self._noted(measurement)

    def afresh(self, options: RunnerOptions) -> LiveRunner:
        """A runner that has measured nothing, but shares what this one has built last and uploaded."""
        other = copy.copy(self)
        other._options, other._known, other._codes, other._best_s = options, {}, {}, 0.0
        return other

    @functools.cached_property
    def _data(self) -> tuple[TrialData, ...]:
        return trial_data(self._space.operator, np.random.default_rng(self._seed))

    @functools.cached_property
    def _sets(self) -> list[list[TrialData]]:
        """The data as it is uploaded: the plain set, the large one, and the others together, apart from those
        of them that have constants of their own."""
        plain = self._data[0].inputs

        def own(data: TrialData) -> list[bool]:
            return [array is not first for array, first in zip(data.inputs, plain, strict=True)]

        groups = [list(group) for _, group in itertools.groupby(self._data[2:], own)]
        return [[self._data[0]], [self._data[1]], *groups]

    def prepare(self, batch: Batch) -> Iterator[Measurement]:
        """See Runner.prepare."""
        _ = self._data  # now, rather than while the board waits for it
        built: dict[Hashable, BuiltKernel | MeasureFailure] = {}
        jobs: dict[Hashable, NamedNest] = {}
        keys: list[Hashable] = []
        for row, number in zip(batch, self._space.ids(batch).tolist(), strict=True):
            try:
                program = self._programs.nest(self._space.configuration(row))
            except CrossError as error:
                keys.append(number)
                built[number] = MeasureFailure("build", str(error))
                continue
            keys.append(same_program(program))
            if keys[-1] in self._built:
                built[keys[-1]] = self._built[keys[-1]]
            elif keys[-1] not in self._known:
                jobs.setdefault(keys[-1], (f"tfb_{number:016x}", program))
        built.update(zip(jobs, self._builder.build(list(jobs.values())), strict=True))
        self._built.clear()
        self._built.update((key, entry) for key, entry in built.items() if isinstance(entry, BuiltKernel))
        return self._measurements([(key, built.get(key)) for key in keys])

    def _measurements(
        self, programs: Sequence[tuple[Hashable, BuiltKernel | MeasureFailure | None]]
    ) -> Iterator[Measurement]:
        """Of one program after the other. The board begins with the next one while the caller stores what it
        gets: a process there takes milliseconds to start."""
        begun: _Begun | None = None
        following = itertools.islice(programs, 1, None)
        for key, built in programs:
            measurement = self._measurement(key, built, begun)
            try:
                begun = self._begun_early(*next(following, (None, None)))
            except KeyboardInterrupt:
                yield measurement  # uploads for the next one may take long; this one is measured
                raise
            yield measurement

    def _begun_early(self, key: Hashable, built: BuiltKernel | MeasureFailure | None) -> _Begun | None:
        """The first attempt at a program that has to be measured; none where the board refuses it, which is
        said when its turn comes."""
        if not isinstance(built, BuiltKernel) or key in self._known or built.code in self._codes:
            return None
        try:
            return self._begun(built)
        except ToolkitError:
            return None

    def _measurement(
        self, key: Hashable, built: BuiltKernel | MeasureFailure | None, begun: _Begun | None
    ) -> Measurement:
        """The measurement of a program, taken the first time it is asked for."""
        if key in self._known:
            return _taken_over(self._known[key])
        assert built is not None
        measurement = self._measured(built, begun)
        if not measurement.says_nothing:
            self._known[key] = measurement
        return measurement

    def _measured(self, built: BuiltKernel | MeasureFailure, begun: _Begun | None) -> Measurement:
        if isinstance(built, MeasureFailure):
            return Measurement.failed(built)
        if built.code in self._codes:
            return _taken_over(self._codes[built.code])
        for _ in range(ATTEMPTS):
            measurement = self._timed(built, begun)
            begun = None
            if not measurement.says_nothing:
                break
        measurement = replace(measurement, facts={**measurement.facts, CODE: built.code})
        self._noted(measurement)
        return measurement

    def _noted(self, measurement: Measurement) -> None:
        """Keep a measurement for others of the same code, and the best time."""
        if CODE in measurement.facts and not measurement.says_nothing:
            self._codes.setdefault(measurement.facts[CODE], measurement)
        if measurement.seconds:
            self._best_s = min(self._best_s or measurement.cost_s, measurement.cost_s)

    def _begun(self, built: BuiltKernel) -> _Begun:
        """Ask the board to measure a kernel. DeviceError, BoardUnreachable."""
        options, flops = self._options, built.kernel.flops
        call_s = self._best_s or flops / (1e9 * self._space.target.estimated_peak_gflops)
        timing = dataclasses.replace(
            short_repeats(options.timing, call_s), give_up_s=options.beaten * self._best_s
        )
        if options.beaten and timing.repeat > FEW_REPEATS:
            timing = dataclasses.replace(timing, few=FEW_REPEATS, slow_s=SLOW * self._best_s)
        return _Begun(timing, self._session.measuring(self._request(built, timing)))

    def _timed(self, built: BuiltKernel, begun: _Begun | None = None) -> Measurement:
        """The board's answer, asked for now where it was not `begun`; fewer repeats than asked for mean that
        they agreed, or that it gave up. What the board has dropped from its store is uploaded once more."""
        try:
            timing, answer = begun or self._begun(built)
            result = answer()
        except DeviceError as error:
            if error.code != NOT_FOUND:
                raise
            self._uploads.clear()
            self._modules.clear()
            timing, answer = self._begun(built)
            result = answer()
        measurement = Measurement.of(result)
        beaten = timing.give_up_s > 0 and measurement.cost_s > timing.give_up_s
        if not (beaten and len(measurement.seconds) < timing.repeat):
            return measurement
        return replace(measurement, facts={**measurement.facts, GIVEN_UP_S: timing.give_up_s})

    def _request(self, built: BuiltKernel, timing: Timing) -> MeasureRequest:
        target, kernel, options = self._space.target, built.kernel, self._options
        sets = [
            tuple(self._uploaded(number, *item) for item in enumerate(kernel.arguments))
            for number, _ in enumerate(self._sets)
        ]
        return MeasureRequest(
            module=self._module(built.artifact),
            symbol=kernel.symbol,
            buffers=tuple(self._buffer(*pair) for pair in zip(kernel.arguments, sets[0], strict=True)),
            workspace_bytes=kernel.workspace_bytes,
            timing=timing,
            threads=target.threads,
            cores=target.cores if target.kind == "cpu" else (),
            timeout_s=options.timeout_s,
            rtol=RTOL.get(kernel.arguments[-1].dtype, EXACT),
            driver=target.kind,
            device=target.device,
            more_data=tuple(sets[1:]),
        )

    @functools.cached_property
    def _bounded(self) -> bool:
        """Whether some elements of the output have several right answers, in any set."""
        return any(data.most is not None for data in self._data)

    def _right(self, data: TrialData) -> tuple[Array, ...]:
        """What is expected of the output: its elements, or the least right ones and the largest."""
        if not self._bounded:
            return (data.expected,)
        return data.expected, data.expected if data.most is None else data.most

    def _buffer(self, argument: Argument, sha: str) -> BufferRequest:
        if argument.role == "output":
            return BufferRequest("output", argument.dtype, argument.elements, sha, self._bounded)
        return BufferRequest("input", argument.dtype, argument.elements, sha)

    def _module(self, artifact: Artifact) -> str:
        """The content hash of a batch's code, put there the first time."""
        if artifact.sha256 not in self._modules:
            self._modules.add(self._session.put(artifact.code))
        return artifact.sha256

    def _uploaded(self, number: int, position: int, argument: Argument) -> str:
        """The content hash of an argument's data in sets of one object, put on the board the first time."""
        first = self._data[0]
        arrays = [
            array
            for data in self._sets[number]
            for array in (self._right(data) if argument.role == "output" else (data.inputs[position],))
        ]
        if argument.role != "output" and arrays[0] is first.inputs[position]:
            number, arrays = 0, arrays[:1]
        place = (number, position, argument.packing)
        if place not in self._uploads:
            if argument.packing is not None:
                arrays = [argument.packing.apply(array) for array in arrays]
            data = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
            self._uploads[place] = self._session.put(data)
        return self._uploads[place]


def short_repeats(timing: Timing, call_s: float) -> Timing:
    """A timing that takes as long in all, or less, in more and shorter repeats.

    What else runs on a board comes in bursts of a few milliseconds and only adds time: between them one short
    repeat is clean where no long one is. `call_s` is about what a call takes. A board that cools down between
    repeats keeps its own.
    """
    if timing.cooldown_s > 0:
        return timing
    repeat_ms = max(SHORT_REPEAT_MS, 1e3 * call_s)
    repeat = int(timing.repeat * timing.min_repeat_ms / repeat_ms)
    return dataclasses.replace(
        timing,
        repeat=max(timing.repeat, min(MOST_REPEATS, repeat)),
        min_repeat_ms=min(timing.min_repeat_ms, SHORT_REPEAT_MS),
    )


def _taken_over(measurement: Measurement) -> Measurement:
    """The measurement for another candidate with the same code: its times, without the facts about the board,
    which were those of another moment."""
    kept = {name: value for name, value in measurement.facts.items() if name in (CODE, GIVEN_UP_S)}
    return replace(measurement, device_s=0.0, facts={**kept, IDENTICAL_CODE: True})


def same_program(nest: LoopNest) -> Hashable:
    """Equal for configurations whose programs do the same: the loops, and how the weights are laid out."""
    return HashedOnce(nest, tuple(buffer.packing for buffer in nest.arguments))
