"""Bundle signatures as OpenSSH writes them: SSHSIG (PROTOCOL.sshsig) with Ed25519 keys, as text.

Host and board read and write them here. Who may sign is in an allowed_signers file, a line for each key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from typing import List, Optional, Tuple

NAMESPACE = b"tune-for-board-bundle"
PRINCIPAL = "tune-for-board"
KEY_TYPE = b"ssh-ed25519"
LINE_CHARACTERS = 70
KEY_BYTES, SIGNATURE_BYTES = 32, 64
OPTION = 'namespaces="{}"'.format(NAMESPACE.decode())  # of an allowed_signers line


def encode(key: bytes, raw_signature: bytes) -> bytes:
    """The text of a signature, byte for byte as `ssh-keygen -Y sign` writes it.

    `key` is the signer's public key (32 bytes), `raw_signature` Ed25519's of `signed_data` (64 bytes).
    """
    parts = (key_blob(key), NAMESPACE, b"", b"sha512", key_blob(raw_signature))
    text = base64.b64encode(b"SSHSIG" + struct.pack(">I", 1) + b"".join(map(_string, parts)))
    lines = [text[at : at + LINE_CHARACTERS] for at in range(0, len(text), LINE_CHARACTERS)]
    return b"\n".join([b"-----BEGIN SSH SIGNATURE-----", *lines, b"-----END SSH SIGNATURE-----", b""])


def decode(signature: bytes) -> Optional[Tuple[bytes, bytes]]:
    """Public key and raw signature of what `encode` wrote; None for any other bytes."""
    try:
        blob = base64.b64decode(b"".join(signature.split(b"\n")[1:-2]), validate=True)
    except binascii.Error:
        return None
    start = len(b"SSHSIG") + 4 + 4 + 4 + len(KEY_TYPE) + 4  # version, then lengths of the key and its parts
    key, raw = blob[start : start + KEY_BYTES], blob[-SIGNATURE_BYTES:]
    return (key, raw) if encode(key, raw) == signature else None


def signed_data(message: bytes) -> bytes:
    """What the Ed25519 signature covers: the namespace and the message's SHA-512."""
    return b"SSHSIG" + b"".join(
        _string(part) for part in (NAMESPACE, b"", b"sha512", hashlib.sha512(message).digest())
    )


def key_blob(raw: bytes) -> bytes:
    """A public key, or a signature, as OpenSSH's structure of its type and its bytes."""
    return _string(KEY_TYPE) + _string(raw)


def public_line(key: bytes) -> str:
    """A public key as OpenSSH writes it in a .pub file, without a comment."""
    return "{} {}".format(KEY_TYPE.decode(), base64.b64encode(key_blob(key)).decode())


def allowed_keys(text: str) -> List[bytes]:
    """Raw keys that an allowed_signers file trusts for bundles: lines of our PRINCIPAL, with no option or
    our namespace. Lines for other uses are passed over."""
    keys = []
    prefix = key_blob(b"")[:-4] + struct.pack(">I", KEY_BYTES)
    for line in text.splitlines():
        name, options, encoded = _parts(line)
        if name != PRINCIPAL or options not in ([], [OPTION]):
            continue
        try:
            blob = base64.b64decode(encoded.encode("ascii"), validate=True)
        except (UnicodeEncodeError, binascii.Error):
            continue
        if blob.startswith(prefix) and len(blob) == len(prefix) + KEY_BYTES:
            keys.append(blob[len(prefix) :])
    return keys


def _parts(line: str) -> Tuple[str, List[str], str]:
    """Principal, options and base64 of a line's Ed25519 key; ("", [], "") where it has none."""
    words = line.split()
    kind = KEY_TYPE.decode()
    if kind not in words[1:-1]:
        return "", [], ""
    at = words.index(kind, 1)
    return words[0], words[1:at], words[at + 1]


def _string(data: bytes) -> bytes:
    """SSH's length-prefixed string."""
    return struct.pack(">I", len(data)) + data
