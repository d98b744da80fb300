"""What can be said of GPU kernels without running them, as a table and as data; static.py is for CPUs."""

from __future__ import annotations

from collections.abc import Sequence

from boards.target import Target
from cross.inspection.gpu_launches import LaunchReport
from toolkit.report.columns import table
from toolkit.report.tables import NOTHING

Kernels = Sequence[tuple[str, Sequence[LaunchReport]]]


def static_gpu_table(kernels: Kernels, target: Target) -> str:
    """One line for each launch; `of the limit` is the largest share of what the board has for a block."""
    headers = ["kernel", "launch", "blocks", "threads", "shared bytes", "own bytes", "registers", "vectors"]
    headers += ["of the limit"]
    rows = []
    for name, launches in kernels:
        for number, launch in enumerate(launches):
            what, share = max(launch.shares(target).items(), key=lambda item: item[1])
            registers = NOTHING if launch.registers is None else str(launch.registers)
            row = [name, str(number), str(launch.blocks), str(launch.threads), str(launch.shared_bytes)]
            row += [str(launch.private_bytes), registers, str(launch.vector_lanes), f"{share:.0%} ({what})"]
            rows.append(row)
    return table(headers, rows)


def static_gpu_content(kernels: Kernels, target: Target) -> dict[str, object]:
    """What the static report of GPU kernels says, as data for `documents.document`."""
    found = [
        {
            "name": name,
            "launches": [
                {**{field: getattr(launch, field) for field in LaunchReport.__struct_fields__},
                 "shares": launch.shares(target)}
                for launch in launches
            ],
        }
        for name, launches in kernels
    ]  # fmt: skip
    return {"target": target.key, "kernels": found}
