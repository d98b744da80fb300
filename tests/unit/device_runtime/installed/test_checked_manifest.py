"""Manifests that are signed and wrong: the board refuses each with the place, and the host does too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from device_runtime.installed.checked_manifest import parse_manifest
from device_runtime.protocol import REFUSED, ProtocolError
from tests.bundles import small_model, write_bundle
from toolkit.bundle import manifest, sign, verify
from toolkit.errors import VerificationError

HUGE = 10**30


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("bundle")
    key = sign.open_key(folder / "key")
    return verify.open_bundle(write_bundle(folder, key, small_model()), [key.public]).manifest_bytes


def _refused(data: bytes, text: str = "") -> None:
    with pytest.raises(
        ProtocolError, match=f"the bundle's manifest is malformed: .*{text}.*pack the bundle again"
    ) as board:
        parse_manifest(data)
    assert board.value.code == REFUSED
    with pytest.raises(VerificationError):
        manifest.decode(data)


def _set(plain: Any, place: tuple[Any, ...], value: object) -> None:
    for key in place[:-1]:
        plain = plain[key]
    plain[place[-1]] = value


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("parts", 0, "path"), "../../etc/passwd"),
        (("parts", 0, "path"), "/etc/passwd"),
        (("parts", 0, "path"), "manifest.json"),
        (("parts", 0, "path"), "a" * 300),
        (("parts", 0, "path"), 7),
        (("parts", 0, "sha256"), "../" * 21 + "x"),
        (("parts", 0, "size_bytes"), -1),
        (("parts", 0, "size_bytes"), HUGE),
        (("parts", 0, "size_bytes"), 1.5),
        (("parts", 0), []),
        (("parts",), {}),
        (("compatibility",), None),
        (("compatibility", "boards"), "host"),
        (("compatibility", "boards"), [7]),
        (("counter",), True),
        (("counter",), HUGE),
        (("inputs", 0, "shape"), [HUGE]),
        (("inputs", 0, "shape"), [2**20, 2**20, 0]),
        (("inputs", 0, "shape"), [-4, -8]),
        (("inputs", 0, "dtype"), "float99"),
        (("inputs", 0, "name"), "\x1b]0;owned\x07"),
        (("golden", "rtol"), 7.0),
        (("golden", "inputs"), ["no such part"]),
        (("golden", "outputs"), [["golden/output-000.bin"]]),
        (("variants",), []),
        (("variants", 0, "library"), "no such part"),
        (("variants", 0, "workspace_bytes"), HUGE),
        (("variants", 0, "threads"), 0),
        (("variants", 0, "kind"), "quantum"),
        (("variants", 0, "triple"), None),
    ],
)  # fmt: skip
def test_a_wrong_entry(good: bytes, place: tuple[Any, ...], value: object) -> None:
    assert parse_manifest(good)["name"] == "small"
    plain = json.loads(good)
    _set(plain, place, value)
    _refused(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode())


def test_a_part_that_stands_there_twice_or_is_a_folder_too(good: bytes) -> None:
    for change in (lambda path: path, lambda path: path + "/below"):
        plain = json.loads(good)
        first = plain["parts"][0]
        plain["parts"].insert(1, {**first, "path": change(first["path"])})
        _refused(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode(), "'parts'")


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xff\xfe", b"{", b"[]", b"7", b'{"format": 4}', b'{"format": 4, "format": 4}', b"[" * 200_000,
        b'{"format": 4, "counter": NaN}', b'{"format": 4, "counter": ' + b"9" * 1_000_000 + b"}",
        b'{"format": 4, "name": "\\ud800"}', b'{"format": 4, "notes": ' + b'{"a":' * 200_000,
    ],
    ids=lambda data: data[:30].decode(errors="replace"),
)  # fmt: skip
def test_what_is_no_manifest(data: bytes) -> None:
    _refused(data)


@pytest.mark.parametrize("number", [1, 3, 5])
def test_another_format_says_what_to_do(good: bytes, number: int, tmp_path: Path) -> None:
    data = json.dumps({**json.loads(good), "format": number}).encode()
    with pytest.raises(
        ProtocolError, match=f"has format {number}, this runtime reads 4: tune the model again"
    ):
        parse_manifest(data)
