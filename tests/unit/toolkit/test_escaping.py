"""What somebody else wrote reaches a terminal as text only."""

from __future__ import annotations

import json

import pytest

from toolkit.errors import ModelError
from toolkit.escaping import MOST_CHARACTERS, printable, printable_plain
from toolkit.report.documents import document

HOSTILE = "a\x1b]0;title\x07b\x9b31mc\u202ed\u200be\rf\x00"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("51 °C, Größe 日本 µs", "51 °C, Größe 日本 µs"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        (HOSTILE, r"a\x1b]0;title\x07b\x9b31mc\u202ed\u200be\rf\x00"),
        ("\ud800", r"\ud800"),
    ],
)
def test_control_characters_and_what_reorders_text_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


def test_received_maps_are_printable_and_short_throughout() -> None:
    found = printable_plain({"k\x1b": [HOSTILE, {"t": "x" * 10_000}], "n": 5, "b": b"\x1b"})
    assert found == {
        r"k\x1b": [printable(HOSTILE), {"t": "x" * MOST_CHARACTERS + "... (6000 characters more)"}],
        "n": 5,
        "b": b"\x1b",
    }


def test_errors_and_documents_are_printable() -> None:
    assert str(ModelError(f"node {HOSTILE}")) == f"node {printable(HOSTILE)}"
    text = document("x", {"name": HOSTILE, "unit": "°C"})
    assert all(character.isprintable() or character == "\n" for character in text)
    assert json.loads(text)["name"] == HOSTILE
    assert "°C" in text
