"""The arrays that a kernel is checked and timed on: inputs of many kinds, and the reference's outputs.

A wrong kernel is found by data on which it is wrong by more than the check allows, which is relative to the
largest output. So the kinds differ in what they make decisive: numbers of one magnitude each (functions have
branches for small and for large arguments), of one sign (a reduction that starts from 0), whole ones (corners
of functions, ties), places near the ends of tensors; and in the last sets every element of an input has its
turn at being larger, or smaller, than all around it, without which a maximum may leave it out. A maximum of
sums has its turns through the factors of these. How many sets there are follows from what they cost: dozens
for what takes microseconds, four for large operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from cross.expression.language.dtypes import FLOATS
from cross.expression.language.operations import OPERATIONS
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import Axis, Read, Reduce, Tensor, reads_in
from cross.expression.language.terms import Call, Term, walk
from cross.expression.reference import evaluate
from cross.expression.reference.ties import nudged_stages
from device_runtime.protocol import HALF_FLOATS, unwritten_byte
from toolkit.measure.numbers_in_words import numbers_in_words

Array = NDArray[Any]

LARGE: Final = 256.0
"""Beyond the thresholds of activations (6) and of exp() (104). Not far beyond, less in long sums, and one
factor of a product: an activation of a sum shows what that was rounded by, most of all by Winograd's way."""
SOME: Final = 4.0  # of a sparse array, and of a large one of float16, whose largest number is 65504
SMALL: Final = 1e-3  # exp(x) - 1 has an error of 6e-8: of smaller numbers it would be more than 1e-4
ZEROS: Final = 0.75  # of a sparse array; half of them are negative zeros
FEW_BYTES: Final = 4  # the magnitude of bytes of the plain set: sums do not saturate
SCALES: Final = (1.0, 100.0, SOME, 1.0, 200.0, 1.0, SOME)
"""Of one input of each set in which every element has its turn; sums are about as large as their elements.
In most sets functions are tried where they vary, as the code for a vector's rest computes one element a set.
In the others they are beyond their thresholds (3 of hard ones, 3.8 of erf(), 7.9 of tanh(), -87.3 and 88.7 of
exp()), beside results of hundreds; beside those of LARGE an error of 1 is less than 1e-4."""
PEAK: Final = 300.0
"""Of one factor of sums whose maximum is subtracted before an e^x. A wrong maximum cancels in what the sum of
the e^x divides, until one is infinite (88.7) or all are 0 (-104): the maxima of most rows lie farther apart.
Sums of twice as much are rounded by 4e-5, and what e^x makes of two equal ones by a quarter of that."""
ROUNDED: Final = 3000.0
"""Sums of so many numbers of magnitude 1, or of fewer larger ones, are rounded by about 3e-5 where they are
added one by one (each by 3e-8 of a partial sum, on average a third of its terms' magnitude): the tanh() of a
right kernel's sum is within 1e-4 of the largest, which is 1."""
OF_POSITIVES: Final = {"log", "pow", "sqrt"}  # functions that give NaN of negative numbers
FEWER: Final = 0.75  # of the results that are NaN: by chance about as many are
FEW: Final = 512  # elements of an output or of a constant
LEAST, USUAL, MOST = 2, 24, 64  # sets beside the plain and the large one
POINTS: Final = 3 << 19  # elements that all of these may read or compute: about a millisecond
DATA_BYTES: Final = 4 << 20  # of all of these; they are uploaded once
CONSTANT_BYTES: Final = 16 << 10  # of one constant in several sets: each packing of it is uploaded


class TrialData(msgspec.Struct, frozen=True):
    """One run of an operator: inputs in its order, and what the last argument of its program must be then.

    `most`: where floats which depend on who computes them are rounded to integers, the largest numbers that
    are right, and `expected` has the least; None: there is one right answer.
    """

    inputs: tuple[Array, ...]
    expected: Array
    most: Array | None = None


Change = Callable[[Array, np.random.Generator], Array]


def trial_data(operator: Operator, rng: np.random.Generator) -> tuple[TrialData, ...]:
    """Random data for an operator, evaluated by the numpy reference: plain, large, and at least LEAST more.

    Kernels are timed on the plain set. A constant that is the same as in the plain set is the same array.
    """
    bounds, longest = numbers_in_words(operator), _longest_sum(operator)
    root, constants = math.sqrt(max(1, longest)), operator.constants
    plain = [
        replace(bounds[place], bound=FEW_BYTES).words(tensor.shape, tensor.dtype, rng)
        if place in bounds
        else _plain(tensor.shape, tensor.dtype, rng)
        for place, tensor in enumerate(operator.inputs)
    ]

    positive = _rooted(operator, plain)
    plain = [np.abs(array) if place in positive else array for place, array in enumerate(plain)]

    def of(position: int, array: Array, change: Change, chosen: int) -> Array:
        if position in bounds and (change in (_large, _reversed) or isinstance(change, _Turn)):
            return bounds[position].words(array.shape, array.dtype, rng)
        if isinstance(change, _Turn):
            scale = min(change.scale, ROUNDED / root) if position == chosen else 1.0
            change = replace(change, scale=scale if position else scale / root)
        elif isinstance(change, _Peak):
            change = replace(change, position=position)
        elif change is _large and longest and str(array.dtype) in FLOATS:
            return _other(array, rng) if position else _large(array, rng, 4 * ROUNDED / longest)
        return change(array, rng)

    def changed(place: int, change: Change) -> list[Array]:
        own = [
            number for number, array in enumerate(plain) if number not in constants or _varies(array, place)
        ]
        further = [number for number in own if number and str(plain[number].dtype) in FLOATS]
        # of a product only one factor is large; a bias in turn, which an image's padding adds nothing to
        chosen = further[place // 2 % len(further)] if further and place % 2 else 0
        signless = positive if change is not _negative else set()
        found = {number: of(number, plain[number], change, chosen) for number in own}
        found |= {number: np.abs(found[number]) for number in signless.intersection(own)}
        return [found.get(number, array) for number, array in enumerate(plain)]

    sets = [plain, *(changed(place, change) for place, change in enumerate(_changes(operator)))]
    return tuple(TrialData(tuple(inputs), *_written(operator, inputs)) for inputs in sets)


def _rooted(operator: Operator, plain: Sequence[Array]) -> set[int]:
    """The inputs, by position, of which a root or a logarithm is taken: positive, they leave fewer NaN.

    Near 0, of either sign, rounding decides whether there is a number at all.
    """
    terms = [term for stage in operator.stages if stage.body is not None for term in walk(stage.body)]
    if not any(isinstance(term, Call) and term.function in OF_POSITIVES for term in terms):
        return set()

    def undefined(positive: set[int]) -> int:
        inputs = [np.abs(array) if place in positive else array for place, array in enumerate(plain)]
        return int(np.isnan(evaluate(operator, inputs)).sum())

    most = undefined(set())
    chosen = {place for place, array in enumerate(plain) if str(array.dtype) in FLOATS}
    if not most or (least := undefined(chosen)) > FEWER * most:
        return set()
    for place in sorted(chosen):  # each that need not be positive keeps its signs
        if undefined(chosen - {place}) <= least:
            chosen -= {place}
    return chosen


def _varies(constant: Array, place: int) -> bool:
    """Whether a constant has values of its own in the set: every packing of them is uploaded."""
    return constant.size < FEW if place == 0 else place * constant.nbytes <= CONSTANT_BYTES


def _changes(operator: Operator) -> list[Change]:
    """How each further set is made from the plain one."""
    reduced = [(_combiner(stage), _reduced(stage)) for stage in operator.stages]
    widest = max((extent for combiner, extent in reduced if combiner in ("max", "min")), default=0)
    summed = _longest_sum(operator) > 0
    named = [_small, _sparse, _whole, _negative]
    if operator.output.elements < FEW and not summed:
        named.append(_reversed)
    count = _affordable(operator, min(MOST, max(USUAL, widest + len(named))))
    extents = sorted({extent for tensor in operator.inputs for extent in tensor.shape}) or [1]
    turns = max(0, count - len(named))
    factors = _factors(operator)
    peaks = 2 * turns // 3 if factors else 0
    classes = _prime(turns - peaks)
    # Where a maximum is of few elements, each of them is the largest in several sets.
    places = max((operator.inputs[at].shape[factor.dimension] for at, factor in factors.items()), default=1)
    return [
        _large,
        *named[:count],
        *(
            _Turn(number % classes, classes, SCALES[number % len(SCALES)], extents[number % len(extents)])
            for number in range(turns - peaks)
        ),
        *(_Peak(number % places, min(peaks, places), factors) for number in range(peaks)),
    ]


class _Factor(msgspec.Struct, frozen=True):
    """Of an input: the dimension along which a maximum is taken, and of sums of how many products with its
    elements; `summed`: whether it is one of sums at all, be it of one product each."""

    dimension: int
    length: int
    summed: bool


def _factors(operator: Operator) -> dict[int, _Factor]:
    """The inputs, by position, that the maximum of a softmax of sums runs along; empty without one."""
    found: dict[int, _Factor] = {}

    def follow(tensor: Tensor, axis: Axis, length: int, summed: bool) -> None:
        for read in reads_in(tensor.body) if tensor.body is not None else ():
            if axis in read.indices:
                dimension = read.indices.index(axis)
                if read.tensor in operator.inputs:
                    found[operator.inputs.index(read.tensor)] = _Factor(dimension, length, summed)
                else:
                    of_sum = summed or bool(read.tensor.reduce_axes)
                    follow(read.tensor, read.tensor.axes[dimension], length * _reduced(read.tensor), of_sum)

    for stage in operator.stages:
        if _combiner(stage) == "max" and _is_subtracted(stage, operator):
            for axis in stage.reduce_axes:
                follow(stage, axis, 1, False)
    return found if any(factor.summed for factor in found.values()) else {}


def _is_subtracted(maximum: Tensor, operator: Operator) -> bool:
    """Whether a function reads both a maximum and what it is of, as the e^x of a softmax does."""
    assert maximum.body is not None
    wanted = {maximum, *(read.tensor for read in reads_in(maximum.body))}
    return any(
        isinstance(term, Call)
        and OPERATIONS[term.function].long
        and wanted <= {r.tensor for r in reads_in(term)}
        for stage in operator.stages
        for term in (walk(stage.body) if stage.body is not None else ())
    )


def _affordable(operator: Operator, most: int) -> int:
    points = sum(stage.elements * _reduced(stage) for stage in operator.stages)
    points += sum(tensor.elements for tensor in operator.inputs)
    changing = [item for place, item in enumerate(operator.inputs) if place not in operator.constants]
    data_bytes = sum(item.elements * np.dtype(item.dtype).itemsize for item in changing)
    data_bytes += math.prod(operator.written) * np.dtype(operator.output.dtype).itemsize
    return max(LEAST, min(most, POINTS // max(points, 1), DATA_BYTES // max(data_bytes, 1)))


def _longest_sum(operator: Operator) -> int:
    """The most elements that a stage adds or multiplies to one, the larger the larger the inputs are; 0 where
    none does. What reads an input through a function alone does not grow with it, as the sum of a softmax."""
    growing: set[Tensor] = set(operator.inputs)

    def grows(term: Term) -> bool:
        if isinstance(term, Read):
            return term.tensor in growing
        bounded = isinstance(term, Call) and OPERATIONS[term.function].long
        return not bounded and any(map(grows, term.parts))

    longest = 0
    for stage in operator.stages:
        if stage.body is not None and grows(stage.body):
            growing.add(stage)
            if _combiner(stage) in ("sum", "prod"):
                longest = max(longest, _reduced(stage))
    return longest


def _combiner(stage: Tensor) -> str:
    return stage.body.combiner if isinstance(stage.body, Reduce) else ""


def _reduced(stage: Tensor) -> int:
    """How many elements are combined to one of a stage."""
    return math.prod(axis.extent for axis in stage.reduce_axes)


def _prime(number: int) -> int:
    """The largest prime up to a number, at least 2: no tensor's rows are likely to be multiples of it."""
    while number > 2 and any(number % factor == 0 for factor in range(2, number)):
        number -= 1
    return max(2, number)


def _written(operator: Operator, inputs: Sequence[Array]) -> tuple[Array, Array | None]:
    """What the operator's program makes of a tensor of unwritten bytes: the least, and the most or None."""
    expected = evaluate(operator, inputs)
    if operator.output.dtype in HALF_FLOATS or not nudged_stages(operator):
        return _placed(operator, expected), None
    moved = (evaluate(operator, inputs, direction=direction) for direction in (-1.0, 1.0))
    outputs = np.stack([expected, *moved])
    return _placed(operator, outputs.min(0)), _placed(operator, outputs.max(0))


def _placed(operator: Operator, output: Array) -> Array:
    """The output in the tensor that the operator writes a part of."""
    if operator.destination is None:
        return output
    whole = np.full(operator.written, 0, output.dtype)
    whole.view(np.uint8)[...] = unwritten_byte(str(output.dtype))
    whole[operator.part] = output
    return whole


def _plain(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> Array:
    """Floats in [-1, 1), small integers: sums neither vanish nor overflow."""
    if dtype in FLOATS:
        return rng.uniform(-1.0, 1.0, shape).astype(dtype)
    low = 0 if np.dtype(dtype).kind in "ub" else -4
    return rng.integers(low, 2 if dtype == "bool" else 5, shape).astype(dtype)


def _large(plain: Array, rng: np.random.Generator, most: float = LARGE) -> Array:
    """Floats of all magnitudes up to `most`, as functions differ between 1 and 2, too: positive in the
    first three quarters, negative in the last, the extremes at the ends, so that a reduction that starts
    from a wrong value or leaves one out is wrong. They do not cancel, which would leave a sum to the
    rounding of what it was on the way: with as many negative ones that of 112x112 pixels was wrong by
    1.6e-4. Integers up to their type's end or 1000."""
    if str(plain.dtype) in FLOATS:
        largest = SOME if plain.dtype.itemsize == 2 else max(SOME, min(LARGE, most))
        values = np.abs(_other(plain, rng).ravel()) * largest ** rng.random(plain.size)
        values[3 * plain.size // 4 :] *= -1
        values[-1], values[0] = -largest, 1.5 * largest
        return values.reshape(plain.shape).astype(plain.dtype)
    if plain.dtype == np.bool_:
        return ~plain
    limits = np.iinfo(plain.dtype)
    low, high = max(limits.min, -1000), min(limits.max, 1000)
    return rng.integers(low, high, plain.shape, plain.dtype, endpoint=True)


def _reversed(plain: Array, rng: np.random.Generator) -> Array:
    """Large values with the order of the elements reversed."""
    return _large(plain, rng).ravel()[::-1].reshape(plain.shape)


def _sparse(plain: Array, rng: np.random.Generator) -> Array:
    """Most of them zero, floats of the others up to SOME."""
    values = _other(plain, rng)
    if str(plain.dtype) in FLOATS:
        values = (SOME * values).astype(plain.dtype)
    zeros = np.where(rng.random(plain.shape) < 0.5, 0.0, -0.0).astype(plain.dtype)
    return np.where(rng.random(plain.shape) < ZEROS, zeros, values)


def _small(plain: Array, rng: np.random.Generator) -> Array:
    """Positive: a minimum is not that of a wrong start, and functions are near their values at 0."""
    if str(plain.dtype) in FLOATS:
        return (SMALL * rng.uniform(0.5, 2.0, plain.shape)).astype(plain.dtype)
    return np.maximum(np.abs(_other(plain, rng)), 1).astype(plain.dtype)


def _negative(plain: Array, rng: np.random.Generator) -> Array:
    """Negative numbers near zero; positive ones where the type is unsigned, and nothing but false."""
    if plain.dtype == np.bool_:
        return np.zeros_like(plain)
    sign = 1 if plain.dtype.kind == "u" else -1
    return (sign * _small(plain, rng)).astype(plain.dtype)


def _whole(plain: Array, rng: np.random.Generator) -> Array:
    """Whole numbers: where functions have corners, and indices of either sign, more of them out of range."""
    low = 0 if plain.dtype.kind in "ub" else -3
    return rng.integers(low, 2 if plain.dtype == np.bool_ else 4, plain.shape).astype(plain.dtype)


class _Turn(msgspec.Struct, frozen=True):
    """Every `classes`-th element, from the `turn`-th on, is larger than all others, and as many are smaller:
    neighbours have other turns, along every dimension whose stride is no multiple of the prime `classes`.

    Floats of magnitude `scale`. Integers are places in a tensor's dimension of `extent` elements, some of
    them a little out of range.
    """

    turn: int
    classes: int
    scale: float
    extent: int

    def __call__(self, plain: Array, rng: np.random.Generator) -> Array:
        """An array like the plain one."""
        turns = np.arange(plain.size).reshape(plain.shape) % self.classes
        high, low = turns == self.turn, turns == (self.turn + self.classes // 2) % self.classes
        if plain.dtype == np.bool_:
            return np.where(high, self.turn % 2 == 1, self.turn % 2 == 0)
        if str(plain.dtype) in FLOATS:
            extremes = rng.uniform(1.5, 3.0, plain.shape) * np.where(high, 1.0, -1.0)
            scale = min(self.scale, 1.0 if plain.dtype.itemsize == 2 else self.scale)
            values = np.where(high | low, extremes, rng.uniform(-1.0, 1.0, plain.shape))
            return (scale * values).astype(plain.dtype)
        limits = np.iinfo(plain.dtype)
        values = rng.integers(-self.extent, self.extent, plain.shape, endpoint=True)
        values = np.where(high, self.extent + 1, np.where(low, -self.extent - 1, values))
        return values.clip(limits.min, limits.max).astype(plain.dtype)


class _Peak(msgspec.Struct, frozen=True):
    """Along the dimension of each of the `factors` every `classes`-th element, from the `turn`-th on, is far
    larger than all others. In other inputs, whose products with these are summed, one or two of a sum are not
    small, however long it is: else the sums of all rows would be alike, and so would be their maxima.

    `position`: of the input.
    """

    turn: int
    classes: int
    factors: Mapping[int, _Factor]
    position: int = 0

    def __call__(self, plain: Array, rng: np.random.Generator) -> Array:
        """An array like the plain one."""
        if str(plain.dtype) not in FLOATS:
            return _other(plain, rng)
        factor = self.factors.get(self.position)
        if factor is None:
            length = max(item.length for item in self.factors.values())
            return (rng.random(plain.shape) ** max(1.0, length / 2)).astype(plain.dtype)
        places = np.arange(plain.shape[factor.dimension]) % self.classes == self.turn
        shape = [-1 if place == factor.dimension else 1 for place in range(plain.ndim)]
        values = np.where(places.reshape(shape), PEAK, 1.0) * rng.uniform(0.5, 1.5, plain.shape)
        return values.astype(plain.dtype)


def _other(plain: Array, rng: np.random.Generator) -> Array:
    """The values of an array in another order."""
    return rng.permutation(plain.ravel()).reshape(plain.shape)
