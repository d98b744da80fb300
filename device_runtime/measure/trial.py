"""The order in which a measurement's child calls, checks and times a kernel, whatever drives it.

A kernel is called on the second data set, then timed on the first one, then called on the others, its outputs
and workspace poisoned each time: one that computes at its first calls only, leaves something unwritten, or is
right by the luck of one set of values, is found. Each set costs one call beside the timed ones. The parallel
loops of quick kernels are run backwards for some of the later sets, and by one thread for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Dict, List, Optional, Sequence, Tuple

from device_runtime.measure.check import Difference, checked
from device_runtime.protocol import BufferRequest, MeasureRequest, Timing
from device_runtime.sandbox.guarded_memory import Region

Answer = Dict[str, Any]
DataSet = Sequence[
    Optional[Region]
]  # for each buffer what an input holds, what an output should; None: anything

TOGETHER, ALONE, BACKWARDS = "together", "alone", "backwards"
BOTH = 8  # of so many further sets one is called in both other orders
QUICK_S = 1e-3  # of one thread: what a call in another order may take


class Trial(ABC):
    """A loaded kernel with its buffers."""

    @abstractmethod
    def put(self, data: DataSet, at_start: bool) -> None:
        """Have the inputs hold this set, at the addresses of the set before unless `at_start` changes, and
        poison outputs and workspace. `at_start`: buffers begin at a guard, otherwise they end at one."""

    @abstractmethod
    def call(self, order: str) -> None:
        """Run once, its parallel loops by all threads TOGETHER, or by one ALONE, or from their last iteration
        to their first: BACKWARDS. Raises Fault."""

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
    orders: Tuple[str, ...] = (TOGETHER,)
    answer = _called(trial, request, sets, 1 if len(sets) > 1 else 0)
    if "failure" in answer:
        return answer
    if timing is None:
        own = _called(trial, request, sets, 0)
    else:
        trial.put(sets[0], at_start=False)
        seconds, number = trial.time(timing)
        own = _checked(trial, request, sets, 0)
        if "failure" not in own:
            own.update(seconds=seconds, number=number)
            if request.step_runs:
                own["step_s"] = trial.step_seconds(request.step_runs)
            sets = sets if len(seconds) == timing.repeat else ()
            orders = (BACKWARDS, ALONE) if request.threads * min(seconds) < QUICK_S else orders
    for further in range(2, len(sets)):
        for order in orders if further % BOTH == 2 else orders[-1:]:
            answer = _called(trial, request, sets, further, order)
            if "failure" in answer:
                return answer
    return own


def _called(
    trial: Trial, request: MeasureRequest, sets: Sequence[DataSet], place: int, order: str = TOGETHER
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
