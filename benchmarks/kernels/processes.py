"""Our side of the line protocol of worker.py: one process a library, asked one thing at a time."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.harness.place import HOST
from benchmarks.kernels.results import BEFORE
from benchmarks.kernels.worker import PROTOCOL_VERSION
from boards.probe import read_host_facts
from toolkit.errors import ToolkitError

ROOT = Path(__file__).parents[2]
LIBRARIES = ("torch", "onnxruntime", "openvino", "litert")
NETWORK_LIBRARIES = (*LIBRARIES, "ncnn")
PYTHON = Path(".venv/bin/python")
AVX512_BYTES = 64
HIDDEN_BYTES = 32  # of vectors that are left where some are hidden, at most
START_S = 120.0
QUIET_S = 0.002
QUIET_PATIENCE_S = 0.5
_TEXT_LIMIT = 500


class LibraryFailed(ToolkitError):
    """A library gave no figure: it refused, crashed or did not answer. The text says which."""


@dataclass(frozen=True, slots=True)
class Contender:
    """Who is measured: a module of this package, the Python that runs it, and the checkout of both.

    `preload`: what the process loads before all else.
    """

    name: str
    module: str
    python: Path
    arguments: tuple[str, ...] = ()
    checkout: Path = ROOT
    preload: Path | None = None


class LibraryProcess:
    """A running contender; started when first asked, and again after it died."""

    def __init__(self, contender: Contender, threads: int) -> None:
        self.contender = contender
        self._threads = threads
        self._process: subprocess.Popen[bytes] | None = None
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as this object
        self._received = b""

    def ask(self, request: Mapping[str, object], *, timeout_s: float) -> dict[str, Any]:
        """One request's answer. Raises LibraryFailed; a process that gave none in time is ended."""
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            raise LibraryFailed(self._gone()) from None
        answer: dict[str, Any] = json.loads(self._line(process, time.monotonic() + timeout_s))
        if "error" in answer:
            raise LibraryFailed(str(answer["error"])[:_TEXT_LIMIT])
        return answer

    def wait_until_quiet(self) -> None:
        """Return when the process's threads have stopped spinning, so that they disturb nobody's turn."""
        deadline = time.monotonic() + QUIET_PATIENCE_S
        before = self._ran_ns()
        while time.monotonic() < deadline:
            time.sleep(QUIET_S)
            now = self._ran_ns()
            if now == before:
                return
            before = now

    def run_on(self, core: int) -> None:
        """Have all threads of the process, if it runs, on this core of the machine."""
        for task in self._tasks():
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.sched_setaffinity(int(task.name), {core})

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        if not self.contender.python.exists():
            raise LibraryFailed(
                f"no Python at {self.contender.python}; make it with: "
                "python -m benchmarks.kernels setup-peers DIR, and name DIR with --peers"
            )
        self._received = b""
        self._process = subprocess.Popen(
            [
                self.contender.python, "-m", self.contender.module, str(self._threads),
                *self.contender.arguments,
            ],
            cwd=self.contender.checkout,
            env=self._environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
        )  # fmt: skip
        answer = self.ask({"do": "hello"}, timeout_s=START_S)
        if answer["protocol"] != PROTOCOL_VERSION:
            self.close()
            raise LibraryFailed(f"expected protocol {PROTOCOL_VERSION}, found {answer['protocol']}")
        return self._process

    def _environment(self) -> dict[str, str]:
        preload = self.contender.preload
        found = environment(self._threads, None if preload is None else HIDDEN_BYTES)
        found["PYTHONPATH"] = str(self.contender.checkout)
        if preload is not None:
            found["LD_PRELOAD"] = str(preload)
        return found

    def _line(self, process: subprocess.Popen[bytes], deadline: float) -> bytes:
        assert process.stdout is not None
        while b"\n" not in self._received:
            left_s = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([process.stdout], [], [], left_s)
            if not ready:
                self.close()
                raise LibraryFailed("no answer in time")
            got = os.read(process.stdout.fileno(), 1 << 16)
            if not got:
                raise LibraryFailed(self._gone())
            self._received += got
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _gone(self) -> str:
        """Why the process ended, with the end of what it said."""
        assert self._process is not None
        code = self._process.wait()
        self._process = None
        self._messages.seek(0)
        said = self._messages.read().decode(errors="replace").strip()
        return f"the process ended with code {code}: {said[-_TEXT_LIMIT:]}"

    def _ran_ns(self) -> int:
        """Nanoseconds that the process's threads have been running."""
        total = 0
        for task in self._tasks():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
                total += int((task / "schedstat").read_text().split()[0])
        return total

    def _tasks(self) -> list[Path]:
        """The folders in /proc of the process's threads, if it runs."""
        return [] if self._process is None else list(Path(f"/proc/{self._process.pid}/task").glob("*"))


def environment(threads: int, vector_bytes: int | None = None) -> dict[str, str]:
    """The variables of a library's process: nothing of ours but the way to this package and the threads.

    OpenBLAS, which numpy calls, takes its AVX2 kernels on CPUs that it does not know: at half the speed of
    those for AVX-512, where vectors have 64 bytes (`vector_bytes`; None: of this machine).
    """
    counts = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    if vector_bytes is None:
        vector_bytes = read_host_facts().vectors.bytes
    return {
        **{name: os.environ[name] for name in ("HOME", "PATH", "TMPDIR", "LANG") if name in os.environ},
        **{name: str(threads) for name in counts},
        **({"OPENBLAS_CORETYPE": "SkylakeX"} if vector_bytes == AVX512_BYTES else {}),
        "PYTHONPATH": str(ROOT),
    }


def contenders(
    peers: Path,
    own_arguments: Sequence[str],
    libraries: Sequence[str] = LIBRARIES,
    before: Path | None = None,
    *,
    board: str = HOST,
    preload: Path | None = None,
) -> list[Contender]:
    """Who is measured: the machine itself, ours, and the named libraries; `peers` holds their environments.

    `before` is another checkout of this project with a .venv of its own: its kernels are measured beside
    ours, from the same records, as the library "before". `board`: what ours and the machine's own code is
    made for, this machine or a level of it; `preload` hides the rest of it from the libraries (hidden.py).

    Raises:
        ValueError: a library is not known.
    """
    here, modules = "benchmarks.kernels", "benchmarks.kernels.libraries"
    own = Path(sys.executable)
    torch, runtimes = (peers.absolute() / name / "bin" / "python" for name in ("torch", "rt"))
    known = [
        Contender("numpy", f"{modules}.numpy_worker", own),
        Contender("torch", f"{modules}.torch_worker", torch),
        Contender("onnxruntime", f"{modules}.onnxruntime_worker", runtimes),
        Contender("openvino", f"{modules}.openvino_worker", runtimes),
        Contender("litert", f"{modules}.litert_worker", runtimes),
        Contender("ncnn", f"{modules}.ncnn_worker", torch),
    ]
    unknown = set(libraries) - {item.name for item in known}
    if unknown:
        names = ", ".join(item.name for item in known)
        raise ValueError(f"unknown libraries {', '.join(sorted(unknown))}: expected names of {names}")
    narrowed = () if board == HOST else ("--board", board)  # another checkout may know no such option
    ours = Contender("ours", f"{here}.own_worker", own, (*own_arguments, *narrowed))
    return [
        Contender("machine", f"{here}.machine_worker", own, narrowed),
        ours,
        *([] if before is None else [replace(ours, name=BEFORE, python=before / PYTHON, checkout=before)]),
        *(replace(item, preload=preload) for item in known if item.name in libraries),
    ]
