"""Networks of integers as networks of floats whose values say which integers they are.

QuantizeLinear and DequantizeLinear are no steps: a value that goes through both keeps its name, and has a
quantization. The numbers of constants are those that their integers stand for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.kernels.workloads import Array

UNSIGNED_SHIFT = 128


@dataclass(frozen=True, slots=True)
class Quantization:
    """A number is scale * (integer - zero), the integers being int8: uint8 moves down by 128, its zero too.

    `scales`: one, or one for each index of the dimension `axis`; then all zeros are 0.
    """

    scales: tuple[float, ...]
    zero: int
    axis: int = 0

    def integers(self, numbers: Array) -> Array:
        """Numbers as the int8 that stand for them."""
        found = np.rint(numbers / self._factors(numbers.ndim)) + self.zero
        return found.clip(-UNSIGNED_SHIFT, UNSIGNED_SHIFT - 1).astype(np.int8)

    def numbers(self, integers: Array) -> Array:
        """What integers of a file stand for; uint8 have not moved down there."""
        return (moved_down(integers) - self.zero) * self._factors(integers.ndim)

    def _factors(self, rank: int) -> Array:
        shape = [1] * rank
        if len(self.scales) > 1:
            shape[self.axis] = -1
        return np.reshape(self.scales, shape)


def moved_down(integers: Array) -> Array:
    """int8 and int32 as they are, uint8 less 128."""
    return integers.astype(np.int64) - (UNSIGNED_SHIFT if integers.dtype == np.uint8 else 0)


def moved_up(integers: Array) -> Array:
    """The uint8 that int8 have been."""
    return (integers.astype(np.int16) + UNSIGNED_SHIFT).astype(np.uint8)


class Pairs:
    """Removes QuantizeLinear and DequantizeLinear, node after node, and finds what each value is."""

    def __init__(self, constants: dict[str, Array]) -> None:
        self.quantization: dict[str, Quantization] = {}
        self._constants = constants
        self._names: dict[str, str] = {}  # the value behind each result of a removed node
        self._floats: set[str] = set()  # what other nodes read that went through no pair

    def name(self, name: str) -> str:
        """The value that a name stands for."""
        return self._names.get(name, name)

    def read(self, names: Iterable[str]) -> tuple[str, ...]:
        """The values that a node reads which stays."""
        names = tuple(names)
        self._floats |= set(names) - self._names.keys()
        return tuple(self.name(name) for name in names)

    def removed(
        self, operator: str, names: Iterable[str], output: str, attributes: Mapping[str, Any]
    ) -> bool:
        """Whether a node is one of a pair; then its output has another name.

        Raises:
            ValueError: it is of other integers than 8 bits, or its scales and zeros are not the value's.
            KeyError: a scale or a zero is computed.
        """
        if operator not in ("QuantizeLinear", "DequantizeLinear"):
            return False
        data, *parameters = names
        found = self._found(output, data, parameters, attributes)
        if operator == "DequantizeLinear" and data in self._constants:
            self._constants[output] = found.numbers(self._constants[data])
            self.quantization[output] = found
            return True
        value = self.name(data)
        if self.quantization.setdefault(value, found) != found:
            raise ValueError(f"{output}: expected a value of one quantization")
        self._names[output] = value
        return True

    def check(self) -> None:
        """Raise ValueError where a value is read as it was before it became integers, too."""
        both = self._floats & (self.quantization.keys() - self._constants.keys())
        if both:
            raise ValueError(f"{min(both)} is read as floats and as integers")

    def _found(
        self, output: str, data: str, names: Sequence[str], attributes: Mapping[str, Any]
    ) -> Quantization:
        scales = self._constants[names[0]].astype(np.float64).ravel()
        dtype = self._constants[data].dtype if data in self._constants else np.uint8
        zeros = self._constants[names[1]].ravel() if len(names) > 1 else np.zeros(1, dtype)
        if zeros.dtype not in (np.int8, np.uint8, np.int32):
            raise ValueError(f"{output}: expected integers of 8 bits, found {zeros.dtype}")
        moved = moved_down(zeros)
        if len(scales) == 1:
            return Quantization((float(scales[0]),), int(moved[0]))
        if moved.any():
            raise ValueError(f"{output}: expected zeros of 0 where each channel has a scale")
        axis = attributes.get("axis", 1) % max(1, self._constants[data].ndim)
        return Quantization(tuple(map(float, scales)), 0, axis)
