"""The door of this room: what depends on a target's kind, the schedule space of an operator first."""

from __future__ import annotations

from collections.abc import Sequence

from boards.target import Target
from cross.expression.language.operator import Operator
from cross.schedule import chain_cost, gpu_chain
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


def saved_by_chain(separate: Sequence[Operator], chain: Operator, target: Target) -> float:
    """Seconds that one operator is expected to save in place of several that feed one another; 0.0: none."""
    if target.kind == "cpu":
        return chain_cost.saved_seconds(separate, chain, target)
    return gpu_chain.saved_seconds(separate, chain, target)
