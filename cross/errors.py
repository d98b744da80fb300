"""What the compiler refuses, as one tree.

CrossError
├── ExpressionError      an expression that has no meaning (shapes, dtypes, axes)
├── ScheduleError        a primitive or configuration that does not fit its expression
├── VerifyError          a loop nest that breaks one of the verifier's rules
├── CompileError         LLVM (or another back end) refuses the generated code
└── LinkError            the linker refuses the objects
"""


class CrossError(Exception):
    """Root of the compiler's errors; `exit_code` is what the command line returns."""

    exit_code = 1


class ExpressionError(CrossError):
    """An index expression is malformed; the message names the tensor and the axis."""


class ScheduleError(CrossError):
    """A schedule primitive, knob or configuration does not fit the expression."""


class VerifyError(CrossError):
    """A loop nest breaks a rule of the verifier; the message names the rule and the node."""


class CompileError(CrossError):
    """The back end refuses generated code."""


class LinkError(CrossError):
    """The linker refuses the objects; the message carries its text."""
