"""Importers of Fourier transforms: each is one product with a constant matrix of cosines and sines."""

from __future__ import annotations

import math

import numpy as np

from toolkit.model.graph import Array, Attribute, GraphBuilder
from toolkit.model.source import Emitter, Importer, Source

MATRIX_ELEMENTS = 1 << 24  # of a matrix of cosines; more would be no sensible way to transform


def fourier_matrix(
    source: Source, count: int, length: int, parts: int, inverse: bool, onesided: bool
) -> Array:
    """[count * parts, bins * 2]: from `count` samples, real or with an imaginary part, to complex bins.

    Samples beyond `length` are left out, missing ones are zero.

    Raises:
        ModelError: the matrix would be too large.
    """
    bins = length // 2 + 1 if onesided else length
    if count * parts * bins * 2 > MATRIX_ELEMENTS:
        raise source.refuse(f"a transform of {length} samples takes too large a matrix")
    used = np.arange(count) < length
    angle = np.outer(np.arange(count), np.arange(bins)) % length * (2.0 * np.pi / length)
    real, imaginary = np.cos(angle) * used[:, None], np.sin(angle) * used[:, None] * (1 if inverse else -1)
    scale = 1.0 / length if inverse else 1.0
    rows = [np.stack([real, imaginary], -1), np.stack([-imaginary, real], -1)][:parts]
    matrix: Array = np.stack(rows, 1).reshape(count * parts, bins * 2) * scale
    return matrix.astype(np.float32)


def real_inverse_matrix(count: int, length: int) -> Array:
    """[count * 2, length]: from the first `count` bins of `length` real samples to these.

    A bin that is not given is the conjugate of the one that mirrors it.
    """
    bins = np.arange(count)
    weights = np.where((bins == 0) | (2 * bins == length), 1.0, 2.0) * (bins <= length // 2) / length
    angle = np.outer(bins, np.arange(length)) % length * (2.0 * np.pi / length)
    parts = np.stack([np.cos(angle), -np.sin(angle)], 1) * weights[:, None, None]
    matrix: Array = parts.reshape(count * 2, length).astype(np.float32)
    return matrix


def discrete_fourier(source: Source, build: GraphBuilder) -> None:
    """DFT along one dimension of data [..., 1 or 2], to [..., 2], or to [..., 1] from half the bins."""
    data, shape = source.input(0), source.output.shape
    axis = source.integer("axis", 1)
    if source.opset >= 20:
        axis = (source.known_integers(2, "axis") or (-2,))[0]
    axis %= data.rank
    onesided, inverse = source.integer("onesided", 0) != 0, source.integer("inverse", 0) != 0
    count, parts = data.shape[axis], data.shape[-1]
    if onesided and inverse:
        matrix = real_inverse_matrix(count, shape[axis])
    else:
        length = (source.known_integers(1, "length") or (count,))[0]
        matrix = fourier_matrix(source, count, length, parts, inverse, onesided)
    others = [place for place in range(data.rank - 1) if place != axis]
    order = (*others, axis, data.rank - 1)
    outer = tuple(data.shape[place] for place in others)
    nodes, lines = Emitter(source, build), math.prod(outer)
    name = nodes.shaped(nodes.transposed(data.name, order), (lines, count * parts))
    known = build.constant(f"{source.output.name}/fourier", matrix)
    name = source.emit(build, "MatMul", [name, known], shape=(lines, matrix.shape[1]))
    name = nodes.shaped(name, (*outer, shape[axis], shape[-1]))
    source.emit(build, "Transpose", [name], {"perm": tuple(order.index(place) for place in range(data.rank))})


def frames_shape(source: Source) -> tuple[int, ...]:
    """[batch, frames, bins, 2] for the known step and frame length."""
    data, (step, count) = source.input(0), _frames(source)
    bins = count // 2 + 1 if source.integer("onesided", 1) else count
    return data.shape[0], 1 + (data.shape[1] - count) // step, bins, 2


def _frames(source: Source) -> tuple[int, int]:
    """The distance and the length of frames.

    Raises:
        ModelError: a step below 1, or frames that are empty or longer than the signal.
    """
    step = (source.known_integers(1, "frame step") or (0,))[0]
    window, length = source.optional(2), source.known_integers(3, "frame length")
    count = length[0] if length else (0 if window is None else window.shape[0])
    if step < 1 or not 1 <= count <= source.input(0).shape[1]:
        raise source.invalid(f"frames of {count} every {step} of {source.input(0).shape[1]} samples")
    return step, count


def short_time_fourier(source: Source, build: GraphBuilder) -> None:
    """STFT of signals [batch, samples, 1 or 2] to [batch, frames, bins, 2]: a convolution with strides."""
    data, shape = source.input(0), source.output.shape
    (step, count), window = _frames(source), source.known(2, "window")
    parts = data.shape[2] if data.rank == 3 else 1
    batch, samples = data.shape[:2]
    matrix = fourier_matrix(source, count, count, parts, False, source.integer("onesided", 1) != 0)
    if window is not None:
        matrix *= window.astype(np.float32).repeat(parts)[:, None]
    weight = matrix.T.reshape(-1, 1, count, parts).transpose(0, 3, 1, 2)  # [bins * 2, parts, 1, count]
    known = build.constant(f"{source.output.name}/fourier", weight)
    nodes = Emitter(source, build)
    name = nodes.transposed(nodes.shaped(data.name, (batch, 1, samples, parts)), (0, 3, 1, 2))
    settings: dict[str, Attribute] = {"kernel": (1, count), "strides": (1, step), "dilations": (1, 1)}
    settings |= {"pads": (0, 0, 0, 0), "group": 1}
    name = source.emit(build, "Conv", [name, known], settings, (batch, weight.shape[0], 1, shape[1]))
    source.emit(build, "Reshape", [nodes.transposed(name, (0, 2, 3, 1))])


IMPORTERS: dict[str, Importer] = {
    "DFT": Importer(discrete_fourier, {"axis", "inverse", "onesided"}),
    "STFT": Importer(short_time_fourier, {"onesided"}, shape=frames_shape),
}
