"""What a method of the runtime is: a plain function, listed by name in a table.

A file with methods of its own ends in a table `METHODS: Dict[str, Method]`; serving.py joins the tables.
A handler gets the context, the request's params (plain and unchecked: use protocol.take*) and its raw
buffers. It returns a Reply, or raises ProtocolError, whose code, text and details the host receives.
An OSError becomes a reply with code FAILED. Anything else is a bug and ends the runtime.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from device_runtime.content_store import Store
from device_runtime.protocol import Buffer
from device_runtime.sandbox.guarded_memory import Inputs
from device_runtime.server.lease import Lease


@dataclass(frozen=True)
class Context:
    """What a connection's methods work with.

    `watch_fd`, the connection's, hangs up when the host goes. `nonce` is another one for each connection: a
    permission that a signer gives holds for one connection only.
    """

    device_dir: str
    store: Store
    inputs: Inputs
    lease: Lease
    watch_fd: Optional[int] = None
    nonce: str = field(default_factory=lambda: os.urandom(16).hex())


class Reply(NamedTuple):
    """A plain map, and raw buffers (each at most protocol.CHUNK_BYTES)."""

    result: Dict[str, Any]
    buffers: Sequence[Buffer] = ()


Handler = Callable[[Context, Dict[str, Any], List[bytes]], Reply]


class Method(NamedTuple):
    """`lease`: only the lease's holder may call it."""

    handler: Handler
    lease: bool
