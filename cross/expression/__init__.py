"""WHAT to compute: index expressions.

    A, B = placeholder((64, 32), "A"), placeholder((32, 48), "B")
    k = reduce_axis(32, "k")
    C = compute((64, 48), lambda i, j: sum(A[i, k] * B[k, j], axis=k), name="C")
    matmul = Operator("matmul", (A, B), C)

Start at language/terms.py (the grammar), then functions.py, tensor.py, operator.py there. families/ (conv,
dense, ...) are ordinary users of this language; rewrites/ makes operators of operators.
"""

from cross.expression.language.functions import (
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
from cross.expression.language.operator import Operator, reachable, reads
from cross.expression.language.tensor import Axis, AxisKind, Tensor, compute, placeholder
from cross.expression.language.terms import Term, cast, select
