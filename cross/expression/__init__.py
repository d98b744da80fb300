"""WHAT to compute: index expressions.

    A, B = placeholder((64, 32), "A"), placeholder((32, 48), "B")
    k = reduce_axis(32, "k")
    C = compute((64, 48), lambda i, j: sum(A[i, k] * B[k, j], axis=k), name="C")
    matmul = Operator("matmul", (A, B), C)

Start at terms.py (the grammar) and functions.py, then tensor.py, then operator.py. The families (conv, dense,
...) are ordinary users of this language.
"""

from cross.expression.functions import (
    absolute,
    ceil,
    equal,
    erf,
    exp,
    floor,
    log,
    logical_and,
    logical_not,
    logical_or,
    max,
    maximum,
    min,
    minimum,
    power,
    reduce_axis,
    sigmoid,
    sqrt,
    sum,
    tanh,
)
from cross.expression.operator import Operator, reachable, reads
from cross.expression.tensor import Tensor, compute, placeholder
from cross.expression.terms import Axis, AxisKind, Term, cast, select

__all__ = [
    "Axis",
    "AxisKind",
    "Operator",
    "Tensor",
    "Term",
    "absolute",
    "cast",
    "ceil",
    "compute",
    "equal",
    "erf",
    "exp",
    "floor",
    "log",
    "logical_and",
    "logical_not",
    "logical_or",
    "max",
    "maximum",
    "min",
    "minimum",
    "placeholder",
    "power",
    "reachable",
    "reads",
    "reduce_axis",
    "select",
    "sigmoid",
    "sqrt",
    "sum",
    "tanh",
]
