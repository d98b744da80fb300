"""The device runtime as one file: a zip archive that any Python >= 3.8 runs.

Beside each module is its bytecode, for a board whose Python is of the host's minor version: to compile the
sources at each start takes most of it. Any other Python does, since it does not know the bytecode's number.

The same sources and Python give the same bytes, so that the archive's hash names what is on a board.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import io
import marshal
import zipfile
from pathlib import Path

import msgpack

from device_runtime import protocol

_SHEBANG = b"#!/usr/bin/env python3\n"
_MAIN = b"import sys\n\nfrom device_runtime.__main__ import main\n\nsys.exit(main())\n"
_MSGPACK_FILES = ("__init__.py", "exceptions.py", "ext.py", "fallback.py")  # the pure Python part
_UNCHECKED_HASH = 1  # PEP 552: named by its source's hash, which is not looked at
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)


@functools.cache
def runtime_archive() -> bytes:
    """Bytes of the .pyz: `device_runtime` and pure Python msgpack."""
    above = Path(protocol.__file__).parents[1]
    modules = sorted((above / "device_runtime").rglob("*.py"))
    sources = {path.relative_to(above).as_posix(): path.read_bytes() for path in modules}
    for name in _MSGPACK_FILES:
        sources[f"msgpack/{name}"] = (Path(msgpack.__file__).parent / name).read_bytes()
    sources["msgpack/COPYING"] = _notice_of("msgpack")
    sources["__main__.py"] = _MAIN
    compiled = {f"{name}c": _bytecode(name, data) for name, data in sources.items() if name.endswith(".py")}
    archive = io.BytesIO()
    archive.write(_SHEBANG)
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_STORED) as file:
        for name, data in sorted((sources | compiled).items()):
            entry = zipfile.ZipInfo(name, _TIMESTAMP)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix, wherever it is built
            file.writestr(entry, data)
    return archive.getvalue()


def _bytecode(name: str, source: bytes) -> bytes:
    """A .pyc that is not compared with its source (PEP 552). Format 2 of marshal has no references, which
    depend on what else the process holds."""
    code = compile(source, name, "exec", dont_inherit=True, optimize=0)
    flags = _UNCHECKED_HASH.to_bytes(4, "little")
    return importlib.util.MAGIC_NUMBER + flags + importlib.util.source_hash(source) + marshal.dumps(code, 2)


def _notice_of(package: str) -> bytes:
    """The licence file that an installed package came with: whoever gets a copy of it gets that, too."""
    files = importlib.metadata.files(package) or []
    return b"".join(Path(file.locate()).read_bytes() for file in files if file.name == "COPYING")


def archive_name() -> str:
    """File name that changes with the content."""
    return f"runtime-{hashlib.sha256(runtime_archive()).hexdigest()[:16]}.pyz"
