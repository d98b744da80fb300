"""Frames of every kind in every state of a connection, with and without TLS, against the real process.

Each is answered with a typed error or a result, or the connection ends; the runtime lives, prints nothing,
does not grow, and serves who comes next.
"""

from __future__ import annotations

import copy
import hashlib
import os
import random
import re
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgpack

from boards.board import Board, load
from boards.description import Link
from device_runtime.protocol import (
    BufferRequest,
    Connection,
    Frame,
    MeasureRequest,
    ProtocolError,
    Timing,
    to_plain,
)
from device_runtime.server import serving
from device_runtime.wire import frames
from device_runtime.wire.frames import MAGIC, MAX_HEADER_BYTES, PREFIX, FrameDecoder, encode_frame
from tests.loopback.listening import listening
from tests.torture.attack import Attack, Run
from toolkit.measure.archive import runtime_archive
from toolkit.measure.links.kinds import open_transport
from toolkit.measure.links.process import LocalTransport
from toolkit.measure.links.transport import Transport
from toolkit.measure.session import open_session

CODES = {value for name, value in vars(frames).items() if name.isupper() and isinstance(value, str)}
SOURCES = "".join(path.read_text() for path in sorted(Path(serving.__file__).parents[1].rglob("*.py")))
NAMES = sorted(set(re.findall(r'take\w*\((?:params|known|plain), "(\w+)"', SOURCES)))
METHODS = sorted(serving.METHODS)
RARE = {"probe", "measure", "run", "self_test", "health_check"}  # each starts processes
ANSWER_S = 60.0
LOOK_EVERY = 2000  # cases between two looks at whether others are served
MOST_BYTES = 400 << 20  # of the listening process
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 1 << 31, 1 << 34, (1 << 64) - 1, -(1 << 63), 0.0, 1e-3, -1.5, 1e308,
    float("inf"), float("nan"), "", "x", "0" * 64, "b" * 32, "../../etc/passwd", "a\0b", "\x1b]0;x\x07",
    "\u202e", "x" * 5000, b"", b"\xff" * 10, [], [0], [[]], ["0" * 64], [{}], [0] * 1000, {}, {"a": 1},
    {"": {"": []}},
)  # fmt: skip

CHUNK = b"a chunk of an object"
SHA, SLOT = hashlib.sha256(CHUNK).hexdigest(), "b" * 32
BUFFERS = (BufferRequest("input", "int8", 20, SHA), BufferRequest("output", "int8", 20, SHA))
VALID: dict[
    str, dict[str, Any]
] = {  # what each method takes; most of it is not on the board, the chunk may be
    "lease": {"holder": "an attack"},
    "status": {"sha": SHA},
    "put": {"sha": SHA, "total_bytes": len(CHUNK), "offset": 0},
    "read": {"sha": SHA, "offset": 0},
    "measure": to_plain(MeasureRequest(SHA, "k", BUFFERS, timing=Timing(), timeout_s=0.5)),
    "slots": {"verify": SLOT},
    "trust": {"signer": "ssh-ed25519 AAAA", "line": "tune-for-board ssh-ed25519 AAAA"},
    "install": {"manifest": SHA, "signature": SHA},
    "self_test": {"id": SLOT, "target": "", "timeout_s": 0.5},
    "activate": {"id": SLOT},
    "health_check": {"target": "", "timeout_s": 0.5},
    "commit": {"id": SLOT},
    "rollback": {"expected_current": "", "reason": ""},
    "run": {"inputs": [SHA], "target": "", "repeat": 1, "timeout_s": 0.5},
}


def plain_value(rng: random.Random, depth: int = 3) -> Any:
    """A value that a header can carry, seldom a nested one."""
    if depth and rng.random() < 0.15:
        items = [plain_value(rng, depth - 1) for _ in range(rng.randrange(4))]
        return items if rng.random() < 0.5 else {f"k{place}": item for place, item in enumerate(items)}
    return copy.deepcopy(rng.choice(VALUES))


def request(rng: random.Random, number: int) -> dict[str, Any]:
    """A request that means something to a method, or nearly."""
    method = rng.choice(METHODS)
    if method in RARE and rng.random() < 0.9:
        method = rng.choice(sorted(set(METHODS) - RARE))
    params: Any = copy.deepcopy(VALID.get(method, {}))
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        spoil(params, rng)
    header: dict[str, Any] = {"id": number, "method": method, "params": params}
    if rng.random() < 0.2:  # a wrong, missing or further entry
        name = rng.choice(["id", "method", "params", "result", "error", "greeting", "x"])
        header[name] = plain_value(rng)
        if rng.random() < 0.5:
            del header[name]
    return header


def spoil(params: Any, rng: random.Random) -> None:
    """Change, remove or add one entry, in `params` or in one of its own maps."""
    names = [*params, rng.choice(NAMES)]
    name = rng.choice(names)
    inner = params.get(name)
    if isinstance(inner, list | tuple) and inner and isinstance(inner[0], dict):
        inner = inner[0]
    if isinstance(inner, dict) and inner and rng.random() < 0.7:
        spoil(inner, rng)
    elif rng.random() < 0.2:
        params.pop(name, None)
    else:
        params[name] = plain_value(rng)


def whole_frame(rng: random.Random, number: int) -> bytes:
    """A frame that is one, whatever it says."""
    header = request(rng, number)
    buffers = [CHUNK] if header.get("method") == "put" else []
    if rng.random() < 0.2:
        buffers = [rng.randbytes(rng.choice((0, 1, 9, 4096))) for _ in range(rng.choice((0, 1, 1, 2, 64)))]
    return encode_frame(header, buffers)


def malformed_frame(rng: random.Random, number: int) -> bytes:
    """Bytes that are no frame, or not quite."""
    whole = bytearray(whole_frame(rng, number))
    kind = rng.randrange(8)
    if kind == 0:
        return rng.randbytes(rng.randrange(1, 300))
    if kind == 1:  # flipped bytes
        for _ in range(rng.randrange(1, 4)):
            whole[rng.randrange(len(whole))] ^= rng.randrange(1, 256)
        return bytes(whole)
    if kind == 2:  # cut short
        return bytes(whole[: rng.randrange(1, len(whole))])
    if kind == 3:  # announces what it does not bring, or may not
        sizes = rng.choice(((MAX_HEADER_BYTES + 1, 0), (10, 1 << 40), ((1 << 32) - 1, (1 << 64) - 1), (0, 0)))
        return PREFIX.pack(MAGIC, *sizes) + bytes(whole[PREFIX.size :])
    headers = (
        rng.randbytes(rng.randrange(200)),
        msgpack.packb(plain_value(rng)),
        msgpack.packb({"id": number, "method": "status", "params": {}, "buffers": plain_value(rng)}),
        b"\x81\xa1a" + b"\x91" * rng.randrange(2000) + b"\x90",
        msgpack.packb({"buffers": [], "ext": msgpack.ExtType(5, b"x")}),
        b"\xdf\xff\xff\xff\xff",  # a map of four billion entries
        b"\xdd\xff\xff\xff\xff" + b"\xc0" * 100,
    )
    packed = rng.choice(headers)
    return PREFIX.pack(MAGIC, len(packed), 0) + packed


class Peer:
    """A connection that was greeted, by which anything can be sent."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.connection = Connection(transport, FrameDecoder())
        self.number = 0
        self.greeting = self.connection.receive(ANSWER_S)

    def calls(self, method: str, **params: Any) -> Frame | None:
        """A call as it should be, and what comes back: a frame, or None when the connection has ended."""
        self.number += 1
        self.connection.send({"id": self.number, "method": method, "params": params})
        return self.connection.receive(ANSWER_S)


def is_answer(frame: Frame) -> bool:
    """A result, or an error as the protocol has it."""
    error = frame.header.get("error")
    if error is None:
        return isinstance(frame.header.get("result"), dict)
    return error["code"] in CODES - {frames.INTERNAL} and bool(error["text"])


def bring_to(state: str, peer: Peer) -> None:
    """Greeted it is; `leased` and `after error` take a call."""
    if state == "leased":
        peer.calls("lease", holder="an attack")
    elif state == "after error":
        peer.calls("no such method")


def talk(run: Run, peer: Peer, state: str, cases: int, malformed: float) -> None:
    """So many frames in one state, or as many as the connection survives."""
    bring_to(state, peer)
    for _ in range(cases):
        broken = run.rng.random() < malformed
        peer.number += 1
        data = (malformed_frame if broken else whole_frame)(run.rng, peer.number)
        try:
            if broken:  # half a frame is waited for; this one ends it, or is taken for its rest
                data += encode_frame({"id": 0, "method": "status", "params": {}})
                peer.transport.write(data)
                _finish(peer.transport)
            else:
                peer.transport.write(data)
            frame = peer.connection.receive(ANSWER_S)
        except (OSError, ProtocolError) as error:
            withstood = broken and isinstance(error, ConnectionError)
            run.check(withstood, f"{state}: {data[:300]!r} was answered with {error!r}")
            return
        run.check(
            frame is None or is_answer(frame),
            f"{state}: {data[:300]!r} was answered with {frame and frame.header}",
        )
        if broken or frame is None or frame.header.get("id") == 0:
            return
        if state == "leased" and run.rng.random() < 0.05:
            bring_to(state, peer)


def _finish(transport: Transport) -> None:
    """No more comes from here; the other side may still answer."""
    if isinstance(transport, LocalTransport):
        transport._input.close()
    else:
        with suppress(OSError):
            socket.socket.shutdown(transport.peer, socket.SHUT_WR)  # type: ignore[attr-defined]


@contextmanager
def over_pipes(archive: Path, folder: Path) -> Iterator[Transport]:
    """A runtime of its own, as over SSH; it must end well and say nothing on its standard error."""
    transport = LocalTransport([sys.executable, str(archive), "--device-dir", str(folder)], "the runtime")
    try:
        yield transport
    finally:
        with suppress(OSError):
            transport._input.close()
        status, words = transport._process.wait(60), transport.last_words()
        transport.close()
    assert (status, words) == (0, ""), f"the runtime ended with status {status}: {words}"


def strangers(run: Run, link: Link, cases: int) -> None:
    """Frames from who has no key: in the clear, or over TLS without a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for _ in range(cases):
        data = (malformed_frame if run.rng.random() < 0.5 else whole_frame)(run.rng, 1)
        received = b""
        with socket.create_connection((link.host, link.port), timeout=ANSWER_S) as peer, suppress(OSError):
            if run.rng.random() < 0.2:
                peer = context.wrap_socket(peer)
            peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)
            while more := peer.recv(1 << 16):
                received += more
        run.check(
            MAGIC not in received, f"unauthenticated: {data[:300]!r} was answered with {received[:300]!r}"
        )


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def look(run: Run, board: Board, pid: int) -> None:
    """The runtime serves whoever has the key, and has not grown."""
    with open_session(board, wait_s=30.0) as session:
        data = run.rng.randbytes(1000)
        run.check(session.read(session.put(data), len(data)) == data, "an honest host got other bytes back")
    run.check(resident_bytes(pid) < MOST_BYTES, f"the runtime has {resident_bytes(pid) >> 20} MiB")


def throw(run: Run) -> None:
    """All states in turn, until there were enough cases."""
    archive = run.folder / "pipes.pyz"
    archive.write_bytes(runtime_archive())
    looked = 0
    with ExitStack() as stack:
        board, pid = stack.enter_context(listening(load("host"), run.folder))
        for number in run:
            state = ("greeted", "leased", "after error")[number % 3]
            strangers(run, board.link, 25)
            for _ in range(3):
                transport = open_transport(board.link)
                try:
                    talk(run, Peer(transport), state, 40, 0.02)
                finally:
                    transport.close()
            if number % 8 == 0:
                with over_pipes(archive, run.folder / "pipes") as transport:
                    talk(run, Peer(transport), state, 400, 0.003)
            if run.count - looked >= LOOK_EVERY or run.count >= run.cases:
                looked = run.count
                look(run, board, pid)


ATTACKS = (
    Attack(
        "frames", "a frame, malformed or not, in one of four states of a connection", 100_000, 3000, throw
    ),
)
