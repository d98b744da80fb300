"""Running ONNX models in memory by ONNX Runtime, integers exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolkit.errors import InputError, MissingExtra
from toolkit.quantization.samples import INSTALL, Array, Feeds


def require_onnxruntime() -> None:
    """Raise MissingExtra where ONNX Runtime is not installed."""
    try:
        import onnxruntime.quantization  # noqa: F401
    except ImportError as error:
        raise MissingExtra(f"ONNX Runtime, which quantizes, is not installed: {INSTALL}") from error


class ModelSession:
    """A model (onnx.ModelProto) that runs; `names` are values that it gives, outputs or not."""

    def __init__(self, model: Any, names: Sequence[str]) -> None:
        import onnx
        import onnxruntime

        self.names = list(names)
        exposed = onnx.ModelProto()
        exposed.CopyFrom(model)
        known = {item.name for item in exposed.graph.output}
        for name in dict.fromkeys(names):
            if name not in known:
                exposed.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        # without it sums of products of bytes saturate on x86-64 processors that have no VNNI
        options.add_session_config_entry("session.x64quantprecision", "1")
        with Refusing("cannot load the model"):
            self._session = onnxruntime.InferenceSession(
                exposed.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """The values by name. Raises InputError where the data make the model fail."""
        with Refusing("cannot run the model on the data"):
            return dict(zip(self.names, self._session.run(self.names, feeds), strict=True))


class Refusing:
    """Turns what ONNX Runtime raises for a model or data it cannot work with into an InputError."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        from google.protobuf.message import EncodeError  # type: ignore[import-untyped]
        from onnxruntime.capi import onnxruntime_pybind11_state as errors

        kinds = (
            ValueError, EncodeError, errors.Fail, errors.InvalidArgument, errors.InvalidGraph,
            errors.NotImplemented, errors.InvalidProtobuf, errors.RuntimeException,
        )  # fmt: skip
        if isinstance(error, kinds):
            text = " ".join(str(error).split())
            raise InputError(f"ONNX Runtime {self._what}: {text}; see to the model or the data") from error
