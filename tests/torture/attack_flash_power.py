"""The power goes during a flash: the disk holds what was synced, and of the rest whatever it likes."""

from __future__ import annotations

import shutil

from tests.torture.attack import Attack, Run
from tests.torture.flash_bench import RECORD, STARTS, Bench, Outcome
from tests.torture.power_cut import KEPT, Disk, Record, recorded


def _cut_everywhere(run: Run) -> None:
    """Each case is another state of the disk; the first is that after a flash which said that it was done."""
    with Bench() as bench:
        log = bench.folder / "log"
        disks: list[tuple[str, Disk, list[Record]]] = []
        for start in STARTS:
            bench.reset(start)
            disk = Disk(bench.disk)
            bench.board_control.arm(RECORD, (bench.disk,), log=log)
            outcome = bench.flash()
            bench.settle()
            records = recorded(log)
            log.unlink()
            if outcome.code != 0 or len(records) < 50:
                run.fails(f"{start}: a flash that nothing happens to ends with {outcome}")
            disks.append((start, disk, records))
        while run.count < run.cases:
            for start, disk, records in disks:
                _cut(run, bench, start, disk.copy(), records)


def _cut(run: Run, bench: Bench, start: str, disk: Disk, records: list[Record]) -> None:
    """Cut the power after some of the records, all of them if the run wants so many cases."""
    wanted = min(len(records), max(1, run.cases - run.count - 1))
    moments = {len(records), *run.rng.sample(range(len(records)), wanted)}
    for moment in range(len(records) + 1):
        if moment in moments:
            kept = "nothing" if moment == len(records) else run.rng.choice(KEPT)
            shutil.rmtree(bench.disk)
            disk.cut(kept, run.rng, bench.disk)
            if bench.is_new():
                wrong = bench.judge(start, Outcome(0 if moment == len(records) else None, "", ""))
                run.check(
                    not wrong, f"{start}, {kept} kept after {moment} of {len(records)} changes: {wrong}"
                )
        if moment < len(records):
            disk.apply(records[moment])


ATTACKS = (
    Attack(
        "flash-power-cut",
        "a power cut during a flash: what was not synced is lost, torn or reordered",
        400,
        8,
        _cut_everywhere,
    ),
)
