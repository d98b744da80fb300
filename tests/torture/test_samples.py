"""A sample of every attack, with the other tests; `make torture` carries them out in full."""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.torture.attack import Run, attacks, carry_out
from toolkit.measure import emulation

POCL_OPTIMIZES = True
ATTACKS = attacks()
SECURITY = Path(__file__).parents[2] / "docs" / "security.md"


def _missing(needs: str) -> bool:
    if needs == "pocl":
        return importlib.util.find_spec("pocl_binary_distribution") is None
    if needs == "mount":
        return not _may_mount()
    return needs == "emulation" and emulation.find() is None


@functools.cache
def _may_mount() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        for command in (["mount", "-t", "tmpfs", "tmpfs", folder], ["umount", folder]):
            if (
                shutil.which("mount") is None
                or subprocess.run(command, capture_output=True, check=False).returncode
            ):
                return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_a_sample_of_the_attack_is_withstood(name: str, tmp_path: Path) -> None:
    attack = ATTACKS[name]
    if _missing(attack.needs):
        pytest.skip(f"needs {attack.needs}")
    run = carry_out(attack, attack.sample, 0, tmp_path, lambda run: None)
    assert run.failed == 0, "\n".join(run.texts)
    assert run.count >= attack.sample


def test_the_documentation_has_a_row_for_every_attack() -> None:
    table = SECURITY.read_text().split("<!-- torture -->")[1].split("<!-- /torture -->")[0]
    named = re.findall(r"`([a-z-]+)`", table)
    assert sorted(named) == sorted(ATTACKS)


def test_a_run_counts_what_passed_and_what_failed(tmp_path: Path) -> None:
    heard = []
    run = Run(3, None, tmp_path, lambda run: heard.append((run.count, run.failed)))  # type: ignore[arg-type]
    for number in run:
        run.check(number != 1, f"case {number}")
    assert (run.count, run.failed, run.texts) == (3, 1, ["case 1"])
    assert heard == [(1, 0), (2, 1), (3, 1)]
