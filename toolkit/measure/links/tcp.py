"""A runtime that somebody started on a board with --listen, over TCP with mutual TLS."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Self

from boards.description import Link
from device_runtime.protocol import Credentials, ProtocolError, TlsStream, read_credentials
from toolkit.errors import BoardUnreachable, InputError
from toolkit.measure.links.transport import Transport


class TcpTransport(TlsStream, Transport):
    """A TLS connection to a runtime that somebody started with --listen."""

    silence = (
        "it does not accept this host's certificate, or was stopped. Check that both sides have the "
        "credentials of one `toolkit runtime archive`"
    )

    def __init__(self, peer: ssl.SSLSocket, where: str) -> None:
        super().__init__(peer)
        self.where = where

    @classmethod
    def open(cls, link: Link, cache_dir: Path) -> Self:
        """See Transport. Both sides prove who they are before the board gets a word in."""
        where, credentials = f"{link.host}:{link.port}", tls_credentials(link)
        try:
            peer = socket.create_connection((link.host, link.port), timeout=link.connect_timeout_s)
        except OSError as error:
            raise BoardUnreachable(
                f"No runtime listens on {where}: {error}. Start it on the board: python3 device_runtime.pyz "
                f"--device-dir DIR --listen 0.0.0.0:{link.port} --tls device_runtime.board.pem "
                "(`toolkit runtime archive` writes both files)"
            ) from error
        try:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            secured = credentials.context.wrap_socket(peer)
        except OSError as error:
            peer.close()
            raise BoardUnreachable(_why_not_secured(where, link, error)) from error
        if not credentials.accept(secured):
            secured.close()
            raise BoardUnreachable(_other_certificate(where, link))
        return cls(secured, where)

    @staticmethod
    def remedy(link: Link) -> str:
        return (
            "start the runtime on the board (`toolkit runtime archive` writes it and the credentials of both)"
        )


def _why_not_secured(where: str, link: Link, error: OSError) -> str:
    """What broke a TLS handshake, and the remedy."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _other_certificate(where, link)
    if isinstance(error, ssl.SSLEOFError | ConnectionError):
        return (
            f"{where} closed the connection before it was secured: so many others try to connect that it "
            "dropped this one, or it is no runtime. Try again"
        )
    if isinstance(error, ssl.SSLError) and "ALERT" in str(error):
        return f"{where} refused the connection: {TcpTransport.silence}"
    if isinstance(error, TimeoutError):
        return f"{where} did not complete the TLS handshake within {link.connect_timeout_s:g} s; try again"
    return (
        f"{where} does not speak TLS as a runtime of this version does: {error}. Start the one there that "
        "`toolkit runtime archive` writes"
    )


def _other_certificate(where: str, link: Link) -> str:
    return (
        f"{where} shows another certificate than the board's in {link.tls_file}: it may not be the board. If "
        "the board was given new credentials, name the host's file that was made with them as link.tls_file"
    )


def tls_credentials(link: Link) -> Credentials:
    """This host's credentials for a TCP link. InputError when its file cannot be used."""
    if not link.tls_file:
        raise InputError("link.kind tcp: expected link.tls_file in the board file, found none")
    path = Path(link.tls_file).expanduser()
    try:
        return read_credentials(str(path), server=False)
    except OSError as error:
        raise InputError(
            f"link.tls_file {path}: {error.strerror or error}; `toolkit runtime archive` makes it"
        ) from error
    except ProtocolError as error:
        raise InputError(f"link.tls_file {error}") from error
