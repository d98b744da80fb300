"""What an artifact may call of the board's C library: the names, as data, and stubs to link against.

Linking against stubs instead of against nothing has three uses. A call to anything else is an error here and
not on the board. The artifact names the libraries it needs (DT_NEEDED), so that a program which uses neither
libm nor threads of its own can load it; before glibc 2.34 threads are in a library of their own. And each
name is bound to the oldest version of its behaviour, so that the artifact runs on every glibc since 2.17
whatever this machine has.
"""

from __future__ import annotations

import msgspec


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_LIBC = _names("""
    __errno_location __sched_cpucount abort aligned_alloc bcmp calloc clock_gettime clock_nanosleep close exit
    fclose fopen fread free fwrite getauxval getenv getpid madvise malloc memchr memcmp memcpy memmove memset
    mmap mprotect munmap nanosleep open posix_memalign printf pthread_equal pthread_self puts qsort read
    realloc sched_getaffinity sched_setaffinity sched_yield sigfillset snprintf strcmp strlen strncmp syscall
    sysconf usleep write
""")
_LIBPTHREAD = _names("""
    pthread_create pthread_detach pthread_join pthread_mutex_lock pthread_mutex_unlock pthread_once
    pthread_sigmask
""")
_LIBM_DOUBLE = _names("""
    acos acosh asin asinh atan atan2 atanh cbrt ceil cos cosh erf erfc exp exp2 expm1 fabs floor fma fmax fmin
    fmod ldexp log log10 log1p log2 nearbyint pow rint round sin sincos sinh sqrt tan tanh trunc
""")
_LIBM = (*_LIBM_DOUBLE, *(f"{name}f" for name in _LIBM_DOUBLE))

LIBRARIES = {
    "libc.so.6": _LIBC,
    "libm.so.6": _LIBM,
    "libpthread.so.0": _LIBPTHREAD,
    "libdl.so.2": ("dladdr", "dlopen", "dlsym"),
}

# The first version of the architecture's glibc, and the names that came, or changed, after it.
_FIRST_VERSION = {"x86_64": "GLIBC_2.2.5", "aarch64": "GLIBC_2.17"}
_LATER = {
    "x86_64": {
        "__sched_cpucount": "GLIBC_2.6",
        "aligned_alloc": "GLIBC_2.16",
        "clock_gettime": "GLIBC_2.17",
        "clock_nanosleep": "GLIBC_2.17",
        "getauxval": "GLIBC_2.16",
        "memcpy": "GLIBC_2.14",
        "sched_getaffinity": "GLIBC_2.3.4",
        "sched_setaffinity": "GLIBC_2.3.4",
    },
    "aarch64": {},
}


class Stub(msgspec.Struct, frozen=True):
    """A shared library that has the names of a real one and nothing behind them."""

    name: str  # file name and soname
    assembly: str
    version_script: str


def stubs(arch: str) -> tuple[Stub, ...]:
    """One stub a system library."""
    return tuple(_stub(library, names, arch) for library, names in LIBRARIES.items())


def _stub(library: str, names: tuple[str, ...], arch: str) -> Stub:
    assembly = [".text"]
    versions: dict[str, list[str]] = {}
    for name in names:
        assembly += [f".globl {name}", f".type {name}, %function", f"{name}:"]
        versions.setdefault(_LATER[arch].get(name, _FIRST_VERSION[arch]), []).append(name)
    assembly += ["nop", '.section .note.GNU-stack,"",%progbits']
    script = [f"{version} {{ global: {'; '.join(held)}; }};" for version, held in sorted(versions.items())]
    return Stub(library, "\n".join(assembly) + "\n", "\n".join(script) + "\n")
