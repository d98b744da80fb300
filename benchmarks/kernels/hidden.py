"""Other libraries as they are on a lesser CPU: vector instructions beyond a level of x86-64 are hidden.

They choose their kernels by the instruction CPUID, which faults in a process that hidden.c is preloaded into,
and is answered there. Most desktop PCs are of the level x86-64-v3 (AVX2), and many edge boxes with an Atom of
x86-64-v2: their libraries are measured here, at this CPU's speed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.harness.place import HOST, level_of
from boards.board import load
from cross.errors import LinkError
from cross.link import compile_c
from cross.native.toolchain import find_toolchain, run
from toolkit.errors import ToolkitError

SOURCE: Final = Path(__file__).with_name("hidden.c")


class CannotHide(ToolkitError):
    """Instructions cannot be hidden on this machine. The text says why."""


@contextmanager
def hidden(board: str) -> Iterator[Path | None]:
    """The library to preload where `board` is "host:x86-64-v3" or another level; None for the host as it is.

    Raises:
        ValueError: another board.
        CannotHide: this CPU is no x86-64, or CPUID does not fault on it.
        CrossError: there is no C compiler.
    """
    level = level_of(board)
    if not level:
        yield None
        return
    target = load(HOST).target()
    if not target.triple.startswith("x86_64"):
        raise CannotHide(f"{board}: expected a machine that is x86_64, found {target.triple}")
    with tempfile.TemporaryDirectory(prefix="tfb-hidden-") as folder:
        code, library = Path(folder) / "hidden.o", Path(folder) / "hidden.so"
        code.write_bytes(compile_c(f"#define LEVEL {level[-1]}\n{SOURCE.read_text()}", target))
        # against nothing: a process that it is loaded into has what it calls of libc
        linker = find_toolchain(target.triple).linker
        run([*linker, "-shared", code.name, "-o", library.name], code.parent, "linking hidden.c", LinkError)
        tried = subprocess.run(
            [sys.executable, "-c", ""],
            env={"LD_PRELOAD": str(library)},
            capture_output=True,
            text=True,
            check=False,
        )
        if tried.returncode:
            raise CannotHide(f"{board}: {tried.stderr.strip() or f'exit code {tried.returncode}'}")
        yield library
