"""Keys and certificates for a board over TCP and for its host; the files: device_runtime/wire/tls.py."""

from __future__ import annotations

import base64
import contextlib
import datetime
from pathlib import Path

from boards.files import write_file
from device_runtime.protocol import HEADLINE, TRUSTS
from toolkit.errors import OutputError

BEGIN = datetime.datetime(1950, 1, 1)  # the first that X.509 can say: a board's clock may begin in 1970
END = datetime.datetime(9999, 12, 31, 23, 59, 59)  # "no well-defined expiration date", RFC 5280 4.1.2.5


def make_credentials(board_file: Path | str, host_file: Path | str) -> bool:
    """Make fresh credentials for both sides (mode 0600), unless both files are there; whether it did.

    Raises OutputError when one of them is missing, or they cannot be written.
    """
    board_file, host_file = Path(board_file), Path(host_file)
    present = [path for path in (board_file, host_file) if path.exists()]
    if len(present) == 2:
        return False
    if present:
        missing = board_file if host_file in present else host_file
        raise OutputError(
            f"{present[0]} is there without its other half, {missing}: "
            "move it away to have new credentials made for both sides, or choose another place with -o"
        )
    board_pem, board_der = _identity("tune-for-board board")
    host_pem, host_der = _identity("tune-for-board host")
    try:
        _write(board_file, host_der, board_pem)
        _write(host_file, board_der, host_pem)
    except OSError as error:
        for path in (board_file, host_file):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        raise OutputError(
            f"the credentials cannot be written to {error.filename}: {error.strerror}; "
            "choose another place with -o"
        ) from error
    return True


def _identity(name: str) -> tuple[bytes, bytes]:
    """A fresh P-256 key with a certificate that it signed itself: both as PEM, the certificate as DER."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(BEGIN)
        .not_valid_after(END)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    return private + pem, certificate.public_bytes(serialization.Encoding.DER)


def _write(path: Path, trusted: bytes, pem: bytes) -> None:
    lines = f"{HEADLINE}\n{TRUSTS}{base64.b64encode(trusted).decode()}\n"
    write_file(path, lines.encode() + pem, 0o600)
