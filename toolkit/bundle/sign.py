"""Who made a bundle: Ed25519 signatures in OpenSSH's SSHSIG form (PROTOCOL.sshsig).

A board can check one with `ssh-keygen -Y verify -n tune-for-board-bundle -I tune-for-board`. The private key
is an OpenSSH key file, made on first use and readable by its owner only. Signatures are deterministic
(RFC 8032, section 5.1.6).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from device_runtime.protocol import sshsig
from toolkit.errors import InputError, OutputError, VerificationError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


class PublicKey(msgspec.Struct, frozen=True):
    """An Ed25519 public key: 32 raw bytes."""

    raw: bytes

    @property
    def line(self) -> str:
        """The key as OpenSSH writes it in a .pub file, without a comment."""
        return sshsig.public_line(self.raw)

    @property
    def allowed_signers_line(self) -> str:
        """The line that makes `ssh-keygen -Y verify` (and a board) trust this key for bundles only."""
        return f"{sshsig.PRINCIPAL} {sshsig.OPTION} {self.line}\n"

    @property
    def fingerprint(self) -> str:
        """SHA-256 fingerprint as `ssh-keygen -l` prints it."""
        digest = hashlib.sha256(sshsig.key_blob(self.raw)).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


class SigningKey(msgspec.Struct, frozen=True):
    """An Ed25519 private key: the 32-byte seed."""

    seed: bytes

    @property
    def public(self) -> PublicKey:
        from cryptography.hazmat.primitives import serialization

        key = _private(self.seed).public_key()
        raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        return PublicKey(raw)

    def sign(self, message: bytes) -> bytes:
        """The armored SSHSIG signature of `message`."""
        return sshsig.encode(self.public.raw, _private(self.seed).sign(sshsig.signed_data(message)))


def key_file(config_dir: Path | str | None = None) -> Path:
    """Where the signing key lives: ~/.config/tune-for-board/signing_key unless a folder is given."""
    return Path(config_dir or Path.home() / ".config" / "tune-for-board") / "signing_key"


def signers_file(config_dir: Path | str | None = None) -> Path:
    """Which other keys this host trusts: allowed_signers beside its own key, in OpenSSH's format."""
    return key_file(config_dir).with_name("allowed_signers")


def open_key(path: Path) -> SigningKey:
    """The signing key in `path`, made (mode 0600, with `path`.pub beside it) when there is none.

    Raises InputError when the file is no unencrypted Ed25519 key or others may read it, OutputError when it
    cannot be made.
    """
    if not path.exists():
        _create_key(path)
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise InputError(
            f"signing key {path} has mode {mode:04o}, expected 0600: others could sign in your name; "
            f"run `chmod 600 {path}`, or delete it to have a new one made"
        )
    return _read_key(path)


def verify(message: bytes, signature: bytes, trusted: Iterable[PublicKey], where: str) -> PublicKey:
    """The trusted key that signed `message`; raises VerificationError, in terms of `where`, when none did.

    The signature must be byte for byte what ssh-keygen writes, so that no part of it can be changed.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    parts = sshsig.decode(signature)
    if parts is None:
        raise VerificationError(
            f"{where}: the signature is damaged or of another kind; expected an SSHSIG Ed25519 "
            f"signature with namespace {sshsig.NAMESPACE.decode()}; get the file again from where it was made"
        )
    key, raw = PublicKey(parts[0]), parts[1]
    if key not in set(trusted):
        raise VerificationError(
            f"{where} is signed by {key.line} ({key.fingerprint}), which is not trusted here; if you know "
            f"the signer, add the line '{sshsig.PRINCIPAL} {key.line}' to {signers_file()}, otherwise do not "
            "use the bundle"
        )
    try:
        Ed25519PublicKey.from_public_bytes(key.raw).verify(raw, sshsig.signed_data(message))
    except (InvalidSignature, ValueError) as error:
        raise VerificationError(
            f"{where}: the signature does not belong to this manifest; the file was changed after it was "
            "signed: get it again from where it was made"
        ) from error
    return key


def read_allowed_signers(text: str) -> tuple[PublicKey, ...]:
    """The keys that an allowed_signers file trusts for bundles; lines for other uses are passed over."""
    return tuple(map(PublicKey, sshsig.allowed_keys(text)))


def _private(seed: bytes) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(seed)


def _create_key(path: Path) -> None:
    """Write a fresh key pair; another process that does the same at once wins or loses as a whole."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".signing_key-") as stream:
            os.fchmod(stream.fileno(), 0o600)
            stream.write(private)
            stream.flush()
            os.fsync(stream.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(stream.name, path)
        public = _read_key(path).public.line
        path.with_name(path.name + ".pub").write_text(f"{public} {sshsig.PRINCIPAL}\n")
    except OSError as error:
        raise OutputError(
            f"the signing key {path} cannot be made: {error.strerror}; "
            "make the folder writable or name another"
        ) from error


def _read_key(path: Path) -> SigningKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, OSError, UnsupportedAlgorithm) as error:
        raise InputError(
            f"signing key {path} cannot be read: {error}; expected an OpenSSH Ed25519 key without "
            "passphrase; delete it to have a new one made"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(
            f"signing key {path} is a {type(key).__name__}, expected Ed25519; "
            "delete it to have a new one made"
        )
    seed = key.private_bytes(
        serialization.Encoding.Raw, serialization.PrivateFormat.Raw, serialization.NoEncryption()
    )
    return SigningKey(seed)
