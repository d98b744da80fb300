"""What the border version of a tile needs of the region around it, handed over in memory.

The border runs in a function of its own, which the tile loop calls with one pointer. Loop variables and
buffers that only it needs are written to the frame where they change, once an iteration of their loop, and
so take no register while the interior runs.
"""

from __future__ import annotations

from cross.codegen.llvm_integers import Environment
from cross.codegen.llvm_text import Value, Writer

SLOT_BYTES = 8
POINTER = "%frame"


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
        return [f"  {POINTER} = alloca [{len(self.slots)} x i64], align 64"]

    def put_pointer(self, name: str, pointer: str) -> None:
        """Keeps the pointer of a buffer that the region got as an argument."""
        self._put(name, "ptr", pointer, 0)

    def put_variable(self, name: str, environment: Environment) -> None:
        """Keeps a loop variable, wherever its loop goes on."""
        value, depth = environment.running[name]
        self._put(f"{name} of a loop", "i64", value.text, depth)

    def _put(self, name: str, kind: str, text: str, depth: int) -> None:
        if name in self.slots:
            return
        slot = self.slots[name] = len(self.slots)
        place = self.writer.value(slot_address(slot), "int64", depth=0)
        self.writer.blocks[depth].prologue.append(
            f"  store {kind} {text}, ptr {place.text}, align {SLOT_BYTES}"
        )

    def take_pointer(self, name: str, writer: Writer) -> str:
        """The pointer of a buffer, in the function of a border."""
        return self._take(name, "ptr", writer).text

    def take_variable(self, name: str, writer: Writer) -> Value:
        """A loop variable of the region, in the function of a border."""
        return self._take(f"{name} of a loop", "i64", writer)

    def _take(self, name: str, kind: str, writer: Writer) -> Value:
        place = writer.value(slot_address(self.slots[name]), "int64", depth=0)
        return writer.value(f"load {kind}, ptr {place.text}, align {SLOT_BYTES}", "int64", depth=0)


def slot_address(slot: int) -> str:
    """The instruction that finds a slot."""
    return f"getelementptr inbounds i64, ptr {POINTER}, i64 {slot}"
