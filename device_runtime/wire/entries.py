"""Entries of a received map, each checked before it is used: what every message and module is read with.

A Message says in its fields what each entry must be; `take` reads one entry of a map that is no message.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from typing import Any, Callable, Dict, Mapping, NamedTuple, Sequence, Tuple, Type, TypeVar, Union

from device_runtime.wire.frames import BAD_REQUEST, ProtocolError

Plain = Dict[str, Any]
Reader = Callable[[Any], Any]  # of a received value; ProtocolError
_Message = TypeVar("_Message", bound="Message")


class Rule(NamedTuple):
    """What a value must be beyond its type; `expected` says it in errors."""

    holds: Callable[[Any], bool]
    expected: str


def between(low: float, high: float = math.inf) -> Rule:
    """A finite or infinite number from `low` to `high`; never NaN."""
    return Rule(lambda value: low <= value <= high, f"{low:g} to {high:g}")


def one_of(words: Sequence[str]) -> Rule:
    """One of the given words."""
    return Rule(lambda value: value in words, f"one of {', '.join(words)}")


SHA256 = Rule(lambda value: len(value) == 64 and set(value) <= set("0123456789abcdef"), "a SHA-256 in hex")
IDENTIFIER = Rule(
    lambda value: value.isidentifier() and value.isascii() and len(value) <= 256, "a C identifier"
)
ANY = Rule(lambda value: True, "")
MOST = 1 << 20  # values of a tuple: more than any header has room for


def entry(
    rule: Rule = ANY, *, default: Any = dataclasses.MISSING, key: str = "", least: int = 0, most: int = MOST
) -> Any:
    """A field of a Message: `rule` holds for its value, or for each of `least` to `most` values of a tuple or
    keys of a map. `key` is its name in the map where that is no name in Python."""
    return dataclasses.field(default=default, metadata={"rule": rule, "key": key, "length": (least, most)})


def unexpected(where: str, expected: str, found: object) -> ProtocolError:
    """The error about one entry: where it is, what was expected there and what was found."""
    return ProtocolError(BAD_REQUEST, f"{where}: expected {expected}, found {found!r:.80}")


class Message:
    """A dataclass that is sent as a map of its fields: `to_plain` gives the map, `from_plain` checks one."""

    @classmethod
    def from_plain(cls: Type[_Message], plain: object) -> _Message:
        """A checked copy of a received map. ProtocolError for an entry that is unknown, missing (unless None
        will do), or not what its field's type and rule say."""
        if not isinstance(plain, dict):
            raise unexpected(cls.__name__, "a map", plain)
        readers = _readers(cls)
        if not plain.keys() <= readers.keys():
            unknown = ", ".join(sorted(map(str, plain.keys() - readers.keys())))
            raise ProtocolError(BAD_REQUEST, f"{cls.__name__}: unknown entries {unknown}")
        return cls(**{name: read(plain.get(key)) for key, (name, read) in readers.items()})


_KNOWN: Dict[Any, Dict[str, Tuple[str, Reader]]] = {}  # what `_readers` has made


def _readers(message: Any) -> Dict[str, Tuple[str, Reader]]:
    """By key in a map: the field's name, and what checks its value. Made once: modules have many maps."""
    if message not in _KNOWN:
        hints = typing.get_type_hints(message)
        keys = {item.metadata.get("key") or item.name: item for item in dataclasses.fields(message)}
        _KNOWN[message] = {
            key: (item.name, _reader(hints[item.name], item.metadata, f"'{key}'"))
            for key, item in keys.items()
        }
    return _KNOWN[message]


def _reader(hint: Any, options: Mapping[str, Any], where: str) -> Reader:
    """What makes a received value the type that a field is annotated with."""
    origin = getattr(hint, "__origin__", None)
    kinds: Tuple[Any, ...] = getattr(hint, "__args__", ())
    rule = options.get("rule", ANY)
    if hint is Any:
        return lambda value: value
    if origin is Union and type(None) in kinds:
        present = _reader(kinds[0], options, where)
        return lambda value: None if value is None else present(value)
    if origin is tuple:
        return _tuple_reader(kinds, options, where)
    if origin is dict:
        return _map_reader(_reader(kinds[1], {}, where), options, where)
    if origin is Union and all(isinstance(kind, type) and issubclass(kind, Message) for kind in kinds):
        return _choice_reader(kinds, where)
    if isinstance(hint, type) and issubclass(hint, Message):
        return hint.from_plain
    kind, holds = kinds if origin is Union else hint, rule.holds
    return lambda value: value if type(value) is kind and holds(value) else checked(value, kind, rule, where)


def _tuple_reader(kinds: Tuple[Any, ...], options: Mapping[str, Any], where: str) -> Reader:
    """Of a list of any length, or of a fixed one, whose values are all of one type."""
    read = _reader(kinds[0], options, where)
    least, most = options.get("length", (0, MOST)) if kinds[-1] is Ellipsis else (len(kinds), len(kinds))

    def taken(value: Any) -> Tuple[Any, ...]:
        if not isinstance(value, (list, tuple)) or not least <= len(value) <= most:
            raise unexpected(where, f"a list of {least} to {most}", value)
        return tuple(map(read, value))

    return taken


def _choice_reader(kinds: Tuple[Any, ...], where: str) -> Reader:
    """Of a map of one of several kinds, which its keys tell apart."""

    def taken(value: Any) -> Any:
        for kind in kinds:
            if isinstance(value, dict) and value.keys() == _readers(kind).keys():
                return kind.from_plain(value)
        known = ", or ".join(", ".join(_readers(kind)) for kind in kinds)
        raise unexpected(where, f"a map of {known}", value)

    return taken


def _map_reader(read: Reader, options: Mapping[str, Any], where: str) -> Reader:
    least, most = options.get("length", (0, MOST))
    rule = options.get("rule", ANY)

    def taken(value: Any) -> Dict[str, Any]:
        if not isinstance(value, dict) or not least <= len(value) <= most:
            raise unexpected(where, f"a map of {least} to {most}", value)
        return {checked(key, str, rule, where): read(item) for key, item in value.items()}

    return taken


def checked(value: Any, kind: Any, rule: Rule, where: str) -> Any:
    """The value as `kind`, or one of several, where the rule holds; ProtocolError otherwise.

    An int is taken where a float is expected; a bool is never taken for a number.
    """
    if kind is list and type(value) is tuple:
        value = list(value)
    if kind is float and type(value) is int and abs(value) < 1 << 60:
        value = float(value)
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if type(value) not in kinds:
        raise unexpected(where, " or ".join(item.__name__ for item in kinds), value)
    if not rule.holds(value):
        raise unexpected(where, rule.expected, value)
    return value


def take(
    plain: Mapping[str, Any], name: str, kind: type, low: float = -math.inf, high: float = math.inf
) -> Any:
    """Entry `name` of a map as `kind`, numbers in [low, high]; see `checked`."""
    return checked(plain.get(name), kind, between(low, high) if kind in (int, float) else ANY, f"'{name}'")


def take_sha(plain: Mapping[str, Any], name: str) -> str:
    """Entry `name` as a SHA-256 in lower case hex; ProtocolError otherwise."""
    return str(checked(plain.get(name), str, SHA256, f"'{name}'"))


def take_choice(plain: Mapping[str, Any], name: str, choices: Sequence[str]) -> str:
    """Entry `name` as one of the given words; ProtocolError otherwise."""
    return str(checked(plain.get(name), str, one_of(choices), f"'{name}'"))


def to_plain(message: Message) -> Plain:
    """A message as a map that msgpack can carry."""
    return {key: _plain(getattr(message, name)) for key, (name, _) in _readers(type(message)).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Message):
        return to_plain(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
