"""The calling thread's mode of floating-point arithmetic, which a kernel has to leave as it was."""

from __future__ import annotations

import ctypes
import platform

from device_runtime.sandbox.isolation import LIBC

FENV_BYTES = 64  # more than any fenv_t has
# Where the control registers are in fenv_t (the C library's bits/fenv.h): offset and bytes.
_CONTROLS = {"x86_64": ((0, 2), (28, 4)), "aarch64": ((0, 4),)}
# The low bits of MXCSR tell what has happened; before it are the two bytes of the x87's control word.
_HAPPENED = {"x86_64": 0x3F << 16}
_MACHINE = platform.machine()


def float_mode() -> int:
    """Rounding, handling of denormals and trapped exceptions; 0 where the layout is not known."""
    controls = _CONTROLS.get(_MACHINE, ())
    environment = ctypes.create_string_buffer(FENV_BYTES)
    if not controls or not hasattr(LIBC, "fegetenv") or LIBC.fegetenv(environment) != 0:
        return 0
    found = b"".join(environment.raw[start : start + size] for start, size in controls)
    return int.from_bytes(found, "little") & ~_HAPPENED.get(_MACHINE, 0)
