"""Kernels that crash, hang, cheat and try to get out, on the CPU and on PoCL.

Each must end as a failure of its kind, leave no process, and leave a runtime that measures an honest kernel.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from boards.board import load
from cross import native
from tests.loopback.gpu_modules import measure_request, twice
from tests.loopback.kernels import Kernels, left_behind
from tests.torture.attack import Attack, Run
from toolkit.measure.session import Session, open_session

SOURCE: Final = Path(__file__).parents[1] / "loopback" / "fault_kernels.c"
TIMEOUT_S: Final = 1.0
PATIENT_S: Final = 30.0  # for those that must end for another reason than the deadline

CRASH, WRONG, HANG, MEMORY = "crash", "wrong_answer", "timeout", "out_of_memory"
CPU: Final = {
    "segfault": (CRASH,), "segfault_in_worker": (CRASH,), "writes_input": (CRASH,), "aborts": (CRASH,),
    "exits": (CRASH,), "exits_at_once": (CRASH,), "returns_error": (CRASH,), "smashes_stack": (CRASH, HANG),
    "writes_to_every_descriptor": (CRASH,), "kills_its_group": (CRASH,), "prints_for_ever": (CRASH,),
    "hangs": (HANG,), "hangs_deaf": (HANG,), "forks_and_exits": (CRASH,), "leaves_a_process": ("",),
    "leaves_an_orphan": ("",), "orphan_and_crash": (CRASH,), "forks_often": (CRASH,),
    "allocates_for_ever": (MEMORY,), "allocates_in_a_family": (MEMORY,), "one_element_wrong": (WRONG,),
    "last_tile_unwritten": (WRONG,), "writes_nan": (WRONG,), "wrong_later": (WRONG,),
    "computes_once": (WRONG,),
    "computes_twice": (WRONG,), "knows_its_input": (WRONG,), "writes_after_the_end": (CRASH,),
    "writes_before_the_start": (CRASH,), "reads_after_the_end": (CRASH,), "reads_before_the_start": (CRASH,),
    "leaves_its_workspace": (WRONG,), "relies_on_zeros": (WRONG,), "relies_on_its_stack": (WRONG,),
    "spoils_its_neighbour": (WRONG,), "clips": (WRONG,), "skips_zeros": (WRONG,), "rounds_upward": (WRONG,),
}  # fmt: skip
CONFINED: Final = {"kills_its_parent": (CRASH, ""), "kills_everybody": (CRASH, "")}
PATIENT: Final = ("forks_often", "allocates_for_ever", "allocates_in_a_family", "prints_for_ever")
POCL: Final = {
    "wrong": (WRONG,), "unwritten": (WRONG,), "wrong_later": (WRONG,), "clips": (WRONG,), "strays": (WRONG,),
    "strays_back": (WRONG,), "reads_beyond": (WRONG,), "writes_input": (WRONG,), "hangs": (HANG,),
    "crashes": (CRASH,), "refused": ("build",),
}  # fmt: skip


def on_cpu(run: Run) -> None:
    """Every kernel of fault_kernels.c, round after round."""
    code = run.folder / "faults.so"
    machine = load("host").target().triple.split("-")[0]
    command = [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-gnu.2.31", "-shared"]
    command += ["-fPIC", "-O1", "-fno-sanitize=all", "-I", str(native.FOLDER), str(SOURCE)]
    command += [*map(str, native.SOURCES), "-o", str(code), "-lpthread", "-lm"]
    subprocess.run(command, check=True, capture_output=True)
    with _session(run, "host") as session:
        kernels = Kernels(session, code.read_bytes())
        kinds = {**CPU, **(CONFINED if session.probe(gpus=False).protection.namespaces else {})}
        names = sorted(kinds)
        for number in run:
            name = names[number % len(names)]
            timeout_s = PATIENT_S if name in PATIENT else TIMEOUT_S
            error = session.measure(kernels.request(name, timeout_s=timeout_s, threads=2)).error
            found = error.kind if error else ""
            right = session.measure(kernels.request("right"))
            left = left_behind(kernels)
            text = f"{name}: {error}, then an honest one: {right.error}, left {sorted(left)}"
            run.check(found in kinds[name] and right.error is None and not left, text)


def on_pocl(run: Run) -> None:
    """Every body of gpu_modules.py, round after round."""
    with _session(run, "pocl") as session:
        names = sorted(POCL)
        for number in run:
            name = names[number % len(names)]
            timeout_s = 5.0 if name == "hangs" else PATIENT_S
            error = session.measure(measure_request(session, twice(name), timeout_s=timeout_s)).error
            right = session.measure(measure_request(session, twice("right"), timeout_s=PATIENT_S))
            text = f"{name}: {error}, then an honest one: {right.error}"
            run.check((error.kind if error else "") in POCL[name] and right.error is None, text)


def _session(run: Run, name: str) -> Session:
    board = load(name)
    link = msgspec.structs.replace(board.link, device_dir=str(run.folder / "device"))
    return open_session(msgspec.structs.replace(board, link=link), cache_dir=run.folder / "cache")


ATTACKS = (
    Attack(
        "kernels-cpu",
        "a hostile kernel on the CPU ended as it must, left nothing, and an honest one was right",
        cases=20 * (len(CPU) + len(CONFINED)),
        sample=16,
        run=on_cpu,
    ),
    Attack(
        "kernels-pocl",
        "the same with PoCL",
        cases=20 * len(POCL),
        sample=3,
        run=on_pocl,
        needs="pocl",
    ),
)
