"""A child that answers and ends before the parent looks for the first time has answered."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from device_runtime.sandbox import isolation
from device_runtime.sandbox.isolation import Limits, run_isolated

LIMITS = Limits(timeout_s=10.0, memory_bytes=256 << 20)


@pytest.fixture
def slow_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent looks for the first time when the child has ended (on a machine that is not too busy)."""
    fork, parent = os.fork, os.getpid()

    def fork_and_wait() -> int:
        pid = fork()
        if os.getpid() == parent:
            time.sleep(0.2)
        return pid

    monkeypatch.setattr(isolation.os, "fork", fork_and_wait)


@pytest.mark.usefixtures("slow_parent")
@pytest.mark.parametrize("size", [1, 30_000])
def test_an_answer_that_was_there_before_the_first_look_counts(size: int) -> None:
    outcome = run_isolated(lambda: {"text": "x" * size}, LIMITS)
    assert outcome.failure is None
    assert outcome.answer == {"text": "x" * size}


@pytest.mark.usefixtures("slow_parent")
@pytest.mark.parametrize(
    ("work", "words"),
    [(lambda: os._exit(0), "exited with status 0 and no answer"), (os.abort, "killed by SIGABRT")],
    ids=["exit", "abort"],
)
def test_no_answer_stays_a_crash(work: Callable[[], dict[str, Any]], words: str) -> None:
    failure = run_isolated(work, LIMITS).failure
    assert failure is not None
    assert failure.kind == "crash"
    assert words in failure.text
