"""The drawing of who began with whose program."""

from __future__ import annotations

from toolkit.reuse.plan.lineage import Descent, lineage_tree


def descent(name: str, reuses: str = "", gflops: float = 2.0, best_s: float | None = 1e-6) -> Descent:
    return Descent(f"op {name}", name, "host:cpu", reuses, 8, best_s, gflops)


def test_a_tree_for_every_operator_that_began_with_nobodys_program() -> None:
    found = [descent("a"), descent("b", "a"), descent("c", "b"), descent("d", "a"), descent("e", "elsewhere")]
    assert lineage_tree(found).splitlines() == [
        "host:cpu",
        "  op a  a  8 trials  2.0 GFLOP/s",
        "  ├─ op b  b  8 trials  2.0 GFLOP/s",
        "  │  └─ op c  c  8 trials  2.0 GFLOP/s",
        "  └─ op d  d  8 trials  2.0 GFLOP/s",
        "  op e  e  8 trials  2.0 GFLOP/s",
    ]


def test_operators_that_began_with_each_others_programs_are_drawn_from_the_first() -> None:
    """Two runs can leave such records: each began with what the other run had tuned."""
    assert lineage_tree([descent("a", "b"), descent("b", "a"), descent("c", "b")]).splitlines() == [
        "host:cpu",
        "  op a  a  8 trials  2.0 GFLOP/s",
        "  └─ op b  b  8 trials  2.0 GFLOP/s",
        "     └─ op c  c  8 trials  2.0 GFLOP/s",
    ]


def test_what_moves_data_has_a_time_and_what_failed_has_none() -> None:
    found = [descent("move", gflops=0.0, best_s=2.5e-6), descent("none", gflops=0.0, best_s=None)]
    assert lineage_tree(found).splitlines()[1:] == [
        "  op move  move  8 trials  2.50 µs",
        "  op none  none  8 trials  nothing ran",
    ]
