"""The operators that are measured: float32, batch 1; their seeded inputs and their outputs in float64.

Conv and depthwise: Table 1 of the AutoTVM paper (ResNet-18 and MobileNet). Transposed: DCGAN's generator for
64x64 images. Matmul: 1024 cubed and the matrix products of BERT-base at a sequence length of 128. Arrays here
have the layouts that libraries document: NCHW, OIHW (transposed: IOHW), row-major matrices.

Needs numpy only: every library's process imports this file in an environment of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Shape = tuple[int, ...]

FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Image:
    """A convolution over a square image: `size` pixels each way, a square kernel, equal padding all round."""

    family: Literal["conv", "depthwise", "transposed"]
    size: int
    inputs: int
    outputs: int
    kernel: int
    stride: int
    pad: int

    @property
    def output_size(self) -> int:
        """Height and width of the output."""
        if self.family == "transposed":
            return (self.size - 1) * self.stride - 2 * self.pad + self.kernel
        return (self.size + 2 * self.pad - self.kernel) // self.stride + 1

    @property
    def shapes(self) -> tuple[Shape, Shape, Shape]:
        """Data, weight, output."""
        kernel = (self.kernel, self.kernel)
        weight = {
            "conv": (self.outputs, self.inputs, *kernel),
            "depthwise": (self.outputs, 1, *kernel),
            "transposed": (self.inputs, self.outputs, *kernel),
        }[self.family]
        output = (1, self.outputs, self.output_size, self.output_size)
        return (1, self.inputs, self.size, self.size), weight, output

    @property
    def text(self) -> str:
        """For people: conv 28x28x128 3x3/1 128."""
        image = f"{self.size}x{self.size}x{self.inputs}"
        return f"{self.family} {image} {self.kernel}x{self.kernel}/{self.stride} {self.outputs}"

    @property
    def flops(self) -> int:
        """Multiplications and additions; padding counts as data, as it does in every paper's figures."""
        pixels = self.size**2 if self.family == "transposed" else self.output_size**2
        read = 1 if self.family == "depthwise" else self.inputs
        return 2 * pixels * read * self.outputs * self.kernel**2


@dataclass(frozen=True, slots=True)
class Product:
    """`batch` products [rows, inner] @ [inner, columns]; the right one is a weight in a dense layer."""

    family: Literal["dense", "batch_matmul"]
    batch: int
    rows: int
    columns: int
    inner: int

    @property
    def shapes(self) -> tuple[Shape, Shape, Shape]:
        """Left, right, output."""
        batch = () if self.family == "dense" else (self.batch,)
        return (
            (*batch, self.rows, self.inner),
            (*batch, self.inner, self.columns),
            (*batch, self.rows, self.columns),
        )

    @property
    def text(self) -> str:
        """For people: dense 128x768 768x3072."""
        batch = f"{self.batch} of " if self.family == "batch_matmul" else ""
        return f"{self.family} {batch}{self.rows}x{self.inner} {self.inner}x{self.columns}"

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.batch * self.rows * self.columns * self.inner


@dataclass(frozen=True, slots=True)
class Workload:
    """One operator of a suite."""

    name: str
    suite: str
    of: Image | Product

    @property
    def text(self) -> str:
        """For people."""
        return self.of.text

    @property
    def flops(self) -> int:
        """Operations of one call."""
        return self.of.flops

    @property
    def bytes_once(self) -> int:
        """Inputs and output, each counted once."""
        return FLOAT_BYTES * sum(math.prod(shape) for shape in self.of.shapes)

    def described(self) -> dict[str, Any]:
        """JSON-able data that `parsed` reads."""
        return {"name": self.name, "suite": self.suite, "of": asdict(self.of)}


def parsed(described: dict[str, Any]) -> Workload:
    """The workload that `Workload.described` described."""
    of = described["of"]
    kind = Image if "kernel" in of else Product
    return Workload(described["name"], described["suite"], kind(**of))


def conv(size: int, inputs: int, outputs: int, kernel: int, stride: int) -> Image:
    """A convolution with "same" padding."""
    return Image("conv", size, inputs, outputs, kernel, stride, kernel // 2)


def depthwise(size: int, channels: int, stride: int) -> Image:
    """A 3x3 depthwise convolution with "same" padding."""
    return Image("depthwise", size, channels, channels, 3, stride, 1)


def transposed(size: int, inputs: int, outputs: int) -> Image:
    """A 4x4 transposed convolution that doubles the image."""
    return Image("transposed", size, inputs, outputs, 4, 2, 1)


def dense(rows: int, columns: int, inner: int) -> Product:
    """[rows, inner] @ weight [inner, columns]."""
    return Product("dense", 1, rows, columns, inner)


_CONV = (  # size, inputs, outputs, kernel, stride
    (224, 3, 64, 7, 2), (56, 64, 64, 3, 1), (56, 64, 64, 1, 1), (56, 64, 128, 3, 2), (56, 64, 128, 1, 2),
    (28, 128, 128, 3, 1), (28, 128, 256, 3, 2), (28, 128, 256, 1, 2), (14, 256, 256, 3, 1),
    (14, 256, 512, 3, 2), (14, 256, 512, 1, 2), (7, 512, 512, 3, 1),
)  # fmt: skip
_DEPTHWISE = (  # size, channels, stride
    (112, 32, 1), (112, 64, 2), (56, 128, 1), (56, 128, 2), (28, 256, 1), (28, 256, 2), (14, 512, 1),
    (14, 512, 2), (7, 1024, 1),
)  # fmt: skip
_TRANSPOSED = ((4, 512, 256), (8, 256, 128), (16, 128, 64), (32, 64, 3))  # size, inputs, outputs
SUITES: dict[str, dict[str, Image | Product]] = {
    "conv": {f"C{number}": conv(*row) for number, row in enumerate(_CONV, 1)},
    "depthwise": {f"D{number}": depthwise(*row) for number, row in enumerate(_DEPTHWISE, 1)},
    "transposed": {f"T{number}": transposed(*row) for number, row in enumerate(_TRANSPOSED, 1)},
    "matmul": {
        "M1024": dense(1024, 1024, 1024),
        "BERT.qkv": dense(128, 768, 768),
        "BERT.ff1": dense(128, 3072, 768),
        "BERT.ff2": dense(128, 768, 3072),
        "BERT.qk": Product("batch_matmul", 12, 128, 128, 64),
        "BERT.av": Product("batch_matmul", 12, 128, 64, 128),
    },
}
WORKLOADS = {
    name: Workload(name, suite, of) for suite, members in SUITES.items() for name, of in members.items()
}


def chosen(names: Sequence[str]) -> list[Workload]:
    """The workloads or whole suites of these names, in table order; all of them for no name.

    Raises:
        ValueError: a name is neither an operator nor a suite.
    """
    unknown = [name for name in names if name not in WORKLOADS and name not in SUITES]
    if unknown:
        raise ValueError(
            f"unknown operators {', '.join(unknown)}: expected names of {', '.join(WORKLOADS)} or suites of "
            f"{', '.join(SUITES)}"
        )
    return [item for item in WORKLOADS.values() if not names or item.name in names or item.suite in names]


def inputs(workload: Workload, seed: int = 0) -> tuple[Array, Array]:
    """The two operands, float32, uniform in [-1, 1): the same for every library."""
    rng = np.random.default_rng(seed)
    left, right, _ = workload.of.shapes
    first, second = (rng.uniform(-1.0, 1.0, shape).astype(np.float32) for shape in (left, right))
    return first, second


def channels_last(of: Image, left: Array, right: Array) -> tuple[Array, Array]:
    """The operands of a convolution as NHWC and HWIO (depthwise: HWC)."""
    axes = {"conv": (2, 3, 1, 0), "transposed": (2, 3, 0, 1), "depthwise": (2, 3, 0, 1)}[of.family]
    weight = right.transpose(axes)[..., 0] if of.family == "depthwise" else right.transpose(axes)
    return np.ascontiguousarray(left.transpose(0, 2, 3, 1)), np.ascontiguousarray(weight)


def reference(workload: Workload, left: Array, right: Array) -> Array:
    """The output, computed in float64 and not rounded."""
    x, w = left.astype(np.float64), right.astype(np.float64)
    of = workload.of
    if isinstance(of, Product):
        return np.asarray(x @ w)
    return _transposed(of, x[0], w) if of.family == "transposed" else _convolved(of, x[0], w)


def relative_error(output: Array, expected: Array) -> float:
    """The largest absolute difference over the largest absolute value expected; NaN is an infinite error."""
    difference = np.abs(output.astype(np.float64).reshape(expected.shape) - expected).max()
    return float(difference / np.abs(expected).max()) if np.isfinite(difference) else math.inf


def _convolved(of: Image, data: Array, weight: Array) -> Array:
    """data [ci, h, w]: one matrix product (depthwise: one scaling) for each place of the kernel."""
    padded = np.pad(data, ((0, 0), (of.pad, of.pad), (of.pad, of.pad)))
    out, span = of.output_size, of.stride * (of.output_size - 1) + 1
    result = np.zeros((of.outputs, out, out))
    for y, x in np.ndindex(of.kernel, of.kernel):
        seen = padded[:, y : y + span : of.stride, x : x + span : of.stride]
        if of.family == "depthwise":
            result += weight[:, 0, y, x, None, None] * seen
        else:
            result += (weight[:, :, y, x] @ seen.reshape(of.inputs, -1)).reshape(result.shape)
    return result[None]


def _transposed(of: Image, data: Array, weight: Array) -> Array:
    """data [ci, h, w]: every pixel adds its multiple of the kernel to the output, whose rim is cut off."""
    whole = of.output_size + 2 * of.pad
    span = of.stride * (of.size - 1) + 1
    result = np.zeros((of.outputs, whole, whole))
    flat = data.reshape(of.inputs, -1)
    for y, x in np.ndindex(of.kernel, of.kernel):
        part = (weight[:, :, y, x].T @ flat).reshape(of.outputs, of.size, of.size)
        result[:, y : y + span : of.stride, x : x + span : of.stride] += part
    end = of.pad + of.output_size
    return result[None, :, of.pad : end, of.pad : end]
