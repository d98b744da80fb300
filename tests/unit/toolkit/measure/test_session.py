"""A session with boards that lie: each lie is a typed error, after a bounded number of calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from boards.board import load
from device_runtime.protocol import (
    CHUNK_BYTES,
    PROTOCOL_VERSION,
    Connection,
    FrameDecoder,
    Greeting,
    MeasureRequest,
    Timing,
    encode_frame,
)
from toolkit.errors import BoardUnreachable, ToolkitError
from toolkit.measure.links.transport import Transport
from toolkit.measure.replies import StoredObject
from toolkit.measure.session import DeviceError, Session

Answer = dict[str, Any]
GREETING = Greeting(PROTOCOL_VERSION, "0.1.0", "3.8.10", "x86_64", 1)
MANY = 50  # calls, for what takes a few
OFFSETS = [REFUSAL := {"code": "refused", "text": "not there", "details": {"offset": 0}},
           REFUSAL | {"details": {"offset": 1}}]  # fmt: skip


class Liar(Transport):
    """Answers each call with what `answer` says to its number and request; `calls` counts them."""

    where = "the liar"

    def __init__(self, answer: Callable[[int, Answer], bytes]) -> None:
        self.answer, self.calls, self.waiting = answer, 0, b""
        self.requests = FrameDecoder()

    def write(self, data: bytes) -> None:
        self.requests.feed(data)
        while (frame := self.requests.next()) is not None:
            self.calls += 1
            assert self.calls < MANY, "the host never stops asking"
            self.waiting += self.answer(self.calls, frame.header)

    def read(self, timeout_s: float | None) -> bytes:
        if not self.waiting:
            raise TimeoutError("nothing more")
        found, self.waiting = self.waiting, b""
        return found

    def last_words(self) -> str:
        return "\x1b]0;words\x07"


def lied_to(answer: Callable[[int, Answer], bytes]) -> Session:
    transport = Liar(answer)
    return Session(load("host"), transport, GREETING, Connection(transport))


def results(result: object) -> Callable[[int, Answer], bytes]:
    """The same result to each call but `status`, which says that nothing is there."""
    nothing = {"size_bytes": None, "received_bytes": 0}
    return lambda _, asked: encode_frame(
        {"id": asked["id"], "result": nothing if asked["method"] == "status" else result}
    )


def test_a_put_that_never_advances_ends() -> None:
    with pytest.raises(BoardUnreachable, match="answered put with nonsense: 0 bytes after 5 of 5 were sent"):
        lied_to(results({"received_bytes": 0})).put(b"12345")


def test_offsets_are_corrected_once() -> None:
    def alternating(number: int, asked: Answer) -> bytes:
        if asked["method"] == "status":
            return results({})(number, asked)
        return encode_frame({"id": asked["id"], "error": OFFSETS[number % 2]})

    with pytest.raises(DeviceError, match="not there"):
        lied_to(alternating).put(b"12345")


@pytest.mark.parametrize("size_bytes", [0, 10, 3 * CHUNK_BYTES])
def test_an_endless_or_other_object_is_not_read(size_bytes: int) -> None:
    def endless(number: int, asked: Answer) -> bytes:
        return encode_frame({"id": asked["id"], "result": {}}, [bytes(CHUNK_BYTES)])

    with pytest.raises(BoardUnreachable, match="answered read with nonsense"):
        lied_to(endless).read("0" * 64, size_bytes)


@pytest.mark.parametrize("number", [0, 2, 7, -1, 1.0, True, "1", None, [1], {"a": 1}])
def test_answers_to_other_calls_are_refused(number: object) -> None:
    session = lied_to(lambda _, asked: 3 * encode_frame({"id": number, "result": {}}))
    with pytest.raises(BoardUnreachable, match="lost during status: answer to .*, expected 1"):
        session.call("status", StoredObject, sha="")


def test_a_call_that_was_interrupted_may_be_answered_late_and_once() -> None:
    late = encode_frame({"id": 1, "result": {"size_bytes": 1, "received_bytes": 0}})
    own = encode_frame({"id": 2, "result": {"size_bytes": 2, "received_bytes": 0}})
    session = lied_to(lambda number, asked: b"" if number == 1 else late + own + late)
    with pytest.raises(BoardUnreachable, match="nothing more"):
        session.call("status", StoredObject, sha="")
    assert session.call("status", StoredObject, sha="").size_bytes == 2
    with pytest.raises(BoardUnreachable, match="answer to 1, expected 3"):
        session.call("status", StoredObject, sha="")


def test_calls_beside_a_measurement_get_their_own_answers() -> None:
    """Whichever comes first; a measurement that nobody waits for disturbs none of them."""
    measured = {"seconds": [1e-3], "number": 1, "error": None, "max_abs_error": 0.0, "max_abs_reference": 1.0,
                "facts": {}, "device_s": 1.0, "step_s": [], "cpu_s": 0.5}  # fmt: skip
    held: list[bytes] = []

    def answer(number: int, asked: Answer) -> bytes:
        stored = {"size_bytes": number, "received_bytes": 0}
        held.append(
            encode_frame({"id": asked["id"], "result": measured if asked["method"] == "measure" else stored})
        )
        return b"" if len(held) == 1 else b"".join(held.pop() for _ in held[:])

    session = lied_to(answer)
    request = MeasureRequest("0" * 64, "f", (), timing=Timing(repeat=1))
    first = session.measuring(request)
    assert session.call("status", StoredObject, sha="").size_bytes == 2
    session.measuring(request)
    assert session.call("status", StoredObject, sha="").size_bytes == 4
    assert first().seconds == (1e-3,)


def test_nothing_is_uploaded_while_a_board_measures() -> None:
    """It reads nothing then, and what does not go out in time is a lost connection."""
    heard: list[str] = []

    def answer(number: int, asked: Answer) -> bytes:
        heard.append(f"asked {asked['method']}")
        sizes = {"size_bytes": None, "received_bytes": 5 if asked["method"] == "put" else 0}
        return encode_frame({"id": asked["id"], "result": sizes})

    class Noting(Liar):
        """Says when it is read, too."""

        def read(self, timeout_s: float | None) -> bytes:
            heard.append("read")
            return super().read(timeout_s)

    transport = Noting(answer)
    session = Session(load("host"), transport, GREETING, Connection(transport))
    session.measuring(MeasureRequest("0" * 64, "f", (), timing=Timing(repeat=1)))
    session._upload("0" * 64, b"12345", 0, lambda done, total: None)
    assert heard == ["asked measure", "read", "asked put", "read"]


@pytest.mark.parametrize(
    "answer",
    [
        {}, {"result": 5}, {"result": None}, {"error": 5},
        {"result": {"size_bytes": -1, "received_bytes": 0}},
        {"result": {"size_bytes": "1", "received_bytes": 0}}, {"error": {"code": 1, "text": ""}},
        {"result": {"size_bytes": 1 << 60, "received_bytes": 0}}, {"error": {"code": "x"}},
    ],
)  # fmt: skip
def test_malformed_answers_are_unreachable_boards(answer: Answer) -> None:
    session = lied_to(lambda _, asked: encode_frame({"id": asked["id"], **answer}))
    with pytest.raises(BoardUnreachable, match="answered status with nonsense"):
        session.call("status", StoredObject, sha="")


@pytest.mark.parametrize("seconds", [[], [1e-3] * 4, [0.0], [float("nan")], ["1"], 5])
def test_times_that_nobody_asked_for_or_that_are_none_are_refused(seconds: object) -> None:
    result = {"seconds": seconds, "number": 1, "error": None, "max_abs_error": 0.0, "max_abs_reference": 1.0,
              "facts": {}, "device_s": 1.0, "step_s": [], "cpu_s": 0.5}  # fmt: skip
    request = MeasureRequest("0" * 64, "f", (), timing=Timing(repeat=3))
    with pytest.raises(BoardUnreachable, match="answered measure with nonsense"):
        lied_to(results(result)).measure(request)


def test_facts_that_a_board_may_not_state_never_reach_the_records() -> None:
    facts = {"spent_s": "all", "code": "0", "cores": [0], "governor": "fast\x1b[0m"}
    result = {"seconds": [1e-3], "number": 1, "error": None, "max_abs_error": 0.0, "max_abs_reference": 1.0,
              "facts": facts, "device_s": 1.0, "step_s": [], "cpu_s": 0.5}  # fmt: skip
    found = lied_to(results(result)).measure(MeasureRequest("0" * 64, "f", (), timing=Timing(repeat=1)))
    assert found.facts == {"cores": [0], "governor": r"fast\x1b[0m"}


def test_what_a_board_writes_is_escaped_wherever_it_is_shown() -> None:
    error = {"code": "failed", "text": "\x1b]0;text\x07\u202e", "details": {"k": "\x9b"}}
    session = lied_to(lambda _, asked: encode_frame({"id": asked["id"], "error": error}))
    with pytest.raises(DeviceError) as refused:
        session.probe()
    assert (refused.value.text, refused.value.details) == (r"\x1b]0;text\x07\u202e", {"k": r"\x9b"})
    with pytest.raises(ToolkitError, match=r"It printed:\n\\x1b\]0;words\\x07"):
        lied_to(lambda _, asked: b"").probe()
