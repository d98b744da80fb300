"""Is this board fit to be tuned for? One `Check` per question, each failure with its remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from boards.description import Board
from toolkit.errors import BoardUnreachable
from toolkit.measure.fit import Check, needs
from toolkit.measure.links.kinds import remedy
from toolkit.measure.replies import Core, Probe, Protection, Storage, ThermalZone
from toolkit.measure.session import open_session
from toolkit.model_job.disturbances import HOT_CELSIUS, SLOW_CLOCK

LEAST_PYTHON: Final = (3, 8)
LEAST_FREE_BYTES: Final = 256 << 20
BUSY_LOAD: Final = 0.5  # processes that want to run, per core


class Health(msgspec.Struct, frozen=True):
    """Every check of a board, in order. Unreachable boards have one check only: the link."""

    board: str
    emulated: bool
    reachable: bool
    checks: tuple[Check, ...]

    @property
    def fit(self) -> bool:
        """Nothing failed; warnings do not count."""
        return all(check.state != "failure" for check in self.checks)


def check_board(board: Board, *, cache_dir: Path | str | None = None) -> Health:
    """Connect and look; takes no lease and changes nothing but the runtime's archive on the board."""
    try:
        with open_session(board, cache_dir=cache_dir, lease=False) as session:
            python = session.hello.python
            answer = session.probe()
    except BoardUnreachable as error:
        lost = Check("link", "failure", str(error), remedy(board.link))
        return Health(board.name, board.emulated, False, (lost,))
    checks = (
        Check("link", "ok", f"{board.link.kind} {board.link.address}".rstrip()),
        _python(python),
        *probe_checks(board, answer),
    )
    return Health(board.name, board.emulated, True, checks)


def probe_checks(board: Board, answer: Probe) -> Iterator[Check]:
    """The checks of what the runtime's probe answered."""
    yield from needs(board, board.targets, answer)
    yield _free_space(answer.storage)
    yield _confinement(board, answer.protection)
    if board.emulated:
        yield Check(
            "clock", "unknown", "emulated: the host's clock, governor and temperature are not the chip's"
        )
    else:
        yield _clock(answer.cores)
        yield _governor(answer.cores)
        yield _temperature(answer.thermal)
        yield _load(answer.load[0], len(answer.cores))


def _python(version: str) -> Check:
    numbers = re.match(r"(\d{1,3})\.(\d{1,3})", version)
    if numbers and tuple(map(int, numbers.groups())) >= LEAST_PYTHON:
        return Check("python", "ok", version)
    return Check(
        "python", "failure", version, "install Python 3.8 or newer there, and name it as link.python"
    )


def _free_space(storage: Storage) -> Check:
    found = f"{storage.free_bytes / 2**20:,.0f} MiB in {storage.device_dir}"
    if storage.free_bytes >= LEAST_FREE_BYTES:
        return Check("free space", "ok", found)
    remedy = f"free at least {LEAST_FREE_BYTES >> 20} MiB there, or name a larger folder as link.device_dir"
    return Check("free space", "failure", found, remedy)


def _confinement(board: Board, found: Protection) -> Check:
    """Which protections confine a faulty or hostile kernel on the board."""
    names = [name for name in ("namespaces", "landlock") if getattr(found, name)]
    if len(names) == 2:
        return Check(
            "confinement", "ok", "kernels run in namespaces of their own, and Landlock keeps their files"
        )
    text = f"kernels are confined by {names[0] if names else 'nothing but limits of time and memory'} only"
    if board.emulated:
        return Check("confinement", "unknown", f"{text}: the emulator knows no namespaces and no Landlock")
    remedies = {
        "namespaces": "allow user namespaces (sudo sysctl user.max_user_namespaces=1000 and, where there is "
        "one, kernel.unprivileged_userns_clone=1)",
        "landlock": "boot Linux 5.13 or newer with Landlock (lsm=landlock,...)",
    }
    missing = "; ".join(remedy for name, remedy in remedies.items() if name not in names)
    return Check("confinement", "warning", text, f"{missing}; or tune only models that you trust")


def _clock(cores: Sequence[Core]) -> Check:
    known = [core for core in cores if core.now_hz and core.max_hz]
    if not known:
        return Check("clock", "unknown", "the board does not expose its clock")
    slowest = min(known, key=lambda core: core.now_hz / core.max_hz)
    found = f"core {slowest.id}: {slowest.now_hz / 1e6:,.0f} of {slowest.max_hz / 1e6:,.0f} MHz"
    if slowest.now_hz >= SLOW_CLOCK * slowest.max_hz:
        return Check("clock", "ok", found)
    return Check("clock", "warning", found, "set the governor to performance; if it is, cool the board")


def _governor(cores: Sequence[Core]) -> Check:
    governors = sorted({core.governor for core in cores if core.governor})
    if not governors:
        return Check("governor", "unknown", "the board has no frequency governor")
    if governors == ["performance"]:
        return Check("governor", "ok", "performance")
    remedy = "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
    return Check("governor", "warning", ", ".join(governors), f"on the board: {remedy}")


def _temperature(zones: Sequence[ThermalZone]) -> Check:
    if not zones:
        return Check("temperature", "unknown", "the board does not expose a temperature")
    hottest = max(zones, key=lambda zone: zone.celsius)
    found = f"{hottest.celsius:.0f} °C ({hottest.name})"
    if hottest.celsius < HOT_CELSIUS:
        return Check("temperature", "ok", found)
    return Check("temperature", "warning", found, "add a fan or a heat sink: a hot chip lowers its clock")


def _load(load: float, cores: int) -> Check:
    """`load`: processes that wanted to run, on average of the last minute."""
    found = f"{load:.2f} processes in the last minute on {cores} cores"
    if load <= BUSY_LOAD * cores:
        return Check("load", "ok", found)
    return Check(
        "load", "warning", found, "stop what else runs there: it disturbs every time that is measured"
    )
