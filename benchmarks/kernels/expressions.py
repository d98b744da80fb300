"""Workloads in the expression language, on the layouts that a network of ours would hand over.

Images are NHWC. Weights are constants and may be laid out ahead of time, as every library does: `operands`
brings them into the operator's order, and a schedule packs them further.

Transposed convolutions are computed phase by phase, as in models; to few channels in a form of their own.
"""

from __future__ import annotations

from benchmarks.harness.operators import Convolution, Form
from benchmarks.kernels.workloads import Array, Image, Product, Workload, channels_last
from cross.expression import Operator, placeholder
from cross.expression.families.dense import batch_matmul, dense
from cross.expression.families.transposed import (
    Phases,
    Transposed,
    is_narrow,
    narrow_transposed_conv,
    narrow_weights,
    phase_weights,
    phases,
    transposed_conv,
)


def operator(workload: Workload) -> Operator:
    """The workload as an operator of our language; its second input is a constant unless both vary."""
    of = workload.of
    if isinstance(of, Product):
        return _matmul(workload.name, of)
    names = ("data", "weight", workload.name)
    if of.family != "transposed":
        form: Form = "depthwise" if of.family == "depthwise" else "conv2d"
        window = ((of.kernel,) * 2, (of.stride,) * 2, (of.pad,) * 2)
        layer = Convolution(form, (of.size,) * 2, of.inputs, of.outputs, *window)
        return layer.operator(workload.name, names)
    dimensions = _phases(of)
    form_of = narrow_transposed_conv if by_products(of) else transposed_conv
    data = placeholder((1, of.size, of.size, of.inputs), "data")
    weight = placeholder(_weight_shape(of, dimensions), "weight")
    output = form_of(data, weight, dimensions, name=workload.name)
    return Operator(workload.name, (data, weight), output, constants=frozenset({1}))


def operands(workload: Workload, left: Array, right: Array) -> tuple[Array, Array]:
    """The documented operands (workloads.py) as the operator's inputs."""
    of = workload.of
    if isinstance(of, Product):
        return left, right
    data, weight = channels_last(of, left, right)
    if of.family == "transposed":
        weight = phase_weights(weight, _phases(of))
        return data, narrow_weights(weight) if by_products(of) else weight
    return data, weight


def documented(workload: Workload, output: Array) -> Array:
    """The operator's output in the layout of workloads.py."""
    of = workload.of
    if isinstance(of, Product):
        return output
    if of.family == "transposed":  # whole phases are computed, which may be more than the output
        whole = _phases(of)[0]
        output = output.reshape(1, whole.whole, whole.whole, of.outputs)
        kept = slice(whole.skip, whole.skip + whole.output)
        output = output[:, kept, kept]
    return output.reshape(1, of.output_size, of.output_size, -1).transpose(0, 3, 1, 2)


def by_products(of: Image) -> bool:
    """Whether a transposed convolution takes the form for few output channels."""
    return is_narrow(_phases(of), of.outputs)


def _phases(of: Image) -> list[Phases]:
    return [phases(of.size, Transposed(of.kernel, of.stride, (of.pad, of.pad)))] * 2


def _weight_shape(of: Image, dimensions: list[Phases]) -> tuple[int, ...]:
    taps = dimensions[0].taps
    if by_products(of):
        return (of.inputs, (of.stride * taps) ** 2 * of.outputs)
    return (of.stride, of.stride, taps, taps, of.inputs, of.outputs)


def _matmul(name: str, of: Product) -> Operator:
    left, right, _ = of.shapes
    inputs = placeholder(left, "left"), placeholder(right, "right")
    if of.family == "dense":
        return Operator(name, inputs, dense(*inputs, name=name), constants=frozenset({1}))
    return Operator(name, inputs, batch_matmul(*inputs, name=name))
