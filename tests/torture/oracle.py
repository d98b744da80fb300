"""Is a compiled kernel right? Judged without the product's runtime: an electric fence, other data, numpy.

The kernel runs in a process of its own, on buffers that end directly before a page that nobody may touch, and
again on buffers that begin directly behind one, once alone and once with a pool of two threads.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cross.compile import Kernel
from cross.expression.language.operator import Operator
from cross.expression.reference import evaluate

Array = NDArray[Any]

LIBC = ctypes.CDLL(None, use_errno=True)
ALIGNMENT: Final = 64  # what a kernel may rely on
SLACK: Final = 0xC7  # in what alignment leaves between a buffer and its fence
DEADLINE_S: Final = 20
LIMIT: Final = 2e-4  # of the largest output: twice what docs/accuracy.md allows, so that a verdict is clear
ROUNDING: Final = 2.0**-18  # of Winograd's algorithms beside the largest sum, about (docs/accuracy.md)
DRAWS: Final = 5  # of how inputs are rounded: one alone hides in 4 of 100 cases that an output depends on it
RIGHT, WRONG = 0, 1

DRAWN: Final[tuple[Callable[[np.random.Generator, tuple[int, ...]], Array], ...]] = (
    lambda rng, shape: rng.standard_normal(shape),
    lambda rng, shape: rng.uniform(-30, 30, shape),
    lambda rng, shape: np.where(rng.random(shape) < 0.9, 0.0, rng.standard_normal(shape)),
    lambda rng, shape: rng.integers(-3, 4, shape).astype(np.float64),
    lambda rng, shape: rng.uniform(0.5, 2.0, shape) * 1e-3,
)


@dataclass(frozen=True, slots=True)
class Trial:
    """Inputs in the operator's order, what float64 makes of them, and how far that moves with what sums are
    rounded by: a tanh of thousands that cancel says more about the rounding than about the kernel."""

    inputs: tuple[Array, ...]
    expected: Array
    moved: float = 0.0


def trials(operator: Operator, rng: np.random.Generator) -> list[Trial]:
    """One of every kind of data; float32 only."""
    drawn = [
        tuple(draw(rng, tensor.shape).astype(tensor.dtype) for tensor in operator.inputs) for draw in DRAWN
    ]
    return [_trial(operator, inputs, rng) for inputs in drawn]


def _trial(operator: Operator, inputs: tuple[Array, ...], rng: np.random.Generator) -> Trial:
    expected = evaluate(operator, inputs, fast=False)
    moved = 0.0
    for _ in range(DRAWS):
        rounded = [
            (item * (1 + ROUNDING * rng.uniform(-1, 1, item.shape))).astype(item.dtype)
            if item.dtype.kind == "f"
            else item
            for item in inputs
        ]
        with np.errstate(invalid="ignore"):
            moves = np.abs(evaluate(operator, rounded) - expected.astype(np.float64))
        moved = max(moved, float(moves[np.isfinite(moves)].max(initial=0.0)))
    return Trial(inputs, expected, moved)


def verdict(library: Path, kernel: Kernel, data: Sequence[Trial]) -> str:
    """What is wrong with the kernel, "" for nothing."""
    words, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = WRONG
        try:
            os.close(words)
            signal.alarm(DEADLINE_S)
            text = _judged(library, kernel, data)
            os.write(said, text.encode())
            status = WRONG if text else RIGHT
        finally:
            os._exit(status)
    os.close(said)
    with os.fdopen(words, "rb") as stream:
        text = stream.read().decode()
    _, ended = os.waitpid(pid, 0)
    if os.WIFSIGNALED(ended):
        return f"killed by {signal.Signals(os.WTERMSIG(ended)).name}"
    return text or ("" if os.WEXITSTATUS(ended) == RIGHT else "the oracle itself failed")


def _judged(library: Path, kernel: Kernel, data: Sequence[Trial]) -> str:
    loaded = ctypes.CDLL(str(library))
    loaded.tfb_pool_create.restype = ctypes.c_void_p
    pool = ctypes.c_void_p(loaded.tfb_pool_create(2, None, 0))
    for number, trial in enumerate(data):
        for at_end, threads in ((True, None), (False, pool)):
            text = _once(loaded, kernel, trial, at_end, threads)
            if text:
                return f"data {number}, {'end' if at_end else 'start'} at the fence: {text}"
    return ""


def _once(
    library: ctypes.CDLL, kernel: Kernel, trial: Trial, at_end: bool, pool: ctypes.c_void_p | None
) -> str:
    arrays = [
        item if argument.packing is None else argument.packing.apply(item)
        for argument, item in zip(kernel.arguments, trial.inputs, strict=False)
    ]
    noise = np.random.default_rng(len(arrays)).bytes
    output = kernel.arguments[-1]
    sizes = [array.nbytes for array in arrays] + [output.elements * np.dtype(output.dtype).itemsize]
    memory = [Fenced(size, at_end) for size in [*sizes, kernel.workspace_bytes]]
    for fenced, content in zip(
        memory, [np.ascontiguousarray(item).tobytes() for item in arrays], strict=False
    ):
        fenced.put(content)
    memory[-2].put(b"\xff" * sizes[-1])
    memory[-1].put(noise(kernel.workspace_bytes))
    before = [fenced.content() for fenced in memory[:-2]]
    pointers = (ctypes.c_void_p * len(sizes))(*(fenced.address for fenced in memory[:-1]))
    status = library[kernel.symbol](pointers, ctypes.c_void_p(memory[-1].address), pool)
    if status != 0:
        return f"it returned {status}"
    if any(fenced.strayed() for fenced in memory):
        return "it wrote beside a buffer"
    if [fenced.content() for fenced in memory[:-2]] != before:
        return "it changed an input"
    got = np.frombuffer(memory[-2].content(), output.dtype).reshape(trial.expected.shape)
    return difference(got, trial.expected, trial.moved)


def difference(got: Array, expected: Array, moved: float = 0.0) -> str:
    """By more than LIMIT of the largest expected magnitude and what rounding may move; what is not finite
    must be the same."""
    finite = np.isfinite(expected)
    if not np.array_equal(np.isfinite(got), finite):
        return "other elements are finite"
    if not np.array_equal(got[~finite], expected[~finite], equal_nan=True):
        return "other infinities"
    errors = np.abs(got[finite].astype(np.float64) - expected[finite])
    largest = np.abs(expected[finite]).max(initial=0.0)
    if errors.max(initial=0.0) > max(LIMIT * largest + 2 * moved, 1e-30):
        return f"error {errors.max():g}, largest output {largest:g}"
    return ""


class Fenced:
    """Memory that ends before a page without rights, or begins behind one."""

    def __init__(self, size: int, at_end: bool) -> None:
        page = mmap.PAGESIZE
        room = -(-max(size, 1) // page) * page
        self._mapping = mmap.mmap(-1, room + 2 * page)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        self._size, self._first, self._last = size, base + page, base + page + room
        self.address = self._last - -(-size // ALIGNMENT) * ALIGNMENT if at_end else self._first
        ctypes.memset(self._first, SLACK, room)
        for fence in (base, self._last):
            assert LIBC.mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(page), 0) == 0

    def put(self, content: bytes) -> None:
        ctypes.memmove(self.address, content, len(content))

    def content(self) -> bytes:
        return ctypes.string_at(self.address, self._size)

    def strayed(self) -> bool:
        """Whether anything but the buffer itself was written."""
        end = self.address + self._size
        around = ctypes.string_at(self._first, self.address - self._first)
        around += ctypes.string_at(end, self._last - end)
        return around != bytes([SLACK]) * len(around)
