"""The model that is installed on a board, as a function of numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - numpy knows bfloat16 once it is imported
import msgspec
import numpy as np
from numpy.typing import NDArray

from boards.description import Board
from toolkit.bundle.manifest import TensorSpec, counters
from toolkit.errors import InputError, OutputError, writing
from toolkit.flash.job import run, slot_status
from toolkit.flash.values import FlashOptions, StartedVariant

Array = NDArray[Any]


class ModelRun(msgspec.Struct, frozen=True):
    """Outputs by name, cut where their size depends on data, the seconds of every run on the board, and the
    variant that ran.
    """

    bundle_id: str
    emulated: bool
    outputs: dict[str, Array]
    seconds: tuple[float, ...]
    variant: StartedVariant


def run_installed(
    board: Board, inputs: Mapping[str, Array], *, repeat: int = 1, options: FlashOptions | None = None
) -> ModelRun:
    """Run the board's current model `repeat` times. A model with one input takes it under the name "" too.

    Raises InputError (no bundle there, arrays that do not fit), VerificationError when the model fails,
    BoardUnreachable, BoardBusy.
    """
    options = options or FlashOptions()
    installed = slot_status(board, options)
    slot = installed.slot(installed.current)
    if slot is None:
        raise InputError(f"board {board.name} has no current bundle; flash one first")
    given = _named(inputs, slot.inputs)
    data = [_fitting(given, spec) for spec in slot.inputs]
    result = run(board, data, repeat, options)
    if result.bundle_id != slot.id:
        raise InputError(
            f"board {board.name}: bundle {result.bundle_id} became current while {slot.id} was asked to run; "
            "run it again"
        )
    arrays = {
        spec.name: np.frombuffer(raw, dtype=spec.dtype).reshape(spec.shape)
        for spec, raw in zip(slot.outputs, result.outputs, strict=True)
    }
    hidden = counters(slot.outputs)
    outputs = {spec.name: _cut(arrays, spec) for spec in slot.outputs if spec.name not in hidden}
    return ModelRun(result.bundle_id, board.emulated, outputs, result.seconds, result.variant)


def _cut(arrays: Mapping[str, Array], spec: TensorSpec) -> Array:
    """An output without the slices that do not count."""
    if not spec.count:
        return arrays[spec.name]
    kept = slice(0, max(int(arrays[spec.count]), 0))
    return arrays[spec.name][(slice(None),) * spec.dimension + (kept,)]


def read_array(path: Path | str) -> Array:
    """The array in a .npy file. Raises InputError."""
    try:
        array = np.load(path, allow_pickle=False)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}; check the path") from error
    except (ValueError, EOFError) as error:  # numpy's words advise to unpickle it, which runs what is in it
        raise InputError(
            f"{path} holds no array of numbers; expected a file written by numpy.save"
        ) from error
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path} holds several arrays; expected one, written by numpy.save")
    return array


def write_arrays(outputs: Mapping[str, Array], folder: Path | str) -> list[Path]:
    """One .npy file for each output, in order; / in a name becomes _. Raises OutputError."""
    folder = Path(folder)
    paths = []
    with writing("the outputs", folder, "name another folder with -o"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, array in outputs.items():
            path = folder / f"{name.replace('/', '_')}.npy"
            if path in paths:
                raise OutputError(f"two outputs would be written to {path}; nothing tells them apart")
            paths.append(path)
            np.save(paths[-1], array, allow_pickle=False)
    return paths


def _named(inputs: Mapping[str, Array], specs: Sequence[TensorSpec]) -> Mapping[str, Array]:
    """The arrays under the model's own input names."""
    if list(inputs) == [""] and len(specs) == 1:
        return {specs[0].name: inputs[""]}
    names = [spec.name for spec in specs]
    if sorted(inputs) != sorted(names):
        found = ", ".join(name or "one without a name" for name in inputs) or "none"
        raise InputError(
            f"the installed model takes the inputs {', '.join(names)}, found {found}; "
            "give each as NAME=FILE.npy"
        )
    return inputs


def _fitting(given: Mapping[str, Array], spec: TensorSpec) -> bytes:
    array = given[spec.name]
    if spec.dtype == "bfloat16" and array.dtype in (np.dtype("V2"), np.uint16):  # a file has the bits
        array = array.view(spec.dtype)
    if array.shape != spec.shape or array.dtype != np.dtype(spec.dtype):
        raise InputError(
            f"input {spec.name}: expected {spec.dtype} {list(spec.shape)} {spec.layout}, found {array.dtype} "
            f"{list(array.shape)}; convert the array"
        )
    return np.ascontiguousarray(array).tobytes()
