"""The compiled module of a GPU target: what `cross.compile` writes and the OpenCL and CUDA drivers load.

A module is a msgpack map. Every kernel brings its own program, so that one that its driver refuses, or that
hangs in it, costs no other kernel, and a module of several kernels is the union of modules of one:

    {"version": 1,
     "language": "opencl" | "cuda",
     "kernels": {symbol: {"code": OpenCL C as text | cubin as bytes,
                          "workspace_bytes": n,
                          "launches": [{"name": function in the code,
                                        "global": [x, y, z],     blocks (work-groups) in each dimension
                                        "local": [x, y, z],      threads (work-items) of a block
                                        "buffers": [index, ...]  arguments of the function, in order
                                       }, ...]}}}

A kernel is called with the operator's inputs in order, then its output. Its launches run one after the other,
each sees all that the ones before wrote, and their functions take nothing but pointers: argument `index` of
the call, or WORKSPACE, `workspace_bytes` of scratch memory, aligned to 256 bytes, undefined at the start.
OpenCL's global size is "global" times "local". Start at GpuModule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Sequence, Tuple, Union

import msgpack

from device_runtime.wire.entries import (
    IDENTIFIER,
    Message,
    Rule,
    between,
    entry,
    one_of,
    to_plain,
    unexpected,
)
from device_runtime.wire.frames import BAD_REQUEST, BAD_VERSION, TOO_LARGE, ProtocolError

GPU_MODULE_VERSION = 1
LANGUAGES: Dict[str, type] = {"opencl": str, "cuda": bytes}  # by driver: source as text, or a binary
WORKSPACE = -1

MAX_MODULE_BYTES = 1 << 28
MAX_KERNELS = 4096
MAX_LAUNCHES = 256
MAX_LAUNCH_BUFFERS = 64
MAX_EXTENT = (1 << 31) - 1
MAX_WORKSPACE_BYTES = 1 << 32

Extents = Tuple[int, int, int]


@dataclass(frozen=True)
class Launch(Message):
    """One function of a kernel's code, run by blocks[x] * blocks[y] * blocks[z] blocks of threads."""

    name: str = entry(IDENTIFIER)
    blocks: Extents = entry(between(1, MAX_EXTENT), key="global")
    threads: Extents = entry(between(1, MAX_EXTENT), key="local")
    buffers: Tuple[int, ...] = entry(between(WORKSPACE, MAX_EXTENT), most=MAX_LAUNCH_BUFFERS)

    @property
    def global_size(self) -> Extents:
        """Work-items in each dimension, as clEnqueueNDRangeKernel wants them."""
        x, y, z = (count * size for count, size in zip(self.blocks, self.threads))
        return (x, y, z)


@dataclass(frozen=True)
class GpuKernel(Message):
    """One operator's program: OpenCL C as text, or a cubin; and how to run it."""

    code: Union[str, bytes] = entry(Rule(bool, "code"))
    workspace_bytes: int = entry(between(0, MAX_WORKSPACE_BYTES))
    launches: Tuple[Launch, ...] = entry(least=1, most=MAX_LAUNCHES)


@dataclass(frozen=True)
class GpuModule(Message):
    """Kernels by symbol, all in one language."""

    language: str = entry(one_of(tuple(LANGUAGES)))
    kernels: Dict[str, GpuKernel] = entry(IDENTIFIER, least=1, most=MAX_KERNELS)

    def to_bytes(self) -> bytes:
        """The module as msgpack: the same kernels in the same order give the same bytes."""
        return bytes(msgpack.packb({"version": GPU_MODULE_VERSION, **to_plain(self)}, use_bin_type=True))

    @classmethod
    def from_bytes(cls, data: bytes) -> "GpuModule":
        """The checked module; ProtocolError names the entry, what was expected and what was found."""
        if len(data) > MAX_MODULE_BYTES:
            raise ProtocolError(TOO_LARGE, f"GPU module of {len(data)} bytes, at most {MAX_MODULE_BYTES}")
        module = cls.from_plain(unpacked(data, "GPU module", GPU_MODULE_VERSION))
        module.check()
        return module

    def check(self) -> None:
        """Raise ProtocolError where a kernel's code is not what its language has."""
        expected = LANGUAGES[self.language]
        for symbol, kernel in self.kernels.items():
            if type(kernel.code) is not expected:
                found = type(kernel.code).__name__
                raise unexpected(f"{symbol}: 'code'", f"{expected.__name__} for {self.language}", found)


def unpacked(data: bytes, what: str, version: int) -> Dict[str, Any]:
    """The map in a file without its version, which must be this one. Raises ProtocolError."""
    try:
        plain = msgpack.unpackb(data, raw=False, max_bin_len=len(data))
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise ProtocolError(BAD_REQUEST, f"{what}: not msgpack ({str(error)[:100]})") from None
    found = plain.pop("version", None) if isinstance(plain, dict) else None
    if found != version:
        raise ProtocolError(BAD_VERSION, f"{what} of version {found!r:.40}, this runtime loads {version}")
    checked: Dict[str, Any] = plain
    return checked


def merged(modules: Sequence[GpuModule]) -> GpuModule:
    """One module of the kernels of several in one language; ProtocolError where a symbol comes twice."""
    languages = sorted({module.language for module in modules})
    if len(languages) != 1:
        raise unexpected("GPU modules to merge", "one language", languages)
    kernels: Dict[str, GpuKernel] = {}
    for module in modules:
        twice = kernels.keys() & module.kernels.keys()
        if twice:
            raise ProtocolError(BAD_REQUEST, f"GPU modules to merge: kernel {min(twice)} comes twice")
        kernels.update(module.kernels)
    return GpuModule(languages[0], kernels)
