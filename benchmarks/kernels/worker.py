"""A library's process: requests come in as lines of JSON on standard input, answers leave on standard output.

Both sides of the protocol, version 1 (one answer to each request, an "error" in it when it went wrong):

    hello                               -> protocol, facts {name: version or setting}
    open  workload                      -> variants [{name, error, work}]
    time  variant, batches, batch_s     -> kept, disturbed (seconds per call), calls
    close                               -> (nothing)

`error` of a variant compares its output with the float64 reference; `work` is null for the workload's own
operations. Libraries that print do it on standard error: standard output is put out of their reach. Standard
library and numpy only.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from benchmarks.kernels.turn import Call, take_turn
from benchmarks.kernels.workloads import Array, Workload, inputs, parsed, reference, relative_error

PROTOCOL_VERSION = 1


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of calling a library: `call` does the whole work, `output` reads its result as documented in
    workloads.py (None: there is nothing to compare).

    `work`: operations or bytes of a call that does something else than the workload."""

    name: str
    call: Call
    output: Callable[[], Array] | None
    work: float | None = None


class Library(Protocol):
    """What a worker measures."""

    def facts(self) -> dict[str, str]:
        """Versions and settings, for the record."""
        ...

    def open(self, workload: Workload, left: Array, right: Array) -> Sequence[Variant]:
        """The ways to compute a workload on these operands; none where the library cannot."""
        ...

    def close(self) -> None:
        """Forget the workload opened last."""
        ...


class Worker:
    """Answers requests about one library."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._variants: dict[str, Variant] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """One request's answer."""
        match request["do"]:
            case "hello":
                return {"protocol": PROTOCOL_VERSION, "facts": self._library.facts()}
            case "open":
                return {"variants": self._opened(parsed(request["workload"]))}
            case "time":
                variant = self._variants[request["variant"]]
                return asdict(take_turn(variant.call, batches=request["batches"], batch_s=request["batch_s"]))
            case "close":
                self._variants = {}
                self._library.close()
                return {}
        raise ValueError(f"unknown request {request['do']!r}: expected hello, open, time or close")

    def _opened(self, workload: Workload) -> list[dict[str, Any]]:
        left, right = inputs(workload)
        variants = self._library.open(workload, left, right)
        self._variants = {variant.name: variant for variant in variants}
        expected = reference(workload, left, right)
        answers = []
        for variant in variants:
            variant.call()
            error = None if variant.output is None else relative_error(variant.output(), expected)
            answers.append({"name": variant.name, "error": error, "work": variant.work})
        return answers


def serve(library: Library) -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker(library)
    for line in sys.stdin:
        try:
            answer = worker.answer(json.loads(line))
        except Exception as error:  # noqa: BLE001 - whatever a library raises is the answer
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
