"""Messages: what goes out comes back equal, and any other map is a ProtocolError."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_runtime.protocol import (
    BAD_REQUEST,
    BAD_VERSION,
    DTYPE_BYTES,
    FAILURE_KINDS,
    MAX_TIMEOUT_S,
    PROTOCOL_VERSION,
    BufferRequest,
    Greeting,
    MeasureFailure,
    MeasureRequest,
    MeasureResult,
    ProtocolError,
    Timing,
    encode_frame,
    to_plain,
)
from device_runtime.wire.frames import FrameDecoder

SHAS = st.binary(min_size=32, max_size=32).map(bytes.hex)
BUFFERS = st.builds(
    BufferRequest,
    role=st.sampled_from(["input", "output"]),
    dtype=st.sampled_from(sorted(DTYPE_BYTES)),
    elements=st.integers(1, 1 << 20),
    sha=SHAS,
)
TIMINGS = st.builds(
    Timing,
    number=st.integers(1, 1000),
    repeat=st.integers(1, 1000),
    min_repeat_ms=st.floats(0, 10_000),
    max_number=st.integers(1000, 10_000_000),
    warmup=st.integers(0, 1000),
    cooldown_s=st.floats(0, 60),
    give_up_s=st.floats(0, MAX_TIMEOUT_S),
    flush_bytes=st.integers(0, 1 << 28),
)
REQUESTS = st.builds(
    MeasureRequest,
    module=SHAS,
    symbol=st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True),
    buffers=st.lists(BUFFERS, min_size=1, max_size=4).map(tuple),
    workspace_bytes=st.integers(0, 1 << 32),
    timing=st.none() | TIMINGS,
    threads=st.integers(1, 256),
    cores=st.lists(st.integers(0, 4095), max_size=4).map(tuple),
    timeout_s=st.floats(0.001, MAX_TIMEOUT_S),
    rtol=st.floats(0, 1),
    step_runs=st.integers(0, 1000),
)
FAILURES = st.builds(
    MeasureFailure,
    kind=st.sampled_from(FAILURE_KINDS),
    text=st.text(max_size=50),
    signal=st.none() | st.integers(1, 64),
)
RESULTS = st.builds(
    MeasureResult,
    seconds=st.lists(st.floats(1e-12, MAX_TIMEOUT_S), max_size=5).map(tuple),
    number=st.integers(0, 10_000_000),
    error=st.none() | FAILURES,
    max_abs_error=st.floats(0),
    max_abs_reference=st.floats(0),
    facts=st.fixed_dictionaries(
        {"cores": st.lists(st.integers(0, 4095), max_size=3)},
        optional={"clock_hz": st.integers(0, 10**10), "temperature_c": st.floats(-50, 150)},
    ),
    device_s=st.floats(0, 1e6),
)
GREETINGS = st.builds(
    Greeting,
    st.just(PROTOCOL_VERSION),
    st.text(),
    st.text(),
    st.text(),
    st.integers(1, 1 << 22),
)
ANY_MESSAGE = [
    (MeasureRequest, REQUESTS),
    (BufferRequest, BUFFERS),
    (Timing, TIMINGS),
    (MeasureResult, RESULTS),
    (MeasureFailure, FAILURES),
    (Greeting, GREETINGS),
]


@pytest.mark.parametrize(("kind", "messages"), ANY_MESSAGE)
@given(data=st.data())
def test_a_message_survives_the_wire(
    kind: Any, messages: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    message = data.draw(messages)
    decoder = FrameDecoder()
    decoder.feed(encode_frame({"params": to_plain(message)}))
    frame = decoder.next()
    assert frame is not None
    assert kind.from_plain(frame.header["params"]) == message


@pytest.mark.parametrize(("kind", "messages"), ANY_MESSAGE)
@given(
    data=st.data(),
    value=st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=70)
    | st.just([[]])
    | st.just({"a": 1}),
)
def test_a_changed_entry_is_a_message_or_a_typed_error(
    kind: Any, messages: st.SearchStrategy[Any], data: st.DataObject, value: Any
) -> None:
    message = data.draw(messages)
    name = data.draw(st.sampled_from([entry.name for entry in dataclasses.fields(message)] + ["extra"]))
    plain = {**to_plain(message), name: value}
    try:
        again = kind.from_plain(plain)
    except ProtocolError as error:
        assert error.code in (BAD_REQUEST, BAD_VERSION)
    else:
        assert kind.from_plain(to_plain(again)) == again
        assert name != "extra"


@pytest.mark.parametrize("kind", [kind for kind, _ in ANY_MESSAGE])
@pytest.mark.parametrize("plain", [None, 5, "text", [], {}, {"unknown": 1}])
def test_other_things_are_refused(kind: Any, plain: object) -> None:
    with pytest.raises(ProtocolError):
        kind.from_plain(plain)
