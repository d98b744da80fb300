"""The importer of transposed convolutions.

One becomes a ConvTranspose node that computes whole phases (cross/expression/families/transposed.py), and
a Slice where the output is less than that. Over a single pixel it is a matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cross.errors import ExpressionError
from toolkit.model.body_text import WINDOW
from toolkit.model.graph import Array, Attribute, GraphBuilder, Node
from toolkit.model.import_windows import (
    Step,
    as_image,
    auto_pad_of,
    bias_steps,
    emit_image_chain,
    image_rank,
    image_shape,
    kernel_of,
    shared_pads,
)
from toolkit.model.source import Importer, Operand, Source
from toolkit.model.weight_layout import phases_of


def conv_transpose(source: Source, build: GraphBuilder, zero: int = 0) -> None:
    """ConvTranspose(data [n, ci, image...], weight [ci, co / group, kernel...], bias).

    The data count from `zero`: it lies around the image, and its products with the weights are taken away
    behind the sum.
    """
    weight = source.input(1)
    if weight.data is None:
        raise source.refuse(
            f"its weights {weight.name!r} are computed; transposed convolutions are supported with constant "
            "weights only",
            "fold them before the export",
        )
    attributes = _attributes(source)
    if zero:
        attributes["padding"] = zero
    image = image_shape(source.input(0).shape)[2:]
    if all(extent == 1 for extent in image) and attributes["group"] == 1:
        _single_pixel(source, build, attributes, weight)
        return
    grown = _grown(attributes)
    node = Node(source.name, "ConvTranspose", (), "", attributes)
    try:
        dimensions = phases_of(node, image)
    except ExpressionError as error:
        raise source.invalid(str(error)) from error
    output = image_shape(source.output.shape)
    whole = (*output[:2], *(item.whole for item in dimensions))
    inner = (*output[:2], *(item.output for item in dimensions))
    starts = (0, 0, *(item.skip for item in dimensions))
    cut = Step("Slice", (), {"starts": starts, "steps": (1,) * len(output), "shape": inner}, inner)
    steps = [Step("ConvTranspose", (as_image(source, build, weight),), attributes, whole)]
    if inner != output:
        steps += [cut] * (whole != inner)
        steps += [Step("Pad", (), grown, output), *bias_steps(source, build, output)]
    else:
        steps += bias_steps(source, build, whole)
        steps += [cut] * (whole != inner)
    emit_image_chain(source, build, as_image(source, build, source.input(0)), steps)


def _grown(attributes: dict[str, Attribute]) -> dict[str, Attribute]:
    """Negative pads as those of a Pad behind; they become 0 in the attributes."""
    pads = attributes["pads"]
    assert isinstance(pads, tuple)
    attributes["pads"] = tuple(max(pad, 0) for pad in pads)
    missing = [max(-pad, 0) for pad in pads]
    before, after = missing[: len(pads) // 2], missing[len(pads) // 2 :]
    return {"before": (0, 0, *before), "after": (0, 0, *after), "mode": "constant", "value": 0.0}


def transposed_shape(source: Source) -> tuple[int, ...]:
    """The output's shape, which auto_pad SAME makes as many times larger as the strides say."""
    shape, rank = source.output.shape, image_rank(source)
    if not source.text("auto_pad", "NOTSET").startswith("SAME") or "output_shape" in source.attributes:
        return shape
    strides = source.integers("strides", [1] * rank)
    return (*shape[:2], *(e * s for e, s in zip(source.input(0).shape[2:], strides, strict=True)))


def _attributes(source: Source) -> dict[str, Attribute]:
    """Kernel, strides, pads, dilations, output padding and group, of two dimensions at least."""
    rank, kernel = image_rank(source), kernel_of(source)
    if source.output.rank != rank + 2:  # ONNX's shape inference gives up on some contradictions
        raise source.invalid(
            f"its output_shape {source.attributes.get('output_shape')} does not fit data of shape "
            f"{list(source.input(0).shape)}"
        )
    strides = source.integers("strides", [1] * rank)
    dilations = source.integers("dilations", [1] * rank)
    extra = source.integers("output_padding", [0] * rank)
    pads = _pads(source, kernel, strides, dilations, extra)
    front = (1,) if rank == 1 else ()
    none = (0,) if rank == 1 else ()
    return {
        "kernel": (*front, *kernel),
        "strides": (*front, *strides),
        "pads": (*none, *pads[:rank], *none, *pads[rank:]),
        "dilations": (*front, *dilations),
        "output_padding": (*none, *extra),
        "group": source.integer("group", 1),
    }


def _pads(
    source: Source,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    extra: Sequence[int],
) -> tuple[int, ...]:
    """What is cut off before and behind: given, or so that the output has the size asked for."""
    rank = len(kernel)
    auto_pad = auto_pad_of(source)
    if "output_shape" in source.attributes or auto_pad.startswith("SAME"):
        natural = [
            (source.input(0).shape[2 + i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 + extra[i]
            for i in range(rank)
        ]
        totals = [natural[i] - source.output.shape[2 + i] for i in range(rank)]
        if auto_pad.startswith("SAME") and min(totals) < 0:
            raise source.refuse(
                f"auto_pad {auto_pad} would have to enlarge an output of {natural} elements, and runtimes "
                "differ there",
                "export the model with pads",
            )
        pads = shared_pads([max(0, total) for total in totals], more_behind=auto_pad == "SAME_UPPER")
        # What is larger than all that the data reach has zeros behind it, as in onnxruntime and OpenVINO.
        behind = (pad + min(0, total) for pad, total in zip(pads[rank:], totals, strict=True))
        return (*pads[:rank], *behind)
    return (0,) * (2 * rank) if auto_pad == "VALID" else source.integers("pads", [0] * (2 * rank))


def _single_pixel(
    source: Source, build: GraphBuilder, attributes: dict[str, Attribute], weight: Operand
) -> None:
    """Each output pixel reads one element of the kernel: data [n, ci] times weights [ci, pixels * co]."""
    assert weight.data is not None
    data, output = source.input(0), image_shape(source.output.shape)
    arranged: Array = weight.data.reshape(image_shape(weight.shape))
    for axis in range(2, arranged.ndim):
        pads, dilations = attributes["pads"], attributes["dilations"]
        assert isinstance(pads, tuple) and isinstance(dilations, tuple)
        reach = np.arange(output[axis]) + pads[axis - 2]
        place, rest = np.divmod(reach, dilations[axis - 2])
        inside = (rest == 0) & (place >= 0) & (place < arranged.shape[axis])
        taken = np.take(arranged, np.where(inside, place, 0), axis=axis)
        arranged = taken * inside.reshape(-1, *(1,) * (arranged.ndim - axis - 1)).astype(arranged.dtype)
    rank = arranged.ndim
    matrix = np.moveaxis(arranged, 1, -1).reshape(data.shape[1], -1)
    pixels = (data.shape[0], *output[2:], output[1])
    name = source.emit(build, "Reshape", [data.name], shape=data.shape[:2], dtype=data.dtype)
    products = (data.shape[0], matrix.shape[1])
    steps = [Step("MatMul", (build.constant(f"{weight.name}/matrix", matrix),), {}, products)]
    if zero := attributes.get("padding"):
        sums = build.constant(f"{weight.name}/sums", zero * matrix.sum(axis=0, dtype=np.int32))
        steps.append(Step("Sub", (sums,), {}, products))
    steps += [
        Step("Reshape", (), None, pixels),
        Step("Transpose", (), {"perm": (0, rank - 1, *range(1, rank - 1))}, output),
        *bias_steps(source, build),
    ]
    emit_image_chain(source, build, name, steps)


TRANSPOSED = {*WINDOW, "output_padding", "output_shape"}
IMPORTERS: dict[str, Importer] = {
    "ConvTranspose": Importer(
        conv_transpose,
        TRANSPOSED,
        shape=transposed_shape,
        folds=True,
    ),
}
