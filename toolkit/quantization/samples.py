"""Samples to calibrate with: what a folder holds, as inputs of a model.

FOLDER/*.npy          of a model with one input, an array of its shape a file; where the model's first
                      dimension is 1, a file may have several samples along it
FOLDER/INPUT/*.npy    of a model with several inputs, a folder for each; a sample has one name in all of them
FOLDER/*.png, *.jpg   of a model whose one input is an image: resized to it, (value / 255 - mean) / std
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from toolkit.errors import InputError, MissingExtra
from toolkit.model_job.installed import read_array

Array = NDArray[Any]
Feeds = dict[str, Array]

IMAGES: Final = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
CHANNELS: Final = {1: "L", 3: "RGB"}  # of an image, and Pillow's name of them
INSTALL: Final = "pip install 'tune-for-board[quantize]'"


class InputSpec(msgspec.Struct, frozen=True):
    """An input of a model; None is a dimension that it leaves open."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str

    @property
    def text(self) -> str:
        return f"{self.dtype} {['?' if extent is None else extent for extent in self.shape]}".replace("'", "")

    def fits(self, shape: Sequence[int]) -> bool:
        known = zip(self.shape, shape, strict=False)
        return len(shape) == len(self.shape) and all(wanted in (None, found) for wanted, found in known)


class ImageScale(msgspec.Struct, frozen=True):
    """How bytes of images become numbers: (value / 255 - mean) / std, one number a channel or for all."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)


class _Sample(msgspec.Struct, frozen=True):
    """A file for each input, and which row of them; None: the whole file."""

    files: tuple[Path, ...]
    row: int | None


class Samples(Sequence[Feeds]):
    """Inputs by name, read when they are asked for."""

    def __init__(self, specs: Sequence[InputSpec], items: Sequence[_Sample], scale: ImageScale) -> None:
        self._specs, self._items, self._scale = tuple(specs), tuple(items), scale

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return self.chosen(range(len(self))[position])
        item = self._items[position]
        pairs = zip(self._specs, item.files, strict=True)
        return {spec.name: _read(spec, path, item.row, self._scale) for spec, path in pairs}

    def chosen(self, positions: Sequence[int]) -> Samples:
        return Samples(self._specs, [self._items[position] for position in positions], self._scale)

    def __iter__(self) -> Iterator[Feeds]:
        return (self[position] for position in range(len(self)))


def read_samples(folder: Path | str, specs: Sequence[InputSpec], scale: ImageScale, most: int) -> Samples:
    """At most `most` samples of a folder, evenly taken from all of them in the order of their names.

    Raises InputError: there is no folder, nothing in it fits the model, or too little.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(
            f"{folder}: expected a folder with .npy files or images, found none; check the path of --data"
        )
    files = _spread(_files_of_inputs(folder, specs), most)
    items = [_Sample(paths, row) for paths in files for row in _rows(specs, paths)]
    return Samples(specs, _spread(items, most), scale)


def split(samples: Samples, held_out: float) -> tuple[Samples, Samples]:
    """Those to calibrate with, and those held out to compare by: so large a share of them, at least one."""
    count = min(max(1, round(held_out * len(samples))), len(samples) - 1)
    if count < 1:
        raise InputError(
            f"found {len(samples)} sample to calibrate with, expected at least 2: one is held out to compare "
            "the models by; add data"
        )
    kept = set(_spread(range(len(samples)), count))
    rest = [position for position in range(len(samples)) if position not in kept]
    return samples.chosen(rest), samples.chosen(sorted(kept))


def _spread(items: Sequence[Any], most: int) -> list[Any]:
    """`most` of the items, at equal distances."""
    count = min(most, len(items))
    return [items[number * len(items) // count] for number in range(count)]


def _files_of_inputs(folder: Path, specs: Sequence[InputSpec]) -> list[tuple[Path, ...]]:
    """The files of each sample, one for each input."""
    if len(specs) == 1:
        inner = folder / specs[0].name
        found = _files(inner if inner.is_dir() else folder)
        return [(path,) for path in found]
    names = [{path.name for path in _files(folder / spec.name)} for spec in specs]
    for spec, own in zip(specs, names, strict=True):
        if missing := sorted(set.union(*names) - own):
            raise InputError(
                f"{folder / spec.name}: expected a file for every sample, found no {missing[0]}, which other "
                "inputs have; a sample has one name in the folders of all inputs"
            )
    return [tuple(folder / spec.name / name for spec in specs) for name in sorted(names[0])]


def _files(folder: Path) -> list[Path]:
    arrays = sorted(folder.glob("*.npy"))
    images = sorted(path for path in folder.glob("*") if path.suffix.lower() in IMAGES)
    if arrays and images:
        raise InputError(
            f"{folder}: expected .npy files or images, found {arrays[0].name} and {images[0].name}; "
            "put one kind there"
        )
    if not arrays and not images:
        found = "no folder of that name" if not folder.is_dir() else "neither"
        raise InputError(
            f"{folder}: expected .npy files or images ({', '.join(sorted(IMAGES))}), found {found}; a model "
            "with several inputs needs a folder for each, named as the input"
        )
    return arrays or images


def _rows(specs: Sequence[InputSpec], files: Sequence[Path]) -> Sequence[int | None]:
    """The rows of a sample's files that are samples of their own."""
    counts = []
    for spec, path in zip(specs, files, strict=True):
        if path.suffix != ".npy":
            return [None]  # looked at when it is read: decoding takes time
        array = read_array(path)
        several = (
            bool(spec.shape) and spec.shape[0] == 1 and array.ndim > 0 and spec.fits((1, *array.shape[1:]))
        )
        if array.dtype != np.dtype(spec.dtype) or not (several or spec.fits(array.shape)):
            many = ", or several along the first dimension" if spec.shape[:1] == (1,) else ""
            raise InputError(
                f"{path}: the input {spec.name!r} is {spec.text}{many}; found {array.dtype} "
                f"{list(array.shape)}; write the array as the model takes it"
            )
        if several:
            counts.append(len(array))
    if len(set(counts)) > 1 or len(counts) not in (0, len(files)):
        raise InputError(
            f"{', '.join(map(str, files))}: expected equally many samples along the first dimension, found "
            f"{', '.join(map(str, counts))}"
        )
    return range(counts[0]) if counts else [None]


def _read(spec: InputSpec, path: Path, row: int | None, scale: ImageScale) -> Array:
    if path.suffix != ".npy":
        return _image(spec, path, scale)
    array = read_array(path)
    return array if row is None else array[row : row + 1]


def _image(spec: InputSpec, path: Path, scale: ImageScale) -> Array:
    """An image as a model's input, [1, C, H, W] or [1, H, W, C]: float32, or the bytes themselves."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingExtra(f"{path} is an image, and Pillow is not installed: {INSTALL}") from error
    rank = len(spec.shape)
    place = next((axis for axis in (1, 3) if rank == 4 and spec.shape[axis] in CHANNELS), None)
    sides = [extent for axis, extent in enumerate(spec.shape[1:], 1) if axis != place]
    if (
        place is None
        or None in sides
        or spec.dtype not in ("float32", "uint8")
        or spec.shape[0] not in (1, None)
    ):
        raise InputError(
            f"{path}: the input {spec.name!r} is {spec.text}, which is no image; expected float32 or uint8 "
            "[1, 3, H, W] or [1, H, W, 3], 1 channel for grey; give --shape for open dimensions, or .npy"
        )
    channels = spec.shape[place]
    assert channels is not None and sides[0] is not None and sides[1] is not None
    try:
        with Image.open(path) as opened:
            small = opened.convert(CHANNELS[channels]).resize((sides[1], sides[0]), Image.Resampling.BILINEAR)
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: expected an image, found {error}; remove it from the data") from error
    pixels = np.asarray(small).reshape(1, sides[0], sides[1], channels)
    if spec.dtype == "float32":
        for numbers in (scale.mean, scale.std):
            if len(numbers) not in (1, channels):
                raise InputError(
                    f"{path}: expected {channels} numbers for --mean and --std, one a channel, or 1 for all; "
                    f"found {len(numbers)}"
                )
        pixels = (pixels / 255.0 - np.asarray(scale.mean)) / np.asarray(scale.std)
    ordered = np.moveaxis(pixels, 3, 1) if place == 1 else pixels
    return np.ascontiguousarray(ordered, spec.dtype)


def known_shapes(specs: Sequence[InputSpec], shapes: Mapping[str, tuple[int, ...]]) -> list[InputSpec]:
    """The inputs with the shapes that the user gives. Raises InputError for one that does not fit."""
    names = {spec.name for spec in specs}
    for name in shapes:
        if name not in names:
            raise InputError(f"--shape {name}: the model's inputs are {', '.join(sorted(names))}")
    found = []
    for spec in specs:
        shape = shapes.get(spec.name)
        if shape is not None and not spec.fits(shape):
            raise InputError(f"--shape {spec.name}: expected {spec.text}, found {list(shape)}")
        found.append(InputSpec(spec.name, shape or spec.shape, spec.dtype))
    return found
