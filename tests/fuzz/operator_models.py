"""Models of one ONNX operator each, drawn at random: attributes, shapes, operator sets, and extreme data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tests.fuzz.counted_models import boxes, kinds, places, slices
from tests.fuzz.image_models import deformed, places_of_pooling, pooled_regions, regions, sampling, unpooling
from tests.onnx_models import model, node

Array = NDArray[Any]

OLDEST_OPSET = 7
EXTREMES = (0.0, -0.0, 1e-38, -1e-42, 88.0, -88.0, 110.0, -110.0, 1e19, -1e30, 3e38, np.inf, -np.inf, np.nan)


@dataclass
class Draft:
    """One node under construction: run-time inputs and weights in the order of the node's operands."""

    op: str
    rng: np.random.Generator
    opset: int
    operands: list[str] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)
    weights: dict[str, Array] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    output_dtype: int = onnx.TensorProto.FLOAT
    more_dtypes: tuple[int, ...] = ()  # of the last outputs, where they differ

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, share: float = 0.5) -> bool:
        return bool(self.rng.random() < share)

    def shape(self, low: int = 1, high: int = 4) -> tuple[int, ...]:
        rank = int(self.rng.integers(low, high + 1))
        return (*(int(self.pick(1, 2, 3, 4, 5, 7)) for _ in range(rank - 1)), int(self.pick(1, 3, 8, 19)))

    def data(self, shape: Sequence[int], most: float = np.inf) -> Array:
        """Numbers of one magnitude, with extremes up to `most` in between; `most` 0: mild numbers only."""
        mild = self.rng.uniform(-3, 3, shape)
        kind = self.pick("mild", "small", "large", "extreme", "extreme") if most else "mild"
        if kind in ("small", "large"):
            powers = self.rng.uniform(-38, -2, shape) if kind == "small" else self.rng.uniform(0, 30, shape)
            mild = np.sign(mild) * np.minimum(10.0**powers, most)
        if kind == "extreme":
            found = [value for value in EXTREMES if most == np.inf or abs(value) <= most]
            mild = np.where(self.rng.random(shape) < 0.4, self.rng.choice(found, shape), mild)
        return mild.astype(np.float32)

    def input(self, array: Array) -> None:
        name = f"x{len(self.operands)}"
        self.operands.append(name)
        self.inputs[name] = array

    def weight(self, array: Any) -> None:
        name = f"w{len(self.operands)}"
        self.operands.append(name)
        self.weights[name] = np.asarray(array)

    def absent(self) -> None:
        self.operands.append("")

    def proto(self) -> Any:
        outputs = [f"y{position}" for position in range(self.outputs)]
        single = node(self.op, self.operands, outputs, **self.attributes)
        shapes = {name: array.shape for name, array in self.inputs.items()}
        proto = model([single], shapes, outputs, self.weights, self.opset)
        kinds = [self.output_dtype] * (self.outputs - len(self.more_dtypes)) + [*self.more_dtypes]
        for output, kind in zip(proto.graph.output, kinds, strict=True):
            output.type.tensor_type.elem_type = kind
        for item in proto.graph.input:
            kind = onnx.helper.np_dtype_to_tensor_dtype(self.inputs[item.name].dtype)
            item.type.tensor_type.elem_type = kind
        proto = onnx.shape_inference.infer_shapes(proto)
        for output in proto.graph.output:
            if not output.type.tensor_type.HasField("shape"):  # the rank of the data is that of the result
                for axis in range(next(iter(self.inputs.values())).ndim):
                    output.type.tensor_type.shape.dim.add().dim_param = f"size{axis}"
        return proto


def opsets(op: str) -> list[int]:
    """One operator set for every version of the operator."""
    versions = {
        max(schema.since_version, OLDEST_OPSET)
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.name == op and schema.domain == "" and not schema.deprecated
    }
    return sorted(versions)


def elementwise(draft: Draft) -> None:
    draft.input(draft.data(draft.shape()))


def with_alpha(draft: Draft) -> None:
    elementwise(draft)
    if draft.chance():
        draft.attributes["alpha"] = float(draft.pick(0.5, 1.0, 1.7, 0.01))


def hard_sigmoid(draft: Draft) -> None:
    with_alpha(draft)
    if draft.chance():
        draft.attributes["beta"] = float(draft.pick(0.5, 0.1))


def selu(draft: Draft) -> None:
    with_alpha(draft)
    if draft.chance():
        draft.attributes["gamma"] = float(draft.pick(0.5, 2.0))


def gelu(draft: Draft) -> None:
    elementwise(draft)
    draft.attributes["approximate"] = draft.pick("none", "tanh")


def truth(draft: Draft) -> None:
    elementwise(draft)
    draft.output_dtype = onnx.TensorProto.BOOL
    if draft.op == "IsInf" and draft.chance():
        draft.attributes = {
            "detect_negative": int(draft.pick(0, 1)),
            "detect_positive": int(draft.pick(0, 1)),
        }


def modulo(draft: Draft) -> None:
    """Of floats: with the sign of the dividend."""
    shape = draft.shape()
    draft.input(draft.data(shape, 1e30))
    draft.input((draft.rng.uniform(0.5, 9.0, shape[-1:]) * draft.pick(-1, 1)).astype(np.float32))
    draft.attributes["fmod"] = 1


def along(draft: Draft) -> None:
    """Running sums and products along one dimension."""
    shape = draft.shape()
    draft.input(draft.data(shape, 0))
    draft.weight(np.asarray(draft.rng.integers(-len(shape), len(shape)), np.int64))
    draft.attributes = {"exclusive": int(draft.pick(0, 1)), "reverse": int(draft.pick(0, 1))}


def place_of_extreme(draft: Draft) -> None:
    """Ties are frequent, and NaN is left out: ONNX does not say what it is."""
    shape = draft.shape()
    draft.input(draft.rng.integers(-3, 3, shape).astype(np.float32) * draft.pick(1, 1e19))
    draft.output_dtype = onnx.TensorProto.INT64
    draft.attributes = {"keepdims": int(draft.pick(0, 1))}
    lowest = 0 if draft.opset < 11 else -len(shape)
    draft.attributes["axis"] = int(draft.rng.integers(lowest, len(shape)))
    if draft.opset >= 12 and draft.chance():
        draft.attributes["select_last_index"] = 1


def hardmax(draft: Draft) -> None:
    place_of_extreme(draft)
    draft.output_dtype = onnx.TensorProto.FLOAT
    draft.attributes = {"axis": draft.attributes["axis"]}


def triangle(draft: Draft) -> None:
    shape = (*draft.shape(1, 2), int(draft.pick(1, 4, 6)))
    draft.input(draft.data(shape))
    draft.attributes["upper"] = int(draft.pick(0, 1))
    if draft.chance(0.7):
        draft.weight(np.asarray(draft.rng.integers(-8, 9), np.int64))


def clip(draft: Draft) -> None:
    elementwise(draft)
    low, high = sorted(draft.rng.uniform(-3, 3, 2).astype(np.float32).tolist())
    if draft.chance(0.2):
        low, high = high, low
    first, second = draft.chance(0.7), draft.chance(0.7)
    if draft.opset < 11:
        draft.attributes = {
            key: value for key, value, used in (("min", low, first), ("max", high, second)) if used
        }
        return
    if first:
        draft.weight(np.float32(low))
    else:
        draft.absent()
    if second:
        draft.weight(np.float32(high))


def pair(draft: Draft) -> None:
    shape = draft.shape()
    other = tuple(extent if draft.chance(0.7) else 1 for extent in shape)[draft.pick(0, 0, 1) :]
    arrays = [draft.data(shape), draft.data(other)]
    if draft.op != "PRelu" and draft.chance(0.3):
        arrays.reverse()
    draft.input(arrays[0])
    if draft.chance(0.4) and (draft.op != "Pow" or draft.opset >= 7):
        draft.weight(arrays[1])
    else:
        draft.input(arrays[1])


def power(draft: Draft) -> None:
    shape = draft.shape()
    draft.input(draft.data(shape))
    kind = draft.pick("number", "number", "integer", "array")
    if kind == "array":
        draft.input(draft.rng.uniform(-3, 3, shape[-1:]).astype(np.float32))
    elif kind == "integer" and draft.opset >= 12:
        draft.weight(np.asarray(draft.pick(-2, -1, 0, 1, 2, 3, 4), np.int64))
    else:
        draft.weight(np.float32(draft.pick(-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0)))


def variadic(draft: Draft) -> None:
    shape = draft.shape()
    for _ in range(draft.pick(1, 2, 3)):
        draft.input(
            draft.data(tuple(extent if draft.opset < 8 or draft.chance(0.8) else 1 for extent in shape))
        )


def softmax(draft: Draft) -> None:
    shape = draft.shape()
    draft.input(draft.data(shape))
    if draft.chance(0.8):
        lowest = 0 if draft.opset < 11 else -len(shape)
        draft.attributes["axis"] = int(draft.rng.integers(lowest, len(shape)))


def matmul(draft: Draft) -> None:
    m, k, n = (int(draft.pick(1, 2, 5, 17)) for _ in range(3))
    outer = draft.pick((), (), (2,), (3, 2))
    left = draft.pick((m, k), (*outer, m, k), (k,))
    right = draft.pick((k, n), (*outer, k, n), (1, k, n), (k,))
    if len(left) == len(right) == 1:
        left = (1, k)
    draft.input(draft.data(left, 1e15))
    (draft.weight if draft.chance() else draft.input)(draft.data(right, 1e15))


def gemm(draft: Draft) -> None:
    m, k, n = (int(draft.pick(1, 2, 5, 17)) for _ in range(3))
    a, b = draft.chance(), draft.chance()
    draft.attributes = {"transA": int(a), "transB": int(b)}
    if draft.chance():
        draft.attributes |= {"alpha": 0.5, "beta": float(draft.pick(0.0, 1.0, 2.5))}
    draft.input(draft.data((k, m) if a else (m, k), 1e15))
    (draft.weight if draft.chance() else draft.input)(draft.data((n, k) if b else (k, n), 1e15))
    if draft.opset < 11 or draft.chance(0.7):
        shape = draft.pick((n,), (1, n), (m, 1), (m, n), (1,), ())
        (draft.weight if draft.chance() else draft.input)(draft.data(shape, 1e15))


def window(draft: Draft, rank: int, image: Sequence[int], kernel: Sequence[int]) -> None:
    """Strides, dilations and padding that leave at least one window."""
    op = draft.op
    strides = [int(draft.pick(1, 1, 2, 3)) for _ in range(rank)]
    dilations = [1] * rank
    dilates = op in ("Conv", "ConvTranspose") or (op == "MaxPool" and draft.opset >= 10)
    dilates |= op == "AveragePool" and draft.opset >= 19
    if dilates and draft.chance(0.4):
        dilations = [int(draft.pick(1, 2, 3)) for _ in range(rank)]
        draft.attributes["dilations"] = dilations
    if draft.chance(0.7):
        draft.attributes["strides"] = strides
    if "Pool" in op and draft.opset >= 10 and draft.chance(0.4):
        draft.attributes["ceil_mode"] = 1
    if op == "AveragePool" and draft.chance():
        draft.attributes["count_include_pad"] = 1
    padding = draft.pick("none", "pads", "pads", "SAME_UPPER", "SAME_LOWER", "VALID")
    if padding == "pads":
        reach = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
        draft.attributes["pads"] = [int(draft.rng.integers(0, extent + 1)) for extent in (*reach, *reach)]
    elif padding != "none":
        draft.attributes["auto_pad"] = padding


def convolution(draft: Draft) -> None:
    rank = draft.pick(1, 2, 2, 3)
    image = [int(draft.pick(3, 5, 6, 8)) for _ in range(rank)]
    kernel = [int(draft.pick(1, 2, 3, 3)) for _ in range(rank)]
    window(draft, rank, image, kernel)
    groups = draft.pick(1, 1, 2, 3)
    ci, co = groups * draft.pick(1, 2), groups * draft.pick(1, 3)
    draft.attributes["group"] = int(groups)
    shape = (co, ci // groups, *kernel) if draft.op == "Conv" else (ci, co // groups, *kernel)
    draft.input(draft.data((draft.pick(1, 2), ci, *image), 1e15))
    (draft.input if draft.op == "Conv" and draft.chance(0.2) else draft.weight)(draft.data(shape, 1e15))
    if draft.chance():
        draft.weight(draft.data((co,), 1e15))
    if draft.op == "ConvTranspose":
        strides = draft.attributes.get("strides", [1] * rank)
        if draft.chance(0.3):
            draft.attributes["output_padding"] = [int(draft.rng.integers(0, stride)) for stride in strides]
        if draft.chance(0.2) and "pads" not in draft.attributes and "output_padding" not in draft.attributes:
            natural = [extent * stride for extent, stride in zip(image, strides, strict=True)]
            draft.attributes["output_shape"] = [extent + draft.pick(0, 0, 1) for extent in natural]


def pooling(draft: Draft) -> None:
    rank = draft.pick(1, 2, 2, 3)
    image = [int(draft.pick(3, 5, 6, 8)) for _ in range(rank)]
    kernel = [int(draft.pick(1, 2, 3, 3)) for _ in range(rank)]
    draft.attributes["kernel_shape"] = kernel
    window(draft, rank, image, kernel)
    most = 3e38 if draft.op == "MaxPool" else 1e30
    data = draft.data((draft.pick(1, 2), draft.pick(1, 3, 8), *image), most)
    if draft.op == "MaxPool" and draft.opset >= 8 and draft.chance(0.3):
        places_of_pooling(draft, np.nan_to_num(data))
    else:
        draft.input(data)


def global_pooling(draft: Draft) -> None:
    rank = draft.pick(1, 2, 2, 3)
    most = 3e38 if draft.op == "GlobalMaxPool" else 1e30
    draft.input(
        draft.data((draft.pick(1, 2), draft.pick(1, 3, 8), *[draft.pick(1, 4, 7) for _ in range(rank)]), most)
    )


def lrn(draft: Draft) -> None:
    channels = int(draft.pick(1, 4, 7))
    draft.input(draft.data((channels, channels, 2, 3), 1e9))  # the evaluator takes batch and channels for one
    draft.attributes = {
        "size": int(draft.pick(1, 2, 3, 4, 5)),
        "alpha": 0.3,
        "beta": 0.6,
        "bias": float(draft.pick(1.0, 2.0)),
    }


def batch_normalization(draft: Draft) -> None:
    channels = int(draft.pick(1, 3, 8))
    shape = (draft.pick(1, 2), channels, *draft.shape(1, 2))
    draft.input(draft.data(shape, 1e6))
    for _ in range(3):
        draft.weight(draft.data((channels,), 0))
    draft.weight(np.abs(draft.data((channels,), 0)) + np.float32(0.01))
    draft.attributes["epsilon"] = float(draft.pick(1e-5, 1e-2))


def layer_normalization(draft: Draft) -> None:
    shape = draft.shape(1, 4)
    axis = int(draft.rng.integers(-len(shape), len(shape)))
    draft.attributes = {"axis": axis, "epsilon": float(draft.pick(1e-5, 1e-2))}
    mean = draft.pick(0.0, 10.0, 1e3)
    draft.input(draft.data(shape, 0) + np.float32(mean))
    for _ in range(draft.pick(1, 2)):
        (draft.weight if draft.chance() else draft.input)(draft.data(shape[axis:], 0))


def instance_normalization(draft: Draft) -> None:
    channels = int(draft.pick(1, 3, 8))
    mean = draft.pick(0.0, 10.0, 1e3)
    draft.input(draft.data((draft.pick(1, 2), channels, *draft.shape(1, 3)), 0) + np.float32(mean))
    draft.weight(draft.data((channels,), 0))
    draft.weight(draft.data((channels,), 0))
    draft.attributes["epsilon"] = float(draft.pick(1e-5, 1e-2))


def reduction(draft: Draft) -> None:
    shape = draft.shape()
    rank = len(shape)
    most = {"ReduceMax": np.inf, "ReduceMin": np.inf, "ReduceSumSquare": 1e15, "ReduceProd": 0}.get(
        draft.op, 1e30
    )
    data = draft.data(shape, most)
    if draft.op == "ReduceProd":
        # No order of the factors overflows or is below normal numbers on the way: all together are within
        # 120 of the 126 powers of two that float32 has on either side of 1.
        largest = 2.0 ** (120.0 / max(1, data.size))
        data = np.sign(data) * np.clip(np.abs(data), 1.0 / largest, largest)
    draft.input(data.astype(np.float32))
    count = int(draft.rng.integers(0, rank + 1))
    axes = [int(axis) for axis in draft.rng.permutation(rank)[:count]]
    lowest_allowed = draft.opset >= 11
    axes = [axis - rank if lowest_allowed and draft.chance(0.3) else axis for axis in axes]
    since = 13 if draft.op == "ReduceSum" else 18
    if draft.chance(0.7):
        draft.attributes["keepdims"] = int(draft.pick(0, 1))
    if draft.opset < since:
        if axes:
            draft.attributes["axes"] = axes
        return
    if draft.chance(0.8):
        draft.weight(np.asarray(axes, np.int64))
    if draft.chance():
        draft.attributes["noop_with_empty_axes"] = int(draft.pick(0, 1))


def transpose(draft: Draft) -> None:
    shape = draft.shape()
    draft.input(draft.data(shape))
    if draft.chance(0.8):
        draft.attributes["perm"] = [int(axis) for axis in draft.rng.permutation(len(shape))]


def flatten(draft: Draft) -> None:
    shape = draft.shape()
    draft.input(draft.data(shape))
    draft.attributes["axis"] = int(draft.rng.integers(0 if draft.opset < 11 else -len(shape), len(shape) + 1))


def reshape(draft: Draft) -> None:
    shape = draft.shape()
    draft.input(draft.data(shape))
    wanted = [*shape[1:], shape[0], 1]
    if draft.chance():
        wanted[int(draft.rng.integers(len(wanted)))] = -1
    if draft.chance(0.3):
        wanted = [0, *([-1] if len(shape) > 1 else [])]
    draft.weight(np.asarray(wanted, np.int64))


def squeeze(draft: Draft) -> None:
    shape = list(draft.shape())
    axes = sorted({int(axis) for axis in draft.rng.integers(0, len(shape) + 1, draft.pick(1, 2))})
    if draft.op == "Squeeze":
        for axis in axes:
            shape.insert(axis, 1)
    draft.input(draft.data(shape))
    if draft.op == "Squeeze" and draft.chance(0.3):
        return
    if draft.opset >= 11 and draft.chance(0.3):
        axes = [axis - len(shape) - (len(axes) if draft.op == "Unsqueeze" else 0) for axis in axes]
    if draft.opset < 13:
        draft.attributes["axes"] = axes
    else:
        draft.weight(np.asarray(axes, np.int64))


def concat(draft: Draft) -> None:
    shape = list(draft.shape())
    axis = int(draft.rng.integers(0 if draft.opset < 11 else -len(shape), len(shape)))
    draft.attributes["axis"] = axis
    for _ in range(draft.pick(1, 2, 3)):
        shape[axis] = int(draft.pick(1, 2, 5))
        (draft.weight if draft.inputs and draft.chance(0.3) else draft.input)(draft.data(shape))


def slicing(draft: Draft) -> None:
    shape = draft.shape()
    draft.input(draft.data(shape))
    axes = [int(axis) for axis in draft.rng.permutation(len(shape))[: draft.pick(1, 2)]]
    starts, ends, steps = [], [], []
    for axis in axes:
        extent = shape[axis]
        step = int(draft.pick(1, 1, 2, 3)) if draft.opset < 10 else int(draft.pick(1, 1, 2, -1, -2))
        first, last = sorted(draft.rng.integers(0, extent, 2).tolist())
        start, end = (first, last + 1) if step > 0 else (last, first - 1)
        if end == -1:
            end = -extent - 1
        if draft.chance(0.2):
            end = 2**31 if step > 0 else -(2**31)
        starts.append(start - extent if draft.chance(0.3) and step > 0 else start)
        ends.append(end)
        steps.append(step)
    if draft.opset < 10:
        draft.attributes = {"starts": starts, "ends": ends, "axes": axes}
        return
    for values in (starts, ends, axes, steps):
        draft.weight(np.asarray(values, np.int64))


def split(draft: Draft) -> None:
    shape = list(draft.shape())
    axis = int(draft.rng.integers(0 if draft.opset < 11 else -len(shape), len(shape)))
    count = int(draft.pick(1, 2, 3))
    draft.outputs = count
    even = draft.chance()
    parts = [2] * count if even else [int(draft.pick(1, 2, 4)) for _ in range(count)]
    uneven_last = draft.opset >= 18 and even and draft.chance()
    shape[axis] = sum(parts) - (1 if uneven_last else 0)
    draft.attributes["axis"] = axis
    draft.input(draft.data(shape))
    if even and draft.opset >= 18:
        draft.attributes["num_outputs"] = count
    elif not even and draft.opset < 13:
        draft.attributes["split"] = parts
    elif not even:
        draft.weight(np.asarray(parts, np.int64))


def gather(draft: Draft) -> None:
    shape = draft.shape()
    draft.input(draft.data(shape))
    axis = int(draft.rng.integers(-len(shape), len(shape)))
    extent = shape[axis]
    draft.attributes["axis"] = axis
    lowest = 0 if draft.opset < 11 else -extent
    if draft.chance(0.4):
        draft.weight(np.asarray(draft.rng.integers(lowest, extent), np.int64))
    else:
        first, last = sorted(draft.rng.integers(0, extent, 2).tolist())
        draft.weight(np.arange(first, last + 1, draft.pick(1, 2))[:: draft.pick(1, -1)])


def pad(draft: Draft) -> None:
    shape = draft.shape()
    modes = ["constant", "constant", "reflect", "edge", *(["wrap"] if draft.opset >= 19 else [])]
    mode = draft.pick(*modes)
    low, most = (-1 if mode == "constant" and min(shape) > 2 else 0), 3
    pads = [
        int(draft.rng.integers(low, min(most, extent - 1) + 1 if mode == "reflect" else most))
        for extent in (*shape, *shape)
    ]
    value = float(draft.pick(0.0, 1.5, -np.inf))
    draft.input(draft.data(shape))
    draft.attributes["mode"] = mode
    if draft.opset < 11:
        draft.attributes |= {"pads": pads, "value": value}
        return
    axes = None
    if draft.opset >= 18 and draft.chance():
        axes = [int(axis) for axis in draft.rng.permutation(len(shape))[: draft.pick(1, 2)]]
        pads = [pads[axis] for axis in axes] + [pads[len(shape) + axis] for axis in axes]
    draft.weight(np.asarray(pads, np.int64))
    if axes is not None or draft.chance():
        if draft.chance(0.8) or axes is None:
            draft.weight(np.float32(value))
        else:
            draft.absent()
    if axes is not None:
        draft.weight(
            np.asarray([axis - len(shape) if draft.chance(0.3) else axis for axis in axes], np.int64)
        )


def expand(draft: Draft) -> None:
    shape = draft.shape()
    own = tuple(extent if draft.chance(0.6) else 1 for extent in shape)[draft.pick(0, 0, 1) :] or (1,)
    draft.input(draft.data(own))
    draft.weight(
        np.asarray(
            [1 if draft.chance(0.3) and i >= len(shape) - len(own) else e for i, e in enumerate(shape)],
            np.int64,
        )
    )


def tile(draft: Draft) -> None:
    shape = draft.shape()
    draft.input(draft.data(shape))
    draft.weight(np.asarray([int(draft.pick(1, 1, 2, 3)) for _ in shape], np.int64))


def blocks(draft: Draft) -> None:
    size, depth = int(draft.pick(1, 2, 3)), int(draft.pick(1, 2))
    h, w = int(draft.pick(1, 2, 3)), int(draft.pick(1, 4))
    draft.attributes["blocksize"] = size
    if draft.op == "DepthToSpace":
        draft.input(draft.data((1, depth * size * size, h, w)))
        if draft.opset >= 11:
            draft.attributes["mode"] = draft.pick("DCR", "CRD")
    else:
        draft.input(draft.data((2, depth, h * size, w * size)))


def resize(draft: Draft) -> None:
    rank = draft.pick(1, 2, 3) if draft.opset >= 11 else 2
    image = [int(draft.pick(1, 2, 3, 5, 8)) for _ in range(rank)]
    shape = (1, int(draft.pick(1, 3)), *image)
    old = draft.op == "Upsample" or draft.opset < 11
    mode = draft.pick("nearest", "linear") if old or rank > 2 else draft.pick("nearest", "linear", "cubic")
    draft.attributes["mode"] = mode
    draft.input(draft.data(shape, 0))
    choices = (1.0, 2.0, 3.0, 1.5, 2.5) if draft.op == "Upsample" else (0.5, 0.6, 1.0, 2.0, 3.0, 1.5, 2.5)
    scales = [float(draft.pick(*choices)) for _ in range(rank)]
    scales = [scale if int(scale * extent) > 0 else 1.0 for scale, extent in zip(scales, image, strict=True)]
    if old:
        if draft.opset < 9:
            draft.attributes["scales"] = [1.0, 1.0, *scales]
        else:
            draft.weight(np.asarray([1.0, 1.0, *scales], np.float32))
        return
    coordinates = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize"]
    if draft.opset >= 19:
        coordinates.append("half_pixel_symmetric")
    chosen = draft.attributes["coordinate_transformation_mode"] = draft.pick(*coordinates)
    if mode == "nearest":
        draft.attributes["nearest_mode"] = draft.pick(
            "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"
        )
    if mode == "cubic" and draft.chance():
        draft.attributes["cubic_coeff_a"] = -0.5
    if mode == "cubic" and draft.chance(0.3):
        draft.attributes["exclude_outside"] = 1
    if mode != "nearest" and draft.opset >= 18 and draft.chance(0.3):
        draft.attributes["antialias"] = 1
    if chosen == "tf_crop_and_resize":
        starts, ends = draft.rng.uniform(-0.4, 0.4, rank), draft.rng.uniform(0.6, 1.4, rank)
        draft.weight(np.asarray([0, 0, *starts, 1, 1, *ends], np.float32))
        draft.attributes["extrapolation_value"] = float(draft.pick(0.0, 10.0))
    elif draft.opset < 13:
        draft.weight(np.zeros(0, np.float32))
    else:
        draft.absent()
    if draft.chance():
        draft.weight(np.asarray([1.0, 1.0, *scales], np.float32))
        return
    if draft.opset < 13:
        draft.weight(np.zeros(0, np.float32))
    else:
        draft.absent()
    sizes = [max(1, int(extent * draft.pick(*choices)) + draft.pick(0, 1)) for extent in image]
    if draft.opset >= 18 and draft.chance(0.4) and chosen != "tf_crop_and_resize":
        draft.attributes |= {
            "keep_aspect_ratio_policy": draft.pick("not_larger", "not_smaller", "stretch"),
            "axes": list(range(2, 2 + rank)),
        }
        draft.weight(np.asarray(sizes, np.int64))
    else:
        draft.weight(np.asarray([*shape[:2], *sizes], np.int64))


PLAIN = (
    *("Abs", "Ceil", "Dropout", "Erf", "Exp", "Floor", "HardSwish", "Identity", "Log", "Mish", "Neg"),
    *("Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Softplus", "Softsign", "Sqrt", "Tanh"),
    *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Sin", "Sinh", "Tan"),
)
REDUCTIONS = ("Sum", "Mean", "Max", "Min", "L1", "L2", "SumSquare", "Prod")
DRAWERS: dict[str, Callable[[Draft], None]] = {
    **dict.fromkeys(PLAIN, elementwise),
    **dict.fromkeys(("LeakyRelu", "Elu", "Celu", "ThresholdedRelu"), with_alpha),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "PRelu"), pair),
    **dict.fromkeys(("Sum", "Mean", "Max", "Min"), variadic),
    **dict.fromkeys(("Softmax", "LogSoftmax"), softmax),
    **dict.fromkeys(("IsInf", "IsNaN"), truth),
    **dict.fromkeys(("CumSum", "CumProd"), along),
    **dict.fromkeys(("ArgMax", "ArgMin"), place_of_extreme),
    "Hardmax": hardmax,
    "Mod": modulo,
    "Trilu": triangle,
    **dict.fromkeys(("Conv", "ConvTranspose"), convolution),
    **dict.fromkeys(("MaxPool", "AveragePool"), pooling),
    **dict.fromkeys(("GlobalMaxPool", "GlobalAveragePool"), global_pooling),
    **dict.fromkeys(("Squeeze", "Unsqueeze"), squeeze),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), blocks),
    **dict.fromkeys(("Resize", "Upsample"), resize),
    **dict.fromkeys((f"Reduce{kind}" for kind in REDUCTIONS), reduction),
    "BatchNormalization": batch_normalization,
    "Clip": clip,
    "Compress": slices,
    "Concat": concat,
    "DeformConv": deformed,
    "Expand": expand,
    "Flatten": flatten,
    "Gather": gather,
    "Gelu": gelu,
    "Gemm": gemm,
    "GridSample": sampling,
    "HardSigmoid": hard_sigmoid,
    "InstanceNormalization": instance_normalization,
    "LRN": lrn,
    "LayerNormalization": layer_normalization,
    "MatMul": matmul,
    "MaxUnpool": unpooling,
    "NonMaxSuppression": boxes,
    "NonZero": places,
    "Pad": pad,
    "Pow": power,
    "Reshape": reshape,
    "RoiAlign": regions,
    "MaxRoiPool": pooled_regions,
    "Selu": selu,
    "Slice": slicing,
    "Split": split,
    "Tile": tile,
    "Transpose": transpose,
    "Unique": kinds,
}


def random_operator_model(op: str, opset: int, rng: np.random.Generator) -> Draft:
    """A node of an operator as one operator set defines it."""
    draft = Draft(op, rng, opset)
    DRAWERS[op](draft)
    return draft
