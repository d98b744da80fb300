"""AutoTVM's best programs for a Mali are programs of our space."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.autotvm.mali import equal, space_of
from benchmarks.autotvm.programs import NoEqual, Program
from benchmarks.autotvm.rows import Row, rows
from boards.board import load

MALI = load("rock960").target("mali")
ROWS = rows()


DIRECT = [row for row in ROWS if row.family != "winograd"]
WINOGRAD = [row for row in ROWS if row.family == "winograd"]


def test_twenty_workloads_of_three_templates_and_four_of_winograds() -> None:
    assert (len(DIRECT), len(WINOGRAD)) == (20, 4)
    assert {row.family for row in DIRECT} == {"conv", "depthwise", "dense"}
    assert len({row.text for row in ROWS}) == 24


@pytest.mark.parametrize("row", WINOGRAD, ids=lambda row: row.text)
def test_winograds_products_have_equal_tiles(row: Row) -> None:
    space = space_of(row, MALI)
    found, knobs = equal(row, space), row.knobs
    assert space.valid(space.batch([space.parse(found.configuration)]))[0]
    program = found.program
    assert program.elements == {"p": knobs["tile_bnb"], "c": knobs["tile_bna"]}
    assert (program.threads["c"], program.lanes, program.written_out["kc"]) == (knobs["yt"], 4, 2)
    assert program.others == (knobs["tile_t1"][1], knobs["tile_t2"][1])


@pytest.mark.parametrize("row", DIRECT, ids=lambda row: row.text)
def test_every_one_has_an_equal_configuration(row: Row) -> None:
    space = space_of(row, MALI)
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
    assert equal(row, space_of(row, MALI)).program == Program(
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
        equal(replace(row, knobs=row.knobs | knobs), space_of(row, MALI))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"knobs": WINOGRAD[0].knobs | {"tile_bnb": 8}}, "vectors of 8 tiles of the image by 4 channels"),
        ({"shapes": ((1, 8, 28, 28), (8, 8, 3, 3))}, "no algorithm of ours"),
    ],
)
def test_what_winograds_space_has_not_is_said(change: dict[str, object], what: str) -> None:
    row = replace(WINOGRAD[0], **change)  # type: ignore[arg-type]
    with pytest.raises(NoEqual, match=what):
        equal(row, space_of(row, MALI))


def test_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('{"format": 2, "rows": []}')
    with pytest.raises(ValueError, match="expected format 1, found 2"):
        rows(path)
