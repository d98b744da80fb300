"""LLVM's code generator without its optimizations, for tests whose subject is the code that it is given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cross.codegen.llvm import objects


@contextmanager
def unoptimized() -> Iterator[None]:
    """Instruction selection and register allocation in one pass each (effort 0), a third of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects, "CODE_GENERATOR_EFFORT", 0)
        objects._machine.cache_clear()
        try:
            yield
        finally:
            objects._machine.cache_clear()
