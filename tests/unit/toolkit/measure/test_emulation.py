"""Fetching the emulation: whole or not at all, as any user, with a remedy in every refusal.

apt-get, dpkg-deb and qemu are stand-ins here: small scripts on a PATH of their own. Tests marked `emulated`
use the real ones.
"""

from __future__ import annotations

import subprocess
import threading
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

import toolkit
from boards.board import load
from toolkit.cli.main import main
from toolkit.errors import BoardUnreachable
from toolkit.measure import emulation

DOWNLOADS = """#!/bin/sh
case "$*" in
    *update) echo update >> "$LOG" ;;
    *) echo download >> "$LOG"; : > one.deb; : > two.deb ;;
esac
"""
UNPACKS = """#!/bin/sh
/bin/mkdir -p "$3/usr/bin"
: > "$3/usr/bin/python3.11"
/bin/cp "$QEMU" "$3/usr/bin/qemu-aarch64-static"
"""
RUNS = "#!/bin/sh\necho aarch64\n"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with an apt-get and a dpkg-deb that work; it has no qemu. Calls of apt-get are in tools/log."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name, text in (("apt-get", DOWNLOADS), ("dpkg-deb", UNPACKS), ("fetched-qemu", RUNS)):
        write_script(folder / name, text)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("LOG", str(folder / "log"))
    monkeypatch.setenv("QEMU", str(folder / "fetched-qemu"))
    return folder


def write_script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_nothing_is_found_where_nothing_was_fetched(tools: Path, tmp_path: Path) -> None:
    assert emulation.find(tmp_path / "cache") is None


def test_both_parts_are_fetched_once(tools: Path, tmp_path: Path) -> None:
    cache, lines = tmp_path / "cache", list[str]()
    paths = emulation.fetch_emulation(cache, lines.append)
    assert emulation.find(cache) == paths == emulation.fetch_emulation(cache, lines.append)
    assert paths.qemu.exists() and paths.python.exists()
    assert [line.split(" ")[1] for line in lines] == ["qemu-aarch64-static", "an"]
    assert (tools / "log").read_text().split() == ["update", "download"] * 2
    assert sorted(path.name for path in cache.iterdir()) == [".lock", "aarch64-bookworm-2", "qemu-2"]


@pytest.mark.parametrize(
    "name", ["aarch64-bookworm-2/usr/bin/python3.11", "qemu-2/usr/bin/qemu-aarch64-static"]
)
def test_a_damaged_part_is_fetched_again(tools: Path, tmp_path: Path, name: str) -> None:
    cache = tmp_path / "cache"
    paths = emulation.fetch_emulation(cache)
    (cache / name).write_bytes(b"damaged")
    assert emulation.find(cache) is None
    assert emulation.fetch_emulation(cache) == emulation.find(cache) == paths
    assert (tools / "log").read_text().count("download") == 3


def test_the_systems_qemu_comes_first(tools: Path, tmp_path: Path) -> None:
    write_script(tools / "qemu-aarch64-static", RUNS)
    assert emulation.fetch_emulation(tmp_path / "cache").qemu == tools / "qemu-aarch64-static"


def test_of_two_at_once_one_fetches(tools: Path, tmp_path: Path) -> None:
    threads = [
        threading.Thread(target=emulation.fetch_emulation, args=(tmp_path / "cache",)) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tools / "log").read_text().count("download") == 2


@pytest.mark.parametrize(
    ("tool", "script", "words"),
    [
        (
            "apt-get",
            "#!/bin/sh\necho 'E: no network' >&2\nexit 100\n",
            "package lists could not be fetched .*\nE: no net",
        ),
        ("dpkg-deb", "#!/bin/sh\nexit 2\n", "one.deb could not be unpacked"),
        ("fetched-qemu", "#!/bin/sh\nexit 1\n", "qemu-aarch64-static does not run on this machine"),
        ("fetched-qemu", "#!/bin/sh\necho x86_64\n", "calls its machine 'x86_64': expected 'aarch64'"),
    ],
)
def test_a_failed_step_leaves_nothing_and_says_what_to_do(
    tools: Path, tmp_path: Path, tool: str, script: str, words: str
) -> None:
    write_script(tools / tool, script)
    with pytest.raises(BoardUnreachable, match=words) as caught:
        emulation.fetch_emulation(tmp_path / "cache")
    assert "gain" in str(caught.value) or "Check" in str(caught.value)
    assert emulation.find(tmp_path / "cache") is None
    assert not list((tmp_path / "cache").glob(".building-*"))


def test_without_apt_it_says_where_to_fetch(tools: Path, tmp_path: Path) -> None:
    (tools / "apt-get").unlink()
    with pytest.raises(BoardUnreachable, match="expected apt-get here, found none. Fetch on a Debian"):
        emulation.fetch_emulation(tmp_path / "cache")


def test_a_cache_that_cannot_be_written_is_refused(tools: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BoardUnreachable, match="expected a folder that can be written"):
        emulation.fetch_emulation(tmp_path / "file" / "cache")


def test_the_command_prints_the_paths_and_returns_the_exit_code(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = emulation.fetch_emulation
    monkeypatch.setattr(toolkit, "fetch_emulation", partial(fetch, tmp_path / "cache"), raising=False)
    done = CliRunner().invoke(main, ["runtime", "emulation"])
    assert done.exit_code == 0 and "aarch64-bookworm-2" in done.stdout
    (tools / "apt-get").unlink()
    monkeypatch.setattr(toolkit, "fetch_emulation", partial(fetch, tmp_path / "other"))
    done = CliRunner().invoke(main, ["runtime", "emulation"])
    assert done.exit_code == 3 and "Traceback" not in done.output


def test_every_placeholder_of_the_board_is_filled_in(tmp_path: Path) -> None:
    paths = emulation.EmulationPaths(tmp_path / "qemu", tmp_path / "root", tmp_path / "root/python")
    command = paths.command(load("emulated-a53").link.command)
    assert command[0] == str(tmp_path / "qemu")
    assert str(tmp_path / "root/python") in command
    assert not any("{" in argument for argument in command)


@pytest.mark.emulated
def test_the_real_emulation_runs_what_the_runtime_needs() -> None:
    paths = emulation.fetch_emulation()
    command = [*paths.command(load("emulated-a53").link.command), "-c"]
    program = (
        "import ctypes, hashlib, hmac, json, mmap, os, platform, resource, sys\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(7)\n"
        "pointer = ctypes.sizeof(ctypes.c_void_p)\n"
        "print(platform.machine(), os.waitpid(child, 0)[1] >> 8, sys.flags.isolated, pointer)"
    )
    done = subprocess.run([*command, program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["aarch64", "7", "1", "8"]


@pytest.mark.emulated
@pytest.mark.slow
def test_the_real_python_is_fetched_into_an_empty_cache(tmp_path: Path) -> None:
    paths = emulation.fetch_emulation(tmp_path)
    assert paths.sysroot.parent == tmp_path
    command = paths.command(
        ["{qemu}", "-L", "{sysroot}", "{python}", "-I", "-c", "import ctypes, ssl; print(1)"]
    )
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "1\n"
