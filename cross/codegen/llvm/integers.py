"""Integers and comparisons of a bound loop nest as LLVM values: the lowest layer of values.py.

A variable is one of three things (`Environment`): a known integer (an unrolled iteration), an SSA value (a
loop that runs), or lanes start, start + 1, ... (a chunk of the vectorized loop). What is known about them
decides comparisons ahead of time, and moves the others to where they are the same for many.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import msgspec

from cross.codegen.instructions import Value, binary, comparison, conversion, integer, literal
from cross.codegen.llvm.arithmetic import Arithmetic
from cross.codegen.llvm.writer import Writer
from cross.errors import CompileError
from cross.expression.language.terms import Binary, Const, Int
from cross.loopnest.affine import Affine, Interval, affine, interval, substitute
from cross.loopnest.nodes import ZERO, Expr, Load, Var, add, fold, mul

INT32_MOST = 2**31 - 1


class Environment(msgspec.Struct):
    """What every variable in scope is, and the values of all register buffers."""

    integers: dict[str, int] = {}
    running: dict[str, tuple[Value, int]] = {}  # SSA value, depth of its block
    vector: tuple[str, int, int] | None = None  # variable, first value, lanes
    used: int = 0  # lanes of the vector that count, the first ones
    ranges: dict[str, Interval] = {}  # of the loops that run
    registers: dict[tuple[str, int, int], Value] = {}
    versions: dict[str, int] = {}  # of buffers that the function writes


class Integers(ABC):
    """Evaluates integers and comparisons of them at the current place of a writer."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.arithmetic = Arithmetic(writer)
        self.environment = Environment()
        self._differences: dict[int, tuple[object, Affine]] = {}
        self._moving: dict[tuple[tuple[int, int], ...], Expr] = {}
        self._variables: dict[int, tuple[object, frozenset[str]]] = {}
        self._reading: dict[int, tuple[object, bool]] = {}

    @property
    def lanes(self) -> int:
        return self.environment.vector[2] if self.environment.vector else 1

    def used_lanes(self) -> Value | None:
        """The mask of the lanes in use; None where that is all of them."""
        used, lanes = self.environment.used, self.lanes
        if lanes in (1, used):
            return None
        flags = ", ".join(f"i1 {'true' if lane < used else 'false'}" for lane in range(lanes))
        return Value(f"<{flags}>", "bool", lanes)

    def integer_or_lanes(self, expr: Expr) -> Value:
        """An integer expression; with the vector variable in it, one value per lane."""
        vector = self.environment.vector
        if vector is None or vector[0] not in self.variables(expr):
            return self.integer(expr)
        terms, constant = affine(expr)
        name, first, lanes = vector
        step = terms.pop(Var(name), None)
        if not isinstance(step, Int) or any(name in self.variables(term) for term in terms):
            return self.lanewise(expr)
        base: Expr = add(constant, Int(step.value * first))
        for term, coefficient in terms.items():
            base = add(base, mul(term, coefficient))
        start = self.writer.splat(self.integer(base), lanes)
        steps = ", ".join(f"i64 {step.value * lane}" for lane in range(lanes))
        return self.writer.value(binary("add", start, Value(f"<{steps}>", "int64", lanes)))

    def lanewise(self, expr: Expr) -> Value:
        """An integer expression that is not affine in the vector variable, lane by lane."""
        vector = self.environment.vector
        assert vector is not None
        name, first, lanes = vector
        return self.writer.join(
            [self.integer(substitute(expr, {Var(name): Int(lane)})) for lane in self.places(first, lanes)]
        )

    def places(self, first: int, lanes: int) -> list[int]:
        """The value of the vectorized loop in every lane; those not in use repeat the last one."""
        return [first + min(lane, self.environment.used - 1) for lane in range(lanes)]

    def integer(self, expr: Expr) -> Value:
        """A scalar integer, written into the outermost block where all its variables are known."""
        expr = self.folded(expr)
        if isinstance(expr, Int):
            return integer(expr.value)
        if isinstance(expr, Var):
            return self.running(expr.name)[0]
        if not isinstance(expr, Binary):
            return self.evaluate(expr)
        return self.arithmetic.apply(
            expr.op, [self.integer(expr.left), self.integer(expr.right)], self.depth_of(expr)
        )

    def folded(self, expr: Expr) -> Expr:
        """An integer with the variables of unrolled loops replaced, but in what it reads from memory."""
        integers = self.environment.integers
        if isinstance(expr, Var):
            return Int(integers[expr.name]) if expr.name in integers else expr
        if isinstance(expr, Binary) and integers and self.variables(expr) & integers.keys():
            return fold(expr.op, self.folded(expr.left), self.folded(expr.right))
        return expr

    def variables(self, expr: Expr) -> frozenset[str]:
        """As nodes.variables; kept, because each lane and each iteration of an unrolled loop asks for it."""
        found = self._variables.get(id(expr))
        if found is None:
            own = (expr.name,) if isinstance(expr, Var) else ()
            found = (expr, frozenset(own).union(*map(self.variables, expr.parts)))
            self._variables[id(expr)] = found
        return found[1]

    def reads(self, expr: Expr) -> bool:
        """Whether there is a load in an expression."""
        found = self._reading.get(id(expr))
        if found is None:
            found = (expr, isinstance(expr, Load) or any(map(self.reads, expr.parts)))
            self._reading[id(expr)] = found
        return found[1]

    @abstractmethod
    def evaluate(self, expr: Expr) -> Value:
        """The value of any expression here: an index may be read from memory. See values.py."""

    def depth_of(self, expr: Expr) -> int | None:
        """The depth of the outermost block where an integer can be computed; None: here, it reads memory."""
        if self.reads(expr):
            return None
        running = self.environment.running
        return max((running[name][1] for name in self.variables(expr) & running.keys()), default=0)

    def known_integers(self) -> dict[Expr, Expr]:
        """The variables of the unrolled loops, and what they are here."""
        return {Var(name): Int(value) for name, value in self.environment.integers.items()}

    def running(self, name: str) -> tuple[Value, int]:
        if name not in self.environment.running:
            raise CompileError(f"loop variable {name} is used outside its loop")
        return self.environment.running[name]

    def range_of(self, term: Expr) -> Interval | None:
        """Inclusive bounds of an integer expression here; None where they cannot be told."""
        environment = self.environment
        if isinstance(term, Var):
            if term.name in environment.integers:
                return environment.integers[term.name], environment.integers[term.name]
            if environment.vector is not None and term.name == environment.vector[0]:
                return environment.vector[1], environment.vector[1] + environment.used - 1
            return environment.ranges.get(term.name)
        return interval(substitute(term, self.known_integers()), environment.ranges)

    def uniform_comparison(self, expr: Binary) -> Value | None:
        """A comparison of indices that comes out alike in every lane, as a scalar; None where it may not.

        left - right = g + c * lane with c = 1 or -1 has one sign over all lanes when g is a multiple of
        the number of lanes (c = 1), or one less than one (c = -1): so it is at the seam of a concatenation
        or the edge of a padding that falls between vectors.
        """
        vector = self.environment.vector
        if vector is None or expr.op not in ("<", "<=") or scalar_variables(expr) is None:
            return None
        name, first, lanes = vector
        known = self.known_integers()
        terms, constant = affine(substitute(Binary("-", expr.left, expr.right), known))
        step = terms.pop(Var(name), Int(0))
        multiples = [coefficient for coefficient in terms.values() if isinstance(coefficient, Int)]
        if not isinstance(constant, Int) or step not in (Int(1), Int(-1)) or len(multiples) < len(terms):
            return None
        if any(coefficient.value % lanes for coefficient in multiples) or any(
            name in self.variables(term) for term in terms
        ):
            return None
        start = constant.value + step.value * first - (1 if expr.op == "<=" else 0)
        if start % lanes != (0 if step.value == 1 else lanes - 1):
            return None
        at_first = substitute(expr, {**known, Var(name): Int(first)})
        if isinstance(at_first, Const):
            return literal(at_first.value, "bool")
        return self.integer(at_first)

    def decided(self, expr: Binary) -> Value | None:
        """A comparison of indices that has one outcome here, whatever the loops that run have come to.

        So the guards of a padding vanish from all but the pixels of a tile that may lie in it.
        """
        form = self.difference(expr)
        if form is None:
            return None
        terms, constant = form
        ends = self.ends_of(terms)
        if ends is None:
            return None
        low, high = (constant + end for end in ends)
        least = 0 if expr.op == "<=" else 1  # what right - left is where the comparison holds
        if expr.op == "==":
            return literal(False, "bool") if low > 0 or high < 0 else None
        if low >= least or high < least:
            return literal(low >= least, "bool")
        return None

    def ends_of(self, terms: Mapping[Expr, int]) -> tuple[int, int] | None:
        """The least and the largest that a sum of terms comes to; None where that is not known."""
        low = high = 0
        for term, coefficient in terms.items():
            bounds = self.range_of(term)
            if bounds is None:
                return None
            least, most = sorted(bound * coefficient for bound in bounds)
            low, high = low + least, high + most
        return low, high

    def difference(self, expr: Binary) -> tuple[dict[Expr, int], int] | None:
        """right - left of a comparison of indices, with what is known here in the constant."""
        if expr.op not in ("<", "<=", "=="):
            return None
        found = self._differences.get(id(expr))
        if found is None:
            pure = scalar_variables(expr) is not None
            found = (expr, affine(Binary("-", expr.right, expr.left)) if pure else ({}, expr))
            self._differences[id(expr)] = found
        terms, constant = found[1]
        if not isinstance(constant, Int):
            return None
        integers, total, left = self.environment.integers, constant.value, {}
        for term, coefficient in terms.items():
            if not isinstance(coefficient, Int):
                return None
            if isinstance(term, Var) and term.name in integers:
                total += coefficient.value * integers[term.name]
            else:
                left[term] = coefficient.value
        return left, total

    def compared(self, expr: Binary) -> Value | None:
        """A comparison of indices as one of a sum of loop variables with a constant, or one for each lane.

        All pixels of a tile then compare the same sum, each with a constant of its own. Lanes compare 32
        bits: masks of 64 would be packed together for the floats that they choose.
        """
        form, vector = self.difference(expr), self.environment.vector
        if form is None or expr.op == "==" or not form[0]:
            return None
        terms, constant = form
        step = 0 if vector is None else terms.pop(Var(vector[0]), 0)
        if vector is not None and any(vector[0] in self.variables(term) for term in terms):
            return None
        least = (0 if expr.op == "<=" else 1) - constant  # what the terms come to where the comparison holds
        if step:
            return self.uniform_comparison(expr) or self._compared_lanes(terms, least, step)
        value, below = self._moving_sum(terms)
        if below:
            return self.writer.value(comparison("icmp sle", value, integer(-least)))
        return self.writer.value(comparison("icmp sge", value, integer(least)))

    def _compared_lanes(self, terms: Mapping[Expr, int], least: int, step: int) -> Value | None:
        """Whether terms and `step` times the vector variable come to at least so much, in each lane."""
        assert self.environment.vector is not None
        _, first, lanes = self.environment.vector
        needed = [least - step * (first + lane) for lane in range(lanes)]
        ends = self.ends_of(terms)
        if not terms or ends is None or max(map(abs, (*ends, *needed))) > INT32_MOST:
            return None
        value, below = self._moving_sum(terms)
        narrow = self.writer.splat(self.writer.value(conversion("trunc", value, "int32")), lanes)
        sign = -1 if below else 1
        bounds = ", ".join(f"i32 {sign * bound}" for bound in needed)
        return self.writer.value(
            comparison("icmp sle" if below else "icmp sge", narrow, Value(f"<{bounds}>", "int32", lanes))
        )

    def _moving_sum(self, terms: Mapping[Expr, int]) -> tuple[Value, bool]:
        """A sum of terms, or that of their negatives: which of them begins with one that is added."""
        below = next(iter(terms.values())) < 0
        key = tuple((id(term), -coefficient if below else coefficient) for term, coefficient in terms.items())
        moving = self._moving.get(key)
        if moving is None:  # of terms that live as long as `_differences`
            moving = ZERO
            for term, coefficient in terms.items():
                moving = add(moving, mul(term, Int(-coefficient if below else coefficient)))
            self._moving[key] = moving
        return self.integer(moving), below


def scalar_variables(expr: Expr) -> set[str] | None:
    """Variables of a pure integer expression; None where something else is in it."""
    if isinstance(expr, Var):
        return {expr.name}
    if isinstance(expr, Int):
        return set()
    if isinstance(expr, Binary):
        left, right = scalar_variables(expr.left), scalar_variables(expr.right)
        return None if left is None or right is None else left | right
    return None
