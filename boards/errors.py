"""Everything that can be wrong with a board's name or file.

BoardError           root; `exit_code` is what a command line returns for it
├── UnknownBoard     no board has this name; the message lists near names
├── BadAddress       what follows the @ of NAME@ADDRESS cannot be used
├── UnknownLevel     this machine cannot be narrowed to the level of NAME:LEVEL
├── UnknownTarget    the board has no target of this name
├── UnfitTargets     targets that cannot be joined into one
├── NoBoardFile      no file is there, or it cannot be read
├── BadBoardFile     the file breaks a rule; one `Problem` per finding
└── UnsupportedHost  this machine cannot be the board `host`
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import msgspec


class Problem(msgspec.Struct, frozen=True):
    """One broken rule: the rule's name, the TOML key it is about, what was expected and what was found."""

    rule: str
    key: str
    expected: str
    found: str

    def __str__(self) -> str:
        where = f"`{self.key}`" if self.key else "the file"
        return f"{where}: expected {self.expected}, found {self.found} [{self.rule}]"


class BoardError(Exception):
    """Root of the errors about boards: always bad input."""

    exit_code = 2


class UnknownBoard(BoardError):
    """No board has this name."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
        advice = f"did you mean {' or '.join(near)}?" if near else f"known boards: {', '.join(known)}."
        super().__init__(
            f"No board is named {name!r}: {advice} "
            "`toolkit boards list` shows the boards; name your own by the path of its .toml file."
        )
        self.name = name
        self.near = tuple(near)


class BadAddress(BoardError):
    """The address in NAME@ADDRESS cannot be used for this board."""

    def __init__(self, board: str, address: str, reason: str) -> None:
        super().__init__(
            f"Board {board} cannot be reached at {address!r}: {reason}. "
            f"Write {board} alone, or {board}@[USER@]HOST[:PORT] for a board that has a network address."
        )


class UnknownLevel(BoardError):
    """The CPU of this machine cannot be narrowed to what follows the colon of NAME:LEVEL."""

    def __init__(self, board: str, level: str, reason: str) -> None:
        super().__init__(
            f"Board {board} cannot be narrowed to {level!r}: {reason}. Write host:x86-64-v3, or "
            "host:x86-64-v4+avx512vnni with LLVM's names of further features; or the board's name alone."
        )


class UnknownTarget(BoardError):
    """The board has no target of this name."""

    def __init__(self, board: str, target: str, known: Sequence[str]) -> None:
        super().__init__(
            f"Board {board} has no target named {target!r}: expected {' or '.join(known)}. "
            "Name one of these, or leave the target out to take the one with the highest estimated peak."
        )


class UnfitTargets(BoardError):
    """Targets that NAME+NAME joins cannot run one kernel together."""

    def __init__(self, board: str, target: str, reason: str) -> None:
        super().__init__(
            f"Targets {target} of board {board} cannot run one kernel together: {reason}. Join targets that "
            "are CPUs of one architecture with cores of their own, such as a72+a53, or name one target."
        )


class NoBoardFile(BoardError):
    """There is no file, or none that can be read, where the board file should be."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(
            f"The board file {file} cannot be read: {reason}. Check the path, or name a known "
            "board: `toolkit boards list` shows them."
        )


class BadBoardFile(BoardError):
    """A board file breaks a rule; `file`, `key`, `expected` and `found` are those of the first problem."""

    def __init__(self, file: str, problems: Sequence[Problem]) -> None:
        what = "Correct these keys; boards/description.py and boards/target.py say what each one means."
        lines = [f"{file} is not a valid board file:", *(f"  {problem}" for problem in problems), what]
        super().__init__("\n".join(lines))
        self.file = file
        self.problems = tuple(problems)

    @property
    def key(self) -> str:
        return self.problems[0].key

    @property
    def expected(self) -> str:
        return self.problems[0].expected

    @property
    def found(self) -> str:
        return self.problems[0].found


class UnsupportedHost(BoardError):
    """This machine's processor is neither x86-64 nor 64-bit Arm."""

    def __init__(self, architecture: str) -> None:
        super().__init__(
            f"This machine's processor is {architecture!r}; the board `host` needs x86_64 or aarch64. "
            "Tune for another board, or run on another machine."
        )
