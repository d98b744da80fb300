"""The native code as it ends up in artifacts, beside C functions that count what it does to them."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from boards.target import Target
from cross.link import compile_c, link, native_objects

HOST = Target(
    name="cpu", kind="cpu", triple="x86_64-unknown-linux-gnu", cpu="x86-64", l2_bytes=1 << 20, clock_hz=1e9,
    flops_per_cycle=8.0,
)  # fmt: skip

# Loop bodies and kernels that count what happens to them; closure layouts are declared below once more.
PROBES = r"""
#define _GNU_SOURCE
#include "tfb.h"
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <time.h>

typedef struct {
    int32_t *hits; int64_t *lengths; int64_t chunks; struct tfb_pool *pool; int64_t inner;
} probe;

TFB_EXPORT void count(void *closure, int64_t begin, int64_t end) {
    probe *p = closure;
    int64_t slot = __atomic_fetch_add(&p->chunks, 1, __ATOMIC_SEQ_CST);
    p->lengths[slot] = end - begin;
    for (int64_t i = begin; i < end; i++) p->hits[i]++;
}

TFB_EXPORT void nested(void *closure, int64_t begin, int64_t end) {
    probe *p = closure;
    for (int64_t i = begin; i < end; i++) {
        probe inner = {p->hits + i * p->inner, p->lengths + i, 0, p->pool, 0};
        tfb_parallel_for(p->pool, count, &inner, p->inner);
        __atomic_fetch_add(&p->chunks, inner.chunks, __ATOMIC_SEQ_CST);
    }
}

/* A kernel whose result is what was left on its stack. */
TFB_EXPORT int32_t stale(void *const *buffers, void *workspace, struct tfb_pool *pool) {
    int64_t left[256];
    (void)workspace, (void)pool;
    __asm__ volatile("" : : "r"(left) : "memory");
    *(int64_t *)buffers[0] = left[8];
    return 0;
}

TFB_EXPORT void turn(int32_t turned) { tfb_run_last_first(turned); }

/* Writes which cores the thread of each iteration may run on, and its cpu set as a bit mask. */
TFB_EXPORT void masks(void *closure, int64_t begin, int64_t end) {
    uint64_t *out = closure;
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    for (int64_t i = begin; i < end; i++) out[i] = *(uint64_t *)&set;
}

TFB_EXPORT int32_t stress(struct tfb_pool *pool, probe *p, int64_t extent, int64_t loops) {
    for (int64_t i = 0; i < loops; i++) {
        p->chunks = 0;
        tfb_parallel_for(pool, count, p, extent);
        if (i % 512 == 0) { struct timespec t = {0, 200000}; nanosleep(&t, NULL); }
    }
    return 0;
}

/* buffers[0]: int64 {calls so far, nanoseconds a call takes, call that fails (0: none)} */
TFB_EXPORT int32_t counting_kernel(void *const *buffers, void *workspace, struct tfb_pool *pool) {
    int64_t *state = buffers[0];
    (void)workspace, (void)pool;
    state[0]++;
    if (state[1]) { struct timespec t = {0, state[1]}; nanosleep(&t, NULL); }
    return state[0] == state[2] ? 7 : 0;
}
"""


class Probe(ctypes.Structure):
    """The closure of `count` and `nested`."""

    _fields_ = [
        ("hits", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("chunks", ctypes.c_int64),
        ("pool", ctypes.c_void_p),
        ("inner", ctypes.c_int64),
    ]


class Counter:
    """A `count` closure over `extent` iterations and what came of it."""

    def __init__(self, extent: int, pool: int | None = None, inner: int = 0) -> None:
        self.hits = np.zeros(max(1, extent * max(1, inner)), np.int32)
        self.lengths = np.zeros(4096, np.int64)
        self.closure = Probe(self.hits.ctypes.data, self.lengths.ctypes.data, 0, pool, inner)

    def run(self, library: ctypes.CDLL, pool: int | None, extent: int, body: str = "count") -> None:
        function = ctypes.cast(getattr(library, body), ctypes.c_void_p)
        assert library.tfb_parallel_for(pool, function, ctypes.byref(self.closure), extent) == 0


def load(folder: Path, cores: Path | None = None) -> ctypes.CDLL:
    """The native code and the probes, linked in `folder` as artifacts are; the arguments are typed.

    cores: a folder that says in place of /sys what cores there are.
    """
    path, natives = folder / "probes.so", native_objects(HOST)
    objects = [compile_c(PROBES, HOST)]
    if cores is not None:
        objects.append(compile_c(f'#define CORES_FOLDER "{cores}"\n#include "pool.c"\n', HOST))
        natives = [native for native in natives if native.stem != "pool"]
    path.write_bytes(link(objects, HOST, extra_objects=natives))
    loaded = ctypes.CDLL(str(path))
    loaded.tfb_pool_create.restype = ctypes.c_void_p
    loaded.tfb_pool_create.argtypes = [ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32]
    loaded.tfb_pool_destroy.argtypes = [ctypes.c_void_p]
    loaded.tfb_pool_threads.argtypes = [ctypes.c_void_p]
    loaded.tfb_pool_spins.argtypes = [ctypes.c_void_p]
    loaded.tfb_parallel_for.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    loaded.stress.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    for kind in ("f16", "f32", "f64", "i32"):
        getattr(loaded, f"tfb_compare_{kind}").argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_void_p,
        ]
    return loaded
