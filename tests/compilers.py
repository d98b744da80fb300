"""A compiler of C programs for this machine."""

from __future__ import annotations

import shutil
import sys


def host_compiler() -> list[str]:
    """The system's, or else zig's, which first compiles a C library (20 s of CPU time, kept for later)."""
    system = shutil.which("cc")
    return [system] if system else [sys.executable, "-m", "ziglang", "cc", "-fno-sanitize=undefined"]
