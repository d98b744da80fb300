"""Entries of a received map, each checked before it is used: what every message and module is read with."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, Mapping, Sequence, Type, TypeVar

from device_runtime.wire.frames import BAD_REQUEST, ProtocolError

Plain = Dict[str, Any]
_Message = TypeVar("_Message")


def unexpected(where: str, expected: str, found: object) -> ProtocolError:
    """The error about one entry: where it is, what was expected there and what was found."""
    return ProtocolError(BAD_REQUEST, f"{where}: expected {expected}, found {found!r:.80}")


def take(
    plain: Mapping[str, Any], name: str, kind: type, low: float = -math.inf, high: float = math.inf
) -> Any:
    """Entry `name` of a message as `kind`, numbers finite and in [low, high]; ProtocolError otherwise.

    An int is taken where a float is expected; a bool is never taken for a number.
    """
    value: Any = plain.get(name)
    if kind is list and type(value) is tuple:
        value = list(value)
    if kind is float and type(value) is int and abs(value) < 1 << 60:
        value = float(value)
    fits = type(value) is kind
    if not fits:
        raise unexpected(f"'{name}'", kind.__name__, value)
    if kind in (int, float) and not low <= value <= high:
        raise unexpected(f"'{name}'", f"{low:g} to {high:g}", value)
    return value


def take_sha(plain: Mapping[str, Any], name: str) -> str:
    """Entry `name` as a SHA-256 in lower case hex; ProtocolError otherwise."""
    value: str = take(plain, name, str)
    if len(value) != 64 or not set(value) <= set("0123456789abcdef"):
        raise unexpected(f"'{name}'", "a SHA-256 in hex", value)
    return value


def take_choice(plain: Mapping[str, Any], name: str, choices: Sequence[str]) -> str:
    """Entry `name` as one of the given words; ProtocolError otherwise."""
    value: str = take(plain, name, str)
    if value not in choices:
        raise unexpected(f"'{name}'", f"one of {', '.join(choices)}", value)
    return value


def take_symbol(plain: Mapping[str, Any], name: str) -> str:
    """Entry `name` as a C identifier; ProtocolError otherwise."""
    value: str = take(plain, name, str)
    if not value.isidentifier() or not value.isascii() or len(value) > 256:
        raise unexpected(f"'{name}'", "a C identifier", value)
    return value


def to_plain(message: Any) -> Plain:
    """A message as a dict that msgpack can carry; `from_plain` of its class is the way back."""
    return dataclasses.asdict(message)


def known_keys(plain: object, message: Type[_Message]) -> Plain:
    """`plain` itself when it is a map with no key that `message` lacks; ProtocolError otherwise."""
    names = {entry.name for entry in dataclasses.fields(message)}  # type: ignore[arg-type]
    if not isinstance(plain, dict):
        raise unexpected(message.__name__, "a map", plain)
    if not set(plain) <= names:
        unknown = ", ".join(sorted(map(str, set(plain) - names)))
        raise ProtocolError(BAD_REQUEST, f"{message.__name__}: unknown entries {unknown}")
    return plain
