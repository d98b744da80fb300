"""What a started model can do, whichever variant it is: run_cpu.py and run_gpu.py start one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import List, Sequence, Tuple

from device_runtime.measure.check import Difference
from device_runtime.sandbox.guarded_memory import Region


class Started(ABC):
    """A model with its memory, in the process that started it."""

    @abstractmethod
    def run(self, inputs: Sequence[Region]) -> Tuple[List[Region], float]:
        """One run: fresh outputs, and the seconds from inputs to outputs in memory; raises Fault."""

    @abstractmethod
    def difference(self, dtype: str, got: Region, want: Region, elements: int) -> Difference:
        """Of an output from what was expected."""
