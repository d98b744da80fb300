"""A library's process: requests come in as lines of JSON on standard input, answers leave on standard output.

Both sides of the protocol, version 2 (one answer to each request, an "error" in it when it went wrong):

    hello                               -> protocol, facts {name: version or setting}
    open  workload                      -> variants [{name, error, work, facts}]
    time  variant, batches, batch_s     -> kept, disturbed (seconds per call), calls
    close                               -> (nothing)

A workload is an operator or a network. `error` of a variant compares its output with the reference; `work`
is null for the workload's own operations; `facts` says what the variant is made of. Libraries that print do
it on standard error: standard output is put out of their reach. Standard library and numpy only.
"""

from __future__ import annotations

import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.kernels.inference import Network, parsed_network
from benchmarks.kernels.turn import Call, take_turn
from benchmarks.kernels.workloads import Array, Workload, inputs, parsed, reference, relative_error

PROTOCOL_VERSION = 2
REFUSALS = (ImportError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)
"""What a library raises that cannot do what it is asked. Any other error ends the process; processes.py
reports its last words and starts it again."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of calling a library: `call` does the whole work, `output` reads its result as documented in
    workloads.py (None: there is nothing to compare).

    `work`: operations or bytes of a call that does something else than the workload. `facts`: how it came to
    be, for the record."""

    name: str
    call: Call
    output: Callable[[], Array] | None
    work: float | None = None
    facts: dict[str, str | float] = field(default_factory=dict)


class Library(ABC):
    """What a worker measures."""

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """Versions and settings, for the record."""

    @abstractmethod
    def open(self, workload: Workload, left: Array, right: Array) -> Sequence[Variant]:
        """The ways to compute a workload on these operands; none where the library cannot."""

    def open_network(self, network: Network, data: Array) -> Sequence[Variant]:
        """The ways to run a whole network on this input; none where the library cannot."""
        return []

    def close(self) -> None:
        """Forget the workload opened last."""
        return


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
                return {"variants": self._opened(request["workload"])}
            case "time":
                variant = self._variants[request["variant"]]
                return asdict(take_turn(variant.call, batches=request["batches"], batch_s=request["batch_s"]))
            case "close":
                self._variants = {}
                self._library.close()
                return {}
        raise ValueError(f"unknown request {request['do']!r}: expected hello, open, time or close")

    def _opened(self, described: dict[str, Any]) -> list[dict[str, Any]]:
        if "network" in described:
            network = parsed_network(described)
            data, expected = network.arrays()
            variants = self._library.open_network(network, data)
        else:
            workload = parsed(described)
            left, right = inputs(workload)
            variants = self._library.open(workload, left, right)
            expected = reference(workload, left, right)
        self._variants = {variant.name: variant for variant in variants}
        return [_checked(variant, expected) for variant in variants]


def _checked(variant: Variant, expected: Array) -> dict[str, Any]:
    """What is said about a variant once it has run."""
    variant.call()
    error = None if variant.output is None else relative_error(variant.output(), expected)
    return {"name": variant.name, "error": error, "work": variant.work, "facts": variant.facts}


def serve(library: Library) -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker(library)
    for line in sys.stdin:
        try:
            answer = worker.answer(json.loads(line))
        except REFUSALS as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
