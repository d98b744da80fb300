"""One variant of an installed bundle, and its files, none of which is used before it is hashed."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Dict, List, Sequence, Tuple

from device_runtime.installed.parts import check_hash
from device_runtime.installed.variants import Choice
from device_runtime.measure.check import Difference
from device_runtime.protocol import DTYPE_BYTES, ProtocolError
from device_runtime.sandbox.guarded_memory import Region
from device_runtime.sandbox.isolation import Fault

HEADROOM_BYTES = 256 << 20

Plain = Dict[str, Any]


@dataclass(frozen=True)
class InstalledModel:
    """Plain data, so that it can be made before the fork. `folders`: where a GPU's driver may write."""

    folder: str
    manifest: Plain
    choice: Choice
    folders: Tuple[str, str] = ("", "")

    @property
    def variant(self) -> Plain:
        """The manifest's entry for what runs."""
        return self.choice.variant

    @property
    def kind(self) -> str:
        """One of protocol.DRIVERS."""
        return str(self.variant["kind"])

    def part(self, path: str) -> Plain:
        """The manifest's line for a part."""
        found: Plain = next(part for part in self.manifest["parts"] if part["path"] == path)
        return found

    @property
    def limits_bytes(self) -> int:
        """Memory that a child may use for this model."""
        files = sum(part["size_bytes"] for part in self.manifest["parts"])
        variant = self.variant
        return int(HEADROOM_BYTES + 2 * files + variant["workspace_bytes"] + 2 * variant["parameters_bytes"])


class Started(ABC):
    """A model with its memory, in the process that started it: run_cpu.py and run_gpu.py have one each."""

    @abstractmethod
    def run(self, inputs: Sequence[Region]) -> Tuple[List[Region], float]:
        """One run: fresh outputs, and the seconds from inputs to outputs in memory; raises Fault."""

    @abstractmethod
    def difference(self, dtype: str, got: Region, want: Region, elements: int) -> Difference:
        """How far an output lies from what was expected."""


def output_sizes(model: InstalledModel) -> List[int]:
    """Bytes of each output."""
    return [size_bytes(spec) for spec in model.manifest["outputs"]]


def size_bytes(spec: Plain) -> int:
    """How many bytes a tensor has."""
    return elements(spec) * DTYPE_BYTES[spec["dtype"]]


def elements(spec: Plain) -> int:
    """How many values a tensor has."""
    return math.prod(spec["shape"])


def read_part(model: InstalledModel, path: str) -> Region:
    """A part's bytes, hashed as they were read."""
    part = model.part(path)
    fd = open_checked(os.path.join(model.folder, path), part)
    try:
        return region_of(fd, part["size_bytes"])
    finally:
        os.close(fd)


def read_file(path: str) -> Region:
    """A file's bytes."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return region_of(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)


def region_of(fd: int, count_bytes: int) -> Region:
    """The first `count_bytes` of an open file."""
    region = Region(count_bytes)
    view = region.memory
    done = 0
    while done < count_bytes:
        count = os.preadv(fd, [view[done:]], done)
        if count == 0:
            raise Fault("link", f"a file became shorter than {count_bytes} bytes while it was read")
        done += count
    return region


def open_checked(path: str, part: Plain) -> int:
    """A descriptor of a part whose bytes are as signed; raises Fault("link") otherwise."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0))
    except OSError as error:
        raise Fault("link", f"{path} cannot be opened: {error.strerror}") from None
    try:
        check_hash(fd, part)
    except ProtocolError as error:
        os.close(fd)
        raise Fault("link", f"{path} is damaged: {error.text}") from None
    return fd
