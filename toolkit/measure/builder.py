"""Compiling a batch: loop nests in, one linked shared object out.

`Builder` keeps a few compiler processes (build_worker.py) that turn one unit each into an object file: a
piece that kernels share (cross/backends.py), or a whole kernel. The objects of a batch are linked together
with one linker call. What goes wrong with one candidate is a value in its place: the compiler refused it,
took too long, or killed its process, which is then replaced.
A process that has nothing to do when its `Builder` is closed waits for the next one of this process: loading
the compiler takes half a second of a core.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait

import msgspec

from boards.target import Target
from cross.backends import PieceNames, Split, Unit, backend_of
from cross.codegen.llvm.module import CALLERS
from cross.compile import Artifact, Kernel, by_symbol, kernel_of, link
from cross.errors import CrossError, LinkError
from cross.loopnest.nodes import LoopNest
from device_runtime.protocol import MeasureFailure

NamedNest = tuple[str, LoopNest]
"""The symbol of a kernel, and its program."""
NamedUnit = tuple[str, Unit]
"""A unit and the symbol that its code gets."""
_TEXT_LIMIT = 2000
CODE_DIGITS = 24
STARTING_S = 20.0  # a new process loads the compiler before its first job
MOST_KEPT = 512  # pieces: a ResNet-18's have 3 KB of code and 35 KB of nest on average, on x86-64
MOST_IDLE = 4  # processes, of some 100 MB each: two builders' at the usual number of workers


class BuiltKernel(msgspec.Struct, frozen=True):
    """One candidate, ready to be measured: a kernel of a shared object that holds a whole batch.

    `code` is equal for kernels that are called in the same way and have the same machine code.
    """

    artifact: Artifact
    kernel: Kernel
    code: str


class Builder:
    """Compiles for one target with `workers` processes; a context manager.

    They start at once and load the compiler while the caller goes on. `nice` makes them give way: a board
    that waits for its next candidate should not have to wait for a compiler to pause.
    """

    def __init__(self, target: Target, *, workers: int = 2, timeout_s: float = 30.0, nice: int = 0) -> None:
        self._target = target
        self._timeout_s = timeout_s
        self._nice = nice
        self._names = PieceNames()
        self._objects: dict[str, bytes] = {}  # of pieces, by name
        self._workers = [_idle_worker(target, nice) or _Worker(target, nice) for _ in range(workers)]

    def __enter__(self) -> Builder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let idle workers wait for another builder, and end the others, whatever they are doing."""
        for worker in self._workers:
            if worker.lost() or worker.job is not None:
                worker.kill()
            else:
                _IDLE.append(worker)
        self._workers = []
        end_idle_workers(MOST_IDLE)

    def build(self, jobs: Sequence[NamedNest]) -> list[BuiltKernel | MeasureFailure]:
        """One entry for each (symbol, nest), in order. What kernels have in common, with each other or with
        those of batches before, is compiled once. Raises ValueError where two have one symbol."""
        nests = by_symbol(jobs)
        answers: dict[str, BuiltKernel | MeasureFailure] = {}
        splits: list[Split] = []
        compiled = [(name, code) for (name, _), code in self.compile(self._units(jobs, answers, splits))]
        called = [code for name, code in compiled if name == CALLERS]
        codes = self._with_kept(splits, {name: code for name, code in compiled if name != CALLERS})
        for split in splits:
            for name in split.units:
                if isinstance(code := codes[name], MeasureFailure):
                    answers.setdefault(split.symbol, code)
        good = [split for split in splits if split.symbol not in answers]
        objects = {
            name: code for split in good for name in split.units if isinstance(code := codes[name], bytes)
        }
        kernels = [kernel_of(split.symbol, nests[split.symbol]) for split in good]
        if len(good) < len(splits) or any(map(_by_accident, called)):
            called = [code for _, code in self.compile(self._callers(good))]
        answers |= self._linked(good, objects, called, kernels) if good else {}
        return [answers[symbol] for symbol, _ in jobs]

    def _units(
        self,
        jobs: Sequence[NamedNest],
        answers: dict[str, BuiltKernel | MeasureFailure],
        splits: list[Split],
    ) -> Iterator[NamedUnit]:
        """What is to be compiled: the new pieces of one kernel after the other, then what calls the pieces of
        all. A kernel is split when its pieces are asked for, while those before are compiled; it is added to
        `splits`, or to the `answers` where it cannot be split."""
        known = set(self._objects)
        for symbol, nest in jobs:
            try:
                split = backend_of(self._target).split(symbol, nest, self._target, self._names)
            except CrossError as error:
                answers[symbol] = MeasureFailure("build", str(error)[:_TEXT_LIMIT])
                continue
            splits.append(split)
            for name, unit in split.units.items():
                if name not in known:
                    known.add(name)
                    yield name, unit
        yield from self._callers(splits)

    def _callers(self, splits: Sequence[Split]) -> list[NamedUnit]:
        """What is left of kernels without their pieces, in a unit for each worker."""
        callers = tuple(split.caller for split in splits if split.caller is not None)
        parts = [callers[first :: len(self._workers)] for first in range(len(self._workers))]
        return [(CALLERS, part) for part in parts if part]

    def _with_kept(
        self, splits: Sequence[Split], compiled: dict[str, bytes | MeasureFailure]
    ) -> dict[str, bytes | MeasureFailure]:
        """The code of all pieces by name; what was compiled is kept for later batches."""
        units = {name: unit for split in splits for name, unit in split.units.items()}
        uses = Counter(name for split in splits for name in split.units)
        # An accident of one process must not be held against several candidates.
        again = [
            (name, units[name]) for name, code in compiled.items() if uses[name] > 1 and _by_accident(code)
        ]
        compiled |= {name: code for (name, _), code in self.compile(again)}
        found = {name: compiled.get(name) or self._objects[name] for name in units}
        self._objects |= {name: code for name, code in found.items() if isinstance(code, bytes)}
        kept = self._names.newest(MOST_KEPT)
        self._objects = {name: code for name, code in self._objects.items() if name in kept}
        return found

    def _linked(
        self,
        splits: Sequence[Split],
        objects: dict[str, bytes],
        called: Sequence[bytes | MeasureFailure],
        kernels: Sequence[Kernel],
    ) -> dict[str, BuiltKernel | MeasureFailure]:
        try:
            artifact = link([*objects.values(), *map(_code, called)], kernels, self._target)
        except LinkError as error:
            refused = MeasureFailure("link", str(error)[:_TEXT_LIMIT])
            return dict.fromkeys((split.symbol for split in splits), refused)
        return {
            split.symbol: _built(artifact, kernel, split, [objects[name] for name in split.units])
            for split, kernel in zip(splits, kernels, strict=True)
        }

    def compile(self, jobs: Iterable[NamedUnit]) -> list[tuple[NamedUnit, bytes | MeasureFailure]]:
        """Each nest or other unit with its object file under its name, in order, or why there is none. Jobs
        are taken one ahead of the workers."""
        answers: dict[int, bytes | MeasureFailure] = {}
        coming, taken, waiting = iter(jobs), list[NamedUnit](), deque[int]()

        def take() -> bool:
            """Whether a job waits for a worker."""
            if not waiting and (job := next(coming, None)) is not None:
                waiting.append(len(taken))
                taken.append(job)
            return bool(waiting)

        self._restart(_Worker.lost)
        try:
            while True:
                for worker in self._workers:
                    if worker.job is None and take():
                        worker.start(waiting.popleft(), taken, self._timeout_s)
                take()  # while the workers are busy
                if len(answers) == len(taken):
                    break
                self._collect(answers)
        finally:
            self._restart(lambda worker: worker.job is not None)  # busy ones are left by an interrupt only
        return [(job, answers[index]) for index, job in enumerate(taken)]

    def _collect(self, answers: dict[int, bytes | MeasureFailure]) -> None:
        """Wait for the next answer or deadline; take what is there and replace workers that are lost."""
        busy = [worker for worker in self._workers if worker.job is not None]
        patience_s = max(0.0, min(worker.deadline for worker in busy) - time.monotonic())
        ready = wait([worker.connection for worker in busy], timeout=patience_s)
        for worker in busy:
            assert worker.job is not None
            if worker.connection in ready:
                answers[worker.job] = worker.answer()
                worker.job = None
            elif time.monotonic() > worker.deadline:
                text = f"the compiler was not done after {self._timeout_s:g} s"
                answers[worker.job] = MeasureFailure("timeout", text)
                worker.kill()
        self._restart(_Worker.lost)

    def _restart(self, unusable: Callable[[_Worker], bool]) -> None:
        for place, worker in enumerate(self._workers):
            if unusable(worker):
                worker.kill()
                self._workers[place] = _Worker(self._target, self._nice)


def _built(artifact: Artifact, kernel: Kernel, split: Split, objects: Sequence[bytes]) -> BuiltKernel:
    called = repr((kernel.arguments, kernel.workspace_bytes))
    content = f"{backend_of(artifact.target).fingerprint(split, objects)} {called}"
    return BuiltKernel(artifact, kernel, hashlib.sha256(content.encode()).hexdigest()[:CODE_DIGITS])


def _code(compiled: bytes | MeasureFailure) -> bytes:
    """The code of callers. Raises LinkError where the compiler failed."""
    if isinstance(compiled, MeasureFailure):
        raise LinkError(compiled.text)
    return compiled


def _by_accident(code: bytes | MeasureFailure) -> bool:
    """Whether a compiler process died or was not done in time, which may have other reasons than its unit."""
    return isinstance(code, MeasureFailure) and (code.kind == "timeout" or code.signal is not None)


class _Worker:
    """One compiler process and the job it has: its index in the batch, and until when it may take."""

    def __init__(self, target: Target, nice: int) -> None:
        self.target, self.nice, self.parent = target, nice, os.getpid()
        ours, theirs = socket.socketpair()
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `kill`
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "toolkit.measure.build_worker", str(theirs.fileno()), str(nice)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._words,
                env=os.environ
                | {
                    "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
                    "OPENBLAS_NUM_THREADS": "1",  # numpy would start threads that no compiler needs
                },
                start_new_session=True,  # Ctrl-C is the tuner's to handle
            )
        self.connection: Connection[object, object] = Connection(ours.detach())
        self.connection.send(target)
        self.job: int | None = None
        self.deadline = 0.0
        self._starting_s = STARTING_S

    def start(self, job: int, jobs: Sequence[NamedUnit], timeout_s: float) -> None:
        """Hand over one of the jobs; `answer` must be read before the next."""
        self.job = job
        self.deadline = time.monotonic() + timeout_s + self._starting_s
        self._starting_s = 0.0
        try:
            self.connection.send(jobs[job])
        except OSError:
            self.process.wait()  # it died while idle: `answer` says so

    def answer(self) -> bytes | MeasureFailure:
        """What the process made of its job; a failure when it died over it."""
        try:
            answer = self.connection.recv()
        except (EOFError, OSError):
            code = self.process.wait()
            signal = -code if code < 0 else None
            why = f"signal {signal}" if signal else f"exit code {code}"
            return MeasureFailure("build", f"the compiler process died of {why}{self._last_words()}", signal)
        assert isinstance(answer, bytes | MeasureFailure)
        return answer

    def _last_words(self) -> str:
        self._words.seek(max(0, self._words.seek(0, os.SEEK_END) - _TEXT_LIMIT))
        words = self._words.read().decode(errors="replace").strip()
        return f"; it printed: {words}" if words else ""

    def lost(self) -> bool:
        """Whether the process has ended and has no answer left to give."""
        return self.job is None and self.process.poll() is not None

    def kill(self) -> None:
        """End the process; one that has ended already stays as it is."""
        self.process.kill()
        self.process.wait()
        self.connection.close()
        self._words.close()
        self.job = None


# ------------------------------------------------------------------------- workers between two builders


_IDLE: list[_Worker] = []  # those that have waited longest come first
_TAKING = threading.Lock()


def _idle_worker(target: Target, nice: int) -> _Worker | None:
    """Take one that waits for a builder for this target, and gives way as far; None where none does."""
    with _TAKING:
        for worker in _IDLE:
            fits = (worker.target, worker.nice, worker.parent) == (target, nice, os.getpid())
            if fits and not worker.lost():
                _IDLE.remove(worker)
                return worker
    return None


@atexit.register
def end_idle_workers(most: int = 0) -> None:
    """End the worker processes that wait for a builder, all but `most` of them."""
    with _TAKING:
        while len(_IDLE) > most:
            worker = _IDLE.pop(0)
            if worker.parent == os.getpid():  # and not of the process that this one was forked from
                worker.kill()
