"""A process that knocks at a runtime's port without a key: idle, slow, garbage and half-done connections.

    python -m tests.torture.knocking PORT CONNECTIONS TOTAL SEED

It keeps CONNECTIONS open, each made anew a moment after the runtime has closed it, until its standard input
has ended and TOTAL were made. Then it prints {"made": number, "greeted": how many got a byte of a frame}.
"""

from __future__ import annotations

import json
import random
import selectors
import socket
import ssl
import sys
import time
from dataclasses import dataclass

from device_runtime.wire.frames import MAGIC, encode_frame

TICK_S = 0.05
AGAIN_S = 0.5  # after it was closed


def client_hello() -> bytes:
    """The first bytes of a real handshake, after which the runtime waits for the rest of it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    try:
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a handshake without an answer")


HELLO = client_hello()


@dataclass
class Knock:
    """One connection: what it still sends, how much of it at a tick, when it is made anew (0: it is open)."""

    peer: socket.socket
    pending: bytes
    step: int
    again_s: float = 0.0


def knock(port: int, rng: random.Random) -> Knock:
    """A new connection that sends nothing, one byte, garbage, or a handshake fast or slowly."""
    peer = socket.socket()
    peer.setblocking(False)
    peer.connect_ex(("127.0.0.1", port))
    request = encode_frame({"id": 1, "method": "probe", "params": {}})
    pending, step = rng.choice(
        [(b"", 0), (b"\x16", 1), (HELLO, 1), (HELLO, len(HELLO)), (rng.randbytes(4000), 4000), (request, 100)]
    )
    return Knock(peer, pending, step)


def main(port: int, connections: int, total: int, seed: int) -> None:
    rng, selector = random.Random(seed), selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ)
    knocks = [knock(port, rng) for _ in range(connections)]
    made, greeted, ended = connections, 0, False
    print("knocking", flush=True)
    while not ended or made < total:
        if ended:
            time.sleep(TICK_S)
        elif selector.select(TICK_S):
            ended = True
        for index, one in enumerate(knocks):
            try:
                if one.again_s:
                    raise ConnectionResetError
                if one.pending:
                    one.pending = one.pending[one.peer.send(one.pending[: one.step]) :]
                data = one.peer.recv(1 << 16)
                greeted += MAGIC in data
                if data:
                    continue
            except BlockingIOError:
                continue
            except OSError:
                pass
            one.peer.close()
            one.again_s = one.again_s or time.monotonic() + AGAIN_S
            if one.again_s < time.monotonic():
                knocks[index] = knock(port, rng)
                made += 1
    print(json.dumps({"made": made, "greeted": greeted}), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
