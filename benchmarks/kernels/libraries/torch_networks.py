"""A network as PyTorch runs it, from the steps of network_steps.py: module, frozen graph, compiled graph."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.kernels.libraries.network_steps import Step

torch: Any = importlib.import_module("torch")  # there in this library's own environment only

Calls = Iterator[tuple[str, Callable[[], Any]]]


def network_calls(name: str, steps: Sequence[Step], data: Any) -> Calls:
    """The ways to run a network on `data`: eager with channels last; frozen by TorchScript with oneDNN's own
    weights; compiled by Inductor with frozen weights, where there is a C++ compiler."""
    last = torch.channels_last
    eager, moved = _module(name, steps).to(memory_format=last), data.to(memory_format=last)
    yield "channels_last", lambda: eager(moved)
    frozen = torch.jit.optimize_for_inference(torch.jit.trace(_module(name, steps), data))
    for _ in range(3):  # it still changes its mind in the first calls
        frozen(data)
    yield "frozen", lambda: frozen(data)
    if shutil.which("g++") or shutil.which("clang++"):
        inductor: Any = importlib.import_module("torch._inductor.config")
        inductor.freezing = True
        torch.compiler.reset()  # what it knows of the network before
        compiled = torch.compile(_module(name, steps))
        compiled(data)
        yield "compiled", lambda: compiled(data)


def _module(name: str, steps: Sequence[Step]) -> Any:
    """The steps as a module in inference mode, with a parameter for every weight."""
    functional = torch.nn.functional

    class Net(torch.nn.Module):  # type: ignore[misc] # torch is not typed here
        def __init__(self) -> None:
            super().__init__()
            for step in steps:
                for role in ("weight", "bias"):
                    array = getattr(step, role)
                    if array is not None:
                        parameter = torch.nn.Parameter(torch.from_numpy(array.copy()), requires_grad=False)
                        self.register_parameter(f"{step.output}_{role}", parameter)

        def forward(self, data: Any) -> Any:
            values = {name: data}
            for step in steps:
                inputs = [values[item] for item in step.inputs]
                weights = [getattr(self, f"{step.output}_{role}", None) for role in ("weight", "bias")]
                values[step.output] = _run(functional, step, inputs, *weights)
            return values[steps[-1].output]

    return Net().eval()


def _run(functional: Any, step: Step, inputs: Sequence[Any], weight: Any, bias: Any) -> Any:
    data, of = inputs[0], step.attributes
    match step.kind:
        case "conv":
            return functional.conv2d(
                data, weight, bias, int(of["stride"]), int(of["pad"]), groups=int(of["groups"])
            )
        case "relu":
            return functional.relu(data)
        case "clip":
            return functional.hardtanh(data, of["low"], of["high"])
        case "max_pool":
            return functional.max_pool2d(data, int(of["kernel"]), int(of["stride"]), int(of["pad"]))
        case "add":
            return inputs[0] + inputs[1]
        case "mean":
            return functional.adaptive_avg_pool2d(data, 1)
        case "flatten":
            return data.flatten(1)
        case "dense":
            return functional.linear(data, weight, bias)
        case "softmax":
            return functional.softmax(data, 1)
    raise ValueError(f"unknown step {step.kind}")
