"""The order in which a measurement's child calls, checks and times a kernel, whatever drives it.

A kernel is called on the second data set, then timed on the first one, then called on the others, its outputs
and workspace poisoned each time: one that computes at its first calls only, leaves something unwritten, or is
right by the luck of one set of values, is found. Each set costs one call beside the timed ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Dict, List, Sequence, Tuple

from device_runtime.measure.check import Difference, checked
from device_runtime.protocol import BufferRequest, MeasureRequest, Timing

Answer = Dict[str, Any]

TOGETHER, ALONE, BACKWARDS = "together", "alone", "backwards"
QUICK_S = 1e-3  # of one thread: what a call in another order may take


class Trial(ABC):
    """A loaded kernel with its buffers."""

    @abstractmethod
    def put(self, data: Sequence[str], at_start: bool) -> None:
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
    def differences(self, data: Sequence[str]) -> List[Tuple[BufferRequest, Difference]]:
        """How far each checked output lies from what this data set expects."""

    @abstractmethod
    def strayed(self) -> str:
        """What the kernel wrote beside its outputs and workspace, for people; "" for nothing."""


def carry_out(trial: Trial, request: MeasureRequest) -> Answer:
    """Entries of MeasureResult: seconds, number, max_abs_error, max_abs_reference, and failure when wrong.

    A kernel that was given up while it was timed is not called again. Raises Fault.
    """
    sets, timing = len(request.data_sets), request.timing
    orders: Tuple[str, ...] = (TOGETHER,)
    answer = _called(trial, request, 1 if sets > 1 else 0)
    if "failure" in answer:
        return answer
    if timing is None:
        own = _called(trial, request, 0)
    else:
        trial.put(request.data_sets[0], at_start=False)
        seconds, number = trial.time(timing)
        own = _checked(trial, request, 0)
        if "failure" not in own:
            own.update(seconds=seconds, number=number)
            if request.step_runs:
                own["step_s"] = trial.step_seconds(request.step_runs)
            sets = sets if len(seconds) == timing.repeat else 0
            orders = (BACKWARDS, ALONE) if request.threads * min(seconds) < QUICK_S else orders
    for further in range(2, sets):
        for order in orders:
            answer = _called(trial, request, further, order)
            if "failure" in answer:
                return answer
    return own


def _called(trial: Trial, request: MeasureRequest, place: int, order: str = TOGETHER) -> Answer:
    trial.put(request.data_sets[place], at_start=place == 1)
    trial.call(order)
    return _checked(trial, request, place)


def _checked(trial: Trial, request: MeasureRequest, place: int) -> Answer:
    answer = checked(trial.differences(request.data_sets[place]), request.rtol)
    strayed = trial.strayed()
    if strayed:
        answer["failure"] = {"kind": "wrong_answer", "text": f"it wrote {strayed}", "signal": None}
    elif "failure" in answer and place:
        answer["failure"]["text"] += f" (data set {place + 1} of {len(request.data_sets)})"
    return answer
