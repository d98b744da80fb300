"""From records to kernels: the best configuration of every operator, compiled, and the plan of the model.

An operator without a successful measurement gets its default schedule.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from msgspec.structs import replace as replace_fields

from boards.target import Target
from cross.compile import kernel_of
from cross.expression.language.operator import Operator
from device_runtime.protocol import GpuModule
from toolkit.bundle.assemble import OperatorKernel, assemble
from toolkit.bundle.build import BuiltModel
from toolkit.bundle.manifest import KernelProvenance
from toolkit.bundle.model_plan import ModelPlan, PlannedKernel
from toolkit.errors import ToolkitError
from toolkit.measure.builder import Builder, NamedNest
from toolkit.model.graph import Graph
from toolkit.model_job.confirm import Winner
from toolkit.model_job.options import OperatorReport
from toolkit.tuning.progress import TuningResult
from toolkit.tuning.task import OperatorTask
from toolkit.version import TOOL_VERSION


class TunedOperator(msgspec.Struct, frozen=True):
    """A task, what the search found, and the configuration that goes into the bundle."""

    task: OperatorTask
    result: TuningResult
    winner: Winner


def symbol_of(task: OperatorTask) -> str:
    """What the kernel of an operator is called in a model."""
    return f"k_{task.key.operator_key}"


def plan_model(
    graph: Graph,
    tuned: Sequence[TunedOperator],
    builder: Builder,
    target: Target,
    objects: dict[NamedNest, bytes] | None = None,
) -> ModelPlan:
    """The model with one compiled kernel for each operator, in the configuration of its winner.

    What `objects` has is not compiled again; what is compiled now is added to them. Raises ToolkitError when
    a kernel cannot be compiled.
    """
    objects = {} if objects is None else objects
    nests = [(symbol_of(item.task), item.task.programs.nest(item.winner.configuration)) for item in tuned]
    missing = [nest for nest in nests if nest not in objects]
    compiled = dict(builder.compile(missing))
    objects |= {nest: code for nest in missing if isinstance(code := compiled[nest], bytes)}
    kernels = {}
    for item, (symbol, nest) in zip(tuned, nests, strict=True):
        code = objects.get((symbol, nest)) or compiled[symbol, nest]
        if not isinstance(code, bytes):
            raise ToolkitError(
                f"the kernel of {item.task.name} ({describe(item.task.operator)}) cannot be built in the "
                f"configuration {item.task.space.describe(item.winner.configuration)}: {code.text}"
            )
        kernel = kernel_of(symbol, nest)
        packings = tuple(argument.packing for argument in kernel.arguments if argument.role != "output")
        provenance = _provenance(item, symbol)
        on_cpu = target.kind == "cpu"
        planned = PlannedKernel(
            code=code,
            workspace_bytes=kernel.workspace_bytes
            if on_cpu
            else GpuModule.from_bytes(code).kernels[symbol].workspace_bytes,
            provenance=provenance,
            argument_bytes=()
            if on_cpu
            else tuple(item.elements * np.dtype(item.dtype).itemsize for item in kernel.arguments),
            local_bytes=kernel.local_bytes if on_cpu else 0,
        )
        kernels[item.task.key.operator_key] = OperatorKernel(planned, packings)
    return assemble(graph, kernels, target)


def describe(operator: Operator) -> str:
    """An operator in one line, for people: `conv 1x55x55x16 3x3x16x64 64 -> 1x55x55x64`."""
    inputs = " ".join(_shape(tensor.shape) for tensor in operator.inputs)
    return f"{operator.name} {inputs} -> {_shape(operator.output.shape)}"


def report_operator(
    task: OperatorTask, result: TuningResult, layers: tuple[str, ...], winner: Winner | None = None
) -> OperatorReport:
    """What is known about a task, for people: its times are the winner's, without one those of the records.

    `layers` are the names of the nodes that compute it.
    """
    default_s = result.default.cost_s if result.default else None
    best_s = result.best.cost_s if result.best else None
    return OperatorReport(
        name=task.name,
        operator=describe(task.operator),
        operator_key=task.key.operator_key,
        count=round(task.weight),
        flops=task.flops,
        default_s=winner.default_s if winner else default_s,
        best_s=winner.seconds if winner else best_s,
        trials=result.trials,
        failures=result.failures,
        tuned=result.best is not None,
        reasons=result.reasons,
        layers=layers,
        spent=result.spent,
    )


def with_default_times(built: BuiltModel, operators: Sequence[OperatorReport]) -> BuiltModel:
    """The model with default schedules, for a bundle that says what tuning found out about each of them."""
    known = {item.operator_key: item for item in operators}
    kernels = tuple(
        replace_fields(kernel, seconds=item.default_s, default_seconds=item.default_s, trials=item.trials)
        for kernel in built.variant.kernels
        for item in (known[kernel.operator_key],)
    )
    return replace(built, variant=replace_fields(built.variant, kernels=kernels))


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _provenance(tuned: TunedOperator, symbol: str) -> KernelProvenance:
    winner = tuned.winner
    return KernelProvenance(
        symbol=symbol,
        operator_key=tuned.task.key.operator_key,
        operator=describe(tuned.task.operator),
        configuration=dict(tuned.task.space.describe(winner.configuration)),
        tuned=winner.seconds is not None,
        seconds=winner.seconds,
        default_seconds=winner.default_s,
        trials=tuned.result.trials,
        flops=float(tuned.task.flops),
        tool_version=TOOL_VERSION,
    )
