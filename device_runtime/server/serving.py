"""Serve one connection: it is greeted and then asks, one answer per request. Start at serve().

Who speaks is known by then: over pipes and SSH whoever may start the runtime, over TCP see listen.py.
"""

from __future__ import annotations

import errno
import os
import platform
from typing import Any, Dict, Optional, Tuple

from device_runtime.content_store import DISK_FULL, Store
from device_runtime.protocol import (
    DEADLINE,
    FAILED,
    NO_SPACE,
    NOT_ALLOWED,
    PROTOCOL_VERSION,
    RUNTIME_VERSION,
    UNKNOWN_METHOD,
    Connection,
    Frame,
    Greeting,
    ProtocolError,
    take,
    to_plain,
)
from device_runtime.sandbox.guarded_memory import Inputs, kept_bytes, memory_bytes
from device_runtime.sandbox.isolation import PeerGone, wait_until_gone
from device_runtime.server import board_calls, bundle_calls
from device_runtime.server.lease import Lease
from device_runtime.server.method import Context, Method, Reply

AT_ONCE_S = 0.01  # in which a host that measures one candidate after the other asks for the next

METHODS: Dict[str, Method] = {**board_calls.METHODS, **bundle_calls.METHODS}

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


def serve(connection: Connection, context: Context, idle_s: Optional[float] = None) -> None:
    """Greet, then answer until the other side closes, or without the lease asks nothing for `idle_s`."""
    greeting = Greeting(
        PROTOCOL_VERSION, RUNTIME_VERSION, platform.python_version(), platform.machine(), os.getpid()
    )
    try:
        connection.send({"greeting": to_plain(greeting)})
        while True:
            frame = _next(connection, idle_s if context.lease.token is None else None)
            if frame is None:
                return
            header, buffers = _answer(context, frame)
            connection.send(header, buffers)
    except ProtocolError as error:
        send_last(connection, error)
    except TimeoutError:
        text = f"no request within {idle_s:g} s: without the lease, connections make room for others"
        send_last(connection, ProtocolError(DEADLINE, text))
    except (PeerGone, ConnectionError):
        return


def _next(connection: Connection, idle_s: Optional[float]) -> Optional[Frame]:
    """The next request; where it does not come at once, processes that still end are waited for first."""
    try:
        return connection.receive(AT_ONCE_S)
    except TimeoutError:
        wait_until_gone()
    return connection.receive(idle_s)


def _answer(context: Context, frame: Frame) -> Tuple[Dict[str, Any], Any]:
    number = frame.header.get("id")
    try:
        reply = _call(context, frame)
    except ProtocolError as error:
        return {"id": number, "error": _error(error)}, ()
    except OSError as error:
        return {"id": number, "error": _error(system_error(error, context.device_dir))}, ()
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


def system_error(error: OSError, device_dir: str) -> ProtocolError:
    """What the board's system refused, as an answer that says what to do."""
    code, remedy = SYSTEM_ERRORS.get(
        error.errno or 0, (FAILED, "check the board's storage and its kernel log")
    )
    where = error.filename or device_dir
    return ProtocolError(code, f"the board's system refused: {error.strerror or error} ({where}); {remedy}")


def _error(error: ProtocolError) -> Dict[str, Any]:
    return {"code": error.code, "text": error.text, "details": error.details}


def send_last(connection: Connection, error: ProtocolError) -> None:
    """Say why nothing more will be answered, to whoever still listens."""
    try:
        connection.send({"id": 0, "error": _error(error)})
    except OSError:
        return  # gone before it could be told
