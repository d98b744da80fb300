"""Text that somebody else wrote (a board, a model, a file), made fit to be shown."""

from __future__ import annotations

from typing import Final

KEPT: Final = "\n\t"
MOST_CHARACTERS: Final = 4000  # a compiler's log of two pages; what is longer helps nobody on a terminal


def printable(text: str, most: int | None = None) -> str:
    """`text` with every character that is not printable but newline and tab written as its escape, at most
    `most` characters of it.

    Those are what str.isprintable() says no to: control characters (C0, C1), so that no escape sequence
    reaches a terminal, and what reorders or hides text (bidirectional overrides, zero-width characters).
    """
    if most is not None and len(text) > most:
        text = f"{text[:most]}... ({len(text) - most} characters more)"
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in KEPT
        else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )


def printable_plain(value: object) -> object:
    """A received value (maps, lists, text, numbers) with each text in it, keys too, printable and short."""
    if isinstance(value, str):
        return printable(value, MOST_CHARACTERS)
    if isinstance(value, list):
        return [printable_plain(item) for item in value]
    if isinstance(value, dict):
        return {printable_plain(key): printable_plain(item) for key, item in value.items()}
    return value
