"""A device that lies (liar.py) to the real commands.

Each ends with a typed error or, where a lie changes nothing, well; within bounded time and memory, and prints
nothing that a terminal would obey.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import stat
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
from click.testing import CliRunner

from device_runtime.wire import frames
from tests.bundles import contents, small_model
from tests.loopback.tune_board import HOST
from tests.onnx_models import model, node, save
from tests.torture import liar
from tests.torture.attack import Attack, Run
from toolkit.bundle import pack, sign
from toolkit.cli.main import main
from toolkit.measure import session
from toolkit.measure.links import process, ssh

LONGEST_S = 60.0
MOST_BYTES = 512 << 20  # that the host may grow by: half a GiB of outputs may be asked for
CODES = {0, 2, 3, 4, 5, 6, 7, 8, 124}  # of the README, without "internal error"
DEADLINES_S = 3.0  # instead of a minute or two
NOTICED = ("whole N", "whole T", "whole 5", "whole 't", "whole [", "whole b", "error ", "garbage", "no magic",
           "a header", "a huge", "a frame cut", "half", "silence", "the end", "hostile l", "number as",
           "put: stuck", "put: back", "put: beyond", "put: another", "measure: no", "measure: times", "run: ",
           "greeting: another", "slots: huge", "slots: tensors of n", "lease: ")  # fmt: skip
"""Lies that cannot end well, by how their names begin; others may change nothing that matters."""
HEAVY = 10  # one case in so many is of a command that compiles


@dataclass(frozen=True)
class Flow:
    """A command, the calls that it makes, and whether bundles are installed before."""

    arguments: tuple[str, ...]
    methods: frozenset[str]
    installed: bool
    heavy: bool = False


def flow(arguments: str, methods: str, *, installed: bool = False, heavy: bool = False) -> Flow:
    """Words in one text each; BOARD, BUNDLE and FOLDER stand for paths."""
    return Flow(tuple(arguments.split()), frozenset({"greeting", *methods.split()}), installed, heavy)


FLOWS = (
    flow("doctor BOARD", "probe"),
    flow("boards probe BOARD", "lease probe status put measure", heavy=True),
    flow("tune FOLDER/small.onnx --board BOARD --trials 2 --workers 1 --records FOLDER/r.db -o FOLDER/t.tfb",
         "lease status put measure", heavy=True),
    flow("flash BUNDLE --board BOARD --test-timeout 5s",
         "lease slots trust status put install self_test activate health_check commit"),
    flow("flash --board BOARD --status", "slots", installed=True),
    flow("flash --board BOARD --rollback --test-timeout 5s", "lease slots rollback health_check",
         installed=True),
    flow("run FOLDER/x.npy --board BOARD -o FOLDER/out --json --timeout 5s",
         "lease slots status put run read", installed=True),
)  # fmt: skip


class Bench:
    """A folder with a board whose runtime lies, bundles, inputs, and a device folder with two bundles."""

    def __init__(self, run: Run) -> None:
        self.folder, self.rng = run.folder, run.rng
        self.device, self.installed = run.folder / "device", run.folder / "installed"
        self.pid_file, self.told_file = run.folder / "pid", run.folder / "told"
        self.lie = run.folder / "lie.json"
        self.python, self.board = run.folder / "python", run.folder / "board.toml"
        self.python.write_text(f'#!/bin/sh\nexec {sys.executable} {liar.__file__} {self.lie} "$@"\n')
        self.python.chmod(self.python.stat().st_mode | stat.S_IXUSR)
        text = HOST.format(folder=self.device).replace(
            'kind = "local"', f'kind = "local"\npython = "{self.python}"'
        )
        self.board.write_text(text)
        key = sign.open_key(sign.key_file())
        for version in (1, 2):
            (run.folder / f"{version}.tfb").write_bytes(pack.pack(contents(small_model(version)), key))
        np.save(run.folder / "x.npy", small_model(1).x)
        weights = {"w": np.ones((7, 12), np.float32)}
        save(run.folder, model([node("Gemm", ["x", "w"], "y", transB=1)], {"x": (1, 12)}, ["y"], weights))
        for version in (1, 2):
            words = ("flash", f"{run.folder}/{version}.tfb", "--board", str(self.board), "--trust-board-file")
            code, printed, trace = self.carry_out(words, "", "", 0)
            assert code == 0, printed + trace
        self.device.rename(self.installed)

    def carry_out(
        self, arguments: tuple[str, ...], lie: str, method: str, after: int
    ) -> tuple[int, str, str]:
        """Exit code (-1: not a typed end), what was printed, and a traceback."""
        told = {"lie": lie, "method": method, "after": after, "seed": self.rng.randrange(1 << 30)}
        files = {"pid_file": str(self.pid_file), "told_file": str(self.told_file)}
        self.lie.write_text(json.dumps(told | files))
        self.pid_file.unlink(missing_ok=True)
        self.told_file.unlink(missing_ok=True)
        watchdog = threading.Timer(LONGEST_S, self.end_the_liar)
        watchdog.start()
        try:
            result = CliRunner().invoke(main, list(arguments))
        finally:
            watchdog.cancel()
            self.end_the_liar()
        if result.exception is None or isinstance(result.exception, SystemExit):
            return result.exit_code, result.output, ""
        return -1, result.output, "".join(traceback.format_exception(result.exception))

    def end_the_liar(self) -> None:
        """So that whoever waits for it waits no longer."""
        with suppress(FileNotFoundError, ValueError, ProcessLookupError):
            os.kill(int(self.pid_file.read_text()), signal.SIGKILL)

    def prepare(self, chosen: Flow) -> tuple[str, ...]:
        """The flow's arguments, and the device as it finds it."""
        shutil.rmtree(self.device, ignore_errors=True)
        if chosen.installed:
            shutil.copytree(self.installed, self.device, symlinks=True)
            shutil.rmtree(self.device / "objects")  # so that inputs are put
        (self.folder / "r.db").unlink(missing_ok=True)
        words = {"BOARD": str(self.board), "BUNDLE": f"{self.folder}/1.tfb"}
        return tuple(
            words.get(argument, argument.replace("FOLDER", str(self.folder))) for argument in chosen.arguments
        )


def peak_bytes() -> int:
    """The most that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextmanager
def in_short(folder: Path) -> Iterator[None]:
    """Short deadlines, and a home of its own."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {"HOME": str(folder / "home")}))
        stack.enter_context(mock.patch.object(frames, "FRAME_DEADLINE_S", DEADLINES_S))
        for module in (process, ssh):
            stack.enter_context(mock.patch.object(module, "FRAME_DEADLINE_S", DEADLINES_S))
        stack.enter_context(mock.patch.object(session, "ANSWER_S", DEADLINES_S))
        stack.enter_context(mock.patch.object(session, "GREETING_S", 2 * DEADLINES_S))
        yield


def lie_to(run: Run) -> None:
    """Every lie in turn, to some command and call that it is about."""
    with in_short(run.folder):
        bench = Bench(run)
        order = sorted(liar.LIES)
        run.rng.shuffle(order)
        for number in run:
            lie = order[number % len(order)]
            about = liar.LIES[lie]
            fitting = [one for one in FLOWS if not about or about & one.methods]
            light = [one for one in fitting if not one.heavy]
            chosen = run.rng.choice(light if light and run.rng.randrange(HEAVY) else fitting)
            method = run.rng.choice(sorted(about & chosen.methods or chosen.methods))
            after = run.rng.choice((0, 0, 0, 1))
            arguments = bench.prepare(chosen)
            before_bytes, start_s = peak_bytes(), time.monotonic()
            code, printed, trace = bench.carry_out(arguments, lie, method, after)
            if not bench.told_file.exists():
                run.check(code in CODES, f"before any lie: {printed[-500:]!r} {trace[-1500:]}")
                run.count -= 1  # it was no case
                continue
            problem = judged(lie, code, printed, trace)
            if time.monotonic() - start_s > LONGEST_S:
                problem = "it took longer than a minute"
            elif peak_bytes() - before_bytes > MOST_BYTES:
                problem = f"the host grew by {(peak_bytes() - before_bytes) >> 20} MiB"
            run.check(
                not problem,
                f"{lie!r} about {method} after {after} to `{' '.join(chosen.arguments)}`: {problem}",
            )


def judged(lie: str, code: int, printed: str, trace: str) -> str:
    """What is wrong with how a command ended; "" for nothing."""
    if code not in CODES:
        return f"it ended with code {code}: {printed[-500:]!r} {trace[-1500:]}"
    hostile = {character for character in printed if not (character.isprintable() or character in "\n\t")}
    if hostile:
        return f"it printed {hostile!r}: {printed[-500:]!r}"
    if code == 0 and lie.startswith(NOTICED):
        return f"it believed it: {printed[-500:]!r}"
    return ""


ATTACKS = (
    Attack("lying-device", f"a device that tells one of {len(liar.LIES)} lies to a command", 500, 6, lie_to),
)
