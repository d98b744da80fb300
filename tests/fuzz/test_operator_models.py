"""Every operator in every version of it, on data with extremes: import, reference and generated code.

They are compared with ONNX's reference evaluator in float64, or with onnxruntime where the evaluator does not
keep to the specification.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.conftest import Draws
from tests.fuzz.operator_models import DRAWERS, Draft, opsets, random_operator_model
from tests.fuzz.operators import SEED_STRIDE
from tests.onnx_models import evaluator_values, onnxruntime_values, save
from tests.unoptimized import unoptimized
from tests.whole_models import run_generated
from toolkit.errors import ModelError
from toolkit.model.importers import IMPORTERS
from toolkit.model.load import load_model
from toolkit.model.reference import cut, run_reference

Array = NDArray[Any]

CASES = 4  # of each version
RTOL = 1e-5
SUM_RTOL = 4e-6  # of the sum of the terms' magnitudes
# results in which terms of about 1 cancel
CANCELLING = {
    "Gelu": 1e-6,
    "HardSwish": 1e-6,
    "HardSigmoid": 1e-6,
    "LogSoftmax": 1e-6,
    "Mish": 1e-35,  # its exponential below normal numbers is 0, and is multiplied by up to -104
}
SUMS = (
    "Conv",
    "ConvTranspose",
    "MatMul",
    "Gemm",
    "AveragePool",
    "GlobalAveragePool",
    "Sum",
    "Mean",
    "CumSum",
    "DeformConv",
)
OF_INPUT = (
    "Resize",
    "Upsample",
    "GridSample",
    "RoiAlign",
    "BatchNormalization",
    "LayerNormalization",
    "InstanceNormalization",
    "LRN",
)


def by_onnxruntime(draft: Draft) -> bool:
    """What ONNX's reference evaluator computes as a later operator set defines it, or wrongly."""
    old = {
        "Softmax": 13,
        "LogSoftmax": 13,
        "Hardmax": 13,
        "BatchNormalization": 14,
        "Resize": 11,
        "Upsample": 99,
        "Mean": 13,
        "Unsqueeze": 13,
        "RoiAlign": 16,
    }
    attributes = draft.attributes
    # onnxruntime computes few dilated averages
    rounds_up = attributes.get("ceil_mode", 0) != 0 and ("dilations" not in attributes or reaches_far(draft))
    averages = draft.op == "AveragePool" and ("auto_pad" in attributes or draft.opset < 10 or rounds_up)
    return (
        draft.opset < old.get(draft.op, 0)
        # groups; ceil_mode and places of maxima; ranks but 4; infinity times 0; not there
        or draft.op in ("ConvTranspose", "MaxPool", "GlobalMaxPool", "PRelu", "MaxRoiPool")
        or averages
        or (draft.op == "Unique" and not draft.attributes["sorted"])  # along an axis
        or (draft.op == "Pad" and any((array < 0).any() for array in list(draft.weights.values())[:1]))
    )


def reaches_far(draft: Draft) -> bool:
    """Whether the last window along a dimension ends two elements or more behind the padding: the evaluator
    adds half of them in front. Found by comparing 325 dilated averages with ceil_mode: of those that end
    sooner it computed all as we do, of these one in 17."""
    kernel = draft.attributes["kernel_shape"]
    ones = [1] * len(kernel)
    pads = draft.attributes.get("pads", [0] * (2 * len(kernel)))
    sizes = zip(
        next(iter(draft.inputs.values())).shape[2:],
        kernel,
        draft.attributes.get("dilations", ones),
        draft.attributes.get("strides", ones),
        zip(pads[: len(kernel)], pads[len(kernel) :], strict=True),
        strict=True,
    )
    for extent, taps, dilation, stride, (before, behind) in sizes:
        span, padded = (taps - 1) * dilation + 1, before + extent + behind
        last = -(-(padded - span) // stride) * stride
        last -= stride if last >= before + extent else 0  # a window of padding alone is none
        if last + span - padded >= 2:
            return True
    return False


def crops(draft: Draft) -> bool:
    """Whether padding so that each stride has a window would be less than -1 along a dimension: windows lie
    apart, and the last one ends before the image does."""
    if not draft.attributes.get("auto_pad", "").startswith("SAME"):
        return False
    kernel = draft.attributes["kernel_shape"]
    image = next(iter(draft.inputs.values())).shape[2:]
    strides = draft.attributes.get("strides", [1] * len(kernel))
    ends = [(-(-extent // s) - 1) * s + taps for extent, s, taps in zip(image, strides, kernel, strict=True)]
    return any(end - extent < -1 for end, extent in zip(ends, image, strict=True))


def expected(draft: Draft) -> dict[str, Array] | None:
    """The outputs by the one whom this operator can be left to; None where there is nobody."""
    proto = draft.proto()
    if {"auto_pad", "dilations"} <= draft.attributes.keys() and "Pool" in draft.op:
        return None  # both forget the dilations
    if "Pool" in draft.op and crops(draft):
        return None  # onnxruntime moves the windows; TensorFlow, whose padding SAME is, and we do not
    try:
        if by_onnxruntime(draft):
            return onnxruntime_values(proto, draft.inputs, [item.name for item in proto.graph.output])
        return evaluator_values(proto, draft.inputs)
    except Exception:  # noqa: BLE001 - whatever they raise, they cannot run it
        return None


def magnitude(draft: Draft) -> Any:
    """What an error is relative to where terms are summed: the sum of their magnitudes, or of the largest."""
    if draft.op in SUMS or draft.op.startswith("Reduce"):
        absolute = replace(
            draft,
            inputs={name: np.abs(array) for name, array in draft.inputs.items()},
            weights={
                name: np.abs(array) if array.dtype == np.float32 else array
                for name, array in draft.weights.items()
            },
        )
        found = expected(absolute)
        sums = np.zeros(1) if found is None else np.abs(found["y0"].astype(np.float64))
        largest = np.where(np.isfinite(sums), sums, 0.0).max(initial=0.0)
        if draft.op == "ReduceProd":  # each of its factors may round
            factors = next(iter(draft.inputs.values())).size / max(1, sums.size)
            largest *= max(1.0, factors * 2.0**-24 / SUM_RTOL)
        return largest
    if draft.op in OF_INPUT:
        return max(float(np.abs(array).max()) for array in draft.inputs.values())
    return 0.0


def wrong(draft: Draft, got: Array, want: Array, scale: Any) -> str:
    """What is wrong with an output; "" when nothing is. Infinite and NaN must be where they are expected.

    `scale`: its `magnitude`.
    """
    if got.shape != want.shape:
        return f"shape {got.shape}, expected {want.shape}"
    with np.errstate(all="ignore"):
        rounded = want.astype(np.float32).astype(np.float64)
        allowed = RTOL * np.abs(rounded) + SUM_RTOL * scale + CANCELLING.get(draft.op, 1e-38)
        right = (got == rounded) | (np.isnan(got) & np.isnan(rounded)) | (np.abs(got - rounded) <= allowed)
        if draft.op == "Softmax":  # an exponential below normal numbers is 0 (docs/accuracy.md)
            right |= (got == 0.0) & (rounded < np.finfo(np.float32).tiny)
    if right.all():
        return ""
    place = np.unravel_index(np.argmin(right), right.shape)
    return f"{got[place]} at {[int(axis) for axis in place]}, expected {want[place]}"


NOT_DRAWN = {  # integers, truth values or indices, which Draft does not draw; where they are tested
    "test_dtypes.py": "Cast CastLike Not And Or Xor Where Equal Less LessOrEqual Greater GreaterOrEqual",
    "test_recurrent.py": "RNN GRU LSTM",
    "test_counted.py": "Range ConstantOfShape",
    "test_quantized.py": "ConvInteger MatMulInteger",
    "test_quantized_transposed.py": "ConvTransposeInteger",
    "test_quantized_recurrent.py": "DynamicQuantizeLSTM",
    "test_onnx_node_cases.py": "BitShift BitwiseAnd BitwiseOr BitwiseXor BitwiseNot Col2Im DFT STFT Det "
    "Einsum GatherElements GatherND Scatter ScatterElements ScatterND TensorScatter ReverseSequence TopK "
    "OneHot LpNormalization LpPool QuantizeLinear DequantizeLinear BitCast OptionalGetElement "
    "Range ConstantOfShape",
}


def test_every_importer_is_drawn_or_tested_elsewhere() -> None:
    elsewhere = {op for ops in NOT_DRAWN.values() for op in ops.split()}
    assert set(IMPORTERS) - elsewhere == set(DRAWERS)


@pytest.mark.slow
@pytest.mark.parametrize("op", sorted(DRAWERS))
def test_operator_is_what_onnx_defines(op: str, draws: Draws, tmp_path: Path) -> None:
    drafts = [
        random_operator_model(
            op, opset, np.random.default_rng([*op.encode(), opset, draws.seed * SEED_STRIDE + case])
        )
        for opset in opsets(op)
        for case in range(draws.of(CASES))
    ]
    accepted = []
    for draft in drafts:
        try:
            accepted.append((draft, load_model(save(tmp_path, draft.proto()))))
        except ModelError:
            continue
    with unoptimized():
        generated = list(run_generated([(graph, draft.inputs) for draft, graph in accepted], tmp_path))
    compared, failures = 0, []
    for (draft, graph), outputs in zip(accepted, generated, strict=True):
        want = expected(draft)
        if want is None:
            continue
        compared += 1
        with np.errstate(all="ignore"):
            scale = magnitude(draft)
        reference = run_reference(graph, draft.inputs)
        for name, array in want.items():
            for what, found in (("reference", reference), ("generated", outputs)):
                if text := wrong(draft, cut(graph, found)[name], array, scale):
                    failures.append(f"{what} of opset {draft.opset}, {draft.attributes}: {text}")
    assert not failures, "\n".join(failures)
    assert compared >= len(drafts) // 2
