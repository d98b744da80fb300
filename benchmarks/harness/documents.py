"""What studies keep as JSON: dataclasses or structs whose version is a Literal, read with their type."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from toolkit.errors import InputError

Document = TypeVar("Document")


class NoDocument(InputError):
    """A file is missing, damaged, or of another kind or version."""


def write(document: Any, path: Path) -> None:
    """Replace the file as a whole by indented JSON."""
    write_text(msgspec.json.format(msgspec.json.encode(document)).decode() + "\n", path)


def write_text(text: str, path: Path) -> None:
    """Replace the file as a whole; its folder is made where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(text)
    part.replace(path)


def read(path: Path, kind: type[Document]) -> Document:
    """What `write` wrote. Raises NoDocument."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise NoDocument(f"{path} cannot be read as {kind.__name__}: {error}") from error


def kept(path: Path, kind: type[Document]) -> Document | None:
    """The document in a file; None where the file is missing or no such document, so that it must be made."""
    try:
        return read(path, kind)
    except NoDocument:
        return None
