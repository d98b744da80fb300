"""Cycles of a loop by llvm-mca, LLVM's simulator of its scheduling models, where it is installed.

A model too: for x86-64 it knows ports and latencies but no caches and no front end; for Cortex-A53 see
cortex_a53.py.
llvm-mca comes with LLVM (Debian: apt-get install llvm); the newest one on the PATH is used.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from cross.inspection.listing import Line

ITERATIONS: Final = 200  # of the loop, so that its first ones weigh little
TIMEOUT_S: Final = 60.0
# By whether vectors are 512 bits wide: for a CPU that the tool does not know, as it may be older.
STAND_INS: Final = {
    True: ("znver4", "icelake-server", "skylake-avx512"),
    False: ("znver3", "haswell"),
}


class Simulation(msgspec.Struct, frozen=True):
    """What llvm-mca says of a loop."""

    cpu: str  # the model that was used
    cycles: float  # per iteration
    resource_cycles: float  # per iteration, if nothing but the busiest resource counted ("block throughput")
    line_cycles: tuple[float, ...]  # of each line at full throughput, by itself; empty: not told


@functools.cache
def installed() -> str:
    """Path of the newest llvm-mca on the PATH; empty: none."""
    best = (0, "")
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        for path in Path(folder or ".").glob("llvm-mca*"):
            named = re.fullmatch(r"llvm-mca(?:-(\d+))?", path.name)
            if named and os.access(path, os.X_OK):
                best = max(best, (int(named[1] or 1), str(path)))
    return best[1]


def simulate(lines: Sequence[Line], triple: str, cpus: Sequence[str]) -> Simulation | None:
    """The loop whose iteration these lines are, by the first of `cpus` that llvm-mca has a model for.

    Returns:
        None where llvm-mca is not installed or refuses the code for every one of them.
    """
    tool = installed()
    if not tool:
        return None
    text = "\n".join(line.text for line in lines) + "\n"
    for cpu in dict.fromkeys(cpus):
        found = _run(tool, text, triple, cpu)
        if found is not None:
            return found
    return None


def _run(tool: str, text: str, triple: str, cpu: str) -> Simulation | None:
    command = [tool, f"-mtriple={triple}", f"-mcpu={cpu}", f"-iterations={ITERATIONS}"]
    command += ["-resource-pressure=false"]
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0 or "is not a recognized processor" in done.stderr:
        return None
    cycles = re.search(r"^Total Cycles:\s+(\d+)", done.stdout, re.MULTILINE)
    throughput = re.search(r"^Block RThroughput:\s+([\d.]+)", done.stdout, re.MULTILINE)
    if cycles is None or throughput is None:
        return None
    info = done.stdout.partition("Instructions:\n")[2].partition("\n\n")[0]
    line_cycles = tuple(float(line.split()[2]) for line in info.splitlines())
    known = line_cycles if len(line_cycles) == text.count("\n") else ()
    return Simulation(cpu, int(cycles[1]) / ITERATIONS, float(throughput[1]), known)
