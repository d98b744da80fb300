"""The door for writing a bundle: built models, golden data and a key in, one deterministic file out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from boards.files import write_file
from toolkit.bundle import container, manifest
from toolkit.bundle.build import BuiltModel
from toolkit.bundle.manifest import Compatibility, CpuVariant, Golden, Manifest, TensorSpec
from toolkit.bundle.sign import SigningKey
from toolkit.errors import InputError, writing

GOLDEN_RTOL = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 4e-2}
"""What a model's outputs may differ by, of their largest magnitude, by how its values are stored."""


class GoldenData(msgspec.Struct, frozen=True):
    """What the self-test feeds and expects: one array per graph input and output, in their order.

    Outputs come from a reference of the model, not from the kernels that they are to check.
    """

    inputs: tuple[NDArray[Any], ...]
    outputs: tuple[NDArray[Any], ...]
    rtol: float = GOLDEN_RTOL["float32"]


class BundleContents(msgspec.Struct, frozen=True):
    """All that goes into a bundle; the models of all targets have the same graph inputs and outputs.

    A board starts the first model whose device it has, so the one that should run comes first.
    """

    name: str
    tool_version: str
    boards: tuple[str, ...]
    """Names of the boards it may be flashed to."""
    models: tuple[BuiltModel, ...]
    golden: GoldenData
    counter: int
    """Higher than that of every earlier bundle of this name, whoever signed it: seconds since 1970 serve."""
    notes: dict[str, Any] = {}


def pack(contents: BundleContents, key: SigningKey) -> bytes:
    """The bundle file's bytes; the same contents and key give the same bytes.

    Nothing is compiled or linked here. Raises InputError when models or golden data contradict each other.
    """
    _check(contents)
    variants = [built.variant for built in contents.models]
    parts = {path: data for built in contents.models for path, data in built.parts.items()}
    first = contents.models[0].plan
    inputs = _golden_parts("input", first.inputs, contents.golden.inputs)
    outputs = _golden_parts("output", first.outputs, contents.golden.outputs)
    parts |= inputs | outputs
    signed = manifest.encode(
        Manifest(
            format=manifest.FORMAT,
            name=contents.name,
            counter=contents.counter,
            tool_version=contents.tool_version,
            compatibility=Compatibility(
                boards=contents.boards,
                machines=tuple(sorted({v.architecture for v in variants if isinstance(v, CpuVariant)})),
                memory_bytes=max(v.workspace_bytes + v.parameters_bytes for v in variants),
            ),
            inputs=first.inputs,
            outputs=first.outputs,
            variants=tuple(variants),
            golden=Golden(inputs=tuple(inputs), outputs=tuple(outputs), rtol=contents.golden.rtol),
            parts=tuple(manifest.part_of(path, parts[path]) for path in sorted(parts)),
            notes=contents.notes,
        )
    )
    return container.assemble(signed, key.sign(signed), [parts[path] for path in sorted(parts)])


def write(bundle: bytes, path: Path) -> None:
    """Put the bundle in `path` whole or not at all; raises OutputError when it cannot be written."""
    with writing("the bundle", path, "name another place with -o"):
        write_file(path, bundle)


def _check(contents: BundleContents) -> None:
    """Raise InputError unless there are models, of different targets, with the same inputs and outputs."""
    if not contents.models:
        raise InputError(f"bundle {contents.name!r} has no model; expected one for at least one target")
    names = [built.target.name for built in contents.models]
    if len(names) != len(set(names)):
        raise InputError(f"bundle {contents.name!r}: two models for one target among {', '.join(names)}")
    first = contents.models[0].plan
    for built in contents.models:
        if (built.plan.inputs, built.plan.outputs) != (first.inputs, first.outputs):
            raise InputError(
                f"bundle {contents.name!r}: the model for {built.target.name!r} has other inputs or outputs "
                f"than the model for {names[0]!r}"
            )


def _golden_parts(
    role: str, specs: tuple[TensorSpec, ...], arrays: tuple[NDArray[Any], ...]
) -> dict[str, bytes]:
    """Part path to raw bytes for each array; raises InputError when one is not what its tensor says."""
    if len(arrays) != len(specs):
        raise InputError(f"golden {role}s: expected {len(specs)} arrays, found {len(arrays)}")
    parts = {}
    for number, (spec, array) in enumerate(zip(specs, arrays, strict=True)):
        if array.shape != spec.shape or array.dtype != np.dtype(spec.dtype):
            raise InputError(
                f"golden {role} {number} ({spec.name}): expected {spec.dtype} {spec.shape}, "
                f"found {array.dtype} {array.shape}"
            )
        if not np.all(np.isfinite(array)):
            raise InputError(f"golden {role} {number} ({spec.name}) holds values that are not finite")
        parts[f"golden/{role}-{number:03d}.bin"] = np.ascontiguousarray(array).tobytes()
    return parts
