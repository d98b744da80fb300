"""The unit of work: one search of one method on one landscape with one seed, kept on disk once it is done.

A cell's file name is a hash of everything its course depends on, code of the rooms that search included: an
interrupted run goes on with the cells that are missing, and no cell outlives the code that made it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import toolkit
from benchmarks.experiments.landscapes import open_landscape
from benchmarks.experiments.methods import Method
from benchmarks.experiments.searching import search
from benchmarks.experiments.source import Source, source_digest
from benchmarks.harness.progress import Bar

CELL_VERSION: Final = 1
ROOMS: Final = ("features", "cost_model", "explore")
"""Rooms of toolkit/ on which the course of a search depends."""
HERE: Final = ("searching.py", "source.py")
"""Files of this folder on which it depends too."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What to run. `evaluations` on the device, whatever number of them counts as a trial."""

    landscape: str
    method: Method
    seed: int
    evaluations: int
    source: Source | None = None


class Store:
    """Finished work in a folder: a JSON file for each description of what was done."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.folder = work / "cells"
        self.folder.mkdir(parents=True, exist_ok=True)

    def costs_s(self, cell: Cell) -> list[float] | None:
        """Seconds of each evaluation of a finished cell, NaN for failures; None for one that is missing."""
        found = self.read(described(cell, self.work))
        return None if found is None else [math.nan if cost is None else float(cost) for cost in found]

    def keep(self, cell: Cell, costs_s: Sequence[float]) -> None:
        """Store a finished cell."""
        self.write(described(cell, self.work), [None if math.isnan(cost) else cost for cost in costs_s])

    def read(self, description: Mapping[str, Any]) -> Any:
        """The result that belongs to a description; None where there is none.

        A file of another version, a damaged one included, counts as missing: it is made again.
        """
        try:
            content = json.loads(self._path(description).read_bytes())
        except (OSError, ValueError):
            return None
        if not isinstance(content, dict) or content.get("version") != CELL_VERSION:
            return None
        return content.get("result")

    def write(self, description: Mapping[str, Any], result: Any) -> None:
        """Store a result, whole or not at all."""
        content = {"version": CELL_VERSION, "of": description, "result": result}
        with tempfile.NamedTemporaryFile("w", dir=self.folder, delete=False) as out:
            json.dump(content, out, sort_keys=True, allow_nan=False)
        os.replace(out.name, self._path(description))

    def _path(self, description: Mapping[str, Any]) -> Path:
        text = json.dumps([CELL_VERSION, description], sort_keys=True)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


def described(cell: Cell, work: Path) -> dict[str, Any]:
    """Everything the course of a cell depends on."""
    transfer = cell.source if cell.method.transfer else None
    return {
        "landscape": cell.landscape,
        "configurations": open_landscape(cell.landscape, work).digest,
        "method": cell.method.described(),
        "seed": cell.seed,
        "evaluations": cell.evaluations,
        "source": transfer.text if transfer else "",
        "measurements": source_digest(transfer, work) if transfer else "",
        "code": code_digest(),
    }


@cache
def code_digest() -> str:
    """Sixteen hex digits of the code of ROOMS and HERE."""
    folder, own = Path(toolkit.__file__).parent, Path(__file__).parent
    paths = [path for room in ROOMS for path in sorted((folder / room).glob("*.py"))]
    digest = hashlib.sha256()
    for path in [*paths, *(own / name for name in HERE)]:
        digest.update(f"{path.parent.name}/{path.name}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def finish(cells: Iterable[Cell], work: Path, *, workers: int = 1) -> int:
    """Run the cells that are not stored yet in worker processes; returns how many these were.

    Each is stored as soon as it is done.
    """
    store = Store(work)
    missing = [cell for cell in dict.fromkeys(cells) if store.costs_s(cell) is None]
    # A process of its own for each worker, started fresh: XGBoost's and JAX's threads do not survive a fork.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        running = [pool.submit(_finish_one, cell, work) for cell in missing]
        try:
            for future in Bar("searches", len(missing))(as_completed(running)):
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)  # some are left only where one failed or this was interrupted
    return len(missing)


def _finish_one(cell: Cell, work: Path) -> None:
    landscape = open_landscape(cell.landscape, work)
    costs_s = search(landscape, cell.method, cell.seed, cell.evaluations, source=cell.source, work=work)
    Store(work).keep(cell, costs_s)
