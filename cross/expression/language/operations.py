"""The operations of the scalar grammar: one row each, and little about a particular operation elsewhere.

A row says what an operation takes and gives, what it computes, what it costs, and how code generators write
it. To add one, add a row, and to functions.py what those who write expressions call.

`numpy` computes it on arrays: for the reference evaluator in float64 and in the integers' own dtypes, for the
tests' interpreter of loop nests in the dtype of the operands, for features in columns of configurations
(float64).

`llvm` and `c` hold a text for each kind of dtype (dtypes.py) that can be written at once. LLVM:

    "fadd", "icmp slt"   an instruction on two values, a comparison of two
    "fneg"               the instruction on one value
    "llvm.sqrt"          an intrinsic; the type's suffix is added
    "@erf"               a function of the C library, which takes scalars; for float32 an f is added

In C, {0} and {1} are the operands, {one} is 1, {f} what the dialect ends names of functions of the dtype in.
Where a text is missing, `expansion` says what to write instead, in terms of other operations, or the code
generator has a way of its own: vectors of exp, log, tanh and erf (llvm/functions.py), floor division.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import numpy as np

from cross.expression.language.dtypes import DTYPES

FLOAT: Final = ("float",)
INTEGER: Final = ("signed", "unsigned")
NUMBER: Final = (*FLOAT, *INTEGER)
BOOL: Final = ("bool",)
ANY: Final = (*NUMBER, *BOOL)
Expansion = Callable[..., Any]  # (call, *operands) -> term; call(name, *operands) is an operation on terms
CALLED: Final = 9  # precedence of operators that are printed as min(a, b)


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One row; see the head of this file. All operands have one dtype."""

    name: str
    arity: int
    kinds: tuple[str, ...]  # of dtypes that it takes
    numpy: Any  # a function of arrays; a numpy.ufunc where a reduction combines with it
    llvm: Mapping[str, str] = {}
    c: Mapping[str, str] = {}
    expansion: Expansion | None = None
    integer: Callable[[int, int], int] | None = None  # on Python integers, if index arithmetic may hold it
    only: str = ""  # the one dtype that it takes; "": all of its kinds
    result: str = ""  # dtype of the value; "": that of the operands
    cost: int = 1  # operations that it counts as in FLOP and features
    long: bool = False  # takes many instructions: worth storing where several nests read it
    precedence: int = 0  # of a `Binary` in printed nests; 0: the row is of a `Call`


def _by_kind(floating: str = "", signed: str = "", unsigned: str = "", truth: str = "") -> dict[str, str]:
    """The texts by kind; unsigned integers have that of signed ones unless they have their own."""
    texts = zip(ANY, (floating, signed, unsigned or signed, truth), strict=True)
    return {kind: text for kind, text in texts if text}


def _infix(name: str, *, llvm: dict[str, str], c: str = "", **rest: Any) -> Operation:
    """A row of an operator that C writes between its operands."""
    kinds = tuple(llvm)
    written = dict.fromkeys(kinds, f"({{0}} {c or name} {{1}})")
    return Operation(name=name, arity=2, kinds=kinds, llvm=llvm, c=written, **rest)


def _integer(name: str, **rest: Any) -> Operation:
    """A row of an operator on two integers."""
    return Operation(name=name, arity=2, kinds=INTEGER, **rest)


def _extreme(name: str, numpy: Any, integer: Callable[[int, int], int]) -> Operation:
    """A row of "min" or "max"; a NaN on either side is the result."""
    return Operation(
        name=name, arity=2, kinds=NUMBER, numpy=numpy, integer=integer, precedence=CALLED,
        llvm=_by_kind(f"llvm.{name}imum", f"llvm.s{name}", f"llvm.u{name}"),
    )  # fmt: skip


def _function(name: str, numpy: Any, llvm: str = "", c: str = "", **rest: Any) -> Operation:
    """A row of a function on floats, of one argument unless `arity` is given; C has its name, or text `c`."""
    arity, written = rest.pop("arity", 1), _by_kind(c or f"{name}{{f}}({{0}})")
    return Operation(name=name, arity=arity, kinds=FLOAT, numpy=numpy, llvm=_by_kind(llvm), c=written, **rest)


def _ceildiv(left: Any, right: Any, out: Any = None) -> Any:
    """The quotient rounded up, as a numpy function: of what is no array, too.

    `out` is float64, as the operands are then: exact below 2**53.
    """
    if out is not None:
        return np.ceil(np.divide(left, right, out), out)
    return np.negative(np.floor_divide(np.negative(left), right))


def _erf(value: Any) -> Any:
    return np.asarray(_erf_of_each(value)).astype(np.asarray(value).dtype)[()]


def numbers_of(words: Any, dtype: str) -> Any:
    """The numbers of a dtype in words, in a last dimension of their own, the one in the lowest bits first."""
    words = np.asarray(words)
    little = np.array(words, words.dtype.newbyteorder("<"), order="C")
    return little[..., None].view(np.dtype(dtype).newbyteorder("<"))


def numbers_in(function: str) -> tuple[str, str]:
    """The dtypes of the numbers in the words of either operand of one of BYTE_PRODUCTS."""
    if function == "wide_dot2":
        return "int16", "int16"
    return "uint8" if function in UNSIGNED_DATA else "int8", "int8"


def _dot(function: str) -> Callable[[Any, Any], Any]:
    """One of BYTE_PRODUCTS: the sum of the products of the numbers in two words each."""

    def dot(words: Any, weights: Any) -> Any:
        data, known = numbers_in(function)
        products = numbers_of(words, data).astype(np.int32) * numbers_of(weights, known)
        return products.sum(-1, dtype=np.int32)[()]

    return dot


def _by_shifts(call: Callable[..., Any], words: Any, weights: Any, signed: bool = True) -> Any:
    """The sum of the products of the bytes of int32, by shifts."""
    total: Any = None
    for shift in (0, 8, 16, 24):
        byte = call("&", call(">>", words, shift), 255)
        if signed:
            byte = call(">>", call("<<", words, 24 - shift), 24)
        weight = call(">>", call("<<", weights, 24 - shift), 24)
        product = call("*", byte, weight)
        total = product if total is None else call("+", total, product)
    return total


def _pairs_by_shifts(call: Callable[..., Any], words: Any, weights: Any) -> Any:
    """`wide_dot2` by shifts."""
    low = [call(">>", call("<<", item, 16), 16) for item in (words, weights)]
    high = [call(">>", item, 16) for item in (words, weights)]
    return call("+", call("*", *low), call("*", *high))


def _eights(name: str) -> Operation:
    """The products of eight bytes of each of two int64, which LLVM code has only."""
    kinds = ("signed",)
    return Operation(name=name, arity=2, kinds=kinds, only="int64", result="int32", numpy=_dot(name), cost=15)


def _pairs(name: str) -> Operation:
    """A row of `BYTE_BOUNDS`: the products of two bytes of each of two int16, which LLVM code has only."""
    kinds = ("signed",)
    return Operation(name=name, arity=2, kinds=kinds, only="int16", result="int32", numpy=_dot(name), cost=3)


BYTE_BOUNDS: Final = {"dot2": 128, "dot2x2": 127, "dot2x4": 63}
"""Products of pairs of bytes, and how large the second operand's bytes may be."""
SHARED_STEPS: Final = {"dot2": 1, "dot2x2": 2, "dot2x4": 4}
"""Steps of a sum of them that fit 16 bits together: each lane adds up as many products, of 128 * bound."""
WEIGHT_BOUNDS: Final = {**BYTE_BOUNDS, "narrow_dot4": 64}
"""How large the second operand's bytes may be. Of `narrow_dot4` two products fit 16 bits with a sign."""
WIDENED_BOUND: Final = 255
"""How large numbers that were bytes are."""
EIGHTS: Final = frozenset({"dot8", "sdot8"})
"""Products of eight bytes: of two rows with two columns at once, where a processor multiplies matrices."""
BYTE_PRODUCTS: Final = frozenset({"dot4", "sdot4", "wide_dot2", *WEIGHT_BOUNDS, *EIGHTS})
"""Sums of products of the numbers that words hold: bytes; of `wide_dot2` bytes widened to 16 bits."""
UNSIGNED_DATA: Final = frozenset({"dot4", "narrow_dot4", "dot8"})
"""Those whose first operand's bytes have no sign."""

_UNEVEN = "({0} % {1} != 0 && ({0} < 0) != ({1} < 0))"  # in C: 1 where a quotient was rounded up, else 0
_erf_of_each = np.frompyfunc(math.erf, 1, 1)
# Circular and hyperbolic functions and inverses. C libraries, OpenCL and CUDA have all of them, right to
# a few units in the last place at any magnitude.
TRIGONOMETRY: Final = {
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
}  # fmt: skip

BITS: Final = {"int32": "float32", "float32": "int32", "int64": "float64", "float64": "int64"}
"""The dtype of the operand of as_int32, as_float32, ...: the same bits as a number of the other kind."""


def _same_bits(dtype: str) -> Operation:
    source = BITS[dtype]
    kind = DTYPES[source].kind
    return Operation(
        name=f"as_{dtype}", arity=1, kinds=(kind,), only=source, result=dtype,
        llvm={kind: "bitcast"}, c={kind: f"as_{dtype}({{0}})"},
        numpy=lambda value: np.asarray(value).astype(source).view(dtype),
    )  # fmt: skip


OPERATIONS: Final = {
    row.name: row
    for row in (
        _infix("+", numpy=np.add, integer=operator.add, llvm=_by_kind("fadd", "add"), precedence=4),
        _infix("-", numpy=np.subtract, integer=operator.sub, llvm=_by_kind("fsub", "sub"), precedence=4),
        _infix("*", numpy=np.multiply, integer=operator.mul, llvm=_by_kind("fmul", "mul"), precedence=5),
        _infix("/", numpy=np.divide, llvm=_by_kind("fdiv"), precedence=5),
        _infix("&", numpy=np.bitwise_and, llvm=_by_kind(signed="and"), precedence=3),
        _infix("|", numpy=np.bitwise_or, llvm=_by_kind(signed="or"), precedence=3),
        _infix("^", numpy=np.bitwise_xor, llvm=_by_kind(signed="xor"), precedence=3),
        # by less than the bits that an element has
        _infix("<<", numpy=np.left_shift, llvm=_by_kind(signed="shl"), precedence=3),
        _infix(">>", numpy=np.right_shift, llvm=_by_kind(signed="ashr", unsigned="lshr"), precedence=3),
        # Quotients towards minus infinity, and remainders with the sign of the divisor.
        _integer(
            "//", numpy=np.floor_divide, integer=operator.floordiv, llvm={"unsigned": "udiv"}, precedence=5,
            c=_by_kind("", f"({{0}} / {{1}} - {_UNEVEN})", "({0} / {1})"),
        ),
        _integer(
            "%", numpy=np.remainder, integer=operator.mod, llvm={"unsigned": "urem"}, precedence=5,
            c=_by_kind("", f"({{0}} % {{1}} + {_UNEVEN} * {{1}})", "({0} % {1})"),
        ),
        _integer("ceildiv", numpy=_ceildiv, integer=lambda left, right: -(-left // right), precedence=CALLED),
        _extreme("min", np.minimum, min),
        _extreme("max", np.maximum, max),
        _infix(
            "<", numpy=np.less, integer=operator.lt, result="bool", precedence=3,
            llvm=_by_kind("fcmp olt", "icmp slt", "icmp ult", "icmp ult"),
        ),
        _infix(
            "<=", numpy=np.less_equal, integer=operator.le, result="bool", precedence=3,
            llvm=_by_kind("fcmp ole", "icmp sle", "icmp ule", "icmp ule"),
        ),
        _infix(
            "==", numpy=np.equal, integer=operator.eq, result="bool", precedence=3,
            llvm=_by_kind("fcmp oeq", "icmp eq", "icmp eq", "icmp eq"),
        ),
        _infix("and", numpy=np.logical_and, llvm=_by_kind(truth="and"), c="&&", result="bool", precedence=2),
        _infix("or", numpy=np.logical_or, llvm=_by_kind(truth="or"), c="||", result="bool", precedence=1),
        Operation(name="not", arity=1, kinds=BOOL, numpy=np.logical_not, c=_by_kind(truth="(!{0})")),
        Operation(
            name="neg", arity=1, kinds=NUMBER, numpy=np.negative, llvm=_by_kind("fneg"),
            c=_by_kind("(-{0})", "(-{0})"), expansion=lambda call, value: call("-", 0, value),
        ),
        Operation(
            name="abs", arity=1, kinds=("float", "signed"), numpy=np.abs, llvm=_by_kind("llvm.fabs"),
            c=_by_kind("fabs{f}({0})", "({0} < 0 ? -{0} : {0})"),  # OpenCL's abs is unsigned
            expansion=lambda call, value: call("max", value, -value),
        ),
        _function("exp", np.exp, "llvm.exp", long=True),
        _function("log", np.log, "llvm.log", long=True),
        _function("sqrt", np.sqrt, "llvm.sqrt"),
        _function("tanh", np.tanh, "llvm.tanh", long=True),
        _function("erf", _erf, "@erf", long=True),
        *(_function(name, function, f"@{name}", long=True) for name, function in TRIGONOMETRY.items()),
        *(_same_bits(dtype) for dtype in BITS),
        _function("floor", np.floor, "llvm.floor"),
        _function("ceil", np.ceil, "llvm.ceil"),
        _function("round", np.rint, "llvm.roundeven", "rint{f}({0})"),
        _function("fmod", np.fmod, "@fmod", "fmod{f}({0}, {1})", arity=2, long=True),
        _function("pow", np.power, "llvm.pow", "pow{f}({0}, {1})", arity=2, long=True),
        _function(
            "sigmoid", lambda x: 1 / (1 + np.exp(-x)), c="({one} / ({one} + exp{f}(-{0})))", long=True,
            expansion=lambda call, x: 1.0 / (1.0 + call("exp", -x)),
        ),
        Operation(
            name="dot4", arity=2, kinds=("signed",), only="int32", cost=7, numpy=_dot("dot4"),
            expansion=lambda call, x, w: _by_shifts(call, x, w, signed=False),
        ),
        Operation(
            name="narrow_dot4", arity=2, kinds=("signed",), only="int32", cost=7, numpy=_dot("narrow_dot4"),
            expansion=lambda call, x, w: _by_shifts(call, x, w, signed=False),
        ),
        Operation(
            name="wide_dot2", arity=2, kinds=("signed",), only="int32", cost=3, numpy=_dot("wide_dot2"),
            expansion=_pairs_by_shifts,
        ),
        Operation(
            name="sdot4", arity=2, kinds=("signed",), only="int32", numpy=_dot("sdot4"), cost=7,
            expansion=_by_shifts,
        ),
        *map(_pairs, BYTE_BOUNDS),
        *map(_eights, sorted(EIGHTS)),
    )
}  # fmt: skip
"""All rows by name."""

DOT_BYTES: Final = {
    "dot4": 4, "sdot4": 4, "narrow_dot4": 4, "wide_dot2": 2, **dict.fromkeys(BYTE_BOUNDS, 2),
    **dict.fromkeys(EIGHTS, 8),
}  # fmt: skip
"""How many bytes of a word, widened or not, an operation multiplies and sums."""

COMBINERS: Final = {"sum": "+", "prod": "*", "max": "max", "min": "min"}
"""The operation that a reduction combines elements with."""


def converted(value: Any, dtype: str) -> Any:
    """An array in another dtype, as a `Cast` has it (terms.py)."""
    array = np.asarray(value)
    with np.errstate(invalid="ignore"):
        found = array.astype(dtype)
    if array.dtype.kind == "f" and DTYPES[dtype].kind in INTEGER:
        limits, exact = np.iinfo(dtype), array.astype(np.float64)
        found[exact >= limits.max] = limits.max
        found[exact <= limits.min] = limits.min
        found[np.isnan(exact)] = 0
    return found


def neutral_value(combiner: str, dtype: str) -> float | int:
    """The neutral element of a reduction: 0, 1, or the end of the dtype's range that never wins."""
    floating = DTYPES[dtype].kind == "float"
    if combiner in ("sum", "prod"):
        number = 0 if combiner == "sum" else 1
        return float(number) if floating else number
    if floating:
        return math.inf if combiner == "min" else -math.inf
    limits = np.iinfo(dtype)
    return int(limits.max if combiner == "min" else limits.min)
