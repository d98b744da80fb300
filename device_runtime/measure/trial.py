"""The order in which a measurement's child calls, checks and times a kernel, whatever drives it.

A kernel is called on the second data set, then timed on the first one, then called on the others, its outputs
and workspace poisoned each time: one that computes at its first calls only, leaves something unwritten, or is
right by the luck of one set of values, is found. Each set costs one call beside the timed ones. Quick kernels
are called on the others by one thread: with the iterations of their parallel loops apart, so that one whose
iterations meet is found without their having to, and with all of them in one chunk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Dict, List, Optional, Sequence, Tuple

from device_runtime.measure.check import Difference, checked
from device_runtime.measure.repeats import time_until_enough
from device_runtime.protocol import BufferRequest, MeasureRequest, Timing
from device_runtime.sandbox.guarded_memory import Region

Answer = Dict[str, Any]
DataSet = Sequence[
    Optional[Region]
]  # for each buffer what an input holds, what an output should; None: anything

TOGETHER, ALONE = (
    -2,
    -1,
)  # how a kernel is called: by all threads, by one; from 0 on: apart, and in which halves
FEW_SETS = 4  # the host has more for what takes microseconds (toolkit/measure/trial_data.py)
QUICK_S = 1e-3  # of one thread: what a call apart may take whatever was timed
TIMED_CALLS = 20  # at least so many for each that calls apart cost, where they are not quick


class Trial(ABC):
    """A loaded kernel with its buffers."""

    @abstractmethod
    def put(self, data: DataSet, at_start: bool) -> None:
        """Have the inputs hold this set, at the addresses of the set before unless `at_start` changes, and
        poison outputs and workspace. `at_start`: buffers begin at a guard, otherwise they end at one."""

    @abstractmethod
    def call(self, order: int) -> None:
        """Run once. From 0 on, one thread runs both halves of every parallel loop from the same memory, and
        the number says which halves; iterations that depend on each other are a Fault. Raises Fault."""

    @abstractmethod
    def time(self, timing: Timing) -> Tuple[List[float], int]:
        """Seconds per call of each repeat, and calls per repeat. Raises Fault."""

    def step_seconds(self, runs: int) -> List[float]:
        """The median seconds of each step of a model over so many runs; none where nothing knows them. Raises
        Fault."""
        return []

    @abstractmethod
    def differences(self, data: DataSet) -> List[Tuple[BufferRequest, Difference]]:
        """How far each checked output lies from what this data set expects."""

    @abstractmethod
    def strayed(self) -> str:
        """What the kernel wrote beside its outputs and workspace, for people; "" for nothing."""


def carry_out(trial: Trial, request: MeasureRequest, sets: Sequence[DataSet]) -> Answer:
    """Entries of MeasureResult: seconds, number, max_abs_error, max_abs_reference, and failure when wrong.

    A kernel that was given up while it was timed is not called again. Raises Fault.
    """
    timing = request.timing
    quick = len(sets) > FEW_SETS
    answer = _called(trial, request, sets, 1 if len(sets) > 1 else 0)
    if "failure" in answer:
        return answer
    if timing is None:
        own = _called(trial, request, sets, 0)
    else:
        trial.put(sets[0], at_start=False)
        seconds, number, given_up = time_until_enough(trial.time, timing)
        own = _checked(trial, request, sets, 0)
        if "failure" not in own:
            own.update(seconds=seconds, number=number)
            if request.step_runs:
                own["step_s"] = trial.step_seconds(request.step_runs)
            sets = () if given_up else sets
            quick = quick or request.threads * min(seconds) < QUICK_S
            quick = quick or request.threads * TIMED_CALLS * len(sets) <= number * len(seconds)
    for further in range(2, len(sets)):
        order = ALONE if further % 2 else further // 2 - 1
        answer = _called(trial, request, sets, further, order if quick else TOGETHER)
        if "failure" in answer:
            return answer
    return own


def _called(
    trial: Trial,
    request: MeasureRequest,
    sets: Sequence[DataSet],
    place: int,
    order: int = TOGETHER,
) -> Answer:
    trial.put(sets[place], at_start=place == 1)
    trial.call(order)
    return _checked(trial, request, sets, place)


def _checked(trial: Trial, request: MeasureRequest, sets: Sequence[DataSet], place: int) -> Answer:
    answer = checked(trial.differences(sets[place]), request.rtol)
    strayed = trial.strayed()
    if strayed:
        answer["failure"] = {"kind": "wrong_answer", "text": f"it wrote {strayed}", "signal": None}
    elif "failure" in answer and place:
        answer["failure"]["text"] += f" (data set {place + 1} of {len(sets)})"
    return answer
