"""The board's own Ed25519 against RFC 8032, section 7.1, against `cryptography`, and against forgeries."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from device_runtime.installed import ed25519

# RFC 8032, section 7.1: public key, message, signature ("TEST 1024" is covered by the comparison below)
RFC_8032 = {
    "TEST 1": (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
        "d25bf5f0595bbe24655141438e7a100b",
    ),
    "TEST 2": (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c"
        "387b2eaeb4302aeeb00d291612bb0c00",
    ),
    "TEST 3": (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc659"
        "4a7c15e9716ed28dc027beceea1ec40a",
    ),
    "TEST SHA(abc)": (
        "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
        "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd"
        "454d4423643ce80e2a9ac94fa54ca49f",
        "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b58909351fc9ac90b3ecfdfbc7c66431e030"
        "3dca179c138ac17ad9bef1177331a704",
    ),
}


@pytest.mark.parametrize("name", RFC_8032)
def test_rfc_8032_vectors(name: str) -> None:
    key, message, signature = (bytes.fromhex(text) for text in RFC_8032[name])
    assert ed25519.verify(key, message, signature)
    assert not ed25519.verify(key, message + b"x", signature)


def _signed(seed: bytes, message: bytes) -> tuple[bytes, bytes]:
    private = Ed25519PrivateKey.from_private_bytes(seed)
    raw = serialization.Encoding.Raw, serialization.PublicFormat.Raw
    return private.public_key().public_bytes(*raw), private.sign(message)


@settings(max_examples=20, deadline=None)
@given(seed=st.binary(min_size=32, max_size=32), message=st.binary(max_size=1100))
def test_what_cryptography_signs_is_accepted(seed: bytes, message: bytes) -> None:
    key, signature = _signed(seed, message)
    assert ed25519.verify(key, message, signature)


def test_every_flipped_byte_of_a_signature_is_refused() -> None:
    key, signature = _signed(bytes(range(32)), b"manifest")
    for at in range(64):
        flipped = bytearray(signature)
        flipped[at] ^= 1 << at % 8
        assert not ed25519.verify(key, b"manifest", bytes(flipped)), at


def test_a_scalar_above_the_group_order_is_refused() -> None:
    key, signature = _signed(bytes(32), b"manifest")
    scalar = int.from_bytes(signature[32:], "little") + ed25519.ORDER
    assert not ed25519.verify(key, b"manifest", signature[:32] + scalar.to_bytes(32, "little"))


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(ed25519.P.to_bytes(32, "little"), id="y is the field's prime"),
        pytest.param((2**255 - 1).to_bytes(32, "little"), id="y above the prime"),
        pytest.param((1 | 1 << 255).to_bytes(32, "little"), id="x is zero with a sign"),
        pytest.param((2).to_bytes(32, "little"), id="not on the curve"),
    ],
)
def test_a_key_that_is_no_canonical_point_is_refused(key: bytes) -> None:
    assert ed25519.decode(key) is None
    assert not ed25519.verify(key, b"", bytes(64))


def test_wrong_sizes_are_refused() -> None:
    key, signature = _signed(bytes(32), b"")
    assert not ed25519.verify(key[:31], b"", signature)
    assert not ed25519.verify(key, b"", signature[:63])
    assert not ed25519.verify(key, b"", signature + b"\0")


def test_points_survive_encoding() -> None:
    point = ed25519.NEUTRAL
    for _ in range(8):
        point = ed25519.add(point, ed25519.BASE)
        decoded = ed25519.decode(ed25519.encode(point))
        assert decoded is not None
        assert ed25519.encode(decoded) == ed25519.encode(point)
