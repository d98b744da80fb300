"""Carry out the attacks on this machine and print a line for each: `python -m tests.torture [NAME ...]`.

Each attack runs in a process of its own, as many at a time as --jobs says. The exit code is 1 when any case
of any attack failed, or an attack ended before it had tried all its cases.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.torture.attack import Attack, Run, attacks, carry_out

REPORT_VERSION = 1
TELL_S = 0.5  # between two reports of a running attack


@dataclass(frozen=True, slots=True)
class Line:
    """What came of an attack; `wanted` cases were to be tried."""

    name: str
    what: str
    wanted: int
    count: int
    failed: int
    seconds: float
    texts: tuple[str, ...]

    @property
    def withstood(self) -> bool:
        """Whether all cases were tried and none failed."""
        return self.failed == 0 and self.count >= self.wanted

    def __str__(self) -> str:
        counts = f"{self.count:>9,} cases {self.failed:>6,} failed {self.seconds:>7.1f} s"
        short = "" if self.count >= self.wanted else f" (ended early: {self.wanted} were wanted)"
        return f"{self.name:<22} {counts}  {self.what}{short}"


def main() -> int:
    """Parse the arguments, carry the attacks out, print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.torture", description="Attack this tool, for real."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which attacks (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of all random choices (default 0)")
    parser.add_argument("--share", type=float, default=1.0, help="of the cases of a full run (default 1)")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help="attacks at a time")
    parser.add_argument("--json", type=Path, help="write the table to this file, too")
    parser.add_argument("--list", action="store_true", help="list the attacks and stop")
    parser.add_argument("--only", help=argparse.SUPPRESS)  # this process carries this one out
    options = parser.parse_args()
    known = attacks()
    if options.list:
        print(
            "\n".join(
                f"{attack.name:<22} {attack.cases:>9,} cases  {attack.what}" for attack in known.values()
            )
        )
        return 0
    unknown = sorted(set(options.names) - set(known))
    if unknown:
        parser.error(f"no attack {', '.join(unknown)}; there are {', '.join(known)}")
    if options.only:
        return carry_out_here(known[options.only], options.share, options.seed)
    chosen = [known[name] for name in options.names or known]
    lines = carry_out_all(chosen, options.share, options.seed, options.jobs)
    if options.json:
        document = {
            "version": REPORT_VERSION,
            "seed": options.seed,
            "attacks": [asdict(line) for line in lines],
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0 if all(line.withstood for line in lines) else 1


def wanted_cases(attack: Attack, share: float) -> int:
    """How many cases this share of a full run has."""
    return max(1, round(share * attack.cases))


def carry_out_here(attack: Attack, share: float, seed: int) -> int:
    """In this process; reports go to stdout, one JSON object a line, the last with "done"."""
    told_s = time.monotonic()

    def tell(run: Run) -> None:
        nonlocal told_s
        if time.monotonic() > told_s + TELL_S:
            told_s = time.monotonic()
            _tell(run)

    with tempfile.TemporaryDirectory(prefix=f"torture-{attack.name}-") as folder:
        run = carry_out(attack, wanted_cases(attack, share), seed, Path(folder), tell)
    _tell(run)
    return 0


def _tell(run: Run) -> None:
    print(json.dumps({"count": run.count, "failed": run.failed, "texts": run.texts}), flush=True)


def carry_out_all(chosen: list[Attack], share: float, seed: int, jobs: int) -> list[Line]:
    """Each in a process of its own; prints each line when it is known."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    lock = threading.Lock()
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:

        def one(attack: Attack) -> Line:
            task = progress.add_task(attack.name, total=wanted_cases(attack, share))
            line = _in_a_process(attack, share, seed, lambda count: progress.update(task, completed=count))
            progress.remove_task(task)
            with lock:
                print(line, flush=True)
                for text in line.texts:
                    print(f"    {text}", flush=True)
            return line

        with ThreadPoolExecutor(max(1, jobs)) as pool:
            return list(pool.map(one, chosen))


def _in_a_process(attack: Attack, share: float, seed: int, told: Callable[[int], None]) -> Line:
    started_s = time.monotonic()
    command = [sys.executable, "-m", "tests.torture", "--only", attack.name]
    command += ["--share", str(share), "--seed", str(seed)]
    last = {"count": 0, "failed": 0, "texts": []}
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=printed, text=True
        )
        assert process.stdout is not None
        for text in process.stdout:
            if text.startswith('{"count"'):
                last = json.loads(text)
                told(last["count"])
        status = process.wait()
        printed.seek(0)
        words = printed.read().decode(errors="replace").strip()[-2000:]
    if status:
        last["failed"] += 1
        last["texts"].append(f"its process ended with status {status}: {words}")
    return Line(
        name=attack.name,
        what=attack.what,
        wanted=wanted_cases(attack, share),
        count=last["count"],
        failed=last["failed"],
        seconds=time.monotonic() - started_s,
        texts=tuple(last["texts"]),
    )


if __name__ == "__main__":
    sys.exit(main())
