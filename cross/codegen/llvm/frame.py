"""What the border version of a tile needs of the region around it, handed over in memory.

The border runs in a function of its own, which the tile loop calls with one pointer. Loop variables and
buffers that only it needs are written to the frame where they change, once an iteration of their loop, and
so take no register while the interior runs.
"""

from __future__ import annotations

from cross.codegen.instructions import Instruction, Value, element_pointer, integer, load_from
from cross.codegen.llvm.writer import Writer

SLOT_BYTES = 8  # of a pointer or an int64
POINTER = Value("%frame", "pointer")


class Frame:
    """The frame of one region: a slot of 8 bytes for every buffer and loop variable that a border needs."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.slots: dict[str, int] = {}

    @property
    def lines(self) -> list[str]:
        """The start of the region's function: the memory of the frame, where there is any."""
        if not self.slots:
            return []
        return [f"  {POINTER.text} = alloca [{len(self.slots)} x i64], align 64"]

    def put(self, name: str, value: Value, depth: int = 0) -> None:
        """Keeps an argument's pointer, or a loop variable wherever its loop goes on."""
        if name in self.slots:
            return
        slot = self.slots[name] = len(self.slots)
        place = self.writer.value(_slot_address(slot), depth=0)
        self.writer.blocks[depth].prologue.append(Instruction("store", "", 1, (value, place), SLOT_BYTES))

    def take(self, name: str, dtype: str, writer: Writer) -> Value:
        """What was kept, in the function of a border."""
        place = writer.value(_slot_address(self.slots[name]), depth=0)
        return writer.value(load_from(place, dtype, 1, SLOT_BYTES), depth=0)


def _slot_address(slot: int) -> Instruction:
    return element_pointer(POINTER, "int64", integer(slot))
