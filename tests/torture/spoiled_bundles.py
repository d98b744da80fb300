"""Ways to spoil a bundle: bits, places, signers, ages, boards, what a trusted signer's tool may get wrong.

KINDS are functions that make a case out of a Spoiler's whole bundles. A piece that a change does not reach is
not tried against who sees that piece alone.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from device_runtime.protocol import permission_text
from toolkit.bundle import container, manifest, sign
from toolkit.bundle.manifest import FORMAT

COMMITTED: Final = 10  # the counter of what runs on the board


@dataclass(frozen=True)
class Pieces:
    """A bundle taken apart; `board` is what a malicious host calls the board, `permission` what it sends."""

    manifest: bytes
    signature: bytes
    parts: tuple[bytes, ...]
    board: str = "host"
    permission: bytes = b""


@dataclass(frozen=True)
class Case:
    """`file` is for the host, `pieces` are for the board; None where that side has nothing to refuse."""

    what: str
    file: bytes | None
    pieces: Pieces | None


@dataclass(frozen=True)
class Spoiler:
    """What cases are made of: two whole bundles, three keys, and what the board has and says.

    `good` has the counter COMMITTED + 1; `running` is the id of what runs; `nonce` the connection's.
    """

    rng: random.Random
    good: Pieces
    other: Pieces
    key: sign.SigningKey
    stranger: sign.SigningKey
    revoked: sign.SigningKey
    running: str
    nonce: str

    def signed(self, text: bytes, parts: tuple[bytes, ...], key: sign.SigningKey | None = None) -> Pieces:
        """Any manifest, signed by the trusted key or another."""
        return Pieces(text, (key or self.key).sign(text), parts)


def _flips(spoiler: Spoiler) -> Case:
    """A few bits, anywhere; the board sees those that are in no padding."""
    data = bytearray(_file(spoiler.good))
    places = [spoiler.rng.randrange(len(data)) for _ in range(spoiler.rng.choice((1, 1, 1, 2, 8)))]
    for at in set(places):
        data[at] ^= 1 << spoiler.rng.randrange(8)
    return _of_file(spoiler, f"bits flipped at {sorted(set(places))}", bytes(data))


def _cut(spoiler: Spoiler) -> Case:
    whole = _file(spoiler.good)
    size = spoiler.rng.randrange(len(whole))
    return Case(f"cut to {size} bytes", whole[:size], None)


def _splice(spoiler: Spoiler) -> Case:
    """A stretch of another bundle of the same signer, in the same place."""
    whole, other = _file(spoiler.good), _file(spoiler.other)
    while True:
        begin, end = sorted(spoiler.rng.sample(range(min(len(whole), len(other))), 2))
        data = whole[:begin] + other[begin:end] + whole[end:]
        if data not in (whole, other):
            return _of_file(spoiler, f"bytes {begin} to {end} of another bundle", data)


def _swap(spoiler: Spoiler) -> Case:
    """Parts exchanged, left out, doubled, or of another bundle."""
    parts = list(spoiler.good.parts)
    first, second = spoiler.rng.sample(range(len(parts)), 2)
    how = spoiler.rng.choice(("exchanged", "left out", "doubled", "another's"))
    if how == "exchanged":
        parts[first], parts[second] = parts[second], parts[first]
    elif how == "left out":
        del parts[first]
    elif how == "doubled":
        parts[first] = parts[second]
    else:
        parts = list(spoiler.other.parts)
    pieces = replace(spoiler.good, parts=tuple(parts))
    same = set(spoiler.good.parts) <= set(parts)  # the board finds parts by what they hold
    return Case(f"part {first} {how} ({second})", _file(pieces), None if same else pieces)


def _foreign(spoiler: Spoiler) -> Case:
    """Whole, but signed by a stranger, by a key that was revoked, or by nobody."""
    plain = json.loads(spoiler.good.manifest) | {"counter": COMMITTED + spoiler.rng.randrange(1000)}
    text = _canonical(plain)
    how = spoiler.rng.choice(("a stranger", "a revoked key", "another manifest", "noise"))
    key = spoiler.stranger if how == "a stranger" else spoiler.revoked
    pieces = spoiler.signed(text, spoiler.good.parts, key)
    if how == "another manifest":
        pieces = replace(pieces, signature=spoiler.key.sign(text + b" "))
    elif how == "noise":
        pieces = replace(pieces, signature=spoiler.rng.randbytes(spoiler.rng.randrange(400)))
    return Case(f"signed by {how}", _file(pieces), pieces)


def _replay(spoiler: Spoiler) -> Case:
    """An older bundle of the trusted signer, with permissions that nobody gave for it here."""
    text = _canonical(json.loads(spoiler.good.manifest) | {"counter": spoiler.rng.randrange(COMMITTED)})
    identity, nonce = manifest.bundle_id(text), spoiler.nonce
    permission = spoiler.rng.choice(
        (
            b"",
            spoiler.stranger.sign(permission_text(identity, nonce)),
            spoiler.revoked.sign(permission_text(identity, nonce)),
            spoiler.key.sign(permission_text(identity, spoiler.rng.randbytes(16).hex())),
            spoiler.key.sign(permission_text(spoiler.running, nonce)),
            spoiler.key.sign(text),
        )
    )
    pieces = replace(spoiler.signed(text, spoiler.good.parts), permission=permission)
    return Case("an older bundle", None, pieces)


def _misdirected(spoiler: Spoiler) -> Case:
    """A bundle of the trusted signer for other boards, whatever the host calls this one."""
    plain = json.loads(spoiler.good.manifest)
    name = f"board-{spoiler.rng.randrange(1000)}"
    if spoiler.rng.random() < 0.3:
        plain["compatibility"]["machines"] = ["riscv64"]
        return Case("for another machine", None, spoiler.signed(_canonical(plain), spoiler.good.parts))
    plain["compatibility"]["boards"] = spoiler.rng.choice(([name], [], [name, "rpi3b"], ["Host"], ["host "]))
    pieces = spoiler.signed(_canonical(plain), spoiler.good.parts)
    case = Case(f"for {plain['compatibility']['boards']}", _file(pieces), pieces)
    return replace(case, pieces=replace(pieces, board=spoiler.rng.choice(("host", name))))


PATHS: Final = (
    "../../../etc/passwd", "/etc/passwd", "..", ".", "", "a/../../b", "manifest.json", "manifest.json.sig",
    "a//b",
    "a/", "/", "a\\b", "A", "a b", "a\x00b", "a\nb", "a" * 5000, "a/" * 2000 + "a",
    "\u202ea", "~/.ssh/id", "con:", 7, None,
)  # fmt: skip
NUMBERS: Final = (-1, -(2**63), 2**33, 2**63, 10**30, 1.5, 1e300, "7", None, True, [], {}, [[]])
TEXTS: Final = ("\x1b]0;owned\x07", "a\nb", "x" * 9999, 7, None, [], {}, "\u202e", "\x00")
SHAS: Final = ("", "0" * 63, "../" * 21 + "x", "G" * 64, "0" * 64, 7, None, ["0" * 64])
MAPS: Final = (None, 7, "x", [], [7], [[]], {"": 7})
REQUIRED: Final = (
    ("format",), ("name",), ("counter",), ("compatibility",), ("inputs",), ("golden",), ("variants",),
    ("parts",), ("compatibility", "boards"), ("compatibility", "machines"), ("golden", "rtol"),
    ("golden", "inputs"),
    ("inputs", 0, "name"), ("inputs", 0, "shape"), ("outputs", 0, "shape"), ("variants", 0, "target"),
    ("variants", 0, "threads"), ("variants", 0, "library"), ("variants", 0, "header"),
    ("variants", 0, "plan"),
    ("variants", 0, "workspace_bytes"), ("variants", 0, "triple"), ("variants", 0, "kind"),
    ("parts", 1, "path"), ("parts", 1, "size_bytes"), ("parts", 1, "sha256"),
)  # fmt: skip
HOSTILE: Final[tuple[tuple[tuple[Any, ...], tuple[Any, ...]], ...]] = (
    (("parts", 1, "path"), PATHS),
    (("parts", 1, "sha256"), SHAS),
    (("parts", 1, "size_bytes"), NUMBERS),
    (("parts", 1), MAPS),
    (("parts",), MAPS),
    (("counter",), NUMBERS[:2] + NUMBERS[3:]),
    (("name",), TEXTS),
    (("format",), (0, 1, FORMAT - 1, FORMAT + 1, str(FORMAT), None, [], 3.5, 10**30)),
    (("compatibility",), MAPS),
    (("compatibility", "boards"), (None, 7, "host", {}, [7], [None], [["host"]])),
    (("inputs",), MAPS[:3] + MAPS[4:]),
    (("inputs", 0, "name"), TEXTS),
    (
        ("inputs", 0, "shape"),
        (*NUMBERS[:9], [-4, -8], [2**62], [2**20] * 2, [1.5], ["4"], [[4, 8]], [4] * 99),
    ),
    (("inputs", 0, "dtype"), ("float99", "", None, 7, "FLOAT32", "object", ["float32"])),
    (("golden",), MAPS),
    (("golden", "rtol"), (-1, 7.0, "0.1", None, True, 1e300, [])),
    (("golden", "inputs"), (None, [], ["none"], [7], [[]], ["../x"], "golden/input-000.bin", {})),
    (("variants",), MAPS),
    (("variants", 0, "target"), TEXTS),
    (("variants", 0, "threads"), NUMBERS),
    (("variants", 0, "arena_bytes"), NUMBERS),
    (("variants", 0, "workspace_bytes"), NUMBERS),
    (("variants", 0, "parameters_bytes"), NUMBERS),
    (("variants", 0, "library"), (*PATHS, "none")),
    (("variants", 0, "kind"), ("quantum", "", None, 7, "opencl", "cuda", ["cpu"])),
)


def _hostile(spoiler: Spoiler) -> Case:
    """One entry of a signed manifest is missing, or what no sound tool would write there."""
    plain = json.loads(spoiler.good.manifest)
    if spoiler.rng.random() < 0.2:
        place = spoiler.rng.choice(REQUIRED)
        del _within(plain, place)[place[-1]]
        what = f"no {place}"
    else:
        place, values = spoiler.rng.choice(HOSTILE)
        value = spoiler.rng.choice(values)
        _within(plain, place)[place[-1]] = value
        what = f"{place} is {value!r:.60}"
    pieces = spoiler.signed(_canonical(plain), spoiler.good.parts)
    return Case(what, _file(pieces), pieces)


def _crowded(spoiler: Spoiler) -> Case:
    """Signed lists of parts that are doubled, out of order, files and folders at once, or far too many."""
    plain = json.loads(spoiler.good.manifest)
    parts, at = plain["parts"], spoiler.rng.randrange(len(plain["parts"]))
    how = spoiler.rng.choice(("doubled", "out of order", "a folder, too", "too many"))
    if how == "doubled":
        parts.insert(at, parts[at])
    elif how == "out of order":
        parts.insert(0, parts.pop(spoiler.rng.randrange(1, len(parts))))
    elif how == "a folder, too":
        parts.insert(at + 1, {**parts[at], "path": parts[at]["path"] + "/below"})
    else:
        parts += [
            {**parts[0], "path": f"z/{number:09}"} for number in range(spoiler.rng.randrange(5000, 9000))
        ]
    pieces = spoiler.signed(_canonical(plain), spoiler.good.parts)
    return Case(f"parts {how}", _file(pieces), pieces)


def _no_json(spoiler: Spoiler) -> Case:
    """Signed bytes that are no manifest, or only nearly one."""
    text, rng = spoiler.good.manifest, spoiler.rng
    at = rng.randrange(len(text))
    data = rng.choice(
        (
            b"", b"null", b"[]", b"{}", b'{"format":%d}' % FORMAT, b"\xff\xfe\x00",
            b"[" * rng.randrange(100_000), rng.randbytes(200),
            b'{"a":' * 50_000 + b"}" * 50_000, text[:at], text + text, text[:at] + b"\xff" + text[at:],
            text.replace(b'"counter":11', b'"counter":NaN'),
            text.replace(b'"counter":11', b'"counter":1e999'),
            text.replace(b'"counter":11', b'"counter":' + b"9" * 100_000),
            text.replace(b'"counter":11', b'"counter":11,"counter":12'),
            text.replace(b'"name":"', b'"name":"\\ud800'),
            b"\xef\xbb\xbf" + text, text.decode().encode("utf-16"),
        )
    )  # fmt: skip
    pieces = spoiler.signed(data, spoiler.good.parts)
    return Case(f"signed: {data[:40]!r}", _file(pieces), pieces)


def _container(spoiler: Spoiler) -> Case:
    """A header that claims something else, or a file that is longer than what it says."""
    data, rng = bytearray(_file(spoiler.good)), spoiler.rng
    if rng.random() < 0.3:
        return Case("more behind the end", bytes(data) + rng.randbytes(rng.randrange(1, 200)), None)
    at = rng.choice((8, 12, 16))
    value = rng.choice((0, 1, 2**31, 2**32 - 1, (1 << 24) + 1, 1 << 24, rng.randrange(2**32)))
    data[at : at + 4] = value.to_bytes(4, "little")
    case = Case(f"the header claims {value} at {at}", bytes(data), None)
    return case if bytes(data) != _file(spoiler.good) else _container(spoiler)


KINDS: Final[tuple[Callable[[Spoiler], Case], ...]] = (
    _flips, _cut, _splice, _swap, _foreign, _replay, _misdirected, _hostile, _hostile, _crowded, _no_json,
    _container,
)  # fmt: skip


def _file(pieces: Pieces) -> bytes:
    return container.assemble(pieces.manifest, pieces.signature, pieces.parts)


def _of_file(spoiler: Spoiler, what: str, data: bytes) -> Case:
    """A changed file; the board gets what lies where the good pieces lay, unless that is whole."""
    at, found = container.ALIGNMENT, []
    for piece in (spoiler.good.manifest, spoiler.good.signature, *spoiler.good.parts):
        found.append(data[at : at + len(piece)])
        at += -(-len(piece) // container.ALIGNMENT) * container.ALIGNMENT
    pieces = Pieces(found[0], found[1], tuple(found[2:]))
    same = [_known(pieces, bundle) for bundle in (spoiler.good, spoiler.other)]
    return Case(what, data, None if any(same) else pieces)


def _known(pieces: Pieces, bundle: Pieces) -> bool:
    """Whether the board would get a whole bundle."""
    signed = (pieces.manifest, pieces.signature) == (bundle.manifest, bundle.signature)
    return signed and set(bundle.parts) <= set(pieces.parts)


def _canonical(plain: Any) -> bytes:
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _within(plain: Any, place: tuple[Any, ...]) -> Any:
    for key in place[:-1]:
        plain = plain[key]
    return plain
