"""Everything the host tool refuses or fails at, as one tree.

ToolkitError                      1  internal error (a bug in the tool)
├── InputError                    2  bad usage or bad input
│   ├── ModelError                   the model file: truncated, unsupported operator, dynamic shape
│   ├── RecordsError                 the records store: wrong version, damaged, read-only
│   ├── ReplayError                  a replay table: damaged, another version, recorded for another space
│   ├── CostModelError               a saved cost model: damaged, of another version, for other features
│   ├── UntrustedBoard               a board file names a program to run, which nobody has agreed to yet
│   ├── MissingExtra                 an optional part of the tool is not installed
│   └── OutputError                  the output cannot be written: no space, no right, a failing disk
├── BoardUnreachable              3  no runtime answers on the board
├── BoardBusy                     4  somebody else holds the board's lease
├── CoverageError                 5  fewer operators tuned than requested
├── VerificationError             6  a signature, hash, self-test or numerical check failed
│   └── UnfitBoard                   another machine than the board file says, or one that lacks what it says
├── RolledBack                    7  the new bundle failed on the board; the previous one runs again
├── NotCommitted                  8  flashed, but the final commit is not confirmed
├── TimedOut                    124  a time to wait is over: the board is still somebody else's
└── Interrupted                 130  stopped by the user; records are kept

Every message says what failed, where, what was expected, what was found and what to do.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from toolkit.escaping import printable


class ToolkitError(Exception):
    """Root of the tool's errors; `exit_code` is what the command line returns.

    The text may quote a board, a model or a file; it is made printable here, once for all.
    """

    exit_code = 1

    def __init__(self, text: str) -> None:
        super().__init__(printable(text))


class InputError(ToolkitError):
    """Bad usage or bad input."""

    exit_code = 2


class ModelError(InputError):
    """The model cannot be imported; the message names the node or value."""


class RecordsError(InputError):
    """The records store cannot be used."""


class ReplayError(InputError):
    """The replay table cannot be used; the message names the command that records it again."""


class CostModelError(InputError):
    """A saved cost model cannot be used; the message says what was expected and found."""


class UntrustedBoard(InputError):
    """A board file names a program that a connection would run, and the user has not agreed to it yet."""


class MissingExtra(InputError):
    """An optional part of the tool is not installed; the message names the extra to install."""


class OutputError(InputError):
    """An output path cannot be written."""


class BoardUnreachable(ToolkitError):
    """No device runtime answers on the board."""

    exit_code = 3


class BoardBusy(ToolkitError):
    """Another process holds the board's lease."""

    exit_code = 4


class CoverageError(ToolkitError):
    """Fewer operators could be tuned than was asked for."""

    exit_code = 5


class VerificationError(ToolkitError):
    """A signature, a hash, a self-test or a numerical check failed."""

    exit_code = 6


class UnfitBoard(VerificationError):
    """The board is another machine than its file says, or lacks what the file says that it has."""


class RolledBack(ToolkitError):
    """The new bundle failed on the board and the previous one runs again."""

    exit_code = 7


class NotCommitted(ToolkitError):
    """The bundle runs on the board, but its commit was not confirmed."""

    exit_code = 8


class TimedOut(ToolkitError):
    """The time to wait for something is over."""

    exit_code = 124


class Interrupted(ToolkitError):
    """Stopped by the user; everything measured is kept."""

    exit_code = 130


@contextmanager
def writing(what: str, place: object, remedy: str) -> Iterator[None]:
    """Make an OSError while `what` is written to `place` an OutputError, which says what to do."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{what} cannot be written to {place}: {error.strerror}; {remedy}") from error
