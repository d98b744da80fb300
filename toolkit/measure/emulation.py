"""What the board `emulated-a53` runs on: qemu's user-mode emulator and an aarch64 Python in a folder.

`find` says where both are; `fetch_emulation` gets what is missing from Debian's archive, as any user, and
installs nothing: apt checks packages against Debian's signed lists in a state folder of its own, dpkg unpacks
them.
Each part is built in a temporary folder, tried out, sealed with the hashes of its files, and renamed into
place. `find` checks the hashes: a folder that is damaged is as good as none, and fetched again.

`toolkit runtime emulation` is the command.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from boards.files import is_whole, seal
from toolkit.errors import BoardUnreachable

EMULATION_VERSION = 2  # of the folders below: a change of contents takes a new number
DEFAULT_CACHE_DIR = Path("~/.cache/tune-for-board/emulation").expanduser()

_QEMU = "qemu-aarch64-static"
_SUITE = "bookworm"
_MIRROR = "http://deb.debian.org/debian"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_PYTHON = "usr/bin/python3.11"
_PYTHON_PACKAGES = (
    "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "libc6", "libgcc-s1", "libexpat1",
    "zlib1g", "libssl3", "libffi8", "liblzma5", "libbz2-1.0", "libcrypt1", "libuuid1",
)  # fmt: skip
# what the device runtime uses; importing it once also leaves compiled files, which halves the emulated start
_TRIAL_IMPORTS = (
    "import ctypes, fcntl, hashlib, hmac, json, mmap, platform, resource, select, selectors, signal, socket, "
    "ssl, struct, subprocess, tempfile, threading, zipfile, zlib; print(platform.machine())"
)

Progress = Callable[[str], None]


class EmulationPaths(msgspec.Struct, frozen=True):
    """Fills the placeholders {qemu}, {sysroot} and {python} of an emulator's `Link.command`."""

    qemu: Path
    sysroot: Path
    python: Path

    def command(self, template: Sequence[str]) -> tuple[str, ...]:
        """The argument list with every placeholder filled in."""
        places = {"qemu": str(self.qemu), "sysroot": str(self.sysroot), "python": str(self.python)}
        return tuple(argument.format_map(places) for argument in template)


def find(cache_dir: Path = DEFAULT_CACHE_DIR) -> EmulationPaths | None:
    """Where qemu and the aarch64 Python are; None when one is missing. A qemu of the system comes first."""
    qemu, sysroot = _find_qemu(cache_dir), _sysroot_dir(cache_dir)
    if qemu is None or not is_whole(sysroot):
        return None
    return EmulationPaths(qemu=qemu, sysroot=sysroot, python=sysroot / _PYTHON)


def required(*cache_dirs: Path) -> EmulationPaths:
    """What `find` finds in the first of these folders, or where it looks by itself.

    Raises BoardUnreachable where that is nothing.
    """
    for cache_dir in (*cache_dirs, DEFAULT_CACHE_DIR):
        if (found := find(cache_dir)) is not None:
            return found
    raise BoardUnreachable(
        "The emulation is not installed: expected qemu-aarch64-static and an aarch64 Python. "
        "Run `make emulation`."
    )


def fetch_emulation(
    cache_dir: Path | str = DEFAULT_CACHE_DIR,
    progress: Progress = lambda line: None,
    *,
    mirror: str = _MIRROR,
) -> EmulationPaths:
    """What `find` finds, after getting whatever is missing below `cache_dir` (about 80 MB on disk).

    `progress` is called with one line per step. Of several processes one fetches, the others wait for it.
    Raises BoardUnreachable with the remedy.
    """
    cache_dir = Path(cache_dir)
    if found := find(cache_dir):
        return found
    with _one_at_a_time(cache_dir):
        qemu = _find_qemu(cache_dir)
        if qemu is None:
            progress(f"fetching {_QEMU} (Debian package qemu-user-static)")
            _build(
                _qemu_dir(cache_dir),
                mirror,
                "",
                ("qemu-user-static",),
                lambda folder: _try_qemu(folder / "usr/bin" / _QEMU),
            )
            qemu = _qemu_dir(cache_dir) / "usr/bin" / _QEMU
        sysroot = _sysroot_dir(cache_dir)
        if not is_whole(sysroot):
            progress("fetching an aarch64 Python (13 Debian packages for arm64)")
            _build(sysroot, mirror, "arm64", _PYTHON_PACKAGES, lambda folder: _try_python(qemu, folder))
    return EmulationPaths(qemu=qemu, sysroot=sysroot, python=sysroot / _PYTHON)


def _qemu_dir(cache_dir: Path) -> Path:
    return cache_dir / f"qemu-{EMULATION_VERSION}"


def _sysroot_dir(cache_dir: Path) -> Path:
    return cache_dir / f"aarch64-{_SUITE}-{EMULATION_VERSION}"


def _find_qemu(cache_dir: Path) -> Path | None:
    system = shutil.which(_QEMU)
    if system is not None:
        return Path(system)
    cached = _qemu_dir(cache_dir) / "usr/bin" / _QEMU
    return cached if is_whole(_qemu_dir(cache_dir)) else None


@contextmanager
def _one_at_a_time(cache_dir: Path) -> Iterator[None]:
    """Holds the cache's lock; the lock goes when this process ends, however it ends."""
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        lock = os.open(cache_dir / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise BoardUnreachable(
            f"The emulation cannot be fetched into {cache_dir}: expected a folder that can be written, "
            f"found: {error.strerror}. Make it writable, or name another folder."
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _build(
    destination: Path, mirror: str, architecture: str, packages: Sequence[str], trial: Callable[[Path], None]
) -> None:
    """Unpack the packages of an architecture ("": this machine's) at `destination`, whole or not at all."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise BoardUnreachable(
                f"The emulation needs Debian's {', '.join(packages)}: expected {tool} here, found none. "
                f"Fetch on a Debian or Ubuntu machine and copy {destination} here."
            )
    with tempfile.TemporaryDirectory(prefix=".building-", dir=destination.parent) as scratch:
        archives, unpacked = Path(scratch, "archives"), Path(scratch, "unpacked")
        archives.mkdir()
        apt = _apt_command(Path(scratch), mirror, architecture)
        _run([*apt, "update"], archives, f"Debian's package lists could not be fetched from {mirror}")
        _run([*apt, "download", *packages], archives, f"Debian's packages could not be fetched from {mirror}")
        for archive in sorted(archives.glob("*.deb")):
            _run(
                ["dpkg-deb", "-x", str(archive), str(unpacked)],
                archives,
                f"{archive.name} could not be unpacked",
            )
        trial(unpacked)
        seal(unpacked)
        unpacked.chmod(0o755)
        if destination.exists():
            destination.rename(Path(scratch, "damaged"))
        unpacked.rename(destination)


def _apt_command(scratch: Path, mirror: str, architecture: str) -> list[str]:
    """apt-get with lists, cache and sources below `scratch`; the system's other settings (a proxy) stay."""
    state, sources = scratch / "state", scratch / "sources.list"
    (state / "lists/partial").mkdir(parents=True)
    (scratch / "cache/archives/partial").mkdir(parents=True)
    (state / "status").touch()
    signed = f"[signed-by={_KEYRING}] " if _KEYRING.exists() else ""
    sources.write_text(f"deb {signed}{mirror} {_SUITE} main\n")
    options = {
        "Dir::State": state, "Dir::State::Lists": state / "lists", "Dir::State::status": state / "status",
        "Dir::Cache": scratch / "cache",
        "Dir::Etc::SourceList": sources, "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Etc::Preferences": "/dev/null", "Dir::Etc::PreferencesParts": "/dev/null",
        "Acquire::Languages": "none", "Acquire::Retries": 3, "Acquire::http::Timeout": 30,
        "APT::Sandbox::User": "", "APT::Update::Error-Mode": "any",
    }  # fmt: skip
    if architecture:
        options |= {"APT::Architecture": architecture, "APT::Architectures::": architecture}
    return ["apt-get", "-qq", *(f"-o{key}={value}" for key, value in options.items())]


def _try_qemu(qemu: Path) -> None:
    _run([str(qemu), "--version"], qemu.parent, f"the fetched {_QEMU} does not run on this machine")


def _try_python(qemu: Path, sysroot: Path) -> None:
    command = [str(qemu), "-L", str(sysroot), str(sysroot / _PYTHON), "-I", "-c", _TRIAL_IMPORTS]
    machine = _run(command, sysroot, "the fetched aarch64 Python does not run under qemu").strip()
    if machine != "aarch64":
        raise BoardUnreachable(
            f"The emulated Python calls its machine {machine!r}: expected 'aarch64'. Check {qemu}."
        )


def _run(command: Sequence[str], folder: Path, failure: str) -> str:
    """The command's output; BoardUnreachable with `failure` and the command's last lines when it fails."""
    # a fixed locale keeps the quoted lines the same everywhere; PYTHON... variables are the host's affair
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")} | {
        "LC_ALL": "C"
    }
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=900,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BoardUnreachable(
            f"The emulation is not usable: {failure}: {error}. Run `make emulation` again."
        ) from error
    if done.returncode != 0:
        last = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise BoardUnreachable(
            f"The emulation is not usable: {failure}: {command[0]} ended with {done.returncode}:\n{last}\n"
            "Check the network and the free space, then run `make emulation` again."
        )
    return done.stdout
