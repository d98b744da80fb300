"""Frames between host and board: `TFBF`, header length (u32), payload length (u64), msgpack map, raw buffers.

Nothing that arrives is trusted: whatever is not a frame within the caps, or does not end in time, raises
ProtocolError. Start at Connection.
"""

from __future__ import annotations

import struct
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

import msgpack

MAGIC = b"TFBF"
PREFIX = struct.Struct(">4sIQ")
MAX_HEADER_BYTES = 1 << 20
MAX_PAYLOAD_BYTES = 1 << 26
MAX_BUFFERS = 64
MAX_DEPTH = 16
FRAME_DEADLINE_S = 60.0  # from a frame's first byte to its last

# Codes of ProtocolError and of error replies.
BAD_FRAME = "bad_frame"  # not a frame of this protocol
TOO_LARGE = "too_large"  # over a size cap
DEADLINE = "deadline"  # a frame began and did not end in time
BAD_VERSION = "bad_version"
UNKNOWN_METHOD = "unknown_method"
BAD_REQUEST = "bad_request"  # parameters of the wrong shape, type or size
BUSY = "busy"  # somebody else holds the lease; details: holder, pid, since_unix_s
NO_LEASE = "no_lease"  # the call needs the lease and this connection has none
NOT_FOUND = "not_found"
NO_SPACE = "no_space"  # no bytes or no inodes
NOT_ALLOWED = "not_allowed"  # a read-only file system, or no permission
BAD_HASH = "bad_hash"
REFUSED = "refused"  # understood, and the board will not do it; the text says why
UNTRUSTED = "untrusted"  # a bundle whose signer, board or age the board does not accept
FAILED = "failed"  # tried and did not succeed
INTERNAL = "internal"  # a bug in the runtime

Buffer = Union[bytes, bytearray, memoryview]


class ProtocolError(Exception):
    """What the other side sent cannot be used, or what it answered; `code` is one of the names above."""

    def __init__(self, code: str, text: str, details: Optional[Mapping[str, Any]] = None) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.details: Dict[str, Any] = dict(details or {})


class Frame(NamedTuple):
    """A header without its "buffers" entry, and the buffers themselves."""

    header: Dict[str, Any]
    buffers: List[bytes]


def encode_frame(header: Mapping[str, Any], buffers: Sequence[Buffer] = ()) -> bytes:
    """The bytes of one frame; refuses what the other side's decoder would refuse."""
    sizes = [len(memoryview(buffer).cast("B")) for buffer in buffers]
    packed: bytes = msgpack.packb({**header, "buffers": sizes}, use_bin_type=True)
    if len(packed) > MAX_HEADER_BYTES or sum(sizes) > MAX_PAYLOAD_BYTES or len(sizes) > MAX_BUFFERS:
        raise ProtocolError(
            TOO_LARGE,
            f"frame with a header of {len(packed)} bytes and {len(sizes)} buffers of {sum(sizes)} bytes: at "
            f"most {MAX_HEADER_BYTES}, {MAX_BUFFERS} and {MAX_PAYLOAD_BYTES} are allowed; send it in chunks",
        )
    return b"".join([PREFIX.pack(MAGIC, len(packed), sum(sizes)), packed, *buffers])


class FrameDecoder:
    """Bytes in, frames out. After a ProtocolError the stream is lost: close it.

    `noise_bytes` allows that much foreign text before the first frame (a login shell that talks).
    """

    def __init__(self, max_payload_bytes: int = MAX_PAYLOAD_BYTES, noise_bytes: int = 0) -> None:
        self.max_payload_bytes = max_payload_bytes
        self._noise_left = noise_bytes
        self._pending = bytearray()

    @property
    def partial(self) -> bool:
        """Whether a frame has begun and not ended."""
        return bool(self._pending)

    def feed(self, data: Buffer) -> None:
        """Add received bytes."""
        self._pending += data

    def next(self) -> Optional[Frame]:
        """The next whole frame, or None when more bytes are needed; ProtocolError for anything else."""
        if self._noise_left and not self._drop_noise():
            return None
        pending = self._pending
        if not MAGIC.startswith(pending[: len(MAGIC)]):
            raise ProtocolError(
                BAD_FRAME, f"expected a frame beginning with {MAGIC!r}, found {bytes(pending[:16])!r}"
            )
        if len(pending) < PREFIX.size:
            return None
        _, header_bytes, payload_bytes = PREFIX.unpack_from(pending)
        if header_bytes > MAX_HEADER_BYTES or payload_bytes > self.max_payload_bytes:
            raise ProtocolError(
                TOO_LARGE,
                f"frame announces {header_bytes} header and {payload_bytes} payload bytes: at most "
                f"{MAX_HEADER_BYTES} and {self.max_payload_bytes} are allowed here",
            )
        end = PREFIX.size + header_bytes + payload_bytes
        if len(pending) < end:
            return None
        body = bytes(pending[PREFIX.size : end])
        del pending[:end]
        header = _unpack_header(body[:header_bytes])
        return Frame(header, _split(body, header_bytes, _buffer_sizes(header, payload_bytes)))

    def _drop_noise(self) -> bool:
        """Whether a frame begins, after what had to be dropped."""
        start = self._pending.find(MAGIC)
        if (start if start >= 0 else len(self._pending)) > self._noise_left:
            shown = bytes(self._pending[:200])
            raise ProtocolError(BAD_FRAME, f"no greeting, but other output: {shown!r}")
        if start >= 0:
            del self._pending[:start]
            self._noise_left = 0
        return start >= 0


def _unpack_header(packed: bytes) -> Dict[str, Any]:
    try:
        header = msgpack.unpackb(packed, raw=False, strict_map_key=True)
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise ProtocolError(BAD_FRAME, f"header is not msgpack: {type(error).__name__}: {error}") from None
    if not isinstance(header, dict) or not _is_plain(header, MAX_DEPTH):
        raise ProtocolError(BAD_FRAME, "header is not a map of plain values with string keys")
    return header


def _is_plain(value: object, depth: int) -> bool:
    if depth == 0:
        return False
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item, depth - 1) for key, item in value.items())
    if isinstance(value, list):
        return all(_is_plain(item, depth - 1) for item in value)
    return value is None or isinstance(value, (bool, int, float, str, bytes))


def _buffer_sizes(header: Dict[str, Any], payload_bytes: int) -> List[int]:
    sizes = header.pop("buffers", None)
    if (
        not isinstance(sizes, list)
        or len(sizes) > MAX_BUFFERS
        or not all(type(size) is int and size >= 0 for size in sizes)
        or sum(sizes) != payload_bytes
    ):
        raise ProtocolError(
            BAD_FRAME, f"header entry 'buffers' does not describe the payload of {payload_bytes} bytes"
        )
    return sizes


def _split(body: bytes, start: int, sizes: Sequence[int]) -> List[bytes]:
    buffers = []
    for size in sizes:
        buffers.append(body[start : start + size])
        start += size
    return buffers


class Stream:
    """Bytes to and from the other side; files, sockets and SSH channels have one each."""

    def read(self, timeout_s: Optional[float]) -> bytes:
        """Some bytes, b"" when the other side has closed; TimeoutError; None waits for ever."""
        raise EOFError("a stream's own class reads")

    def write(self, data: bytes) -> None:
        """Write all of it; OSError when the other side has gone."""
        raise EOFError("a stream's own class writes")

    def close(self) -> None:
        """Close the connection; closing it again does nothing."""


class Connection:
    """Whole frames over a stream, with deadlines."""

    def __init__(self, stream: Stream, decoder: Optional[FrameDecoder] = None) -> None:
        self.stream = stream
        self.decoder = decoder or FrameDecoder()

    def send(self, header: Mapping[str, Any], buffers: Sequence[Buffer] = ()) -> None:
        """Send one frame; OSError when the other side has gone."""
        self.stream.write(encode_frame(header, buffers))

    def receive(self, timeout_s: Optional[float] = None) -> Optional[Frame]:
        """The next frame, None when the other side closed between frames.

        Raises TimeoutError when no frame begins within `timeout_s`, ProtocolError when one begins and does
        not end within FRAME_DEADLINE_S, or is not a frame.
        """
        idle_deadline = None if timeout_s is None else time.monotonic() + timeout_s
        frame_deadline: Optional[float] = None
        while True:
            frame = self.decoder.next()
            if frame is not None:
                return frame
            if self.decoder.partial and frame_deadline is None:
                frame_deadline = time.monotonic() + FRAME_DEADLINE_S
            deadline = idle_deadline if frame_deadline is None else frame_deadline
            try:
                data = self.stream.read(None if deadline is None else max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                if frame_deadline is None:
                    raise
                text = f"a frame was not complete after {FRAME_DEADLINE_S:g} s"
                raise ProtocolError(DEADLINE, text) from None
            if data:
                self.decoder.feed(data)
            elif self.decoder.partial:
                raise ProtocolError(BAD_FRAME, "the other side closed in the middle of a frame")
            else:
                return None
