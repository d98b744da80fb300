"""Listen for hosts over TCP. Who holds the key of the host's certificate is served, in a process of its own.

Until its TLS handshake is complete, a connection is a socket of this process and nothing more. It has
AUTH_DEADLINE_S for that, whatever arrives meanwhile; of MAX_WAITING the oldest goes when one more comes. So
nobody without the key can keep out who has it. Start at listen().
"""

from __future__ import annotations

import hashlib
import os
import selectors
import socket
import sys
import time
from typing import TYPE_CHECKING, Dict, Optional, Set

from device_runtime.protocol import BUSY, FAILED, Connection, ProtocolError
from device_runtime.sandbox.isolation import die_with_parent
from device_runtime.server.serving import make_context, send_last, serve, system_error
from device_runtime.wire.tls import Credentials, TlsStream, read_credentials, shake_hands

if TYPE_CHECKING:
    import ssl

AUTH_DEADLINE_S = 10.0
MAX_WAITING = 256  # connections that are not authenticated; some MB of memory when all are there
MAX_CONNECTIONS = 16  # that are
IDLE_S = 60.0  # without the lease a host only looks, or asks for the lease every moment
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}  # a host that vanished: a minute


def listen(address: str, port: int, device_dir: str, credentials_file: str) -> None:
    """Accept for ever; prints `listening on ADDRESS:PORT` to stderr once it does, and what that opens.

    Raises ProtocolError for the credentials, OSError.
    """
    credentials = read_credentials(credentials_file, server=True)
    with socket.create_server((address, port), backlog=MAX_WAITING) as listener:
        host, bound_port = listener.getsockname()[:2]
        lines = [f"listening on {host}:{bound_port}"]
        if not host.startswith("127."):
            holder = hashlib.sha256(credentials.trusted).hexdigest()
            lines += [
                f"open to the network: who holds the key of the host's certificate (SHA-256 {holder})",
                f"can run native code here as user {os.getuid()}, write to {device_dir} and install bundles; "
                "nobody else gets past the TLS handshake",
            ]
        print("\n".join(lines), file=sys.stderr, flush=True)
        _Door(listener, credentials, device_dir).keep()


class _Door:
    """Connections that wait to be authenticated (with their deadlines, oldest first), and who was let in."""

    def __init__(self, listener: socket.socket, credentials: Credentials, device_dir: str) -> None:
        self.listener = listener
        self.credentials = credentials
        self.device_dir = device_dir
        self.waiting: Dict[ssl.SSLSocket, float] = {}
        self.children: Set[int] = set()
        self.selector = selectors.PollSelector()

    def keep(self) -> None:
        self.listener.setblocking(False)
        self.selector.register(self.listener, selectors.EVENT_READ)
        while True:
            for key, _ in self.selector.select(self._left_s()):
                if key.fileobj is self.listener:
                    self._accept()
                elif key.fileobj in self.waiting:  # else it was dropped a moment ago
                    self._shake_hands(key.fileobj)
            while self.waiting and self._left_s() == 0.0:
                self._drop_oldest()

    def _left_s(self) -> Optional[float]:
        """Seconds until the oldest waiting connection must be authenticated; None: none is waiting."""
        for deadline_s in self.waiting.values():
            return max(0.0, deadline_s - time.monotonic())
        return None

    def _accept(self) -> None:
        try:
            peer, _ = self.listener.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptor left, say
            self._drop_oldest()
            return
        if len(self.waiting) >= MAX_WAITING:
            self._drop_oldest()
        try:
            peer.setblocking(False)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE.items():
                peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            secured = self.credentials.context.wrap_socket(
                peer, server_side=True, do_handshake_on_connect=False
            )
        except OSError:  # gone already
            peer.close()
            return
        self.waiting[secured] = time.monotonic() + AUTH_DEADLINE_S
        self.selector.register(secured, selectors.EVENT_READ)

    def _shake_hands(self, peer: ssl.SSLSocket) -> None:
        """Go on with a handshake; let the host in when it is complete."""
        try:
            wanted = shake_hands(peer)
        except OSError:  # not TLS, another certificate, gone
            self._drop(peer)
            return
        if wanted:
            self.selector.modify(peer, wanted)
            return
        if self.credentials.accept(peer):
            self._let_in(peer)
        self._drop(peer)

    def _drop(self, peer: ssl.SSLSocket) -> None:
        del self.waiting[peer]
        self.selector.unregister(peer)
        peer.close()

    def _drop_oldest(self) -> None:
        for peer in self.waiting:
            self._drop(peer)
            return

    def _let_in(self, peer: ssl.SSLSocket) -> None:
        self.children -= {child for child in self.children if os.waitpid(child, os.WNOHANG)[0]}
        connection = Connection(TlsStream(peer))
        if len(self.children) >= MAX_CONNECTIONS:
            text = (
                f"{MAX_CONNECTIONS} connections of this host's are open; close one, or try again in a minute"
            )
            send_last(connection, ProtocolError(BUSY, text))
            return
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            send_last(connection, ProtocolError(FAILED, f"no process for it: {error.strerror}"))
            return
        if pid == 0:
            self._serve(connection, peer, parent)
        self.children.add(pid)

    def _serve(self, connection: Connection, peer: ssl.SSLSocket, parent: int) -> None:
        """Serve one host in the forked child, which ends afterwards."""
        try:
            die_with_parent(parent)
            self.listener.close()
            for other in self.waiting:
                if other is not peer:
                    other.close()
            context = make_context(self.device_dir, peer.fileno())
            serve(connection, context, IDLE_S)
        except OSError as error:
            send_last(connection, system_error(error, self.device_dir))
        finally:
            if sys.exc_info()[0] is not None:
                sys.excepthook(*sys.exc_info())
            os._exit(0)
