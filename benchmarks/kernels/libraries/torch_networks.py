"""A network as PyTorch runs it, from the steps of network_steps.py: module, frozen graph, compiled graph."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.kernels.libraries.network_steps import Step, Steps

torch: Any = importlib.import_module("torch")  # there in this library's own environment only
functional: Any = importlib.import_module("torch.nn.functional")

Calls = Iterator[tuple[str, Callable[[], Any]]]
IMAGES = 4  # dimensions of what can be laid out with channels last


def network_calls(network: Steps, data: Any) -> Calls:
    """The ways to run a network on `data`: eager, images with channels last; frozen by TorchScript with
    oneDNN's own weights; compiled by Inductor with frozen weights, where there is a C++ compiler.

    Raises:
        ValueError: an operator is unknown.
    """
    eager, moved = _module(network), data
    if data.dim() == IMAGES:
        eager, moved = (item.to(memory_format=torch.channels_last) for item in (eager, data))
    yield "channels_last" if data.dim() == IMAGES else "eager", lambda: eager(moved)
    frozen = torch.jit.optimize_for_inference(torch.jit.trace(_module(network), data))
    for _ in range(3):  # it still changes its mind in the first calls
        frozen(data)
    yield "frozen", lambda: frozen(data)
    if shutil.which("g++") or shutil.which("clang++"):
        compiled = _compiled(network, data)
        yield "compiled", lambda: compiled(data)


def _compiled(network: Steps, data: Any) -> Any:
    """By Inductor with frozen weights; without its patterns where one of them breaks the network, as those of
    attention do when the keys are transposed before the product."""
    inductor: Any = importlib.import_module("torch._inductor.config")
    inductor.freezing = True
    for patterns in (True, False):
        torch.compiler.reset()  # what it knows of the network before
        inductor.pattern_matcher = patterns
        compiled = torch.compile(_module(network))
        try:
            compiled(data)
        except RuntimeError:
            if not patterns:
                raise
            continue
        break
    return compiled


def _module(network: Steps) -> Any:
    """The steps as a module in inference mode, with a parameter for every constant that is computed with."""
    unknown = {step.operator for step in network.steps} - {*OPERATORS, "LSTM", "GRU"}
    if unknown:
        raise ValueError(f"unknown operators {', '.join(sorted(unknown))}")
    settings = {name for step in network.steps if step.operator == "Resize" for name in step.inputs}
    floats = {
        name: item
        for name, item in network.constants.items()
        if item.dtype.kind == "f" and item.ndim and name not in settings
    }
    fixed = {name: item.tolist() for name, item in network.constants.items() if name not in floats}

    class Net(torch.nn.Module):  # type: ignore[misc] # torch is not typed here
        def __init__(self) -> None:
            super().__init__()
            self.own = {name: name.replace(".", "_") for name in floats}
            for name, array in floats.items():
                parameter = torch.nn.Parameter(torch.from_numpy(array.copy()), requires_grad=False)
                self.register_parameter(self.own[name], parameter)
            for step in network.steps:
                if step.operator in ("LSTM", "GRU"):
                    self.add_module(f"{step.output}_layer", _recurrent(step, network.constants))

        def forward(self, data: Any) -> Any:
            values = {network.input: data, "": None, **fixed}
            values |= {name: getattr(self, own) for name, own in self.own.items()}
            for step in network.steps:
                inputs = [values[name] for name in step.inputs]
                if step.operator in ("LSTM", "GRU"):
                    found = _states(step, getattr(self, f"{step.output}_layer"), inputs)
                else:
                    found = OPERATORS[step.operator](step.attributes, *inputs)
                several = found if isinstance(found, (tuple, list)) else [found]
                values |= zip(step.outputs, several, strict=False)
            return values[network.output]

    return Net().eval()


def _recurrent(step: Step, constants: Mapping[str, Any]) -> Any:
    """The layer, its gates in PyTorch's order: ONNX has i o f c of an LSTM, z r h of a GRU."""
    weight, recurrent, bias = (constants[name][0] for name in step.inputs[1:4])
    hidden, features = recurrent.shape[1], weight.shape[1]
    order = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2)}[step.operator]
    layer = getattr(torch.nn, step.operator)(features, hidden)
    halves = bias.reshape(2, -1)
    for name, array in (("ih", weight), ("hh", recurrent)):
        gates = torch.from_numpy(array.copy()).reshape(len(order), hidden, -1)[list(order)]
        getattr(layer, f"weight_{name}_l0").data = gates.reshape(len(order) * hidden, -1).contiguous()
    for name, array in (("ih", halves[0]), ("hh", halves[1])):
        gates = torch.from_numpy(array.copy()).reshape(len(order), hidden)[list(order)]
        getattr(layer, f"bias_{name}_l0").data = gates.reshape(-1).contiguous()
    return layer.requires_grad_(False)


def _states(step: Step, layer: Any, inputs: Sequence[Any]) -> list[Any]:
    """[steps, 1, batch, hidden] of all steps and the last states, from states of zeros."""
    if len(inputs) > 4:
        raise ValueError(f"{step.output}: expected no lengths and no initial states")
    states, last = layer(inputs[0])
    return [states.unsqueeze(1), *(last if isinstance(last, tuple) else [last])]


def _conv(of: Mapping[str, Any], data: Any, weight: Any, bias: Any = None) -> Any:
    run = (functional.conv1d, functional.conv2d, functional.conv3d)[data.dim() - 3]
    return run(data, weight, bias, of["strides"], _padding(of), of.get("dilations", 1), of.get("group", 1))


def _transposed(of: Mapping[str, Any], data: Any, weight: Any, bias: Any = None) -> Any:
    return functional.conv_transpose2d(data, weight, bias, of["strides"], _padding(of))


def _padding(of: Mapping[str, Any]) -> list[int]:
    pads = list(of.get("pads", [0] * 2 * len(of["strides"])))
    half = len(pads) // 2
    if pads[:half] != pads[half:]:
        raise ValueError(f"expected as much padding at either end, found {pads}")
    return pads[:half]


def _max_pool(of: Mapping[str, Any], data: Any) -> Any:
    return functional.max_pool2d(data, of["kernel_shape"], of["strides"], _padding(of))


def _gemm(of: Mapping[str, Any], data: Any, weight: Any, bias: Any = None) -> Any:
    return functional.linear(data, weight if of.get("transB") else weight.T, bias)


def _resize(of: Mapping[str, Any], data: Any, _: Any, factors: Any) -> Any:
    if of.get("mode") != b"nearest":
        raise ValueError(f"expected the nearest pixel, found {of}")
    return functional.interpolate(data, scale_factor=factors[2:], mode="nearest")


def _gather(of: Mapping[str, Any], data: Any, indices: Any) -> Any:
    if isinstance(indices, int):
        return data.select(of.get("axis", 0), indices)
    return functional.embedding(indices, data)


def _normal(of: Mapping[str, Any], data: Any, scale: Any, shift: Any) -> Any:
    return functional.layer_norm(data, scale.shape, scale, shift, of["epsilon"])


OPERATORS: dict[str, Callable[..., Any]] = {
    "Add": lambda of, one, other: one + other,
    "Clip": lambda of, data, low, high: functional.hardtanh(data, low, high),
    "Concat": lambda of, *parts: torch.cat(parts, of["axis"]),
    "Conv": _conv,
    "ConvTranspose": _transposed,
    "Div": lambda of, one, other: one / other,
    "Erf": lambda of, data: torch.erf(data),
    "Flatten": lambda of, data: data.flatten(1),
    "Gather": _gather,
    "Gelu": lambda of, data: functional.gelu(data),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda of, data: data.mean(list(range(2, data.dim())), keepdim=True),
    "HardSigmoid": lambda of, data: functional.hardsigmoid(data),
    "HardSwish": lambda of, data: functional.hardswish(data),
    "LayerNormalization": _normal,
    "MatMul": lambda of, one, other: torch.matmul(one, other),
    "MaxPool": _max_pool,
    "Mul": lambda of, one, other: one * other,
    "ReduceMean": lambda of, data: data.mean(of["axes"], keepdim=bool(of.get("keepdims", 1))),
    "Relu": lambda of, data: functional.relu(data),
    "Reshape": lambda of, data, shape: data.reshape(shape),
    "Resize": _resize,
    "Sigmoid": lambda of, data: torch.sigmoid(data),
    "Softmax": lambda of, data: functional.softmax(data, of["axis"]),
    "Split": lambda of, data, sizes: torch.split(data, sizes, of["axis"]),
    "Squeeze": lambda of, data, axes: data.squeeze(axes[0]),
    "Tanh": lambda of, data: torch.tanh(data),
    "Transpose": lambda of, data: data.permute(of["perm"]),
}
"""What an operator does with its attributes and inputs; constant scalars and integers are Python's."""
