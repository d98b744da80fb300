"""AutoTVM's best programs for a Mali are programs of our space."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.autotvm.mali import NoEqual, Program, equal
from benchmarks.autotvm.rows import Row, operator, rows
from boards.board import load
from cross.schedule import gpu_space
from cross.schedule.space import ScheduleSpace

MALI = load("rock960").target("mali")
ROWS = rows()


def space_of(row: Row) -> ScheduleSpace:
    return gpu_space(operator(row), MALI)


def test_twenty_workloads_of_three_templates() -> None:
    assert len(ROWS) == 20
    assert {row.family for row in ROWS} == {"conv", "depthwise", "dense"}
    assert len({row.text for row in ROWS}) == 20


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.text)
def test_every_one_has_an_equal_configuration(row: Row) -> None:
    space = space_of(row)
    found = equal(row, space)
    assert space.valid(space.batch([space.parse(found.configuration)]))[0]
    program = found.program
    ours = zip(program.blocks.values(), program.threads.values(), program.elements.values(), strict=True)
    assert sorted(ours) == sorted(tuple(row.knobs[name]) for name in row.knobs if name.startswith("tile_"))
    last = {"conv": "tile_co", "depthwise": "tile_c", "dense": "tile_x"}[row.family]
    in_vectors = row.family != "conv" or row.knobs["ann_spatial"][2] == "vec"
    assert program.lanes == (row.knobs[last][2] if in_vectors else 1)


def test_resnets_first_layer_in_full() -> None:
    (row,) = [row for row in ROWS if row.text == "conv 224x224x3 7x7/2 64"]
    assert equal(row, space_of(row)).program == Program(
        blocks={"y": 112, "x": 14, "c": 2}, threads={"y": 1, "x": 2, "c": 8},
        elements={"y": 1, "x": 4, "c": 4}, lanes=4, written_out={"kh": 7, "kw": 7},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("knobs", "what"),
    [
        ({"ann_spatial": ["unroll", "vec", "unroll"]}, "vectors along x, ours run along c"),
        ({"ann_spatial": ["unroll", "none", "vec"]}, "the loop over x within a thread runs"),
        ({"ann_reduce": ["unroll", "none"]}, "written out around one over kw that runs"),
        ({"tile_ow": [2, 2, 28]}, "none of its"),
        ({"tile_ow": [14, 2, 4], "tile_oh": [2, 56, 1]}, "a block has at most 256 threads"),
    ],
)
def test_what_our_space_has_not_is_said(knobs: dict[str, object], what: str) -> None:
    (row,) = [row for row in ROWS if row.text == "conv 224x224x3 7x7/2 64"]
    with pytest.raises(NoEqual, match=what):
        equal(replace(row, knobs=row.knobs | knobs), space_of(row))


def test_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('{"format": 2, "rows": []}')
    with pytest.raises(ValueError, match="expected format 1, found 2"):
        rows(path)
