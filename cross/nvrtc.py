"""CUDA C to a cubin by NVRTC, which needs no GPU: `compile_cubin`. What a cubin needs: `usage`.

NVRTC comes with the wheel nvidia-cuda-nvrtc-cu12 (extra [cuda]), a later one or a CUDA installation, and is
called through ctypes. That of CUDA 12 is taken before that of CUDA 13, which compiles for nothing older than
sm_75.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from cross.errors import CompileError

# by file: the package of its wheel
LIBRARIES = {"libnvrtc.so.12": "nvidia.cuda_nvrtc", "libnvrtc.so.13": "nvidia.cu13"}
ARCHITECTURES = (
    "sm_50", "sm_52", "sm_53", "sm_60", "sm_61", "sm_62", "sm_70", "sm_72", "sm_75", "sm_80", "sm_86",
    "sm_87", "sm_89", "sm_90",
)  # fmt: skip
OPTIONS = ("--std=c++14", "--fmad=true", "--extra-device-vectorization", "-w")
LOG_CHARACTERS = 2000  # of the compiler's text in an error

# NVRTC_ERROR_INVALID_OPTION; the one option that depends on the board is its architecture
_INVALID_OPTION = 5
_SECTION_HEADER = struct.Struct(
    "<IIQQQQIIQQ"
)  # ELF64: name, type, flags, addr, offset, size, link, info, ...
_SYMBOL_TABLE, _SYMBOL_BYTES = 2, 24
_SHARED = ".nv.shared."
_SIZED, _FRAME_SIZE, _REGCOUNT = 4, 0x11, 0x2F  # attributes of .nv.info


class NvrtcMissing(CompileError):
    """NVRTC is not installed; the message says how to get it."""


class Usage(msgspec.Struct, frozen=True):
    """What one function of a cubin takes."""

    registers: int  # of a thread
    shared_bytes: int  # of a block
    local_bytes: int  # of a thread: what it keeps in memory, because its registers do not suffice


def compile_cubin(source: str, architecture: str) -> bytes:
    """The cubin of CUDA C for an architecture such as "sm_87".

    Raises:
        NvrtcMissing: there is no NVRTC.
        CompileError: NVRTC refuses the source, with its text; or it does not know the architecture.
    """
    if architecture not in ARCHITECTURES:
        raise CompileError(
            f"CUDA architecture {architecture!r}: expected one of {', '.join(ARCHITECTURES)}; "
            "see compute_capability in the board file"
        )
    return compiled(source, architecture, "CUBIN")


def compiled(source: str, architecture: str, what: str) -> bytes:
    """What NVRTC makes of CUDA C: "CUBIN", or "PTX", for which it takes compute_75 for an architecture, too.

    Raises as `compile_cubin`.
    """
    library = _library()
    program = ctypes.c_void_p()
    created = library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    _check(library, created, "creating the program")
    try:
        options = [f"--gpu-architecture={architecture}", *OPTIONS]
        words = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        status = library.nvrtcCompileProgram(program, len(options), words)
        if status != 0:
            log = _text(library, program, "ProgramLog").decode(errors="replace")
            if status == _INVALID_OPTION:
                raise CompileError(
                    f"this NVRTC does not compile for {architecture}: {log.strip()[:LOG_CHARACTERS]}; "
                    "CUDA 13's compiles for nothing older than sm_75, CUDA 12's does: "
                    "pip install nvidia-cuda-nvrtc-cu12"
                )
            raise CompileError(f"NVRTC refuses the code for {architecture}: {log[:LOG_CHARACTERS]}")
        return _text(library, program, what)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _text(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    get, size = f"nvrtcGet{what}", ctypes.c_size_t()
    _check(library, library[f"{get}Size"](program, ctypes.byref(size)), f"{get}Size")
    content = ctypes.create_string_buffer(size.value)
    _check(library, library[get](program, content), get)
    return content.raw


def _check(library: ctypes.CDLL, status: int, doing: str) -> None:
    if status != 0:
        raise CompileError(f"NVRTC, {doing}: {library.nvrtcGetErrorString(status).decode()}")


@functools.cache
def _library() -> ctypes.CDLL:
    for name, package in LIBRARIES.items():
        for candidate in (*_wheel(name, package), name):
            try:
                library = ctypes.CDLL(str(candidate))
            except OSError:
                continue
            library.nvrtcGetErrorString.restype = ctypes.c_char_p
            return library
    raise NvrtcMissing(
        f"compiling for CUDA needs NVRTC ({' or '.join(LIBRARIES)}), which is not installed; "
        "install the extra [cuda]: pip install 'tune-for-board[cuda]'; on a host without CUDA, where pycuda "
        "cannot be built, its wheel alone: pip install nvidia-cuda-nvrtc-cu12"
    )


def _wheel(name: str, package: str) -> Sequence[Path]:
    """Where the wheel of this package has its library."""
    try:
        found = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        return ()
    places = found.submodule_search_locations if found is not None else None
    return [Path(place) / "lib" / name for place in places or ()]


def usage(cubin: bytes) -> dict[str, Usage]:
    """Registers, static shared memory and stack by function, as the cubin states them.

    Section .nv.info lists attributes; REGCOUNT names a function's symbol and the registers of a thread,
    FRAME_SIZE its stack. `.nv.shared.<function>` is as long as the function's shared memory (from sm_90 on
    with 1024 bytes that the driver keeps for itself).

    Raises:
        CompileError: the bytes are no 64-bit ELF file.
    """
    sections = _sections(cubin)
    symbols = next(item for item in sections.values() if item[1] == _SYMBOL_TABLE)
    names = _contents(cubin, list(sections.values())[symbols[6]])
    counts: dict[str, dict[int, int]] = {}
    for kind, symbol, count in _counts(_contents(cubin, sections[".nv.info"])):
        name = _name(names, struct.unpack_from("<I", cubin, symbols[4] + _SYMBOL_BYTES * symbol)[0])
        counts.setdefault(name, {})[kind] = count
    shared = {
        name.removeprefix(_SHARED): item[5] for name, item in sections.items() if name.startswith(_SHARED)
    }
    return {
        name: Usage(found[_REGCOUNT], shared.get(name, 0), found.get(_FRAME_SIZE, 0))
        for name, found in counts.items()
        if _REGCOUNT in found
    }


def _sections(cubin: bytes) -> dict[str, tuple[int, ...]]:
    """The section headers by name, in order."""
    if cubin[:5] != b"\x7fELF\x02":
        raise CompileError("expected a cubin, a 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", cubin, 40)
    entry_bytes, count, names_index = struct.unpack_from("<HHH", cubin, 58)
    headers = [_SECTION_HEADER.unpack_from(cubin, table + entry_bytes * index) for index in range(count)]
    names = _contents(cubin, headers[names_index])
    return {_name(names, header[0]): header for header in headers}


def _contents(cubin: bytes, header: tuple[int, ...]) -> bytes:
    return cubin[header[4] : header[4] + header[5]]


def _name(names: bytes, start: int) -> str:
    return names[start : names.index(b"\0", start)].decode()


def _counts(attributes: bytes) -> Iterator[tuple[int, int, int]]:
    """Kind, symbol and number of every attribute with a number of a symbol.

    An attribute is its format and kind, then a size and as many bytes, or the value itself.
    """
    place = 0
    while place + 4 <= len(attributes):
        form, kind, size = struct.unpack_from("<BBH", attributes, place)
        place += 4
        if form == _SIZED:
            if size == 8:
                symbol, count = struct.unpack_from("<II", attributes, place)
                yield kind, symbol, count
            place += size
