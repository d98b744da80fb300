"""TLS between a host and a board over TCP; each side pins the certificate of the other. Both use this file.

A side's credentials are one file, which `toolkit runtime archive` makes: the line HEADLINE, a line `trusts`
with the other side's certificate (DER in base64), this side's own private key and certificate (PEM). Whoever
does not hold the key of that very certificate gets nothing through, in either direction.

The certificates sign themselves and hold from 1950 to 9999: boards without a battery begin in 1970. What
counts is that the certificate is the pinned one, byte for byte.
"""

from __future__ import annotations

import base64
import hmac
import os
import selectors
import socket
import stat
from typing import TYPE_CHECKING, NamedTuple, Optional

from device_runtime.wire.frames import BAD_REQUEST, FRAME_DEADLINE_S, ProtocolError, Stream

if TYPE_CHECKING:
    import ssl

HEADLINE = "tune-for-board TLS credentials, version 1"
TRUSTS = "trusts "
RECORD_BYTES = 1 << 14  # the most that TLS gives at once
REMEDY = "make new ones with `toolkit runtime archive`, for both sides"


class Credentials(NamedTuple):
    """What one side shows, and the one certificate (DER) that it accepts of the other."""

    context: ssl.SSLContext
    trusted: bytes

    def accept(self, peer: ssl.SSLSocket) -> bool:
        """Whether the other side of a finished handshake showed the pinned certificate."""
        return hmac.compare_digest(peer.getpeercert(binary_form=True) or b"", self.trusted)


def read_credentials(path: str, *, server: bool) -> Credentials:
    """The credentials in a file. Raises ProtocolError when others may read it or it is damaged, OSError."""
    import ssl  # here, because a Python without it is good enough for a board that is reached over SSH

    with open(path, encoding="ascii", errors="replace") as file:
        if os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ProtocolError(BAD_REQUEST, f"{path}: others may read it; run: chmod 600 {path}")
        lines = file.read(1 << 16).splitlines()
    if lines[:1] != [HEADLINE]:
        raise ProtocolError(BAD_REQUEST, f"{path}: expected the first line {HEADLINE!r}; {REMEDY}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate is the name
    context.verify_mode = ssl.CERT_REQUIRED
    # The board asks for the best that its Python has; the host, which has TLS 1.3, takes what the board has.
    newest = ssl.TLSVersion.TLSv1_3 if ssl.HAS_TLSv1_3 else ssl.TLSVersion.TLSv1_2
    context.minimum_version = newest if server else ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    if server:
        context.num_tickets = 0  # every connection proves its key anew
    try:
        trusted = base64.b64decode("".join(line[len(TRUSTS) :] for line in lines if line.startswith(TRUSTS)))
        context.load_verify_locations(cadata=trusted)
        context.load_cert_chain(path, password="")
    except (ValueError, ssl.SSLError) as error:
        raise ProtocolError(BAD_REQUEST, f"{path}: damaged credentials ({error}); {REMEDY}") from None
    return Credentials(context, trusted)


def shake_hands(peer: ssl.SSLSocket) -> int:
    """Go on with the handshake of a socket that does not block: the event of `selectors` that it waits for, 0
    when it is complete; OSError when it will never be."""
    import ssl

    try:
        peer.do_handshake()
    except ssl.SSLWantReadError:
        return selectors.EVENT_READ
    except ssl.SSLWantWriteError:
        return selectors.EVENT_WRITE
    return 0


class TlsStream(Stream):
    """An authenticated connection; whatever breaks it is a ConnectionError."""

    def __init__(self, peer: ssl.SSLSocket) -> None:
        self.peer = peer

    def read(self, timeout_s: Optional[float]) -> bytes:
        """Some bytes; b"" when the other side has closed; TimeoutError."""
        self.peer.settimeout(timeout_s if timeout_s is None else max(timeout_s, 1e-3))
        try:
            return self.peer.recv(RECORD_BYTES)
        except ConnectionResetError:
            return b""
        except OSError as error:
            if isinstance(error, socket.timeout) and error.errno is None:  # with one, the other side is lost
                raise TimeoutError(f"nothing arrived within {timeout_s:g} s") from None
            raise ConnectionError(str(error)) from error

    def write(self, data: bytes) -> None:
        """Write all of it, within FRAME_DEADLINE_S."""
        self.peer.settimeout(FRAME_DEADLINE_S)
        try:
            self.peer.sendall(data)
        except OSError as error:
            raise ConnectionError(str(error)) from error

    def close(self) -> None:
        """Close the connection; the board's runtime goes on listening."""
        self.peer.close()
