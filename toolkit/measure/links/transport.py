"""The host's end of a protocol.Connection, whatever the link. tests/conformance/test_transports.py tells what
must hold for every kind."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Self

from boards.description import Link
from device_runtime.protocol import Stream

WORDS_BYTES = 2000  # of what the other side printed last


class Transport(Stream):
    """A stream to a runtime; `where` names it in messages."""

    where: str
    silence = "it needs Python 3.8 or newer and a folder to write to"
    """Why a runtime may have ended without a word."""

    @classmethod
    @abstractmethod
    def open(cls, link: Link, cache_dir: Path) -> Self:
        """Reach the runtime of a link of this kind; `cache_dir` keeps its archive. BoardUnreachable says what
        was tried and what to do; InputError for a file of the link's that cannot be used."""

    @staticmethod
    @abstractmethod
    def remedy(link: Link) -> str:
        """What makes a link of this kind work that could not be opened."""

    def last_words(self) -> str:
        """The end of what the other side printed, "" when nothing."""
        return ""
