"""Many connections without the key beside a host that works: nobody keeps out, or holds up, who has it."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np

from boards.board import Board, load
from tests.loopback.listening import listening
from tests.torture.attack import Attack, Run
from toolkit.errors import ToolkitError
from toolkit.measure.replies import StoredObject
from toolkit.measure.session import Session, open_session

CONNECTIONS = 300
CALLS = 1000
LATEST_S = 10.0  # for a new client; under 2 s where nothing else runs beside


def p99_ms(session: Session) -> float:
    """99th percentile of the time of a call."""
    times = []
    for _ in range(CALLS):
        start_s = time.perf_counter()
        session.call("status", StoredObject, sha="0" * 64)
        times.append(time.perf_counter() - start_s)
    return 1e3 * float(np.quantile(times, 0.99))


def besiege(run: Run) -> None:
    """Knock until enough connections were made; in between the client works and others come."""
    with listening(load("host"), run.folder) as (board, _), open_session(board) as session:
        alone_ms = float(np.median([p99_ms(session) for _ in range(3)]))
        besieged_ms, waits_s = [], []
        arguments = [str(board.link.port), str(CONNECTIONS), str(run.cases), str(run.rng.randrange(1 << 30))]
        command = [sys.executable, "-m", "tests.torture.knocking", *arguments]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as knocking:
            assert knocking.stdout is not None and knocking.stdin is not None
            knocking.stdout.readline()
            for _ in range(max(3, run.cases // CONNECTIONS)):
                besieged_ms.append(p99_ms(session))
                waits_s.append(_newcomer_s(run, board))
            knocking.stdin.close()
            found = json.loads(knocking.stdout.readline())
        run.check(found["greeted"] == 0, f"{found['greeted']} strangers were greeted")
        session.put(b"still served")
        run.passed(found["made"])
    run.texts.append(
        f"figures: p99 of a call {alone_ms:.2f} ms alone, {np.median(besieged_ms):.2f} ms besieged; a new "
        f"client waited {np.median(waits_s):.2f} s (median), at most {max(waits_s):.2f} s"
    )


def _newcomer_s(run: Run, board: Board) -> float:
    """How long a new client waits until it can call."""
    start_s = time.monotonic()
    try:
        open_session(board, lease=False).close()
    except ToolkitError as error:
        run.fails(f"a new client was not let in: {error}")
    waited_s = time.monotonic() - start_s
    run.check(waited_s < LATEST_S, f"a new client was let in after {waited_s:.1f} s")
    return waited_s


ATTACKS = (
    Attack(
        "connections",
        f"{CONNECTIONS} connections without the key beside a working client",
        3000,
        300,
        besiege,
    ),
)
