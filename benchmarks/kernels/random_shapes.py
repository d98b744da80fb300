"""Operators that nobody has tuned for: shapes drawn from a seed, primes and odd sizes among them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.kernels.workloads import Image, Product, Workload

SUITE = "random"
LEAST_FLOPS, MOST_FLOPS = 200_000, 400_000_000
TRANSPOSED = ((2, 2, 0), (3, 3, 0), (4, 2, 1), (6, 2, 2))  # kernel, stride, pad: outputs of size * stride

Draw = Callable[[np.random.Generator], Image | Product]


def random_workloads(count: int, seed: int) -> list[Workload]:
    """So many workloads, the families in turn, named by number."""
    rng = np.random.default_rng(seed)
    return [Workload(f"R{number}", SUITE, _drawn(rng, _FAMILIES[number % 5])) for number in range(count)]


def _drawn(rng: np.random.Generator, draw: Draw) -> Image | Product:
    """A shape whose work is worth measuring and soon done."""
    while True:
        of = draw(rng)
        if LEAST_FLOPS <= of.flops <= MOST_FLOPS:
            return of


def _extent(rng: np.random.Generator, low: int, high: int) -> int:
    """Log-uniform between low and high, both included: small extents are as likely as large ones."""
    return int(np.exp(rng.uniform(np.log(low), np.log(high + 1))))


def _conv(rng: np.random.Generator) -> Image:
    kernel, stride = int(rng.choice([1, 3, 5, 7])), int(rng.integers(1, 4))
    size, inputs, outputs = _extent(rng, 7, 96), _extent(rng, 1, 400), _extent(rng, 1, 400)
    return Image("conv", size, inputs, outputs, kernel, stride, int(rng.integers(0, kernel // 2 + 1)))


def _depthwise(rng: np.random.Generator) -> Image:
    kernel, channels = int(rng.choice([3, 5])), _extent(rng, 4, 800)
    return Image(
        "depthwise", _extent(rng, 7, 120), channels, channels, kernel, int(rng.integers(1, 3)), kernel // 2
    )


def _transposed(rng: np.random.Generator) -> Image:
    kernel, stride, pad = TRANSPOSED[rng.integers(len(TRANSPOSED))]
    return Image(
        "transposed", _extent(rng, 3, 40), _extent(rng, 2, 300), _extent(rng, 1, 200), kernel, stride, pad
    )


def _dense(rng: np.random.Generator) -> Product:
    return Product("dense", 1, *(_extent(rng, 1, 1024) for _ in range(3)))


def _batch_matmul(rng: np.random.Generator) -> Product:
    return Product("batch_matmul", _extent(rng, 2, 24), *(_extent(rng, 2, 300) for _ in range(3)))


_FAMILIES: tuple[Draw, ...] = (_conv, _depthwise, _transposed, _dense, _batch_matmul)
