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

import dataclasses
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Sequence, Tuple, Union

import msgpack

from device_runtime.wire.entries import unexpected
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
class Launch:
    """One function of a kernel's code, run by blocks[x] * blocks[y] * blocks[z] blocks of threads."""

    name: str
    blocks: Extents
    threads: Extents
    buffers: Tuple[int, ...]

    @property
    def global_size(self) -> Extents:
        """Work-items in each dimension, as clEnqueueNDRangeKernel wants them."""
        x, y, z = (count * size for count, size in zip(self.blocks, self.threads))
        return (x, y, z)


@dataclass(frozen=True)
class GpuKernel:
    """One operator's program: OpenCL C as text, or a cubin; and how to run it."""

    code: Union[str, bytes]
    workspace_bytes: int
    launches: Tuple[Launch, ...]


@dataclass(frozen=True)
class GpuModule:
    """Kernels by symbol, all in one language."""

    language: str
    kernels: Mapping[str, GpuKernel]

    def to_bytes(self) -> bytes:
        """The module as msgpack: the same kernels in the same order give the same bytes."""
        kernels = {
            symbol: {
                "code": kernel.code,
                "workspace_bytes": kernel.workspace_bytes,
                "launches": [_plain_launch(launch) for launch in kernel.launches],
            }
            for symbol, kernel in self.kernels.items()
        }
        plain = {"version": GPU_MODULE_VERSION, "language": self.language, "kernels": kernels}
        packed: bytes = msgpack.packb(plain, use_bin_type=True)
        return packed

    @classmethod
    def from_bytes(cls, data: bytes) -> "GpuModule":
        """The checked module; ProtocolError names the entry, what was expected and what was found."""
        if len(data) > MAX_MODULE_BYTES:
            raise ProtocolError(TOO_LARGE, f"GPU module of {len(data)} bytes, at most {MAX_MODULE_BYTES}")
        try:
            plain = msgpack.unpackb(data, raw=False)
        except (ValueError, msgpack.exceptions.UnpackException) as error:
            raise ProtocolError(BAD_REQUEST, f"GPU module: not msgpack ({str(error)[:100]})") from None
        version = plain.get("version") if isinstance(plain, dict) else None
        if version != GPU_MODULE_VERSION:
            text = f"GPU module of version {version!r:.40}, this runtime loads {GPU_MODULE_VERSION}"
            raise ProtocolError(BAD_VERSION, text)
        entries = _entries(plain, "GPU module", ("version", "language", "kernels"))
        language = entries["language"]
        if not isinstance(language, str) or language not in LANGUAGES:
            raise unexpected("GPU module: 'language'", " or ".join(LANGUAGES), language)
        kernels = entries["kernels"]
        if not isinstance(kernels, dict) or not 1 <= len(kernels) <= MAX_KERNELS:
            raise unexpected("GPU module: 'kernels'", f"a map of 1 to {MAX_KERNELS}", kernels)
        return cls(language, {_name(symbol): _kernel(entry, language) for symbol, entry in kernels.items()})


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


def _plain_launch(launch: Launch) -> Dict[str, Any]:
    return {
        "name": launch.name,
        "global": list(launch.blocks),
        "local": list(launch.threads),
        "buffers": list(launch.buffers),
    }


def _kernel(plain: object, language: str) -> GpuKernel:
    entries = _entries(plain, "GPU kernel", [entry.name for entry in dataclasses.fields(GpuKernel)])
    code, launches, expected = entries["code"], entries["launches"], LANGUAGES[language]
    found = type(code)
    if found is not expected or not code:
        raise unexpected("GPU kernel: 'code'", f"{expected.__name__} for {language}", found.__name__)
    if not isinstance(launches, list) or not 1 <= len(launches) <= MAX_LAUNCHES:
        raise unexpected("GPU kernel: 'launches'", f"a list of 1 to {MAX_LAUNCHES}", launches)
    size = _integer(entries["workspace_bytes"], "workspace_bytes", 0, MAX_WORKSPACE_BYTES)
    return GpuKernel(code, size, tuple(_launch(entry) for entry in launches))


def _launch(plain: object) -> Launch:
    entries = _entries(plain, "launch", ("name", "global", "local", "buffers"))
    buffers = entries["buffers"]
    if not isinstance(buffers, list) or len(buffers) > MAX_LAUNCH_BUFFERS:
        raise unexpected("launch: 'buffers'", f"a list of at most {MAX_LAUNCH_BUFFERS}", buffers)
    return Launch(
        name=_name(entries["name"]),
        blocks=_extents(entries["global"], "global"),
        threads=_extents(entries["local"], "local"),
        buffers=tuple(_integer(index, "buffers", WORKSPACE, MAX_EXTENT) for index in buffers),
    )


def _entries(plain: object, what: str, names: Sequence[str]) -> Dict[str, Any]:
    if not isinstance(plain, dict) or set(plain) != set(names):
        found = sorted(map(str, plain)) if isinstance(plain, dict) else plain
        raise unexpected(what, f"a map of {', '.join(names)}", found)
    return plain


def _extents(plain: object, name: str) -> Extents:
    if not isinstance(plain, list) or len(plain) != 3:
        raise unexpected(f"launch: '{name}'", "three integers", plain)
    x, y, z = (_integer(value, name, 1, MAX_EXTENT) for value in plain)
    return (x, y, z)


def _integer(value: object, name: str, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise unexpected(f"GPU module: '{name}'", f"an integer from {low} to {high}", value)
    return value


def _name(value: object) -> str:
    if not isinstance(value, str) or not value.isidentifier() or not value.isascii() or len(value) > 256:
        raise unexpected("GPU module: the name of a kernel", "a C identifier", value)
    return value
