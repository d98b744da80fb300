"""Objects to one shared object, and C to objects. Start at `link`.

An artifact is a shared object for the target with nothing around it: kernels, the native code of
cross/native, and undefined names only for what the board's own C library has (see
native/system_libraries.py). Same inputs give the same bytes.
"""

from __future__ import annotations

import functools
import hashlib
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from boards.files import kept_folder
from boards.target import Target
from cross import native
from cross.errors import CompileError, LinkError
from cross.native.system_libraries import LIBRARIES, stubs
from cross.native.toolchain import Toolchain, architecture, find_toolchain, run

DEFAULT_CACHE_DIR = Path.home() / ".cache" / "tune-for-board"

_STRICT = ("-Wall", "-Wextra", "-Werror")
_LINK_FLAGS = (
    "-shared", "-s", "--build-id=none", "--hash-style=gnu", "--as-needed", "--gc-sections",
    "-z", "defs", "-z", "now", "-z", "relro", "-z", "noexecstack",
)  # fmt: skip
_C_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def link(
    objects: Sequence[bytes],
    target: Target,
    *,
    extra_objects: Sequence[Path] = (),
    exports: Sequence[str] | None = None,
    soname: str = "",
    cache_dir: Path = DEFAULT_CACHE_DIR,
    toolchain: Toolchain | None = None,
) -> bytes:
    """One shared object out of ELF objects.

    `extra_objects` are files, usually `native_objects(target)`. `exports` are the names visible from
    outside; None: every name of default visibility. What no exported name reaches is left out. Raises
    LinkError with the linker's text: a name defined twice or not at all, an object for another architecture.
    """
    toolchain = toolchain or find_toolchain(target.triple)
    prepared = _prepared(target.triple, toolchain, cache_dir)
    with tempfile.TemporaryDirectory(prefix="tfb-link-") as folder_name:
        folder = Path(folder_name)
        names = [f"object_{position}.o" for position in range(len(objects))]
        for name, code in zip(names, objects, strict=True):
            (folder / name).write_bytes(code)
        flags = list(_LINK_FLAGS)
        if soname:
            flags += ["-soname", soname]
        if exports is not None:
            shown = " ".join(f"{_checked_name(name)};" for name in sorted(exports))
            (folder / "exports").write_text(f"{{ global: {shown} local: *; }};\n")
            flags += ["--version-script", "exports"]
        files = [*names, *map(str, extra_objects), *(str(prepared / library) for library in LIBRARIES)]
        what = f"linking {len(objects)} objects for {target.triple}"
        _link_files(toolchain, flags, files, folder, what)
        return (folder / "linked.so").read_bytes()


def native_objects(
    target: Target, cache_dir: Path = DEFAULT_CACHE_DIR, *, toolchain: Toolchain | None = None
) -> list[Path]:
    """The native code as objects for the target, compiled on first use and kept in `cache_dir`.

    Made for the architecture's baseline, so that one set serves every CPU of it. Safe to call from several
    processes at once. Raises CompileError, or LinkError where there is no compiler or the cache cannot be
    written.
    """
    prepared = _prepared(target.triple, toolchain or find_toolchain(target.triple), cache_dir)
    return [prepared / f"{source.stem}.o" for source in native.SOURCES]


def compile_c(
    source: str | Path,
    target: Target,
    *,
    include_dirs: Sequence[Path] = (),
    toolchain: Toolchain | None = None,
) -> bytes:
    """C text, or a C (.c) or assembler (.S) file, as one object.

    tfb.h is found without being named in `include_dirs`. Names have hidden visibility unless the source says
    otherwise (TFB_EXPORT). Raises CompileError with the compiler's text.
    """
    toolchain = toolchain or find_toolchain(target.triple)
    with tempfile.TemporaryDirectory(prefix="tfb-compile-") as folder_name:
        folder = Path(folder_name)
        if isinstance(source, str):
            path = folder / "source.c"
            path.write_text(source)
        else:
            path = source.absolute()
        output = folder / "object.o"
        includes = [f"-I{directory.absolute()}" for directory in (native.FOLDER, *include_dirs)]
        _compile_file(toolchain, path, output, includes)
        return output.read_bytes()


def embed(symbol: str, data: bytes | Path, target: Target, *, alignment_bytes: int = 64) -> bytes:
    """Data as an object that holds it, read-only, under a C name visible inside the shared object only."""
    _checked_name(symbol)
    with tempfile.TemporaryDirectory(prefix="tfb-embed-") as folder_name:
        folder = Path(folder_name)
        if isinstance(data, bytes):
            data_path = folder / "data.bin"
            data_path.write_bytes(data)
        else:
            data_path = data.absolute()
        source = folder / "data.S"
        source.write_text(
            f'.section .rodata.{symbol}, "a", %progbits\n.balign {alignment_bytes}\n'
            f".globl {symbol}\n.hidden {symbol}\n.type {symbol}, %object\n"
            f'{symbol}:\n.incbin "{data_path.name}"\n.size {symbol}, . - {symbol}\n'
            '.section .note.GNU-stack, "", %progbits\n'
        )
        return compile_c(source, target, include_dirs=[data_path.parent])


# ------------------------------------------------------------------------------- what is made once and kept


def _prepared(triple: str, toolchain: Toolchain, cache_dir: Path) -> Path:
    """The folder with the native objects and the stubs of the system's libraries for a triple."""
    folder = cache_dir / "native" / f"{architecture(triple)}-{_preparation_key(triple, toolchain)}"
    try:
        return kept_folder(folder, functools.partial(_prepare, architecture(triple), toolchain))
    except OSError as error:
        raise LinkError(
            f"cannot write the cache {folder.parent}: {error.strerror}; "
            "name another folder with the cache_dir argument"
        ) from error


@functools.cache
def _preparation_key(triple: str, toolchain: Toolchain) -> str:
    """Changes with everything that goes into the folder; not with where the compiler is installed."""
    digest = hashlib.sha256(toolchain.identity.encode())
    for flag in (*toolchain.compiler[1:], *_STRICT, *_LINK_FLAGS):
        digest.update(flag.encode() + b"\0")
    for source in (native.HEADER, *native.SOURCES):
        digest.update(hashlib.sha256(source.read_bytes()).digest())
    for stub in stubs(architecture(triple)):
        digest.update(f"{stub}".encode())
    return digest.hexdigest()[:24]


def _prepare(arch: str, toolchain: Toolchain, folder: Path) -> None:
    for source in native.SOURCES:
        _compile_file(toolchain, source, folder / f"{source.stem}.o", _STRICT)
    with tempfile.TemporaryDirectory(prefix="tfb-stubs-") as scratch_name:
        scratch = Path(scratch_name)
        for stub in stubs(arch):
            (scratch / "stub.S").write_text(stub.assembly)
            (scratch / "versions").write_text(stub.version_script)
            _compile_file(toolchain, scratch / "stub.S", scratch / "stub.o", ())
            flags = ["-shared", "-s", "--build-id=none", "-soname", stub.name, "--version-script", "versions"]
            _link_files(toolchain, flags, ["stub.o"], scratch, f"making a stub of {stub.name}")
            shutil.copyfile(scratch / "linked.so", folder / stub.name)


# ---------------------------------------------------------------------------------------------- the two tools


def _compile_file(toolchain: Toolchain, source: Path, output: Path, flags: Sequence[str]) -> None:
    # By its bare name from its own folder: the name goes into the object, and a path differs by machine.
    command = [*toolchain.compiler, *flags, "-c", source.name, "-o", str(output)]
    run(command, source.parent, f"compiling {source.name}", CompileError)


def _link_files(
    toolchain: Toolchain, flags: Sequence[str], files: Sequence[str], folder: Path, what: str
) -> None:
    """Links files (paths relative to `folder` or absolute) into folder/linked.so."""
    command = [*toolchain.linker, *toolchain.linker_flags(flags), *files, "-o", "linked.so"]
    run(command, folder, what, LinkError)


def _checked_name(name: str) -> str:
    if not _C_NAME.fullmatch(name):
        raise LinkError(f"{name!r} cannot be a symbol: expected a C name (letters, digits, underscores)")
    return name
