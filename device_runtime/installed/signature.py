"""Who signed a bundle's manifest: SSHSIG signatures (OpenSSH, PROTOCOL.sshsig) against allowed_signers.

`check` is the door. The signature must be byte for byte what `ssh-keygen -Y sign` would write for an Ed25519
key that the board trusts, so no flipped byte goes unseen. It is checked in plain Python and, where the board
has an OpenSSH that can (8.0 or newer), by `ssh-keygen -Y verify` as well: both must agree.
"""

import base64
import binascii
import hashlib
import os
import shutil
import struct
import subprocess
from typing import List, Optional

from device_runtime.installed import ed25519

NAMESPACE = b"tune-for-board-bundle"
PRINCIPAL = "tune-for-board"
KEY_TYPE = b"ssh-ed25519"
LINE_CHARACTERS = 70
MAX_SIGNATURE_BYTES = 1 << 12
MAX_SIGNERS_BYTES = 1 << 20
SSH_KEYGEN_TIMEOUT_S = 30.0
UNSUPPORTED = ("unknown option", "illegal option", "invalid option", "unrecognized option", "usage:")


class Refused(Exception):
    """The signature does not hold; the message says why."""


def check(manifest: bytes, signature_file: str, allowed_signers_file: str) -> str:
    """Return the signer's public key ("ssh-ed25519 AAAA...") or raise Refused.

    `signature_file` is read once for the check in Python, and again by ssh-keygen where there is one.
    """
    trusted = trusted_keys(allowed_signers_file)
    try:
        with open(signature_file, "rb") as stream:
            signature = stream.read(MAX_SIGNATURE_BYTES)
    except OSError as error:
        raise Refused("{} cannot be read: {}".format(signature_file, error.strerror)) from None
    key = check_in_python(manifest, signature, trusted)
    program = shutil.which("ssh-keygen")
    if program is not None:
        check_with_ssh_keygen(program, manifest, signature_file, allowed_signers_file)
    return public_line(key)


def check_in_python(manifest: bytes, signature: bytes, trusted: List[bytes]) -> bytes:
    """Return the raw public key of the trusted signer, or raise Refused."""
    blob = dearmor(signature)
    expected_bytes = len(blob_of(bytes(32), bytes(64)))
    if blob is None or len(blob) != expected_bytes:
        raise Refused("it is not an SSHSIG Ed25519 signature over a bundle")
    start = 10 + 4 + 4 + len(KEY_TYPE) + 4
    key, raw = blob[start : start + 32], blob[-64:]
    if armor(blob_of(key, raw)) != signature:
        raise Refused("it is not in the exact form that ssh-keygen writes for this namespace")
    if key not in trusted:
        raise Refused(
            "its signer {} is not in allowed_signers; if it should be, add it there".format(public_line(key))
        )
    if not ed25519.verify(key, signed_data(manifest), raw):
        raise Refused("it does not belong to this manifest")
    return key


def check_with_ssh_keygen(program: str, manifest: bytes, signature_file: str, allowed_file: str) -> bool:
    """True when OpenSSH agrees, False when it is too old to say; raises Refused when it disagrees."""
    command = [program, "-Y", "verify", "-f", allowed_file, "-I", PRINCIPAL]
    command += ["-n", NAMESPACE.decode(), "-s", signature_file]
    try:
        done = subprocess.run(
            command,
            check=False,
            input=manifest,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SSH_KEYGEN_TIMEOUT_S,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused("ssh-keygen could not be asked: {}".format(error)) from error
    if done.returncode == 0:
        return True
    text = done.stdout.decode("utf-8", "replace").strip()
    if any(word in text for word in UNSUPPORTED):
        return False
    raise Refused("ssh-keygen refuses it: {}".format(text))


def trusted_keys(path: str) -> List[bytes]:
    """Raw keys of an allowed_signers file; Refused, which names the file, where it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return read_allowed_signers(stream.read(MAX_SIGNERS_BYTES).decode("utf-8"))
    except FileNotFoundError:
        raise Refused("{} does not exist: nobody is trusted to sign here".format(path)) from None
    except UnicodeDecodeError:
        raise Refused(
            "{} is damaged: expected lines of text; write it again, or remove it and flash".format(path)
        ) from None
    except OSError as error:
        raise Refused("{} cannot be read: {}".format(path, error.strerror)) from None


def read_allowed_signers(text: str) -> List[bytes]:
    """Raw Ed25519 keys that may sign bundles: lines of our principal, with no or our namespace option."""
    keys = []
    for line in text.splitlines():
        words = line.split()
        if len(words) < 3 or words[0] != PRINCIPAL or KEY_TYPE.decode() not in words:
            continue
        at = words.index(KEY_TYPE.decode())
        options = words[1:at]
        if options not in ([], ['namespaces="{}"'.format(NAMESPACE.decode())]) or at + 1 >= len(words):
            continue
        key = raw_key(words[at + 1])
        if key is not None:
            keys.append(key)
    return keys


def raw_key(encoded: str) -> Optional[bytes]:
    """The 32 bytes of an Ed25519 public key in OpenSSH's base64 form; None when it is something else."""
    try:
        blob = base64.b64decode(encoded.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        return None
    prefix = string(KEY_TYPE) + struct.pack(">I", 32)
    return blob[len(prefix) :] if blob.startswith(prefix) and len(blob) == len(prefix) + 32 else None


def public_line(key: bytes) -> str:
    """A public key as OpenSSH writes it."""
    return "ssh-ed25519 " + base64.b64encode(string(KEY_TYPE) + string(key)).decode("ascii")


def signed_data(message: bytes) -> bytes:
    """What the Ed25519 signature covers: the SSHSIG preamble and the message's SHA-512."""
    digest = hashlib.sha512(message).digest()
    return b"SSHSIG" + string(NAMESPACE) + string(b"") + string(b"sha512") + string(digest)


def blob_of(key: bytes, raw_signature: bytes) -> bytes:
    """The SSHSIG structure for a raw public key (32 bytes) and signature (64 bytes)."""
    return (
        b"SSHSIG"
        + struct.pack(">I", 1)
        + string(string(KEY_TYPE) + string(key))
        + string(NAMESPACE)
        + string(b"")
        + string(b"sha512")
        + string(string(KEY_TYPE) + string(raw_signature))
    )


def armor(blob: bytes) -> bytes:
    """The text form that ssh-keygen writes."""
    text = base64.b64encode(blob)
    lines = [text[at : at + LINE_CHARACTERS] for at in range(0, len(text), LINE_CHARACTERS)]
    return b"\n".join([b"-----BEGIN SSH SIGNATURE-----", *lines, b"-----END SSH SIGNATURE-----", b""])


def dearmor(text: bytes) -> Optional[bytes]:
    """The bytes inside the text form; None when there are none."""
    lines = text.split(b"\n")
    try:
        return base64.b64decode(b"".join(lines[1:-2]), validate=True)
    except binascii.Error:
        return None


def string(data: bytes) -> bytes:
    """SSH's length-prefixed string."""
    return struct.pack(">I", len(data)) + data
