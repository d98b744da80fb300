"""The kinds of links, each with the class that reaches a board over it: `open_transport`.

What a kind's keys in a board file are, boards/description.py says (LINK_KINDS).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from boards.description import Link, LinkKind
from toolkit.measure.links.process import EmulatorTransport, LocalTransport
from toolkit.measure.links.ssh import SshTransport
from toolkit.measure.links.tcp import TcpTransport
from toolkit.measure.links.transport import Transport

DEFAULT_CACHE_DIR: Final = Path("~/.cache/tune-for-board").expanduser()
TRANSPORTS: Final[dict[LinkKind, type[Transport]]] = {
    "local": LocalTransport,
    "emulator": EmulatorTransport,
    "ssh": SshTransport,
    "tcp": TcpTransport,
}


def open_transport(link: Link, cache_dir: Path | None = None) -> Transport:
    """Reach the runtime of a link. BoardUnreachable says what was tried and what to do; InputError."""
    return TRANSPORTS[link.kind].open(link, cache_dir or DEFAULT_CACHE_DIR)


def remedy(link: Link) -> str:
    """What makes a link work that could not be opened."""
    return TRANSPORTS[link.kind].remedy(link)
