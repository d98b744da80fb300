"""What a board file holds, as types.

`boards.board` loads it, `boards.rules` says what must hold between the keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from boards.errors import UnknownTarget
from boards.joined import SIGN, joined
from boards.target import Target

LinkKind = Literal["local", "ssh", "emulator", "tcp"]


class LinkKeys(msgspec.Struct, frozen=True):
    """The keys of [link] that a kind needs, with what each must hold, and those that it may have, too."""

    needs: Mapping[str, str] = {}
    takes: frozenset[str] = frozenset()

    @property
    def all(self) -> frozenset[str]:
        return self.takes | self.needs.keys()


_HOST = "the board's host name or address for link.kind {kind!r}"
LINK_KINDS: Final[dict[LinkKind, LinkKeys]] = {
    "local": LinkKeys(takes=frozenset({"python"})),
    "ssh": LinkKeys(
        {"host": _HOST}, frozenset({"port", "user", "python", "identity_file", "known_hosts_file"})
    ),
    "tcp": LinkKeys(
        {"host": _HOST, "tls_file": "the host's credentials, which `toolkit runtime archive` makes"},
        frozenset({"port"}),
    ),
    "emulator": LinkKeys({"command": "the emulator's argument list"}),
}
"""Every kind takes device_dir and connect_timeout_s, too. How each reaches a board: toolkit/measure/links."""


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the board is reached.

    local     the runtime is a subprocess on this machine, run by `python` (empty: the one running the tool)
    ssh       `user`@`host`:`port`, authenticated by `identity_file` or the user's agent, the host checked
              against `known_hosts_file` (empty: the user's own)
    tcp       a runtime that somebody started on the board; `tls_file` holds this host's credentials, which
              `toolkit runtime archive` makes together with the board's
    emulator  `command` is the argument list put before the runtime's archive. In it {qemu} is the path of
              qemu-aarch64-static, {sysroot} the folder with the emulated system's libraries, {python} the
              path of the Python inside it; toolkit.measure.emulation finds or fetches the three.

    A leading ~ in `device_dir` is the home folder on the board; in the other files, on this machine.
    """

    kind: LinkKind
    host: str = ""
    port: int = 22
    user: str = ""
    python: str = ""  # how the board's Python (3.8 or newer) is called; empty: python3 over ssh
    identity_file: str = ""
    known_hosts_file: str = ""
    tls_file: str = ""
    command: tuple[str, ...] = ()
    device_dir: str = "~/.local/share/tune-for-board"  # uploads and installed bundles
    connect_timeout_s: float = 10.0

    @property
    def has_address(self) -> bool:
        """Whether the board is reached over a network; otherwise the runtime runs on this machine."""
        return "host" in LINK_KINDS[self.kind].needs

    @property
    def login(self) -> str:
        """The host, with the user where the file names one: `pi@192.168.1.7`."""
        return f"{self.user}@{self.host}".lstrip("@")

    @property
    def address(self) -> str:
        """Login and port; "" where there is no address."""
        return f"{self.login}:{self.port}" if self.host else ""

    @property
    def program(self) -> tuple[str, ...]:
        """What a connection runs because this file says so: where, and the command; empty for nothing."""
        command = self.command or ((self.python,) if self.python else ())
        return (self.login or "this machine", *command) if command else ()


class MeasureDefaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a kernel is timed on this board unless the user says otherwise."""

    number: int = 1  # calls per repeat to start with
    repeat: int = 3
    min_repeat_ms: float = 10.0  # `number` grows until a repeat lasts this long
    cooldown_s: float = 0.0  # rest between repeats
    timeout_s: float = 10.0  # one kernel, all repeats


class Board(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One device: facts, the way in, and what code can be generated for."""

    name: str
    title: str
    description: str
    sources: tuple[str, ...]  # where the figures come from
    memory_bytes: int = 0  # 0 only where `probed`
    emulated: bool = False  # functional only: its times say nothing about the real chip
    probed: bool = False  # targets (PoCL's figures) and memory are filled in from this machine
    link: Link
    targets: tuple[Target, ...] = ()
    measure: MeasureDefaults = MeasureDefaults()

    def target(self, name: str | None = None) -> Target:
        """The target of this name, of names joined by + (see joined.py), or of the highest estimated peak.

        Raises UnknownTarget, which lists the known names, for any other name; UnfitTargets.
        """
        if name is None:
            return max(self.targets, key=lambda target: target.estimated_peak_gflops)
        known = {target.name: target for target in self.targets}
        parts = name.split(SIGN)
        if unknown := [part for part in parts if part not in known]:
            raise UnknownTarget(self.name, unknown[0], list(known))
        return known[name] if len(parts) == 1 else joined(self.name, [known[part] for part in parts])
