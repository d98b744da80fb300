"""Float operators between dequantized operands and a quantized result (QDQ), as operators on integers.

    DequantizeLinear(x), DequantizeLinear(w), DequantizeLinear(bias) -> Conv -> [Relu] -> QuantizeLinear

becomes one QLinearConv, as in ONNX Runtime; a matrix product or a transposed convolution likewise. A group
becomes that only where the result stays the quantized one: 8-bit operands whose scales are constants, weights
scaled as a whole or by output channel, a bias scaled by input scale * weight scale around 0, an activation
that cuts nothing that the output's dtype does not cut. Where only the operands are so (PyTorch's exporter
leaves the bias in floats), the product is summed in integers, scaled to floats, and what follows is computed
in floats as it is written. Concat joins integers, for which its operands are quantized first where they count
otherwise. Averages are sums of integers, interpolated images weighted ones. Everything else of such a model
stays as it is: elementwise functions between integers are one kernel anyway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from toolkit.model.live_nodes import live, reads
from toolkit.model.microsoft import DOMAIN
from toolkit.model.quantized_bodies import OWN, TO_FLOAT, interpolates
from toolkit.model.quantized_moves import MOVED, renamed, with_moved_integers

_BYTES = (np.uint8, np.int8)
_AVERAGING = frozenset(("AveragePool", "GlobalAveragePool"))
_SCALE_DIGITS = 1e-5  # relative: exporters compute a bias's scale in float32 or in float64

_LEAST_SCALE = 1e-30  # products of bytes by it, or by its inverse, are normal numbers in float32

Constants = Mapping[str, NDArray[Any]]


def _written(nodes: Sequence[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    """What Constant nodes hold."""
    import onnx

    for node in nodes:
        if node.op_type == "Constant" and node.attribute:
            value = onnx.helper.get_attribute_value(node.attribute[0])
            if isinstance(value, onnx.TensorProto):
                yield node.output[0], onnx.numpy_helper.to_array(value)


class _Operand(msgspec.Struct, frozen=True):
    """A DequantizeLinear: the names of its integers, scale and zero point (or "")."""

    integers: str
    scale: str
    zero: str
    axis: int


def _result(last: Any) -> _Operand:
    """How the integers count that a QuantizeLinear makes."""
    return _Operand("", last.input[1], last.input[2] if len(last.input) > 2 else "", 1)


def with_integer_groups(
    nodes: Sequence[Any],
    outputs: Sequence[str],
    constants: Constants,
    opset: int,
    floats: Collection[str] = (),
) -> list[Any]:
    """The nodes (onnx.NodeProto) with each group as one node, where its last one stood.

    `constants` are the weights of the model, `opset` is the version of its default operators. Products named
    in `floats` (one without a name: by its output) are computed in floats, between the same integers.
    """
    if not any(node.op_type == "DequantizeLinear" for node in nodes):
        return list(nodes)
    known = {**constants, **dict(_written(nodes))}
    nodes = with_moved_integers(nodes, outputs, known, opset)
    groups = _Groups(nodes, outputs, known, floats)
    return live([made for node in nodes for made in groups.integer_nodes(node) or [node]], outputs)


class _Groups:
    """The nodes by what they compute, and how often each value is read."""

    def __init__(
        self, nodes: Sequence[Any], outputs: Sequence[str], constants: Constants, floats: Collection[str]
    ) -> None:
        self.constants, self.floats = constants, floats
        self.producer = {item: node for node in nodes for item in node.output if item}
        self.uses = Counter(item for node in nodes for item in reads(node)) + Counter(outputs)

    def integer_nodes(self, last: Any) -> list[Any]:
        """The nodes of integers for the group that ends here; none where none does."""
        made = None
        if last.op_type == "QuantizeLinear" and last.domain == "":
            made = self._unchanged(last)
            if made is None and (joined := self._joined(last)):
                return joined
            made = made or self._quantized(last)
        elif last.op_type in TO_FLOAT and last.domain == "":
            made = self._float_product(last)
        return [made] if made is not None else []

    def _unchanged(self, last: Any) -> Any | None:
        """The integers themselves where they are scaled and quantized alike: rounding undoes the product."""
        import onnx

        operand = self._operand(last.input[0])
        if operand is None or not self._counts_alike(operand, _result(last)):
            return None
        move = self.producer.get(operand.integers)
        alone = self.uses[operand.integers] == self.uses[last.input[0]] == 1
        if move is not None and operand.integers.endswith(MOVED) and alone:
            return renamed(move, move.input[0], last.output[0])  # by the name that the model has for it
        return onnx.helper.make_node("Identity", [operand.integers], [last.output[0]], last.name)

    def _joined(self, last: Any) -> list[Any]:
        """A Concat of integers, and each operand quantized for it that does not count as the result does.

        Quantizing goes element by element, so it may stand in front of the Concat as well as behind it: there
        whatever makes the operand computes it, and writes it where the result lies.
        """
        import onnx

        node = self._behind(last.input[0])
        if node is None or node.op_type != "Concat" or node.domain or not self._by_one_number(last):
            return []
        result, operands, made = _result(last), [], []
        for place, name in enumerate(node.input):
            operand = self._operand(name)
            if operand is None or not self._counts_alike(operand, result):
                quantized = f"{last.output[0]}/joined{place}"
                made.append(onnx.helper.make_node(last.op_type, [name, *last.input[1:]], [quantized]))
                made[-1].attribute.extend(last.attribute)
                operands.append(quantized)
            else:
                operands.append(operand.integers)
        joined = onnx.helper.make_node("Concat", operands, [last.output[0]], node.name)
        joined.attribute.extend(node.attribute)
        return [*made, joined]

    def _by_one_number(self, last: Any) -> bool:
        """Whether a QuantizeLinear scales the whole tensor by one constant, to 8 bits."""
        result = _result(last)
        return self._number(result.scale) is not None and self._is_bytes(result.zero)

    def _quantized(self, last: Any) -> Any | None:
        if not self._by_one_number(last):
            return None
        node = self._behind(last.input[0])
        if node is not None and node.op_type in _AVERAGING and not node.domain:
            return self._weighed(node, last)
        if node is not None and node.op_type == "Resize" and not node.domain and interpolates(node):
            return self._weighed(node, last, OWN)
        if node is not None and node.op_type in ("Relu", "Clip"):
            if not self._keeps_all(node, last):
                return None
            node = self._behind(node.input[0])
        if node is None or node.domain or node.op_type not in TO_FLOAT:
            return None
        result = _result(last)
        return self._product(node, last.output[0], [result.scale, result.zero])

    def _weighed(self, node: Any, last: Any, domain: str = DOMAIN) -> Any | None:
        """A pool or Resize that adds up integers."""
        import onnx

        data = self._operand(node.input[0])
        if data is None or not self._is_bytes(data.zero, data.integers):
            return None
        if not all((self._number(name) or 0.0) > 0.0 for name in (data.scale, last.input[1])):
            return None
        result = _result(last)
        inputs = [data.integers, data.scale, data.zero, result.scale, result.zero, *node.input[1:]]
        made = onnx.helper.make_node(
            f"QLinear{node.op_type}", inputs, [last.output[0]], node.name, domain=domain
        )
        made.attribute.extend(node.attribute)
        return made

    def _counts_alike(self, one: _Operand, other: _Operand) -> bool:
        """Whether two tensors have one scale, above 0, and one zero point of one 8-bit dtype."""
        scales = [self._number(item.scale) for item in (one, other)]
        zeros = [self.constants.get(item.zero) for item in (one, other)]
        if scales[0] is None or scales[0] != scales[1] or not _LEAST_SCALE < scales[0] < 1 / _LEAST_SCALE:
            return False
        return (
            all(zero is not None and zero.dtype in _BYTES and zero.size == 1 for zero in zeros)
            and len({(str(zero.dtype), int(zero.ravel()[0])) for zero in zeros if zero is not None}) == 1
        )

    def _product(self, node: Any, output: str, result: list[str]) -> Any | None:
        """QLinearConv, QLinearMatMul or QGemm for a float node with these outputs of QuantizeLinear."""
        import onnx

        name = node.name or node.output[0]
        data, weight = (self._operand(item) for item in node.input[:2])
        if name in self.floats or data is None or weight is None or not self._fits(node, data, weight):
            return None
        operands = [data.integers, data.scale, data.zero, weight.integers, weight.scale, weight.zero]
        bias = ""
        if len(node.input) > 2 and node.input[2]:
            found = self._operand(node.input[2])
            if found is None or not self._is_bias(found, data, weight):
                return None
            bias = found.integers
        kept = [item for item in node.attribute if item.name not in ("alpha", "beta")]
        if node.op_type == "Gemm":
            if any(item.f != 1.0 for item in node.attribute if item.name in ("alpha", "beta")):
                return None
            made = onnx.helper.make_node("QGemm", [*operands, bias, *result], [output], name, domain=DOMAIN)
        else:
            inputs = [*operands, *result, *([bias] if bias else [])]
            domain = OWN if node.op_type == "ConvTranspose" else ""
            made = onnx.helper.make_node(f"QLinear{node.op_type}", inputs, [output], name, domain=domain)
        made.attribute.extend(kept)
        return made

    def _float_product(self, node: Any) -> Any | None:
        """A product of dequantized operands summed in integers, of which floats are made in the end.

        The sums are exact, and scaling them once is as near to the product of floats as that is to itself in
        another order. Of no use where a QuantizeLinear takes the node into a group; then nothing reads it.
        """
        import onnx

        name = node.name or node.output[0]
        left, right = (self._operand(item) for item in node.input[:2])
        scaled = any(item.f != 1.0 for item in node.attribute if item.name in ("alpha", "beta"))
        if name in self.floats or left is None or right is None or scaled:
            return None
        if not self._fits(node, left, right):
            return None
        operands = [left.integers, right.integers, left.scale, right.scale, left.zero, right.zero]
        kept = [item for item in node.attribute if item.name not in ("alpha", "beta")]
        op, domain = TO_FLOAT[node.op_type]
        made = onnx.helper.make_node(op, [*operands, *node.input[2:]], [node.output[0]], name, domain=domain)
        made.attribute.extend(kept)
        return made

    def _behind(self, name: str) -> Any | None:
        """The node that computes a value which only one node reads."""
        return self.producer.get(name) if self.uses[name] == 1 else None

    def _operand(self, name: str) -> _Operand | None:
        node = self.producer.get(name)
        if node is None or node.op_type != "DequantizeLinear" or node.domain:
            return None
        settings = {item.name: item.i for item in node.attribute}
        if settings.get("block_size", 0) or node.input[1] not in self.constants:
            return None
        zero = node.input[2] if len(node.input) > 2 else ""
        return _Operand(node.input[0], node.input[1], zero, settings.get("axis", 1))

    def _fits(self, node: Any, data: _Operand, weight: _Operand) -> bool:
        """Whether both operands are of 8 bits, scaled as the operator on integers allows."""
        if self._number(data.scale) is None or not self._is_bytes(data.zero, data.integers):
            return False
        if not self._is_bytes(weight.zero, weight.integers):
            return False
        known = self._weights(weight.integers)
        if self._number(weight.scale) is not None:
            return True
        if known is None:
            return False
        transposed = any(item.name == "transB" and item.i for item in node.attribute)
        channels = 0 if node.op_type == "Conv" or transposed else known.ndim - 1
        if node.op_type == "ConvTranspose":
            if any(item.name == "group" and item.i > 1 for item in node.attribute):
                return False  # the scales of one group are those of all
            channels = 1
        return known.ndim > 1 and weight.axis % known.ndim == channels

    def _is_bytes(self, zero: str, integers: str = "") -> bool:
        """Whether a zero point, or without one a tensor, has an 8-bit dtype."""
        if zero:
            return zero in self.constants and self.constants[zero].dtype in _BYTES
        if not integers:
            return True  # ONNX's default is uint8
        maker = self.producer.get(integers)
        if maker is not None and maker.op_type == "QuantizeLinear":
            return self._is_bytes(maker.input[2] if len(maker.input) > 2 else "")
        return integers in self.constants and self.constants[integers].dtype in _BYTES

    def _weights(self, integers: str) -> NDArray[Any] | None:
        """Constant integers, or the constant floats that a QuantizeLinear makes them of."""
        maker = self.producer.get(integers)
        quantized = maker is not None and maker.op_type == "QuantizeLinear"
        return self.constants.get(maker.input[0] if maker is not None and quantized else integers)

    def _is_bias(self, bias: _Operand, data: _Operand, weight: _Operand) -> bool:
        """Whether a bias counts in the steps of the products, from 0."""
        known = self.constants.get(bias.integers)
        if known is None or known.dtype != np.int32 or known.ndim != 1:
            return False
        if bias.zero and (bias.zero not in self.constants or self.constants[bias.zero].any()):
            return False
        wanted = self.constants[data.scale].astype(np.float64).ravel() * self.constants[weight.scale].ravel()
        return bool(np.allclose(self.constants[bias.scale].ravel(), wanted, rtol=_SCALE_DIGITS, atol=0.0))

    def _keeps_all(self, node: Any, last: Any) -> bool:
        """Whether a Relu or Clip changes no number that the QuantizeLinear behind it can tell apart."""
        scale = float(self.constants[last.input[1]].ravel()[0])
        zero = self.constants[last.input[2]] if len(last.input) > 2 and last.input[2] else np.uint8(0)
        limits = np.iinfo(zero.dtype)
        low, high = 0.0, np.inf
        if node.op_type == "Clip":
            bounds = [self._number(item) if item else None for item in (*node.input[1:3], "", "")[:2]]
            if len(node.input) < 2 or None in bounds:
                return False
            low, high = (float(bound) for bound in bounds if bound is not None)
        # a bound at the end of the range itself is rounded to that end
        lowest, highest = (float(end - int(zero.ravel()[0])) * scale for end in (limits.min, limits.max))
        slack = _SCALE_DIGITS * scale
        return low <= lowest + slack and highest - slack <= high

    def _number(self, name: str) -> float | None:
        """A constant of one element."""
        data = self.constants.get(name)
        return float(data.ravel()[0]) if data is not None and data.size == 1 else None
