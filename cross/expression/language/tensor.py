"""Tensors: placeholders and what is computed from them, with the axes and reads of their bodies."""

from __future__ import annotations

import enum
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from cross.errors import ExpressionError
from cross.expression.language.dtypes import DTYPES, INDEX, ITEM_BYTES
from cross.expression.language.terms import Operand, Term, constant, walk


class AxisKind(enum.Enum):
    """A loop axis indexes the output (SPACE) or is summed over (REDUCE)."""

    SPACE = "space"
    REDUCE = "reduce"


class Axis(Term, frozen=True, gc=False, eq=False):
    """A loop axis 0 <= name < extent; compared by identity."""

    name: str
    extent: int
    kind: AxisKind = AxisKind.SPACE

    @property
    def dtype(self) -> str:
        return INDEX


class Read(Term, frozen=True, gc=False):
    """One element of a tensor."""

    tensor: Tensor
    indices: tuple[Term, ...]

    @property
    def dtype(self) -> str:
        return self.tensor.dtype

    @property
    def parts(self) -> tuple[Term, ...]:
        return self.indices

    def with_parts(self, *parts: Any) -> Term:
        return Read(self.tensor, parts)


class Reduce(Term, frozen=True, gc=False):
    """`combiner` (see COMBINERS) over the body for all values of the axes; only the root of a body."""

    combiner: str
    body: Term
    axes: tuple[Axis, ...]

    @property
    def dtype(self) -> str:
        return self.body.dtype

    @property
    def parts(self) -> tuple[Term, ...]:
        return (self.body,)

    def with_parts(self, *parts: Any) -> Term:
        return Reduce(self.combiner, parts[0], self.axes)


class Tensor(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A dense row-major tensor; `body` is None for a placeholder. Compared by identity.

    A computed tensor has one space axis per dimension, and `body` gives its element at those axes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    axes: tuple[Axis, ...] = ()
    body: Term | None = None

    def __getitem__(self, indices: Operand | tuple[Operand, ...]) -> Term:
        items = indices if isinstance(indices, tuple) else (indices,)
        if len(items) != len(self.shape):
            raise ExpressionError(
                f"tensor {self.name} has {len(self.shape)} dimensions {self.shape}, found {len(items)} "
                "indices"
            )
        return Read(self, tuple(constant(item, INDEX) for item in items))

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of the dense tensor."""
        return self.elements * ITEM_BYTES[self.dtype]

    @property
    def reduce_axes(self) -> tuple[Axis, ...]:
        """The axes that the body reduces over; empty without a reduction."""
        return self.body.axes if isinstance(self.body, Reduce) else ()


def reads_in(term: Term) -> list[Read]:
    """All reads in a term, also inside the indices of other reads, in order of appearance."""
    return [part for part in walk(term) if isinstance(part, Read)]


def placeholder(shape: tuple[int, ...], name: str, dtype: str = "float32") -> Tensor:
    """An input tensor.

    Raises:
        ExpressionError: a dimension is not positive, or the dtype is unknown.
    """
    _check(name, shape, dtype)
    return Tensor(name, tuple(shape), dtype)


def compute(
    shape: tuple[int, ...], body: Callable[..., Term], name: str = "compute", axes: Sequence[str] = ()
) -> Tensor:
    """A tensor computed element by element: `body` gets one axis per dimension.

    The axes take the names in `axes`, or those of the callable's parameters.

        C = compute((m, n), lambda i, j: sum(A[i, k] * B[k, j], axis=k), name="C")

    Raises:
        ExpressionError: the number of names or parameters is not that of the dimensions, or a reduction
            stands anywhere but at the root.
    """
    names = list(axes) or _parameter_names(body, len(shape), name)
    if len(names) != len(shape):
        raise ExpressionError(
            f"tensor {name}: shape has {len(shape)} dimensions, but there are {len(names)} axis names"
        )
    loops = tuple(Axis(axis, int(extent)) for axis, extent in zip(names, shape, strict=True))
    term = body(*loops)
    if not isinstance(term, Term):
        raise ExpressionError(f"tensor {name}: the body must give a term, found {type(term).__name__}")
    inner = term.body if isinstance(term, Reduce) else term
    if any(isinstance(part, Reduce) for part in walk(inner)):
        raise ExpressionError(
            f"tensor {name}: a reduction may stand only at the root of a tensor; compute it as a tensor of "
            "its own"
        )
    _check(name, shape, term.dtype)
    return Tensor(name, tuple(int(extent) for extent in shape), term.dtype, loops, term)


def _parameter_names(body: Callable[..., Term], rank: int, name: str) -> list[str]:
    parameters = list(inspect.signature(body).parameters.values())
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return [f"i{position}" for position in range(rank)]
    if len(parameters) != rank:
        raise ExpressionError(
            f"tensor {name}: shape has {rank} dimensions, but the body takes {len(parameters)} axes"
        )
    return [parameter.name for parameter in parameters]


def _check(name: str, shape: tuple[int, ...], dtype: str) -> None:
    if dtype not in DTYPES:
        raise ExpressionError(f"tensor {name}: unknown dtype {dtype!r}; known: {', '.join(DTYPES)}")
    for position, extent in enumerate(shape):
        if int(extent) < 1:
            raise ExpressionError(
                f"tensor {name}: dimension {position} must be at least 1, found {extent} in shape "
                f"{tuple(shape)}"
            )
