"""The C of every CPU artifact: thread pool, timing, checked calls, tile registers, comparison, half floats.

tfb.h is the interface between kernels, this code and whoever loads an artifact. `cross.link` compiles it.
"""

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
HEADER = FOLDER / "tfb.h"
SOURCES = tuple(FOLDER / f"{name}.c" for name in ("pool", "timing", "calls", "tiles", "check", "half"))
ABI_VERSION = 2  # TFB_ABI_VERSION of tfb.h

EXPORTS = (
    "tfb_abi_version",
    "tfb_call",
    "tfb_compare_bf16",
    "tfb_compare_f16",
    "tfb_compare_f32",
    "tfb_compare_f64",
    "tfb_compare_i32",
    "tfb_parallel_for",
    "tfb_pool_create",
    "tfb_pool_destroy",
    "tfb_pool_threads",
    "tfb_time",
)
