"""The frame codec against itself and against garbage: frames come out, or ProtocolError, and nothing else."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_runtime.wire.frames import (
    BAD_FRAME,
    MAGIC,
    MAX_BUFFERS,
    MAX_PAYLOAD_BYTES,
    PREFIX,
    TOO_LARGE,
    Frame,
    FrameDecoder,
    ProtocolError,
    encode_frame,
)

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
HEADERS = st.dictionaries(st.text(max_size=8).filter(lambda key: key != "buffers"), PLAIN, max_size=4)
BUFFERS = st.lists(st.binary(max_size=100), max_size=4)
FRAMES = st.lists(st.tuples(HEADERS, BUFFERS), min_size=1, max_size=4)


def all_frames(decoder: FrameDecoder, pieces: list[bytes]) -> list[Frame]:
    frames = []
    for piece in pieces:
        decoder.feed(piece)
        while (frame := decoder.next()) is not None:
            frames.append(frame)
    return frames


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@pytest.mark.slow
@given(FRAMES, st.lists(st.integers(0, 1 << 20), max_size=20), st.binary(max_size=50))
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    frames: list[tuple[dict[str, Any], list[bytes]]], places: list[int], noise: bytes
) -> None:
    data = b"".join(encode_frame(header, buffers) for header, buffers in frames)
    assert all_frames(FrameDecoder(), cut(data, places)) == [Frame(h, b) for h, b in frames]
    if MAGIC not in noise + data[: len(MAGIC) - 1]:
        assert all_frames(FrameDecoder(noise_bytes=100), cut(noise + data, places)) == [
            Frame(h, b) for h, b in frames
        ]


@settings(max_examples=200)
@given(st.binary(max_size=300), st.booleans(), st.integers(0, 100))
def test_garbage_is_refused_with_a_typed_error(garbage: bytes, magic: bool, noise_bytes: int) -> None:
    decoder = FrameDecoder(noise_bytes=noise_bytes)
    decoder.feed(MAGIC * magic + garbage)
    try:
        while decoder.next() is not None:
            pass
    except ProtocolError as error:
        assert error.code in (BAD_FRAME, TOO_LARGE)


@pytest.mark.slow
@settings(max_examples=200)
@given(HEADERS, BUFFERS, st.data())
def test_a_changed_byte_gives_a_frame_or_a_typed_error(
    header: dict[str, Any], buffers: list[bytes], data: st.DataObject
) -> None:
    frame = bytearray(encode_frame(header, buffers))
    place = data.draw(st.integers(0, len(frame) - 1))
    frame[place] ^= data.draw(st.integers(1, 255))
    decoder = FrameDecoder()
    decoder.feed(frame)
    try:
        decoder.next()
    except ProtocolError as error:
        assert error.code in (BAD_FRAME, TOO_LARGE)


@given(st.binary(max_size=200))
def test_any_header_bytes_give_a_plain_map_or_a_typed_error(packed: bytes) -> None:
    decoder = FrameDecoder()
    decoder.feed(PREFIX.pack(MAGIC, len(packed), 0) + packed)
    try:
        frame = decoder.next()
    except ProtocolError as error:
        assert error.code == BAD_FRAME
    else:
        assert frame is not None
        assert all(isinstance(key, str) for key in frame.header)


@pytest.mark.parametrize(
    "header",
    [
        msgpack.packb([1, 2]),
        msgpack.packb({1: 2, "buffers": []}, strict_types=False),
        msgpack.packb({"a": 1}),  # no buffers
        msgpack.packb({"buffers": [-1, 1]}),
        msgpack.packb({"buffers": [True]}),
        msgpack.packb({"buffers": [1 << 62]}),
        msgpack.packb({"buffers": [0] * (MAX_BUFFERS + 1)}),
        msgpack.packb({"buffers": [], "time": msgpack.Timestamp(1)}),
        msgpack.packb({"buffers": [], "ext": msgpack.ExtType(5, b"x")}),
        msgpack.packb({"buffers": []}) + b"\x00",
        b"\x81\xa7buffers" + b"\x91" * 5000,  # deeply nested, not complete
        b"\x81\xa1a" + b"\x91" * 900 + b"\x90",  # deeply nested, complete
        b"\xc1",
        b"",
    ],
)
def test_headers_that_are_not_plain_are_refused(header: bytes) -> None:
    decoder = FrameDecoder()
    decoder.feed(PREFIX.pack(MAGIC, len(header), 0) + header)
    with pytest.raises(ProtocolError) as refused:
        decoder.next()
    assert refused.value.code == BAD_FRAME


def test_announced_sizes_are_refused_before_anything_is_buffered() -> None:
    for sizes in ((1 << 31, 0), (10, 1 << 40), (10, MAX_PAYLOAD_BYTES + 1)):
        decoder = FrameDecoder()
        decoder.feed(PREFIX.pack(MAGIC, *sizes))
        with pytest.raises(ProtocolError) as refused:
            decoder.next()
        assert refused.value.code == TOO_LARGE


@pytest.mark.slow
def test_the_pure_python_msgpack_of_the_board_refuses_the_same() -> None:
    """The board's decoder is msgpack.fallback; hypothesis runs there on the same properties."""
    if "fallback" in msgpack.unpackb.__module__:
        pytest.skip("this is that run")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        command, env={"MSGPACK_PUREPYTHON": "1", "PATH": "/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
