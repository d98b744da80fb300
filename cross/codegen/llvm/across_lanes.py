"""Short loops that combine neighbouring elements into one register: a vector that is halved again and again.

    for l in 16: s = s + x[l]       v = x[0..16];  v = v[0..8] + v[8..16];  ...  s = s + v

Such loops end reductions along memory, whose partial results lie side by side (rewrites/rfactor.py). Element
by element each addition would wait for the one before it.
"""

from __future__ import annotations

from boards.target import IN_ORDER_CPUS, Target
from cross.codegen.buffers import bound_extent
from cross.codegen.instructions import Value, shuffle
from cross.codegen.llvm.values import Values
from cross.expression.language.dtypes import FLOATS, ITEM_BYTES
from cross.expression.language.terms import Binary, walk
from cross.loopnest.nodes import For, Load, Scope, Store, Var
from cross.schedule.untuned import COMBINED_BYTES

COMBINED = frozenset({"+", "*", "max", "min"})
FEWEST = 4  # elements; an estimate: of fewer, the shuffles are as many instructions as are saved


def combine_across(loop: For, values: Values, target: Target) -> bool:
    """Write a loop in this way, if it is such a one; whether it is.

    Not on cores that issue in order, where the code generator orders loads itself.
    """
    found = None if target.cpu in IN_ORDER_CPUS else _combined(loop)
    environment = values.environment
    if found is None or environment.vector is not None:
        return False
    store, op, element = found
    extent = bound_extent(loop.extent, loop.var)
    power_of_two = extent & (extent - 1) == 0
    if not power_of_two or not FEWEST <= extent <= target.vector_lanes(ITEM_BYTES[store.buffer.dtype]):
        return False
    environment.vector, environment.used = (loop.var, 0, extent), extent
    place = values.place(element.buffer, element.indices)
    contiguous = place is not None and place.stride == 1
    vector = values.load(element) if contiguous else None
    environment.vector = None
    if vector is None:
        return False
    key = values.register(store.buffer, store.indices)
    environment.registers[key] = _of_two(values, op, environment.registers[key], _halved(values, op, vector))
    return True


def _combined(loop: For) -> tuple[Store, str, Load] | None:
    """The one statement of a loop that combines elements of memory into a register, and how."""
    match loop.body:
        case Store(buffer, indices, Binary(op, Load(register, places), Load(source) as element), None) if (
            op in COMBINED
        ):
            pass
        case _:
            return None
    registers = buffer.scope is Scope.REGISTER and source.scope is not Scope.REGISTER
    same = (register, places) == (buffer, indices) and buffer.dtype == source.dtype
    same = same and ITEM_BYTES[buffer.dtype] >= COMBINED_BYTES
    moves = any(term == Var(loop.var) for index in indices for term in walk(index))
    return (loop.body, op, element) if registers and same and not moves else None


def _halved(values: Values, op: str, vector: Value) -> Value:
    """All lanes of a vector combined."""
    while vector.lanes > 2:
        half = vector.lanes // 2
        low, high = (tuple(range(first, first + half)) for first in (0, half))
        vector = _of_two(values, op, *(values.writer.value(shuffle(vector, lanes)) for lanes in (low, high)))
    return _of_two(values, op, values.writer.extract(vector, 0), values.writer.extract(vector, 1))


def _of_two(values: Values, op: str, left: Value, right: Value) -> Value:
    if op in ("min", "max") and left.dtype in FLOATS:
        return values.arithmetic.extreme_of(op, left, right)
    return values.arithmetic.apply(op, [left, right])
