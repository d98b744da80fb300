"""The bytes of a bundle file.

    offset 0   header, 64 bytes: magic, format, manifest_bytes, signature_bytes (little-endian u32), zeros
    64         manifest (canonical JSON), zeros up to a multiple of 64
               signature of the manifest (armored SSHSIG), zeros up to a multiple of 64
               each part in the manifest's order, each followed by zeros up to a multiple of 64
               end of file

There is exactly one file for given contents: nothing is optional, no byte is without meaning, and the reader
refuses every other one. Parts start on 64-byte boundaries, so they can be mapped and used in place.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import BinaryIO

import msgspec

from toolkit.bundle.manifest import Manifest
from toolkit.errors import VerificationError

MAGIC = b"TFBUNDLE"
CONTAINER_VERSION = 1
HEADER = struct.Struct("<8sIII44x")
ALIGNMENT = HEADER.size
MAX_MANIFEST_BYTES = 1 << 24
MAX_SIGNATURE_BYTES = 1 << 12


class Envelope(msgspec.Struct, frozen=True):
    """What stands before the parts. Nothing in it is to be believed before `signature` is checked."""

    manifest: bytes
    signature: bytes

    @property
    def parts_at_bytes(self) -> int:
        """Offset of the first part."""
        return ALIGNMENT + _padded(len(self.manifest)) + _padded(len(self.signature))


def assemble(manifest: bytes, signature: bytes, parts: Sequence[bytes]) -> bytes:
    """The file for a manifest, its signature and its parts in the manifest's order."""
    header = HEADER.pack(MAGIC, CONTAINER_VERSION, len(manifest), len(signature))
    pieces = [header]
    for data in (manifest, signature, *parts):
        pieces += [data, bytes(_padded(len(data)) - len(data))]
    return b"".join(pieces)


def read_envelope(stream: BinaryIO, where: str) -> Envelope:
    """Read header, manifest and signature; raises VerificationError, in terms of `where`, when malformed."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size or not header.startswith(MAGIC):
        raise VerificationError(
            f"{where} is no bundle: expected it to begin with {MAGIC!r}, found {header[:8]!r}; "
            "name a file that `toolkit tune -o` wrote"
        )
    _, version, manifest_bytes, signature_bytes = HEADER.unpack(header)
    if version != CONTAINER_VERSION:
        raise VerificationError(
            f"{where} has bundle format {version}, expected {CONTAINER_VERSION}; pack it again with this "
            "version"
        )
    if header != HEADER.pack(MAGIC, version, manifest_bytes, signature_bytes):
        raise VerificationError(f"{where}: the header is damaged (bytes 20 to 63 must be zero)")
    if manifest_bytes > MAX_MANIFEST_BYTES or signature_bytes > MAX_SIGNATURE_BYTES:
        raise VerificationError(
            f"{where}: the header claims {manifest_bytes} bytes of manifest and {signature_bytes} of "
            f"signature; expected at most {MAX_MANIFEST_BYTES} and {MAX_SIGNATURE_BYTES}"
        )
    manifest = read_padded(stream, manifest_bytes, f"{where}: the manifest")
    signature = read_padded(stream, signature_bytes, f"{where}: the signature")
    return Envelope(manifest, signature)


def read_padded(stream: BinaryIO, size_bytes: int, where: str) -> bytes:
    """Read that many bytes and their padding; raises VerificationError unless whole and padded by zeros."""
    data = stream.read(_padded(size_bytes))
    if len(data) != _padded(size_bytes):
        raise VerificationError(
            f"{where} is cut short: expected {_padded(size_bytes)} bytes, found {len(data)}; "
            "copy the file again"
        )
    if any(data[size_bytes:]):
        raise VerificationError(f"{where} is followed by bytes that are not zero; copy the file again")
    return data[:size_bytes]


def offsets(manifest: Manifest, envelope: Envelope) -> dict[str, int]:
    """Where each part of the manifest begins, in bytes from the start of the file."""
    at_bytes = envelope.parts_at_bytes
    starts = {}
    for part in manifest.parts:
        starts[part.path] = at_bytes
        at_bytes += _padded(part.size_bytes)
    return starts


def end(manifest: Manifest, envelope: Envelope) -> int:
    """Where the file ends, in bytes from its start."""
    return envelope.parts_at_bytes + sum(_padded(part.size_bytes) for part in manifest.parts)


def _padded(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT
