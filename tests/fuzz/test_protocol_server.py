"""Requests of any shape: the runtime answers each with a result or a typed error, and goes on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from device_runtime.server import serving
from device_runtime.server.method import Context
from device_runtime.wire import frames
from device_runtime.wire.frames import Frame

CODES = {value for name, value in vars(frames).items() if name.isupper() and isinstance(value, str)}
METHODS = sorted(set(serving.METHODS) - {"probe"})  # takes no parameters, and starts processes

VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 1 << 34)
    | st.floats()
    | st.sampled_from(["", "0" * 64, "../../etc/passwd", "a\0b", "b" * 32])
    | st.text(max_size=10)
    | st.binary(max_size=10)
    | st.lists(st.integers(0, 3) | st.text(max_size=3), max_size=3)
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
)
SOURCES = "".join(path.read_text() for path in sorted(Path(serving.__file__).parents[1].rglob("*.py")))
NAMES = st.sampled_from(sorted(set(re.findall(r'take\w*\(params, "(\w+)"', SOURCES)))) | st.text(max_size=5)
REQUESTS = st.fixed_dictionaries(
    {"id": st.integers(0, 9), "method": st.sampled_from(METHODS)},
    optional={"params": st.dictionaries(NAMES, VALUES, max_size=6)},
)


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    made = serving.make_context(str(tmp_path / "device"), watch_fd=0)
    made.lease.acquire("fuzz")
    yield made
    made.lease.release()


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    header=REQUESTS | st.dictionaries(st.text(max_size=6), VALUES, max_size=4),
    buffers=st.lists(st.binary(max_size=9), max_size=2),
)
def test_any_request_is_answered(context: Context, header: dict[str, Any], buffers: list[bytes]) -> None:
    answer, _ = serving._answer(context, Frame(header, buffers))
    if "error" in answer:
        assert answer["error"]["code"] in CODES - {frames.INTERNAL}
        assert answer["error"]["text"]
    else:
        assert isinstance(answer["result"], dict)
    context.lease.acquire("fuzz")
