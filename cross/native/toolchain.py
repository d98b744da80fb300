"""The C compiler and linker for a CPU target. Start at `find_toolchain`.

The ziglang wheel holds clang and lld for every target and the headers of an old glibc, so it comes first:
the same version gives the same bytes on every machine. Without it a system toolchain for the target's
architecture is used: $CC, <arch>-linux-gnu-gcc, or this machine's own compiler.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from cross.errors import CrossError, LinkError

GLIBC = "2.17"  # the oldest that artifacts run on; the first one that exists for aarch64
ARCHITECTURES = ("x86_64", "aarch64")
COMMAND_TIMEOUT_S = (
    300.0  # a tool that hangs is an error; compiling what we give it takes well under a second
)

_EMULATIONS = {"x86_64": "elf_x86_64", "aarch64": "aarch64linux"}
_KEPT_VARIABLES = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH")

_COMPILE_FLAGS = (
    "-std=gnu11", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-ffunction-sections", "-fdata-sections",
    "-fno-math-errno", "-fno-stack-protector", "-fno-asynchronous-unwind-tables", "-fno-ident",
)  # fmt: skip


class Toolchain(msgspec.Struct, frozen=True):
    """Commands that compile and link for one triple."""

    identity: str  # name and version; part of what caches are keyed by
    compiler: tuple[str, ...]  # followed by flags, "-c", source, "-o", object
    linker: tuple[str, ...]  # followed by `linker_flags`, objects, "-o", shared object
    linker_is_driver: bool  # the linker is run by the compiler, which hands each of its flags on

    def linker_flags(self, flags: Sequence[str]) -> list[str]:
        """The linker's flags as this toolchain's link command takes them."""
        if not self.linker_is_driver:
            return list(flags)
        return [part for flag in flags for part in ("-Xlinker", flag)]


def architecture(triple: str) -> str:
    """The architecture of a triple that artifacts can be made for; raises LinkError for another."""
    parts = triple.split("-")
    if parts[0] not in ARCHITECTURES or parts[-1] != "gnu" or "linux" not in parts:
        known = ", ".join(f"{known}-unknown-linux-gnu" for known in ARCHITECTURES)
        raise LinkError(
            f"cannot link for the triple {triple!r}: expected one of {known}; correct it in the board file"
        )
    return parts[0]


@functools.cache
def find_toolchain(triple: str) -> Toolchain:
    """The toolchain for a triple on this machine; raises LinkError when there is none."""
    arch = architecture(triple)
    found = zig_toolchain(arch) or system_toolchain(arch, os.environ)
    if found is None:
        raise LinkError(
            f"no C compiler for {triple}: expected the Python package ziglang, $CC or {arch}-linux-gnu-gcc, "
            "found none of them; run `pip install ziglang`"
        )
    return found


def zig_toolchain(arch: str) -> Toolchain | None:
    """clang and lld out of the ziglang wheel, where it is installed."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        return None
    zig = str(Path(spec.submodule_search_locations[0]) / "zig")
    compiler = (zig, "cc", "-target", f"{arch}-linux-gnu.{GLIBC}", "-fno-sanitize=undefined")
    return Toolchain(
        identity=f"zig {importlib.metadata.version('ziglang')}",
        compiler=(*compiler, *_flags(arch)),
        # Called directly: as `zig cc -shared` it would first build all of glibc's stubs, which takes 18 s.
        linker=(zig, "ld.lld", "-m", _EMULATIONS[arch], "--threads=1"),
        linker_is_driver=False,
    )


def system_toolchain(arch: str, environment: Mapping[str, str]) -> Toolchain | None:
    """The first compiler on the search path that says it compiles for `arch`."""
    names = (environment.get("CC", ""), f"{arch}-linux-gnu-gcc", "cc", "gcc", "clang")
    for name in filter(None, names):
        path = shutil.which(name, path=environment.get("PATH"))
        if path is None or not _answer(path, "-dumpmachine").startswith(f"{arch}-"):
            continue
        return Toolchain(
            identity=f"{Path(path).name} {_answer(path, '-dumpfullversion', '-dumpversion')}",
            # Ubuntu's compiler defines it by itself, and then calls __memcpy_chk and others, which are not
            # among the functions of libc that artifacts are linked with.
            compiler=(path, *_flags(arch), "-U_FORTIFY_SOURCE"),
            linker=(path, "-nostdlib", "-shared"),
            linker_is_driver=True,
        )
    return None


def _flags(arch: str) -> tuple[str, ...]:
    # Outlined atomics are calls into libgcc, which artifacts do not carry.
    return (*_COMPILE_FLAGS, "-mno-outline-atomics") if arch == "aarch64" else _COMPILE_FLAGS


def _answer(path: str, *arguments: str) -> str:
    """What the compiler prints on standard output; nothing when it refuses."""
    done = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def run(command: Sequence[str], folder: Path, what: str, error: type[CrossError]) -> None:
    """Runs one tool in `folder`; raises `error` with the tool's text when it fails."""
    # Variables such as CPATH would change what comes out; zig's caches in a folder that goes away keep
    # nothing of one call for the next (clang is fast) and need no writable home.
    with tempfile.TemporaryDirectory(prefix="tfb-zig-") as zig_cache:
        environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        environment |= {"LC_ALL": "C", "ZIG_GLOBAL_CACHE_DIR": zig_cache, "ZIG_LOCAL_CACHE_DIR": zig_cache}
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace",
                stdin=subprocess.DEVNULL, timeout=COMMAND_TIMEOUT_S, check=False,
            )  # fmt: skip
        except OSError as failure:
            raise error(f"{what}: cannot start {command[0]}: {failure}") from failure
        except subprocess.TimeoutExpired:
            raise error(f"{what}: {command[0]} gave no answer in {COMMAND_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        text = (done.stderr + done.stdout).strip()
        raise error(f"{what}: {Path(command[0]).name} ended with exit code {done.returncode}:\n{text[:8000]}")
