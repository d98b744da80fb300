"""Serve one connection; or listen, and serve each connection in a process of its own.

A connection is greeted, authenticated if it came over TCP, and then asks; one answer per request. Start
at serve().
"""

from __future__ import annotations

import errno
import hmac
import os
import platform
import socket
import stat
import sys
from typing import Any, Dict, Set, Tuple

from device_runtime import calls, slots
from device_runtime.buffers import Inputs, kept_bytes, memory_bytes
from device_runtime.isolation import PeerGone, die_with_parent
from device_runtime.lease import Lease
from device_runtime.methods import Context, Method, Reply
from device_runtime.protocol import (
    BAD_REQUEST,
    FAILED,
    NO_SPACE,
    NOT_ALLOWED,
    PROTOCOL_VERSION,
    RUNTIME_VERSION,
    UNAUTHENTICATED,
    UNKNOWN_METHOD,
    Connection,
    Frame,
    FrameDecoder,
    Greeting,
    ProtocolError,
    proof,
    take,
    to_plain,
)
from device_runtime.store import DISK_FULL, Store
from device_runtime.streams import DescriptorStream

METHODS: Dict[str, Method] = {
    **calls.METHODS,
    **slots.METHODS,
}

AUTH_DEADLINE_S = 10.0
AUTH_MAX_BYTES = 4096
KEY_MIN_BYTES = 16
MAX_CONNECTIONS = 16
SYSTEM_ERRORS = {  # by errno: the code of the answer, and what to do; anything else is FAILED
    **dict.fromkeys(DISK_FULL, (NO_SPACE, "free space or inodes on the board and try again")),
    **dict.fromkeys(
        (errno.EROFS, errno.EACCES, errno.EPERM),
        (
            NOT_ALLOWED,
            "let the runtime's user write there, or name another link.device_dir in the board file",
        ),
    ),
}


def make_context(device_dir: str, watch_fd: int) -> Context:
    """The state of one connection; creates the device directory. OSError when that is not possible."""
    store = Store(device_dir)
    return Context(device_dir, store, Inputs(store, kept_bytes(memory_bytes())), Lease(device_dir), watch_fd)


def serve(connection: Connection, context: Context, key: bytes = b"") -> None:
    """Greet, then answer until the other side closes; with a `key`, only after mutual authentication."""
    challenge = os.urandom(32).hex() if key else ""
    greeting = Greeting(
        PROTOCOL_VERSION,
        RUNTIME_VERSION,
        platform.python_version(),
        platform.machine(),
        os.getpid(),
        challenge,
    )
    try:
        connection.send({"greeting": to_plain(greeting)})
        if key:
            _authenticate(connection, key, challenge)
        while True:
            frame = connection.receive()
            if frame is None:
                return
            header, buffers = _answer(context, frame)
            connection.send(header, buffers)
    except ProtocolError as error:
        _send_last(connection, error)
    except (PeerGone, ConnectionError):
        return


def _answer(context: Context, frame: Frame) -> Tuple[Dict[str, Any], Any]:
    number = frame.header.get("id")
    try:
        reply = _call(context, frame)
    except ProtocolError as error:
        return {"id": number, "error": _error(error)}, ()
    except OSError as error:
        return {"id": number, "error": _error(_system_error(error, context.device_dir))}, ()
    return {"id": number, "result": reply.result}, reply.buffers


def _call(context: Context, frame: Frame) -> Reply:
    take(frame.header, "id", int, 0)
    name: str = take(frame.header, "method", str)
    params: Dict[str, Any] = take(frame.header, "params", dict)
    if name not in METHODS:
        known = ", ".join(sorted(METHODS))
        raise ProtocolError(UNKNOWN_METHOD, f"no method {name!r:.80}; this runtime has {known}")
    method = METHODS[name]
    if method.lease:
        context.lease.require()
    return method.handler(context, params, frame.buffers)


def _system_error(error: OSError, device_dir: str) -> ProtocolError:
    """What the board's system refused, as an answer that says what to do."""
    code, remedy = SYSTEM_ERRORS.get(
        error.errno or 0, (FAILED, "check the board's storage and its kernel log")
    )
    where = error.filename or device_dir
    return ProtocolError(code, f"the board's system refused: {error.strerror or error} ({where}); {remedy}")


def _error(error: ProtocolError) -> Dict[str, Any]:
    return {"code": error.code, "text": error.text, "details": error.details}


def _send_last(connection: Connection, error: ProtocolError) -> None:
    try:
        connection.send({"id": 0, "error": _error(error)})
    except OSError:
        return  # gone before it could be told


# ------------------------------------------------------------------------------------------------- TCP


def _authenticate(connection: Connection, key: bytes, challenge: str) -> None:
    """The host proves first; only then does the board prove to the host's challenge."""
    connection.decoder = FrameDecoder(AUTH_MAX_BYTES, 0)
    try:
        frame = connection.receive(AUTH_DEADLINE_S)
    except TimeoutError:
        raise ProtocolError(UNAUTHENTICATED, f"no proof within {AUTH_DEADLINE_S:g} s") from None
    params = take(frame.header, "params", dict) if frame else {}
    if frame is None or frame.header.get("method") != "authenticate":
        raise ProtocolError(UNAUTHENTICATED, "the first call must be 'authenticate'")
    theirs: str = take(params, "challenge", str)
    given: str = take(params, "proof", str)
    expected = proof(key, "host", theirs, challenge)
    if len(theirs) < 32 or not hmac.compare_digest(expected.encode(), given.encode()):
        raise ProtocolError(UNAUTHENTICATED, "wrong proof; check that both sides use the same key file")
    connection.decoder = FrameDecoder()
    answer = {"proof": proof(key, "board", challenge, theirs)}
    connection.send({"id": frame.header.get("id"), "result": answer})


def read_key(path: str) -> bytes:
    """The shared key of TCP connections; ProtocolError when others can read it or it is too short."""
    mode = os.stat(path).st_mode
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ProtocolError(BAD_REQUEST, f"key file {path}: others may read it; run: chmod 600 {path}")
    with open(path, "rb") as file:
        key = file.read().strip()
    if len(key) < KEY_MIN_BYTES:
        text = f"key file {path}: expected at least {KEY_MIN_BYTES} bytes, found {len(key)}"
        raise ProtocolError(BAD_REQUEST, text)
    return key


def listen(address: str, port: int, device_dir: str, key: bytes) -> None:
    """Accept for ever; prints `listening on ADDRESS:PORT` to stderr once it does."""
    with socket.create_server((address, port)) as listener:
        host, bound_port = listener.getsockname()[:2]
        print(f"listening on {host}:{bound_port}", file=sys.stderr, flush=True)
        children: Set[int] = set()
        while True:
            peer, _ = listener.accept()
            with peer:
                children -= {child for child in children if os.waitpid(child, os.WNOHANG)[0]}
                if len(children) >= MAX_CONNECTIONS:
                    continue  # closed without a word; the holders' connections matter more
                parent = os.getpid()
                pid = os.fork()
                if pid == 0:
                    _serve_peer(listener, peer, (device_dir, key, parent))
                children.add(pid)


def _serve_peer(listener: socket.socket, peer: socket.socket, state: Tuple[str, bytes, int]) -> None:
    device_dir, key, parent = state
    try:
        die_with_parent(parent)
        listener.close()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = DescriptorStream(peer.fileno(), peer.fileno())
        serve(Connection(stream), make_context(device_dir, peer.fileno()), key)
    finally:
        if sys.exc_info()[0] is not None:
            sys.excepthook(*sys.exc_info())
        os._exit(0)
