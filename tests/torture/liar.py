"""A device that lies once: the real runtime, whose answer to one method is replaced by a lie.

    python liar.py LIE.json ARCHIVE --device-dir DIR

LIE.json: {"lie": one of LIES, "method": "put" (or "greeting"), "after": honest answers before, "seed": int,
"pid_file": where to note the process id, "told_file": made when the lie is told}.
"""

from __future__ import annotations

import copy
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import msgpack

from device_runtime import __main__ as runtime
from device_runtime.wire import frames
from device_runtime.wire.frames import MAGIC, PREFIX, Connection, Frame, encode_frame

OSC = "\x1b]0;owned\x07\x9b31m\u202etxt\r"
Header = dict[str, Any]
Change = Callable[[Header, random.Random], None]


def content_of(header: Header) -> str:
    """Under which name a header carries what it says."""
    return next(name for name in ("greeting", "result", "error") if name in header)


def entries(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a nested value, as (container, key)."""
    for key in (
        list(value) if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    ):
        yield value, key
        yield from entries(value[key])


def whole(value: Any) -> Change:
    """All that it says is `value`."""

    def change(header: Header, rng: random.Random) -> None:
        header[content_of(header)] = value

    return change


def entry(value: Any) -> Change:
    """One entry, somewhere in what it says, is `value`."""

    def change(header: Header, rng: random.Random) -> None:
        places = list(entries(header[content_of(header)])) or [(header, content_of(header))]
        container, key = rng.choice(places)
        container[key] = value

    return change


def every(kind: type, made: Callable[[Any], Any]) -> Change:
    """Every value of a type, somewhere in what it says, becomes another."""

    def change(header: Header, rng: random.Random) -> None:
        for container, key in list(entries(header[content_of(header)])):
            if type(container[key]) is kind:
                container[key] = made(container[key])

    return change


def named(**values: Any) -> Change:
    """These entries of the result; a callable makes one of the honest value."""

    def change(header: Header, rng: random.Random) -> None:
        result = header[content_of(header)]
        for name, value in values.items():
            result[name] = value(result.get(name)) if callable(value) else value

    return change


def number(made: Callable[[int], Any]) -> Change:
    """Another call's number."""

    def change(header: Header, rng: random.Random) -> None:
        if "id" in header:
            header["id"] = made(header["id"])

    return change


def error(value: Any) -> Change:
    """An error instead of a result."""

    def change(header: Header, rng: random.Random) -> None:
        header.pop(content_of(header))
        header["error"] = value(rng) if callable(value) else value

    return change


def without(header: Header, rng: random.Random) -> None:
    """One entry is missing."""
    container, key = rng.choice(list(entries(header[content_of(header)])) or [(header, content_of(header))])
    del container[key]


def slot(**values: Any) -> Change:
    """Every slot's entries."""

    def change(header: Header, rng: random.Random) -> None:
        for one in header["result"]["slots"]:
            one.update(copy.deepcopy(values))

    return change


def nested(depth: int) -> Any:
    """Maps in lists in maps."""
    return {"a": [nested(depth - 1)]} if depth else OSC


def refused(rng: random.Random) -> Header:
    """A put that is refused with some offset."""
    return {
        "code": "refused",
        "text": "elsewhere",
        "details": {"offset": rng.choice((0, 1, -1, 1 << 40, "x", None))},
    }


CODES = sorted(value for name, value in vars(frames).items() if name.isupper() and isinstance(value, str))
TENSOR = {"name": "x", "shape": [1], "dtype": "float32", "layout": ""}
CHANGES: dict[str, Change] = {
    **{f"whole {value!r}": whole(value) for value in (None, True, 5, "text", [], {}, b"\x1b")},
    **{f"entry {value!r:.20}": entry(value) for value in (
        None, True, 0, -1, 1 << 62, float("nan"), float("inf"), -1e300, "", "../../../tmp/x", OSC, b"\x1b",
        [], {}, [None], [OSC] * 9)},
    "entry of a million letters": entry("x" * 900_000),
    "entry of a hundred thousand": entry([0] * 100_000),
    "entry that is nested": entry(nested(5)),
    "missing entry": without,
    "further entries": named(**{OSC: OSC, "spent_s": "x"}),
    "every text hostile": every(str, lambda text: text + OSC),
    "every text long": every(str, lambda text: text + "y" * 5000),
    "every number negative": every(int, lambda value: -value - 1),
    "every number huge": every(int, lambda value: 1 << 63),
    "every float NaN": every(float, lambda value: float("nan")),
    "every float huge": every(float, lambda value: 1e308),
    "every list empty": every(list, lambda value: []),
    "every list long": every(list, lambda value: 50 * value),
    "every truth turned": every(bool, lambda value: not value),
    **{f"number {name}": number(made) for name, made in (
        ("of the next call", lambda n: n + 1), ("of the call before", lambda n: n - 1), ("0", lambda n: 0),
        ("negative", lambda n: -n - 1), ("as text", str), ("as float", float), ("in a list", lambda n: [n]),
        ("None", lambda n: None))},
    **{f"error {value!r:.30}": error(value) for value in (
        5, {}, {"code": 5, "text": "x"}, {"code": "failed"}, {"code": "failed", "text": 7}, [],
        {"code": "busy", "text": OSC, "details": [OSC]}, {"code": OSC, "text": OSC, "details": {OSC: OSC}},
        {"code": "failed", "text": OSC * 50_000}, {"code": "busy", "text": "me", "details": {"holder": 7}})},
    "error of some kind": error(lambda rng: {"code": rng.choice(CODES), "text": "so it is", "details": {}}),
}  # fmt: skip
SPECIAL: dict[str, dict[str, Change]] = {
    "put": {
        "stuck": named(received_bytes=0),
        "one byte at a time": named(received_bytes=1),
        "backwards": named(received_bytes=lambda n: n - 1),
        "beyond the end": named(received_bytes=lambda n: n + 1),
        "another offset each time": error(refused),
    },
    "status": {
        "there, with another size": named(size_bytes=1),
        "more than all received": named(received_bytes=1 << 31),
    },
    "measure": {
        "no times": named(seconds=[]),
        "times of zero": named(seconds=[0.0]),
        "times below zero": named(seconds=[-1.0]),
        "tiny times": named(seconds=[5e-324]),
        "a thousand times": named(seconds=[1.0] * 1000),
        "times as text": named(seconds=[OSC]),
        "a failure of no kind": named(error={"kind": OSC, "text": OSC, "signal": None}),
        "a failure of a kind": named(error={"kind": "crash", "text": OSC, "signal": 11}, seconds=[]),
        "the host's own facts": named(facts={"spent_s": "x", "code": [], "given_up_s": "x", "reused": 1}),
        "infinite errors": named(max_abs_error=float("inf"), max_abs_reference=0.0),
    },
    "slots": {
        "slots that are paths": slot(id="../../../../etc"),
        "huge tensors": slot(outputs=[{**TENSOR, "shape": [1 << 40, 1 << 40]}]),
        "tensors of half a GiB": slot(outputs=[{**TENSOR, "shape": [1 << 27]}]),
        "tensors of no type": slot(outputs=[{**TENSOR, "dtype": "O"}]),
        "tensors of negative size": slot(outputs=[{**TENSOR, "shape": [-4]}]),
        "outputs that are paths": slot(outputs=[{**TENSOR, "name": "../../../tmp/owned", "shape": [4, 3]}]),
        "outputs of one name": slot(outputs=[TENSOR, TENSOR]),
        "a current slot that is not there": named(current="0" * 32, committed="0" * 32),
    },
    "run": {
        "no outputs": named(outputs=[]),
        "a hundred outputs": named(outputs=["0" * 64] * 100),
        "outputs that are paths": named(outputs=["../../../../etc/passwd"]),
        "outputs of another model": named(id="0" * 32),
        "no seconds": named(seconds=[]),
        "infinite seconds": named(seconds=[float("inf")]),
        "passed and failed": named(failure={"kind": "crash", "text": OSC, "signal": 1}),
        "failed without a reason": named(passed=False, failure=None),
    },
    "trust": {"a hostile path": named(trusted=False, path=OSC)},
    "self_test": {"passed and failed": named(failure={"kind": "crash", "text": OSC, "signal": 1})},
    "health_check": {"another slot": named(id="0" * 32), "failed": named(passed=False, failure=None)},
    "greeting": {"another version": named(protocol=1 << 40), "an odd Python": named(python="²." + "9" * 99)},
    "lease": {"a token below zero": named(token=-5)},
}  # fmt: skip
BUFFERS: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "no buffers": lambda buffers: [],
    "empty buffers": lambda buffers: [b""] * 64,
    "a full chunk always": lambda buffers: [bytes(1 << 20)],
    "longer buffers": lambda buffers: [*buffers, b"more"],
    "shorter buffers": lambda buffers: [buffer[:-1] for buffer in buffers],
    "other bytes": lambda buffers: [bytes(len(buffer)) for buffer in buffers],
    "64 MiB": lambda buffers: [bytes(1 << 20)] * 64,
}  # fmt: skip


def drip(data: bytes) -> Iterator[bytes]:
    """Slowly."""
    for byte in data:
        yield bytes([byte])
        time.sleep(0.1)


def then_exit(data: bytes) -> Iterator[bytes]:
    """And gone."""
    yield data
    os._exit(0)


def last_words(data: bytes) -> Iterator[bytes]:
    """Talk to the terminal and go."""
    os.write(2, (OSC * 10_000).encode())
    os._exit(1)
    yield data


def for_ever(data: bytes) -> Iterator[bytes]:
    """Again and again."""
    while True:
        yield data


def silence(data: bytes) -> Iterator[bytes]:
    """Nothing more, ever."""
    yield data
    time.sleep(3600)


def once(made: Callable[[bytes], bytes]) -> Callable[[bytes], Iterator[bytes]]:
    """Something else in place of the frame."""
    return lambda data: iter([made(data)])


def framed(packed: bytes) -> bytes:
    """A frame with this for a header."""
    return PREFIX.pack(MAGIC, len(packed), 0) + packed


STREAMS: dict[str, Callable[[bytes], Iterator[bytes]]] = {
    "garbage": once(lambda data: OSC.encode() * 100),
    "no magic": once(lambda data: b"GET " + data[len(MAGIC) :]),
    "a header that is no msgpack": once(lambda data: framed(b"\xc1" * 20)),
    "a header that is no map": once(lambda data: framed(msgpack.packb([1]))),
    "a header of deep lists": once(lambda data: framed(b"\x81\xa1a" + b"\x91" * 5000 + b"\x90")),
    "a header without buffers": once(lambda data: framed(msgpack.packb({"id": 1, "result": {}}))),
    "a huge header announced": once(lambda data: PREFIX.pack(MAGIC, 1 << 31, 0)),
    "a huge payload announced": once(lambda data: PREFIX.pack(MAGIC, 10, 1 << 40)),
    "a frame cut short": lambda data: then_exit(data[: len(data) // 2]),
    "half a frame and silence": lambda data: silence(data[: len(data) // 2]),
    "silence": lambda data: silence(b""),
    "a frame in drops": drip,
    "the end": lambda data: then_exit(b""),
    "hostile last words": last_words,
    "twice": once(lambda data: 2 * data),
    "a thousand times": once(lambda data: 1000 * data),
    "for ever": for_ever,
    "another greeting": once(lambda data: encode_frame({"greeting": {"protocol": 2}})),
}  # fmt: skip
LIES: dict[str, frozenset[str]] = {}  # what each lie is about: these methods; none: any
for _name in (*CHANGES, *STREAMS):
    LIES[_name] = frozenset()
for _name in BUFFERS:
    LIES[_name] = frozenset({"read", "put"})
for _method, _changes in SPECIAL.items():
    LIES.update({f"{_method}: {_name}": frozenset({_method}) for _name in _changes})


class LyingConnection(Connection):
    """Honest but for the answers that the lie is about."""

    lie: Header
    method = "greeting"
    answers = 0

    def receive(self, timeout_s: float | None = None) -> Frame | None:
        frame = super().receive(timeout_s)
        self.method = str(frame.header.get("method")) if frame else ""
        return frame

    def send(self, header: Any, buffers: Any = ()) -> None:
        about, told = self.lie["method"] == self.method, self.lie["lie"]
        self.answers += about
        if not about or self.answers <= self.lie["after"]:
            super().send(header, buffers)
            return
        changed, rng = copy.deepcopy(dict(header)), random.Random(self.lie["seed"] + self.answers)
        change = CHANGES.get(told) or SPECIAL.get(self.method, {}).get(told.partition(": ")[2])
        if change is not None:
            if "error" not in changed or told.startswith(("whole", "error", "number")):
                change(changed, rng)
            if changed == header:  # there is nothing in it to lie about
                super().send(header, buffers)
                return
        if told in BUFFERS:
            buffers = BUFFERS[told](list(buffers))
        Path(self.lie["told_file"]).touch()
        stream = STREAMS.get(told, once(lambda data: data))
        for data in stream(encoded(changed, buffers)):
            self.stream.write(data)


def encoded(header: Header, buffers: list[bytes]) -> bytes:
    """A frame as encode_frame makes it, but of anything."""
    packed = msgpack.packb({**header, "buffers": [len(buffer) for buffer in buffers]})
    return b"".join([PREFIX.pack(MAGIC, len(packed), sum(map(len, buffers))), packed, *buffers])


if __name__ == "__main__":
    LyingConnection.lie = json.loads(Path(sys.argv[1]).read_text())
    Path(LyingConnection.lie["pid_file"]).write_text(str(os.getpid()))
    runtime.Connection = LyingConnection
    sys.argv = sys.argv[2:]
    sys.exit(runtime.main())
