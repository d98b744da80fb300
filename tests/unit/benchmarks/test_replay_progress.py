"""The bar of a recording passes everything on; off a terminal it leaves whole lines."""

from __future__ import annotations

import io

from benchmarks.harness.progress import Bar


def test_items_pass_and_the_end_is_said_once() -> None:
    stream = io.StringIO()
    bar = Bar("C6: 3 configurations", 3, stream)
    assert list(bar(iter("abc"))) == ["a", "b", "c"]
    (line,) = stream.getvalue().splitlines()
    assert "3/3" in line and "0.0 min left" in line and line.endswith("C6: 3 configurations")


def test_nothing_to_do_says_nothing() -> None:
    stream = io.StringIO()
    assert list(Bar("C6", 0, stream)(iter(()))) == []
    assert stream.getvalue() == ""


def test_a_terminal_is_drawn_over() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    for item in Bar("C6", 2, stream)(iter("ab")):
        assert item in "ab"
    assert stream.getvalue().startswith("\r") and stream.getvalue().endswith("\n")
