"""The rules of a loop nest as code that runs between passes.

`verify(nest)` raises VerifyError with the rule's name, the node and where it stands:

    unique-names        no two loops share a variable, no two buffers a name
    declared            every buffer and loop variable is used inside what declares it, as it was declared
    scopes              arguments, workspace and allocations live where their place says
    index-count         one index per dimension
    dtypes              both sides of an operation agree, conditions are bool, indices int64, stores fit
    read-only           inputs and constants are never written
    written-first       nothing is read that nothing has written before
    output-written      every output is written somewhere
    loop-kinds          vectorized loops hold stores only; parallel loops nest in nothing but parallel loops
  and of a bound nest:
    bound               no knob is left; extents and shapes are integers of at least 1
    register-index      registers are addressed by integers and unrolled or vectorized loops only
    register-scope      registers do not cross into a parallel loop
    in-bounds           every index stays within its dimension
    no-race             iterations that run at the same time do not meet (see races.py)
    barrier, own-registers  threads of a GPU's block meet in shared memory only where they may (threads.py)

In-bounds rests on interval analysis (bounds.py), so that an index that is read from memory must be clamped. A
load in a branch of a Select is checked under what the condition guarantees. Where a condition involves the
variables of the index but does not yield a proof, the load is left to the tests, which run it.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from cross.errors import VerifyError
from cross.expression.language.dtypes import DTYPES, INDEX
from cross.expression.language.operations import OPERATIONS
from cross.expression.language.terms import Binary, Call, Int, Lookup, Select
from cross.loopnest.bounds import UNKNOWN, Facts, Interval, assume, bounds, is_index
from cross.loopnest.nodes import (
    ONE,
    Allocate,
    Block,
    Buffer,
    Expr,
    For,
    Knob,
    Load,
    LoopKind,
    LoopNest,
    Scope,
    Statement,
    Store,
    Var,
    variables,
)
from cross.loopnest.printer import buffer_text, expression_text, loop_text, statement_text
from cross.loopnest.races import conflict
from cross.loopnest.threads import is_gpu, problem

CONCURRENT = (LoopKind.PARALLEL, LoopKind.VECTORIZED, LoopKind.BLOCK, LoopKind.THREAD)
STATIC = (LoopKind.UNROLLED, LoopKind.VECTORIZED, LoopKind.VIRTUAL_THREAD, LoopKind.THREAD)
"""Kinds of loops whose variable may name a register: it is known, or has only one value in a thread."""

MAX_EXCERPT = 200  # characters of a node in a message


def verify(nest: LoopNest, parametric: bool = False) -> None:
    """Checks every rule.

    Args:
        nest: the nest.
        parametric: it still has knobs, so that the rules of a bound nest cannot be checked.

    Raises:
        VerifyError: a rule is broken; the message starts with the rule's name.
    """
    _Verifier(nest, parametric).check()


class _Place(msgspec.Struct, frozen=True, gc=False):
    """Where a node stands: loops around it outermost first, buffers declared, facts of conditions."""

    loops: tuple[For, ...] = ()
    buffers: dict[str, tuple[Buffer, int]] = {}  # with the loops around it
    facts: Facts = ()
    guarded: frozenset[str] = frozenset()  # variables that occur in conditions around

    @property
    def ranges(self) -> dict[str, Interval]:
        return {loop.var: _range(loop) for loop in self.loops}

    def inside(self, loop: For) -> _Place:
        return replace(self, loops=(*self.loops, loop))

    def declaring(self, buffer: Buffer) -> _Place:
        return replace(self, buffers=self.buffers | {buffer.name: (buffer, len(self.loops))})

    def under(self, condition: Expr, holds: bool) -> _Place:
        facts = self.facts + assume(condition, holds)
        return replace(self, facts=facts, guarded=self.guarded | variables(condition))


def _range(loop: For) -> Interval:
    return (0, loop.extent.value - 1) if isinstance(loop.extent, Int) else UNKNOWN


class _Verifier:
    """One walk over a nest in program order."""

    def __init__(self, nest: LoopNest, parametric: bool) -> None:
        self.nest = nest
        self.parametric = parametric
        self.for_gpu = is_gpu(nest)
        self.loop_names: set[str] = set()
        self.buffer_names: set[str] = set()
        self.written: set[str] = set()

    def check(self) -> None:
        place = _Place()
        for buffer, scope in (
            *((item, Scope.ARGUMENT) for item in self.nest.arguments),
            *((item, Scope.WORKSPACE) for item in self.nest.workspace),
        ):
            self.declare(buffer, (scope,), place)
            place = place.declaring(buffer)
            if buffer.role in ("input", "constant"):
                self.written.add(buffer.name)
        self.statement(self.nest.body, place)
        if not self.parametric and self.for_gpu:
            broken = problem(self.nest)
            if broken is not None:
                self.fail(broken.rule, broken.text, replace(place, loops=broken.loops))
        for buffer in self.nest.arguments:
            if buffer.name not in self.written:
                self.fail("output-written", f"nothing writes the {buffer.role} {buffer.name}", place)

    def fail(self, rule: str, problem: str, place: _Place) -> None:
        path = " > ".join(loop_text(loop).rstrip(":") for loop in place.loops) or "the top level"
        raise VerifyError(f"{rule}: {problem} (in nest {self.nest.name}, at {path})")

    # ------------------------------------------------------------------------------------ statements

    def statement(self, statement: Statement, place: _Place) -> None:
        match statement:
            case For():
                self.loop(statement, place)
            case Block(statements):
                for item in statements:
                    self.statement(item, place)
            case Allocate(buffer, body):
                self.declare(buffer, (Scope.LOCAL, Scope.REGISTER, Scope.TILE, Scope.SHARED), place)
                if any(loop.kind is LoopKind.VECTORIZED for loop in place.loops):
                    self.fail("loop-kinds", f"allocation of {buffer.name} inside a vectorized loop", place)
                self.statement(body, place.declaring(buffer))
            case Store():
                self.store(statement, place)

    def declare(self, buffer: Buffer, scopes: tuple[Scope, ...], place: _Place) -> None:
        if buffer.name in self.buffer_names:
            self.fail("unique-names", f"two buffers are called {buffer.name}", place)
        self.buffer_names.add(buffer.name)
        if buffer.scope not in scopes:
            expected = " or ".join(scope.value for scope in scopes)
            self.fail("scopes", f"{buffer.name} is in {buffer.scope.value}, expected {expected}", place)
        roles = ("input", "constant", "output") if buffer.scope is Scope.ARGUMENT else ("",)
        if buffer.role not in roles:
            self.fail("scopes", f"{buffer.name} has role {buffer.role!r}, expected one of {roles}", place)
        for extent in buffer.shape:
            self.extent(extent, f"the shape of {buffer_text(buffer)}", place)

    def extent(self, extent: Expr, of: str, place: _Place) -> None:
        if variables(extent):
            self.fail("bound", f"{of} depends on a loop variable", place)
        if self.parametric:
            return
        if not isinstance(extent, Int) or extent.value < 1:
            text = expression_text(extent)
            self.fail("bound", f"{of}: expected an integer of at least 1, found {text}", place)

    def loop(self, loop: For, place: _Place) -> None:
        if loop.var in self.loop_names:
            self.fail("unique-names", f"two loops have the variable {loop.var}", place)
        self.loop_names.add(loop.var)
        self.extent(loop.extent, f"the extent of loop {loop.var}", place)
        if not (self.parametric and loop.extent == ONE):  # binding leaves out loops of one iteration
            self.kind(loop, place)
        self.statement(loop.body, place.inside(loop))
        if not self.parametric and loop.kind in CONCURRENT:
            found = conflict(loop, place.ranges)
            if found is not None:
                problem = f"{loop.kind.value} loop {loop.var} over buffer {found[0].name}: {found[1]}"
                self.fail("no-race", problem, place)

    def kind(self, loop: For, place: _Place) -> None:
        around = place.loops[-1].kind if place.loops else LoopKind.PARALLEL
        if around is LoopKind.VECTORIZED:
            self.fail("loop-kinds", f"loop {loop.var} inside a vectorized loop, expected only stores", place)
        if loop.kind is LoopKind.PARALLEL and around is not LoopKind.PARALLEL:
            self.fail("loop-kinds", f"parallel loop {loop.var} inside a loop that is not parallel", place)

    def store(self, store: Store, place: _Place) -> None:
        self.expression(store.value, place)
        if store.guard is not None:
            self.expression(store.guard, place)
            place = place.under(store.guard, True)
            if store.guard.dtype != "bool":
                self.fail("dtypes", f"guard of {_excerpt(store)} is {store.guard.dtype}", place)
        self.access(store.buffer, store.indices, store, place)
        if store.buffer.role in ("input", "constant"):
            self.fail("read-only", f"{_excerpt(store)} writes an {store.buffer.role}", place)
        if store.value.dtype != store.buffer.dtype:
            found = store.value.dtype
            self.fail("dtypes", f"{_excerpt(store)} stores {found} into {store.buffer.dtype}", place)
        self.written.add(store.buffer.name)

    # ----------------------------------------------------------------------------------- expressions

    def expression(self, expression: Expr, place: _Place) -> None:
        if isinstance(expression, Select):
            self.expression(expression.condition, place)
            self.expression(expression.then, place.under(expression.condition, True))
            self.expression(expression.otherwise, place.under(expression.condition, False))
        elif isinstance(expression, Load):
            self.access(expression.buffer, expression.indices, expression, place)
            if expression.buffer.name not in self.written:
                self.fail("written-first", f"{_excerpt(expression)} is read before it is written", place)
        elif isinstance(expression, Lookup):
            self.lookup(expression, place)
        else:
            for part in expression.parts:
                self.expression(part, place)
        self.names(expression, place)
        problem = _dtype_problem(expression)
        if problem:
            self.fail("dtypes", f"{problem} in {_excerpt(expression)}", place)

    def lookup(self, lookup: Lookup, place: _Place) -> None:
        extents = (len(lookup.matrix), len(lookup.matrix[0]))
        for index, extent in zip((lookup.row, lookup.column), extents, strict=True):
            self.expression(index, place)
            if index.dtype != INDEX:
                self.fail("dtypes", f"index {_excerpt(index)} is {index.dtype}, expected int64", place)
            low, high = bounds(index, place.ranges, place.facts)
            if not self.parametric and not (0 <= low and high < extent):
                problem = f"takes values in [{low:.0f}, {high:.0f}], expected [0, {extent - 1}]"
                self.fail("in-bounds", f"index {_excerpt(index)} of a matrix of literals {problem}", place)

    def names(self, expression: Expr, place: _Place) -> None:
        if isinstance(expression, Knob) and not self.parametric:
            self.fail("bound", f"knob {expression.name} is left", place)
        if isinstance(expression, Var) and all(loop.var != expression.name for loop in place.loops):
            self.fail("declared", f"loop variable {expression.name} is used outside its loop", place)

    def access(self, buffer: Buffer, indices: tuple[Expr, ...], node: Expr | Store, place: _Place) -> None:
        declared = place.buffers.get(buffer.name)
        if declared is None:
            self.fail("declared", f"{_excerpt(node)}: buffer {buffer.name} is used outside its scope", place)
        elif declared[0] != buffer:
            expected, found = buffer_text(declared[0]), buffer_text(buffer)
            self.fail("declared", f"{_excerpt(node)}: declared as {expected}, used as {found}", place)
        if len(indices) != len(buffer.shape):
            problem = f"{buffer.name} has {len(buffer.shape)} dimensions, found {len(indices)} indices"
            self.fail("index-count", problem, place)
        for index in indices:
            self.expression(index, place)
            if index.dtype != INDEX:
                self.fail("dtypes", f"index {_excerpt(index)} is {index.dtype}, expected int64", place)
        if self.parametric or declared is None:
            return
        if buffer.scope in (Scope.REGISTER, Scope.TILE):
            self.register(buffer, indices, place.loops[declared[1] :], place)
        for position, index in enumerate(indices):
            self.in_bounds(buffer, position, index, place)

    def register(
        self, buffer: Buffer, indices: tuple[Expr, ...], inside: tuple[For, ...], place: _Place
    ) -> None:
        """Rules for one access to registers; `inside` are the loops between the allocation and it."""
        static = {loop.var for loop in inside if loop.kind in STATIC}
        for index in indices:
            if not variables(index) <= static or not is_index(index):
                problem = f"index {_excerpt(index)} of {buffer.name} is not constant after unrolling"
                self.fail("register-index", problem, place)
        if any(loop.kind is LoopKind.PARALLEL for loop in inside):
            self.fail("register-scope", f"{buffer.name} is allocated outside a parallel loop", place)

    def in_bounds(self, buffer: Buffer, position: int, index: Expr, place: _Place) -> None:
        extent = buffer.shape[position]
        if not isinstance(extent, Int):
            return
        low, high = bounds(index, place.ranges, place.facts)
        if (0 <= low and high < extent.value) or low > high:  # low > high: the branch is never taken
            return
        outside = high < 0 or low >= extent.value
        if not outside and not place.guarded.isdisjoint(variables(index)):
            return
        self.fail(
            "in-bounds",
            f"index {_excerpt(index)} in dimension {position} of {buffer.name} takes values in "
            f"[{low:.0f}, {high:.0f}], expected [0, {extent.value - 1}]",
            place,
        )


def _dtype_problem(expression: Expr) -> str:
    """What is wrong with the dtypes of a node, or ""."""
    match expression:
        case Select(condition, then, otherwise):
            if condition.dtype != "bool":
                return f"condition of dtype {condition.dtype}, expected bool"
            if then.dtype != otherwise.dtype:
                return f"branches of dtypes {then.dtype} and {otherwise.dtype}"
        case Binary(name) | Call(name):
            row = OPERATIONS.get(name)
            if row is None or bool(row.precedence) != isinstance(expression, Binary):
                return f"unknown {'operation' if isinstance(expression, Binary) else 'function'} {name!r}"
            dtypes = [part.dtype for part in expression.parts]
            if len(dtypes) != row.arity or len(set(dtypes)) > 1:
                return f"operands of dtypes {' and '.join(dtypes)}"
            if DTYPES[dtypes[0]].kind not in row.kinds:
                return f"{name} of dtype {dtypes[0]}, expected {' or '.join(row.kinds)}"
    return ""


def _excerpt(node: Expr | Store) -> str:
    text = statement_text(node) if isinstance(node, Store) else expression_text(node)
    return text if len(text) <= MAX_EXCERPT else text[: MAX_EXCERPT - 3] + "..."
