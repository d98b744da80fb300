"""A bundle that is not byte for byte what was signed is refused, wherever it was changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.bundles import contents, small_model
from toolkit.bundle import container, pack, sign, verify
from toolkit.errors import VerificationError

FLIPS = 500

Refused = Callable[[bytes], None]


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> sign.SigningKey:
    return sign.open_key(tmp_path_factory.mktemp("config") / "signing_key")


@pytest.fixture(scope="module")
def packed(key: sign.SigningKey) -> bytes:
    return pack.pack(contents(small_model()), key)


@pytest.fixture(scope="module")
def opened(
    packed: bytes, key: sign.SigningKey, tmp_path_factory: pytest.TempPathFactory
) -> verify.VerifiedBundle:
    path = tmp_path_factory.mktemp("good") / "good.tfb"
    path.write_bytes(packed)
    return verify.open_bundle(path, [key.public])


@pytest.fixture(scope="module")
def refused(key: sign.SigningKey, tmp_path_factory: pytest.TempPathFactory) -> Refused:
    path = tmp_path_factory.mktemp("bad") / "bad.tfb"

    def check(data: bytes) -> None:
        path.write_bytes(data)
        with pytest.raises(VerificationError):
            verify.open_bundle(path, [key.public])

    return check


def _flipped(data: bytes, at: int, mask: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= mask
    return bytes(changed)


@pytest.mark.slow
def test_every_byte_of_header_manifest_and_signature(
    packed: bytes, opened: verify.VerifiedBundle, refused: Refused
) -> None:
    rng = np.random.default_rng(1)
    envelope = container.Envelope(opened.manifest_bytes, opened.signature)
    for at in range(envelope.parts_at_bytes):
        refused(_flipped(packed, at, 1 << int(rng.integers(8))))


def test_500_random_bytes_elsewhere(packed: bytes, opened: verify.VerifiedBundle, refused: Refused) -> None:
    rng = np.random.default_rng(2)
    start = container.Envelope(opened.manifest_bytes, opened.signature).parts_at_bytes
    for at in rng.integers(start, len(packed), FLIPS):
        refused(_flipped(packed, int(at), int(rng.integers(1, 256))))


def test_every_byte_of_padding(packed: bytes, opened: verify.VerifiedBundle, refused: Refused) -> None:
    starts = container.offsets(opened.manifest, container.Envelope(opened.manifest_bytes, opened.signature))
    for part in opened.manifest.parts:
        end = starts[part.path] + part.size_bytes
        for at in range(end, -(-end // 64) * 64):
            refused(_flipped(packed, at, 1))


def test_truncated_anywhere(packed: bytes, refused: Refused) -> None:
    rng = np.random.default_rng(3)
    for size in [0, 1, 63, 64, 65, len(packed) - 64, len(packed) - 1, *rng.integers(0, len(packed), 50)]:
        refused(packed[: int(size)])


@pytest.mark.parametrize("more", [b"\0", b"\0" * 64, b"x" * 100])
def test_appended(packed: bytes, refused: Refused, more: bytes) -> None:
    refused(packed + more)


def test_swapped_parts(opened: verify.VerifiedBundle, refused: Refused) -> None:
    parts = [opened.read_part(part.path) for part in opened.manifest.parts]
    for first in range(len(parts)):
        for second in range(first):
            swapped = parts.copy()
            swapped[first], swapped[second] = swapped[second], swapped[first]
            refused(container.assemble(opened.manifest_bytes, opened.signature, swapped))


def test_a_manifest_under_another_ones_signature(
    opened: verify.VerifiedBundle, key: sign.SigningKey, refused: Refused
) -> None:
    parts = [opened.read_part(part.path) for part in opened.manifest.parts]
    refused(container.assemble(opened.manifest_bytes, key.sign(opened.manifest_bytes + b" "), parts))
    refused(container.assemble(opened.manifest_bytes + b" ", opened.signature, parts))


def test_signed_by_a_stranger(opened: verify.VerifiedBundle, refused: Refused, tmp_path: Path) -> None:
    stranger = sign.open_key(tmp_path / "stranger")
    parts = [opened.read_part(part.path) for part in opened.manifest.parts]
    refused(container.assemble(opened.manifest_bytes, stranger.sign(opened.manifest_bytes), parts))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=400))
def test_anything_at_all(data: bytes, refused: Refused, packed: bytes) -> None:
    refused(data)
    refused(packed[:64] + data)
