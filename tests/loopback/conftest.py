"""Real runtimes to talk to: on this machine, under qemu, over SSH and TCP, with kernels that misbehave."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from boards.board import Board, load
from cross import native
from cross.errors import CompileError, LinkError
from cross.link import native_objects
from cross.native.system_libraries import LIBRARIES
from cross.native.toolchain import find_toolchain, run
from tests.fuzz.pocl import Pocl, pocl, teach
from tests.targets import HOST
from toolkit.measure import emulation
from toolkit.measure.session import Session, open_session

__all__ = ["pocl", "teach"]  # fixtures

SOURCE = Path(__file__).with_name("fault_kernels.c")

CompileKernels = Callable[[str], bytes]


@pytest.fixture(scope="session")
def compile_kernels(tmp_path_factory: pytest.TempPathFactory) -> CompileKernels:
    """`compile_kernels("x86_64")`: the shared object of fault_kernels.c for that machine."""
    done: dict[str, bytes] = {}

    def compile_for(machine: str) -> bytes:
        if machine not in done:
            folder = tmp_path_factory.mktemp("kernels")
            made, library = folder / "kernels.o", folder / "kernels.so"
            triple = f"{machine}-unknown-linux-gnu"
            toolchain = find_toolchain(triple)
            objects = native_objects(msgspec.structs.replace(HOST, triple=triple))
            command = [
                *toolchain.compiler, "-fvisibility=default", "-O1", "-fno-sanitize=all",
                "-I", str(native.FOLDER), "-c", str(SOURCE), "-o", str(made),
            ]  # fmt: skip
            run(command, folder, "compiling", CompileError)
            # not by cross.link.link, as these kernels call what no artifact may
            stubs = [objects[0].parent / name for name in LIBRARIES]
            command = [*toolchain.linker, *toolchain.linker_flags(["-shared"]), "-o", str(library)]
            run([*command, *map(str, (made, *objects, *stubs))], folder, "linking", LinkError)
            done[machine] = library.read_bytes()
        return done[machine]

    return compile_for


def in_folder(board: Board, folder: Path) -> Board:
    """The board with its device directory in `folder`."""
    link = msgspec.structs.replace(board.link, device_dir=str(folder))
    changed: Board = msgspec.structs.replace(board, link=link)
    return changed


@pytest.fixture
def local_board(tmp_path: Path) -> Board:
    """This machine, with a device directory of its own."""
    return in_folder(load("host"), tmp_path / "device")


@pytest.fixture(scope="module")
def emulated_board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    """aarch64 under qemu; skipped where that is not installed."""
    if emulation.find() is None:
        pytest.skip("the emulation is not installed; run `make emulation`")
    return in_folder(load("emulated-a53"), tmp_path_factory.mktemp("emulated"))


BUSY_TIMEOUT_S = 90.0
"""For a measurement, which compiles first: the other tests take the cores meanwhile."""


@pytest.fixture(scope="module")
def pocl_board(pocl: Pocl, tmp_path_factory: pytest.TempPathFactory) -> Board:
    """OpenCL on this machine's CPU, with vectors that its compiler compiles; skipped without PoCL."""
    device_dir = tmp_path_factory.mktemp("pocl") / "device"
    pocl.teach(device_dir)
    board = in_folder(load("pocl"), device_dir)
    targets = tuple(pocl.narrowed(target) if target.gpu else target for target in board.targets)
    measure = msgspec.structs.replace(board.measure, timeout_s=BUSY_TIMEOUT_S)
    narrowed: Board = msgspec.structs.replace(board, targets=targets, measure=measure)
    return narrowed


@pytest.fixture
def session(local_board: Board, tmp_path: Path) -> Iterator[Session]:
    """A session with the local board."""
    with open_session(local_board, cache_dir=tmp_path / "cache") as opened:
        yield opened


@pytest.fixture(scope="module")
def shared_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """One session for a file's tests that leave nothing behind."""
    folder = tmp_path_factory.mktemp("shared")
    with open_session(in_folder(load("host"), folder / "device"), cache_dir=folder / "cache") as opened:
        yield opened


def state_and_parent(pid: int) -> tuple[str, int]:
    """Of a process, by /proc; ("X", 0) when it is gone. "Z" is one that only waits to be reaped."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "X", 0
    return words[0], int(words[1])


def descendants(pid: int) -> set[int]:
    """Processes below `pid` that run."""
    states = {int(name): state_and_parent(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    parents = {child: parent for child, (state, parent) in states.items() if state not in "ZX"}
    found: set[int] = set()
    grown = True
    while grown:
        more = {child for child, parent in parents.items() if parent == pid or parent in found} - found
        found |= more
        grown = bool(more)
    return found
