"""Reading an ONNX file: decoded, checked, with every input's shape known.

What enters is a path and the shapes a user gives; what leaves is a `ModelProto`, its weights apart from it
(onnx_weights.py), and the concrete inputs.
Everything that can be wrong with the file itself is a ModelError here.
"""

from __future__ import annotations

import math
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.errors import ModelError
from toolkit.model.graph import Array
from toolkit.model.onnx_weights import Initializer, read_apart
from toolkit.model.refusals import TENSORS_ONLY

MIN_OPSET = 7  # broadcasts as numpy does; before it, operators had attributes for that
MAX_FILE_BYTES = (1 << 31) - 1  # of a protobuf message; larger models keep their weights in other files
MAX_DIMENSIONS = 32  # numpy 1's limit
STRING = 8  # onnx.TensorProto.STRING
Shape = tuple[int, ...]


def read_onnx(path: Path) -> tuple[Any, dict[str, Array]]:
    """Decode the file at `path`: an onnx.ModelProto with empty initializers, and these as arrays by name.

    Raises:
        ModelError: it cannot be read, is truncated or no ONNX, or its opset is not supported.
    """
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    _check_file(path)
    try:
        model, initializers = read_apart(path)
    except (DecodeError, UnicodeDecodeError, OSError) as error:
        raise ModelError(
            f"model {path}: expected an ONNX file, found {path.stat().st_size} bytes that do not decode as "
            f"one ({error}); the file is truncated, damaged or of another format; export or copy it again"
        ) from error
    if not model.HasField("graph") or not model.graph.node:
        raise ModelError(
            f"model {path}: expected an ONNX graph with nodes, found none in {path.stat().st_size} bytes; "
            "the file is empty, truncated or of another format; export or copy it again"
        )
    if not model.graph.output:
        raise ModelError(
            f"model {path}: the graph has no outputs, so there is nothing to compute; export it again"
        )
    _check_opset(path, model)
    if 0 < opsets_of(model).get("", 0) < MIN_OPSET:
        model = _converted(path)
        initializers = [Initializer(tensor, None) for tensor in model.graph.initializer]
    weights = _weights(path, model, initializers)
    return (_inlined(path, model) if model.functions else model), weights


def _inlined(path: Path, model: Any) -> Any:
    """The model without functions of its own: their bodies stand where they were called."""
    import onnx.inliner

    try:
        return onnx.inliner.inline_local_functions(model, convert_version=True)
    except (RuntimeError, ValueError) as error:
        raise ModelError(
            f"model {path}: its local functions cannot be put in place ({' '.join(str(error).split())}); "
            "export it again without functions"
        ) from error


def _converted(path: Path) -> Any:
    """The model of an operator set before MIN_OPSET as one of that, with its weights."""
    import onnx.version_converter

    try:
        model = onnx.load(str(path))
        return _with_slopes_of_channels(onnx.version_converter.convert_version(model, MIN_OPSET))
    except (RuntimeError, ValueError, OSError, onnx.shape_inference.InferenceError) as error:
        reason = " ".join(str(error).rpartition("failed: ")[2].split())
        raise ModelError(
            f"model {path}: its opset is older than {MIN_OPSET}, and onnx cannot convert it ({reason}); "
            "export the model again with a newer opset"
        ) from error


def _with_slopes_of_channels(converted: Any) -> Any:
    """The converted model, in which a vector of a PRelu's slopes has one for each channel, as before opset 7,
    not one for each element of the last dimension. The converter leaves it as it is.
    """
    import onnx

    graph = onnx.shape_inference.infer_shapes(converted).graph
    known = (*graph.input, *graph.value_info, *graph.output)
    ranks = {item.name: len(item.type.tensor_type.shape.dim) for item in known}
    ranks |= {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    nodes = list(converted.graph.node)
    del converted.graph.node[:]
    for number, node in enumerate(nodes):
        if node.op_type == "PRelu" and ranks.get(node.input[1]) == 1 and ranks.get(node.input[0], 0) > 2:
            slopes, axes = f"{node.input[1]}/channels{number}", range(1, ranks[node.input[0]] - 1)
            converted.graph.node.append(
                onnx.helper.make_node("Unsqueeze", [node.input[1]], [slopes], axes=list(axes))
            )
            node.input[1] = slopes
        converted.graph.node.append(node)
    return converted


def check_size(where: str, shape: Sequence[int], item_bytes: int, memory_bytes: int) -> None:
    """Refuse a value that the memory of this machine, where every result is checked, cannot hold.

    Raises:
        ModelError: `where` (the model and the value) has more dimensions or bytes than can be.
    """
    size = math.prod(shape) * item_bytes
    if len(shape) > MAX_DIMENSIONS or size > memory_bytes:
        raise ModelError(
            f"{where} has the shape {_shape_text(shape)} and takes {size} bytes; expected at most "
            f"{MAX_DIMENSIONS} dimensions and {memory_bytes} bytes, the memory of this machine; export the "
            "model with smaller shapes, or give smaller ones with --shape"
        )


def _shape_text(shape: Sequence[float]) -> str:
    return str(list(shape)) if len(shape) <= MAX_DIMENSIONS else f"of {len(shape)} dimensions"


def _check_file(path: Path) -> None:
    """Raises ModelError for what is no file, or one larger than ONNX files can be."""
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        there = "there" if isinstance(error, FileNotFoundError) else f"that can be read ({error})"
        raise ModelError(
            f"model {path}: expected an ONNX file, found nothing {there}; check the path"
        ) from error
    if not stat.S_ISREG(found.st_mode):
        what = "a folder" if stat.S_ISDIR(found.st_mode) else "a device, a pipe or a socket"
        raise ModelError(f"model {path}: expected an ONNX file, found {what}; check the path")
    if found.st_size > MAX_FILE_BYTES:
        raise ModelError(
            f"model {path}: expected an ONNX file of at most {MAX_FILE_BYTES} bytes, found {found.st_size}; "
            "export the model with its weights in another file (external data)"
        )


def check_onnx(path: Path, model: Any) -> None:
    """Run ONNX's own checker.

    Raises:
        ModelError: with the checker's words.
    """
    import onnx

    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(
            f"model {path}: ONNX's checker refuses it: {reason}; the file is damaged or was exported "
            "wrongly; export it again"
        ) from error


def opsets_of(model: Any) -> dict[str, int]:
    """The version of each operator set that the model uses, by domain; the default one is ""."""
    found: dict[str, int] = {}
    for entry in model.opset_import:
        domain = "" if entry.domain == "ai.onnx" else str(entry.domain)
        found[domain] = max(int(entry.version), found.get(domain, 0))
    return found


def concrete_inputs(
    path: Path, model: Any, shapes: Mapping[str, Shape], memory_bytes: int
) -> dict[str, tuple[Shape, int]]:
    """Input name -> (shape, ONNX element type) for every input that is no weight.

    Raises:
        ModelError: a dynamic dimension without a given shape, a given shape that contradicts the model, a
            shape for an input that does not exist, or an input that `memory_bytes` cannot hold.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = {item.name: item for item in model.graph.input if item.name not in weights}
    for name in shapes:
        if name not in inputs:
            raise ModelError(
                f"model {path}: --shape names the input {name!r}, which the model does not have; its inputs "
                f"are {', '.join(sorted(inputs)) or '(none)'}"
            )
    _check_inputs(path, inputs, shapes)
    found = {name: _concrete(path, item, shapes.get(name)) for name, item in inputs.items()}
    for name, (shape, kind) in found.items():
        check_size(f"model {path}: input {name!r}", shape, item_bytes(kind), memory_bytes)
    return found


def constant_inputs(
    path: Path, inputs: Mapping[str, tuple[Shape, int]], constants: Mapping[str, Sequence[float]]
) -> dict[str, Array]:
    """What inputs always hold, as arrays by name: one number for all elements, or one for each in order.

    Raises:
        ModelError: a name that no input has, another count of numbers, or one that the input cannot hold.
    """
    import onnx

    found = {}
    for name, numbers in constants.items():
        if name not in inputs:
            raise ModelError(
                f"model {path}: --constant names the input {name!r}, which the model does not have; its "
                f"inputs are {', '.join(sorted(inputs)) or '(none)'}"
            )
        shape, kind = inputs[name]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
        array = constant_of(numbers, shape, dtype)
        if array is None:
            many = (
                f" for all of its elements, or one for each of {list(shape)}" if math.prod(shape) > 1 else ""
            )
            raise ModelError(
                f"model {path}: --constant gives {_shape_text(numbers)} for the input {name!r}; expected one "
                f"{dtype}{many}"
            )
        found[name] = array
    return found


def constant_of(numbers: Sequence[float], shape: Shape, dtype: Any) -> Array | None:
    """One number for all elements, or one for each in order, as an array of a numpy dtype.

    Floats are rounded. None where they are of another count, or an integer or a truth value cannot hold one.
    """
    try:
        with np.errstate(all="ignore"):
            array = np.array(numbers).astype(dtype)
    except OverflowError:
        return None
    exact = array.dtype.kind == "f" or array.tolist() == list(numbers)
    if not exact or array.size not in (1, math.prod(shape)):
        return None
    return np.full(shape, array) if array.size == 1 else array.reshape(shape)


def item_bytes(kind: int) -> int:
    """Bytes of one element of an ONNX type; 1 where numpy has no such type."""
    import onnx

    try:
        return int(onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize)
    except KeyError:
        return 1


def _check_inputs(path: Path, inputs: Mapping[str, Any], shapes: Mapping[str, Shape]) -> None:
    """Raises ModelError, for all inputs at once, where some are no tensors or have sizes that nobody gave."""
    wrong = []
    for name, item in inputs.items():
        kind = str(item.type.WhichOneof("value")).removesuffix("_type")
        if kind != "tensor":
            wrong.append(f"input {name!r} is no tensor but of kind {kind}")
        elif item.type.tensor_type.elem_type == STRING:
            wrong.append(f"input {name!r} is of strings")
    if wrong:
        raise ModelError(f"model {path}: {', '.join(wrong)}; {TENSORS_ONLY}")
    declared = {name: _declared(item) for name, item in inputs.items() if name not in shapes}
    dynamic = {name: dims for name, dims in declared.items() if dims is None or not all(map(_is_size, dims))}
    if dynamic:
        found = [f"input {name!r} has the dynamic shape {_dims_text(dims)}" for name, dims in dynamic.items()]
        example = " ".join(
            f"--shape '{name}={','.join(str(dim) if _is_size(dim) else '1' for dim in dims or ['1'])}'"
            for name, dims in dynamic.items()
        )
        raise ModelError(
            f"model {path}: {', '.join(found)}; expected every dimension to be known; "
            f"give the shape{'s' * (len(dynamic) > 1)}, for example {example}"
        )


def _is_size(dim: int | str) -> bool:
    return isinstance(dim, int)


def _declared(item: Any) -> list[int | str] | None:
    """The dimensions of an input, names of open ones (some exporters write -1); None where not even their
    number is known."""
    kind = item.type.tensor_type
    if not kind.HasField("shape"):
        return None
    return [
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else dim.dim_param
        for dim in kind.shape.dim
    ]


def _dims_text(dims: Sequence[int | str] | None) -> str:
    return "[" + ", ".join(str(dim) or "?" for dim in dims or ()) + "]"


def _concrete(path: Path, item: Any, given: Shape | None) -> tuple[Shape, int]:
    kind, declared = item.type.tensor_type, _declared(item)
    if given is None:
        return tuple(int(dim) for dim in declared or ()), int(kind.elem_type)
    text = _dims_text(declared)
    fits = declared is None or (
        len(given) == len(declared)
        and all(size == dim for dim, size in zip(declared, given, strict=True) if isinstance(dim, int))
    )
    if not fits or any(size < 0 for size in given):
        raise ModelError(
            f"model {path}: --shape gives {list(given)} for the input {item.name!r}, but the model declares "
            f"{text}; fixed dimensions must stay as they are, others be at least 0"
        )
    return tuple(given), int(kind.elem_type)


def _check_opset(path: Path, model: Any) -> None:
    import onnx

    newest = onnx.defs.onnx_opset_version()
    found = opsets_of(model).get("", 0)
    used = any(node.domain in ("", "ai.onnx") for node in model.graph.node)
    if not 1 <= found <= newest and (used or found):
        raise ModelError(
            f"model {path}: expected an operator set from 1 to {newest}, found "
            f"{found or 'none declared'}; export the model again with such an opset"
        )


def _weights(path: Path, model: Any, initializers: Sequence[Initializer]) -> dict[str, Array]:
    """The initializers as arrays by name; what else of the model lies in other files is read into it."""
    import onnx

    try:
        onnx.external_data_helper.load_external_data_for_model(model, str(path.parent))
        loaded = [item.with_data(path.parent) for item in initializers]
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(
            f"model {path}: its weights are kept in another file that cannot be read ({error}); put it "
            "beside the model"
        ) from error
    return {item.tensor.name: weight(path, item) for item in loaded}


def weight(path: Path, item: Initializer) -> Array:
    """What an initializer of the model at `path` holds.

    Raises:
        ModelError: it is not what its shape and element type promise.
    """
    try:
        return item.array()
    except (ValueError, KeyError, TypeError) as error:
        tensor = item.tensor
        raise ModelError(
            f"model {path}: the weight {tensor.name!r} does not hold what its shape {list(tensor.dims)} and "
            f"element type {tensor.data_type} promise ({error}); the file is damaged; export it again"
        ) from error
