"""LiteRT models written operator by operator, with the package's own schema."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.kernels.libraries.quantized_steps import Quantization
from benchmarks.kernels.workloads import Array, Shape


class FlatModel:
    """A model under construction: a place is the number of a tensor."""

    def __init__(self) -> None:
        self.schema: Any = importlib.import_module("ai_edge_litert.schema_py_generated")
        self._model, self._graph = self.schema.ModelT(), self.schema.SubGraphT()
        self._model.version, self._model.buffers = 3, [self.schema.BufferT()]
        self._model.operatorCodes, self._codes = [], dict[str, int]()
        self._graph.tensors, self._graph.operators = [], []

    def constant(self, array: Array, quantization: Quantization | None = None) -> int:
        """A tensor with values: of float32, int32, or int8 and int32 that stand for numbers."""
        buffer = self.schema.BufferT()
        buffer.data = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        self._model.buffers.append(buffer)
        return self._tensor(array.shape, str(array.dtype), len(self._model.buffers) - 1, quantization)

    def variable(
        self,
        shape: Shape,
        *,
        integers: bool = False,
        kept: bool = False,
        quantization: Quantization | None = None,
    ) -> int:
        """A tensor, float32, int32 or int8 with a quantization: an input of the graph, a result, or a state
        that is `kept`."""
        dtype = "int8" if quantization else "int32" if integers else "float32"
        place = self._tensor(shape, dtype, 0, quantization)
        self._graph.tensors[place].isVariable = kept
        return place

    def options(self, kind: str, **values: Any) -> Any:
        """The options of an operator, such as Conv2D, by the schema's names."""
        found = getattr(self.schema, f"{kind}OptionsT")()
        for name, value in values.items():
            setattr(found, name, value)
        return found

    def operator(
        self,
        code: str,
        options: Any,
        operands: Sequence[int],
        output: Shape,
        quantization: Quantization | None = None,
    ) -> int:
        """One operator of the schema's names; the place of its result, which is floats without a
        quantization. `options`: None where it has none."""
        node, result = self.schema.OperatorT(), self.variable(output, quantization=quantization)
        node.opcodeIndex = self._code(code)
        node.inputs, node.outputs = list(operands), [result]
        if options is not None:
            kind = type(options).__name__.removesuffix("T")
            node.builtinOptionsType, node.builtinOptions = getattr(self.schema.BuiltinOptions, kind), options
        self._graph.operators.append(node)
        return result

    def finished(self, inputs: Sequence[int], output: int) -> bytes:
        """The model's file."""
        flatbuffers: Any = importlib.import_module("flatbuffers")
        self._graph.inputs, self._graph.outputs = list(inputs), [output]
        self._model.subgraphs = [self._graph]
        builder = flatbuffers.Builder(1024)
        builder.Finish(self._model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def _tensor(self, shape: Shape, dtype: str, buffer: int, quantization: Quantization | None) -> int:
        tensor = self.schema.TensorT()
        tensor.name, tensor.shape = f"t{len(self._graph.tensors)}", list(shape)
        tensor.buffer, tensor.type = buffer, getattr(self.schema.TensorType, dtype.upper())
        if quantization is not None:
            found = tensor.quantization = self.schema.QuantizationParametersT()
            found.scale, found.quantizedDimension = list(quantization.scales), quantization.axis
            found.zeroPoint = [quantization.zero] * len(quantization.scales)
        self._graph.tensors.append(tensor)
        return len(self._graph.tensors) - 1

    def _code(self, name: str) -> int:
        if name not in self._codes:
            code = self.schema.OperatorCodeT()
            code.builtinCode = getattr(self.schema.BuiltinOperator, name)
            code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), 1
            self._codes[name] = len(self._model.operatorCodes)
            self._model.operatorCodes.append(code)
        return self._codes[name]
