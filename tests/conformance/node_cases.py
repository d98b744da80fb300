"""Runs node cases of the installed onnx package through import and generated code, in a process of its own.

    python -m tests.conformance.node_cases PREFIX...

takes the cases in onnx's modules whose names begin with one of the prefixes, and prints one JSON object: each
case's name -> "passed", "refused: ..." or "wrong: ...".
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.backend.test.case.node
from numpy.typing import NDArray
from onnx import numpy_helper

from cross.expression.language.dtypes import FLOATS
from tests.unoptimized import unoptimized
from tests.whole_models import run_generated
from toolkit.errors import ModelError
from toolkit.model.graph import Graph
from toolkit.model.load import load_model
from toolkit.model.reference import cut, run_reference

Array = NDArray[Any]

# The cases have every operand as an input of the model. Networks have most of them as constants: which inputs
# stay, by the array and whether it is the first.
VARIANTS: tuple[Callable[[Array, bool], bool], ...] = (
    lambda array, first: True,
    lambda array, first: array.dtype == np.float32 and array.ndim > 0,
    lambda array, first: first,
    lambda array, first: array.dtype == np.float32,  # of 4-bit weights, the scale
)
# Operators whose every input decides the size of the output; models have constants there.
SIZES = tuple(
    f"test_{name}"
    for name in ("blackmanwindow", "constantofshape", "hammingwindow", "hannwindow", "melweight", "range")
)


@dataclass(frozen=True)
class Trial:
    """One variant of a case that was imported."""

    name: str
    case: Any
    graph: Graph
    inputs: dict[str, Array]
    expected: Sequence[Any]


def node_cases(prefixes: Sequence[str]) -> list[Any]:
    """onnx's cases of the operators' modules with such names; importing a module defines its cases."""
    package = onnx.backend.test.case.node
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in pkgutil.iter_modules(package.__path__):
            if module.name.startswith(tuple(prefixes)) and not module.ispkg:
                importlib.import_module(f"{package.__name__}.{module.name}")
    return [case for case in package._NodeTestCases if case.data_sets]


def variants(case: Any) -> Iterator[tuple[Any, dict[str, Array], Sequence[Any]]]:
    """The model of a case with some inputs as constants, the other inputs' data, and the expected outputs."""
    seen = set()
    for data in case.data_sets:
        inputs, outputs = ([_array(item) for item in items] for items in data)
        names = [item.name for item in case.model.graph.input]
        named = dict(zip(names, inputs, strict=True))
        sizes = case.name.startswith(SIZES)
        for stays in (*VARIANTS, *([lambda array, first: False] if sizes else [])):
            model = onnx.ModelProto()
            model.CopyFrom(case.model)
            model.ir_version = max(model.ir_version, 4)  # before, every initializer was an input, too
            del model.graph.input[:]
            for position, item in enumerate(case.model.graph.input):
                array = named[item.name]
                if not isinstance(array, np.ndarray) or stays(array, position == 0):
                    model.graph.input.append(item)
                else:
                    model.graph.initializer.append(numpy_helper.from_array(array, item.name))
            kept = tuple(item.name for item in model.graph.input)
            if kept not in seen and (kept or not named or sizes):  # else it would test ONNX's evaluator
                seen.add(kept)
                yield model, {name: named[name] for name in kept}, outputs


def _array(item: Any) -> Any:
    """Data of a tensor as an array; some cases have it as a scalar or as ONNX's message."""
    if isinstance(item, onnx.TensorProto):
        return numpy_helper.to_array(item)
    return np.asarray(item) if isinstance(item, np.generic) else item


def tolerance(case: Any, expected: Array) -> tuple[float, float]:
    """What floats may be off, relative and absolute; everything else is exact.

    Beside the case's numbers that is one unit in the last place of the largest element: sums that cancel keep
    the rounding of their terms, and ONNX's definitions round float16 between operators, a kernel at its end.
    """
    if str(expected.dtype) not in FLOATS:
        return 0.0, 0.0
    largest = np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
    unit = float(ml_dtypes.finfo(expected.dtype).eps) * float(largest)
    return float(case.rtol), max(float(case.atol), unit)


def difference(trial: Trial, found: dict[str, Array]) -> str:
    """How outputs differ from what the case expects; "" where they do not."""
    names = [item.name for item in trial.case.model.graph.output]
    for name, expected in zip(names, trial.expected, strict=True):
        if (found[name].shape, found[name].dtype) != (expected.shape, expected.dtype):
            return f"{name} is {found[name].dtype}{found[name].shape}, not {expected.dtype}{expected.shape}"
        rtol, atol = tolerance(trial.case, expected)
        if not np.allclose(found[name], expected, rtol, atol, equal_nan=str(expected.dtype) in FLOATS):
            return f"{name} is {found[name].ravel()[:8]}, not {expected.ravel()[:8]}"
    return ""


def outcomes(cases: Sequence[Any], folder: Path) -> dict[str, str]:
    """What became of each case: a case passes if some variant is accepted and no accepted one is wrong."""
    results: dict[str, str] = {}
    trials = []
    for case in cases:
        for model, inputs, expected in variants(case):
            path = folder / "case.onnx"
            path.write_bytes(model.SerializeToString())
            try:
                shapes = {name: item.shape for name, item in inputs.items() if isinstance(item, np.ndarray)}
                trials.append(Trial(case.name, case, load_model(path, shapes), inputs, expected))
            except ModelError as error:
                # of the variant with the most constants
                results[case.name] = f"refused: {str(error).removeprefix(f'model {path}: ')}"
    with unoptimized():
        generated = list(run_generated([(trial.graph, trial.inputs) for trial in trials], folder))
    for trial, found in zip(trials, generated, strict=True):
        if not results.get(trial.name, "").startswith("wrong"):
            results[trial.name] = "passed"
        for what, outputs in (("reference", run_reference(trial.graph, trial.inputs)), ("generated", found)):
            if text := difference(trial, cut(trial.graph, outputs)):
                results[trial.name] = f"wrong: {what}, inputs {', '.join(trial.inputs)}: {text}"
    return results


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        print(json.dumps(outcomes(node_cases(sys.argv[1:]), Path(scratch))))
