"""The whole way with a real network: SqueezeNet tuned for a board, bundled, flashed, self-tested, and shown.

    python -m benchmarks.demo [BOARD=host|emulated-a53|pocl] [TRIALS=32]

It runs the commands that a user would type, and prints each before it runs; what the installed model gives is
compared with what onnxruntime gives. Everything it makes lies in build/demo; Ctrl-C loses nothing that was
measured, and the same command goes on.
"""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import toolkit
from benchmarks.seeded_model import write

FOLDER = Path("build/demo")
NETWORK = "light_squeezenet"
WAIT = "--wait 2m"  # somebody else may hold the board
USAGE, WRONG = 2, 6
TOLERANCE = 1e-4
"""Largest error, as a share of the largest expected value, as in a self-test."""


def demo(board_name: str, trials: int) -> int:
    """Run the demo; the exit code of the first command that fails, otherwise 0."""
    started_s = time.monotonic()
    model = write(NETWORK, FOLDER / "squeezenet.onnx", seed=0)
    bundle, table = FOLDER / f"squeezenet-{board_name}.tfb", FOLDER / f"table-{board_name}.txt"
    records = FOLDER / f"records-{board_name}.db"
    image, outputs = write_image(model, FOLDER / "image.npy"), FOLDER / f"outputs-{board_name}"
    where = f"--board {board_name}"
    emulated = toolkit.load_board(board_name).emulated
    for command in (
        *(["runtime emulation"] if emulated else []),
        f"doctor {board_name}",
        f"boards probe {board_name} {WAIT}",
        f"tune {model} {where} --trials {trials} --records {records} -o {bundle} {WAIT}",
        f"flash {bundle} {where} {WAIT}",
        f"flash --status {where}",
        f"run {image} {where} -o {outputs} {WAIT}",
    ):
        if code := run(shlex.split(command), table if command.startswith("tune ") else None):
            return code
    error = relative_error(model, image, outputs)
    print(f"largest difference from onnxruntime: {error:.1e} of the largest value", flush=True)
    if not error <= TOLERANCE:
        print(f"error: expected at most {TOLERANCE:g}", file=sys.stderr)
        return WRONG
    print(f"\n{table.read_text()}\nthe demo took {time.monotonic() - started_s:.0f} s", flush=True)
    return 0


def write_image(model: Path, path: Path) -> Path:
    """Random values in the shape of the model's input, as a file."""
    (value,) = onnx.load(model).graph.input
    shape = [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
    np.save(path, np.random.default_rng(1).standard_normal(shape).astype(np.float32))
    return path


def relative_error(model: Path, image: Path, outputs: Path) -> float:
    """Largest difference of the outputs in a folder from onnxruntime's, over the largest of those."""
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    expected = session.run(None, {session.get_inputs()[0].name: np.load(image)})
    names = [output.name.replace("/", "_") for output in session.get_outputs()]
    found = [np.load(outputs / f"{name}.npy") for name in names]
    return max(
        float(np.abs(got - want).max() / np.abs(want).max())
        for got, want in zip(found, expected, strict=True)
    )


def run(arguments: Sequence[str], stdout: Path | None = None) -> int:
    """Run one command of the tool, its output into a file when asked; its exit code."""
    shown = f"toolkit {shlex.join(arguments)}" + (f" > {stdout}" if stdout else "")
    print(f"\n$ {shown}", flush=True)
    command = [sys.executable, "-m", "toolkit.cli", *arguments]
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(stdout.open("w")) if stdout else None
        process = stack.enter_context(subprocess.Popen(command, stdout=file))
        try:
            return process.wait()
        except KeyboardInterrupt:  # the command got it too, and says how to go on
            return process.wait()


def main(arguments: Sequence[str]) -> int:
    """Read NAME=VALUE words, as `make demo` passes them."""
    given = dict(word.split("=", 1) for word in arguments if "=" in word)
    unknown = {*given} - {"BOARD", "TRIALS"}
    if unknown or len(given) < len(arguments) or not given.get("TRIALS", "32").isdigit():
        print(f"expected BOARD=NAME and TRIALS=NUMBER, found {shlex.join(arguments)}", file=sys.stderr)
        return USAGE
    return demo(given.get("BOARD", "host"), int(given.get("TRIALS", "32")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
