"""The door of this room: the schedule space of an operator for a target, by the target's kind."""

from __future__ import annotations

from boards.target import Target
from cross.expression.language.operator import Operator
from cross.schedule.cpu_sketch import cpu_space
from cross.schedule.gpu_sketch import gpu_space
from cross.schedule.space import ScheduleSpace


def space_of(operator: Operator, target: Target, *, winograd: bool = True) -> ScheduleSpace:
    """S_e: every schedule of an operator for a CPU, or for a GPU with OpenCL or CUDA.

    Without `winograd`, convolutions are computed directly only.

    Raises:
        ScheduleError: the target is a GPU without limits.
    """
    if target.kind == "cpu":
        return cpu_space(operator, target, winograd=winograd)
    return gpu_space(operator, target, winograd=winograd)
