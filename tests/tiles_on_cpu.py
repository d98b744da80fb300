"""Tile registers (AMX) by C functions: kernels that use them run on any x86-64 processor.

`run_on_cpu` runs kernels whose tile instructions are calls of these. What the processor would refuse (a shape
that does not fit the others', a register that is not configured) makes all that is stored wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from numpy.typing import NDArray

from boards.target import TILE_FEATURES, Target
from cross.codegen.llvm.module import llvm_module
from cross.codegen.llvm.objects import compile_ir
from cross.compile import Artifact, kernel_of
from cross.link import compile_c, link, native_objects
from tests.fuzz.kernels import Job, run_here

REGISTERS = r"""
#include "tfb.h"
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* Of each thread: artifacts have no thread-local storage, which needs more than libc. */
static struct registers {
    pthread_t thread;
    _Atomic int taken;
    int wrong;
    unsigned char configuration[64], tile[8][16][64];
} of_threads[64];

static struct registers *own(void) {
    struct registers *found = of_threads;
    for (pthread_t self = pthread_self(); found->taken != 2 || !pthread_equal(found->thread, self); found++) {
        int expected = 0;
        if (atomic_compare_exchange_strong(&found->taken, &expected, 1)) {
            found->thread = pthread_self();
            found->taken = 2;
            break;
        }
    }
    return found;
}

static int rows(int tile) { return own()->configuration[48 + tile]; }
static int bytes(int tile) {
    const unsigned char *from = own()->configuration + 16 + 2 * tile;
    return from[0] + 256 * from[1];
}
static void check(int holds) { own()->wrong |= !holds; }

int32_t tiles_allow(void) { return 0; }

void tiles_release(void) {
    memset(own()->configuration, 0, 64);
    memset(own()->tile, 0, sizeof own()->tile);
    own()->wrong = 0;
}

void tiles_configure(const unsigned char *from) {
    tiles_release();
    memcpy(own()->configuration, from, 64);
    check(from[0] == 1 && from[1] == 0);
    for (int i = 2; i < 16; i++) check(from[i] == 0);
    for (int i = 0; i < 8; i++) check(rows(i) <= 16 && bytes(i) <= 64 && !rows(i) == !bytes(i));
    for (int i = 32; i < 48; i++) check(from[i] == 0);
    for (int i = 56; i < 64; i++) check(from[i] == 0);
}

void tiles_zero(int8_t tile) {
    check(rows(tile) > 0);
    memset(own()->tile[tile], 0, sizeof own()->tile[tile]);
}

void tiles_load(int8_t tile, const unsigned char *from, int64_t stride) {
    tiles_zero(tile);
    for (int i = 0; i < rows(tile); i++) memcpy(own()->tile[tile][i], from + i * stride, (size_t)bytes(tile));
}

void tiles_store(int8_t tile, unsigned char *to, int64_t stride) {
    check(rows(tile) > 0);
    for (int i = 0; i < rows(tile); i++) {
        if (own()->wrong) memset(to + i * stride, 0x5A, (size_t)bytes(tile));
        else memcpy(to + i * stride, own()->tile[tile][i], (size_t)bytes(tile));
    }
}

static void multiply(int sum, int left, int right, int is_signed) {
    check(rows(sum) == rows(left) && bytes(left) == 4 * rows(right) && bytes(sum) == bytes(right));
    for (int m = 0; m < rows(sum); m++)
        for (int n = 0; n < bytes(sum) / 4; n++) {
            int32_t total;
            memcpy(&total, &own()->tile[sum][m][4 * n], 4);
            for (int k = 0; k < bytes(left); k++) {
                int item = own()->tile[left][m][k];
                if (is_signed) item = (int8_t)item;
                total += item * (int8_t)own()->tile[right][k / 4][4 * n + k % 4];
            }
            memcpy(&own()->tile[sum][m][4 * n], &total, 4);
        }
}

void tiles_unsigned(int8_t sum, int8_t left, int8_t right) { multiply(sum, left, right, 0); }
void tiles_signed(int8_t sum, int8_t left, int8_t right) { multiply(sum, left, right, 1); }
"""
_FUNCTIONS = {
    "llvm.x86.ldtilecfg": "tiles_configure",
    "llvm.x86.tilerelease": "tiles_release",
    "llvm.x86.tilezero": "tiles_zero",
    "llvm.x86.tileloadd64": "tiles_load",
    "llvm.x86.tilestored64": "tiles_store",
    "llvm.x86.tdpbusd": "tiles_unsigned",
    "llvm.x86.tdpbssd": "tiles_signed",
    "tfb_allow_tiles": "tiles_allow",
}


def run_on_cpu(jobs: Sequence[Job], target: Target, folder: Path, threads: int = 1) -> list[NDArray[Any]]:
    """The outputs of all kernels, run in this process on a pool of so many threads."""
    features = tuple(item for item in target.features if item not in TILE_FEATURES)
    plain = msgspec.structs.replace(target, features=features)
    kernels = [kernel_of(f"kernel{place}", job.nest) for place, job in enumerate(jobs)]
    objects = [compile_c(REGISTERS, plain)]
    for kernel, job in zip(kernels, jobs, strict=True):
        text = llvm_module(kernel.symbol, job.nest, target)
        text = re.sub(r"@([\w.]+)", lambda found: f"@{_FUNCTIONS.get(found[1], found[1])}", text)
        assert "llvm.x86.t" not in text
        objects.append(compile_ir(text, plain))
    code = link(objects, plain, extra_objects=native_objects(plain))
    return run_here(Artifact(plain, code, tuple(kernels)), jobs, folder, threads)
