"""A network of the onnx wheel with real-looking weights: the constant ones replaced by seeded random ones.

    python benchmarks/seeded_model.py light_squeezenet squeezenet.onnx --seed 0

The wheel's `light_*` models hold the structure of well-known networks, with every weight the same constant.
Here each weight becomes a random tensor, scaled so that activations keep about the magnitude they have at the
input (He et al., 2015); the same seed gives the same bytes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

Weights = NDArray[np.float32]

# the scale at the end of a residual branch; small, so that sums over many blocks do not grow
BRANCH = "end of a residual branch"


def light_model(name: str) -> Path:
    """Where the onnx wheel keeps a light model, for example "light_squeezenet"."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    path = folder / f"{name.removesuffix('.onnx')}.onnx"
    if not path.is_file():
        known = ", ".join(sorted(item.stem for item in folder.glob("light_*.onnx")))
        raise SystemExit(f"no light model {name!r} in {folder}; there are {known or 'none'}")
    return path


def seeded(model: Any, rng: np.random.Generator) -> Any:
    """A copy of `model` (onnx.ModelProto) whose float constants are random initializers."""
    result = type(model)()
    result.CopyFrom(model)
    result.ir_version = max(result.ir_version, 4)  # since 4, weights need not be inputs
    graph = result.graph
    shapes = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    roles = _roles(graph)
    made: dict[str, Weights] = {}
    kept = []
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and _is_float(node) and node.input[0] in shapes:
            shape = tuple(int(extent) for extent in shapes[node.input[0]])
            made[node.output[0]] = _draw(roles.get(node.output[0], ("", 0)), shape, rng)
        else:
            kept.append(node)
    for tensor in list(graph.initializer):
        array = onnx.numpy_helper.to_array(tensor)
        if array.dtype == np.float32:
            graph.initializer.remove(tensor)
            made[tensor.name] = _draw(roles.get(tensor.name, ("", 0)), array.shape, rng)
    del graph.node[:]
    graph.node.extend(kept)
    graph.initializer.extend(onnx.numpy_helper.from_array(made[name], name) for name in sorted(made))
    _drop_unused(graph)
    onnx.checker.check_model(result)
    return result


def _is_float(node: Any) -> bool:
    values = [item.t for item in node.attribute if item.name == "value"]
    return not values or onnx.numpy_helper.to_array(values[0]).dtype == np.float32


def _roles(graph: Any) -> dict[str, tuple[str, int]]:
    """Constant name -> (operator that reads it, at which input); through Unsqueeze."""
    views = [node for node in graph.node if node.op_type in ("Unsqueeze", "Reshape")]
    behind = {node.output[0]: node.input[0] for node in views}
    roles: dict[str, tuple[str, int]] = {}
    summed = {name for node in graph.node if node.op_type == "Sum" for name in node.input}
    for node in graph.node:
        branch = node.op_type == "BatchNormalization" and node.output[0] in summed
        for position, name in enumerate(node.input):
            role = (BRANCH if branch and position == 1 else node.op_type, position)
            roles.setdefault(behind.get(name, name), role)
    return roles


def _draw(role: tuple[str, int], shape: tuple[int, ...], rng: np.random.Generator) -> Weights:
    """Random values that suit what the constant is for."""
    operator, position = role
    if operator in ("Conv", "Gemm", "MatMul") and position == 1:
        inputs = int(np.prod(shape[1:])) if operator != "MatMul" else shape[0]
        deviation = float(np.sqrt(2.0 / inputs))
    elif operator == BRANCH:
        return rng.uniform(0.1, 0.3, shape).astype(np.float32)
    elif (operator, position) in (("BatchNormalization", 1), ("BatchNormalization", 4), ("Mul", 1)):
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    else:
        deviation = 0.1
    return rng.normal(0.0, deviation, shape).astype(np.float32)


def _drop_unused(graph: Any) -> None:
    """Remove initializers, and inputs of the same name, that no node reads."""
    used = {name for node in graph.node for name in node.input}
    weights = {tensor.name for tensor in graph.initializer}
    for tensor in [item for item in graph.initializer if item.name not in used]:
        graph.initializer.remove(tensor)
    for item in [item for item in graph.input if item.name in weights]:
        graph.input.remove(item)
    del graph.value_info[:]


def write(name: str, output: Path, seed: int) -> Path:
    """Write the seeded copy of a light model to `output` and return it."""
    model = seeded(onnx.load(str(light_model(name))), np.random.default_rng(seed))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(model.SerializeToString(deterministic=True))
    return output


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="name of a light model in the onnx wheel, for example light_squeezenet")
    parser.add_argument("output", type=Path, help="where to write the model")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights (default 0)")
    arguments = parser.parse_args()
    print(write(arguments.model, arguments.output, arguments.seed))


if __name__ == "__main__":
    main()
