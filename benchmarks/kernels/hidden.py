"""Other libraries as they are on a lesser CPU: no more than a level of x86-64 is left to their processes.

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

from toolkit.errors import ToolkitError

SOURCE: Final = Path(__file__).with_name("hidden.c")
VERSIONS: Final = {"x86-64-v2": 2, "x86-64-v3": 3}


class CannotHide(ToolkitError):
    """A level's instructions cannot be hidden. The text says what was expected and what was found."""


@contextmanager
def hidden(board: str) -> Iterator[Path | None]:
    """The library to preload where `board` is "host:x86-64-v3" or another level; None for the host as it is.

    Raises CannotHide: another board; this CPU or its hypervisor cannot let CPUID fault.
    """
    host, _, level = board.partition(":")
    if host != "host" or (level and level not in VERSIONS):
        known = ", ".join(f"host:{name}" for name in VERSIONS)
        raise CannotHide(f"expected this machine, host or one of {known}; found the board {board}")
    if not level:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="tfb-hidden-") as folder:
        library = Path(folder) / "hidden.so"
        compiler = [sys.executable, "-m", "ziglang", "cc", "-O2", "-shared", "-fPIC"]
        subprocess.run(
            [*compiler, f"-DLEVEL={VERSIONS[level]}", SOURCE, "-o", library], check=True, capture_output=True
        )
        tried = subprocess.run(
            ["/bin/true"], env={"LD_PRELOAD": str(library)}, capture_output=True, text=True, check=False
        )
        if tried.returncode:
            raise CannotHide(f"{board}: {tried.stderr.strip() or f'code {tried.returncode}'}")
        yield library
