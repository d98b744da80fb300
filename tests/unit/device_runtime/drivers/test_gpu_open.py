"""In which child processes GPU drivers run, and what the server loads for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from device_runtime.drivers.gpu_open import run_with_driver
from device_runtime.sandbox.confinement import has_namespaces
from device_runtime.sandbox.isolation import Limits

LIMITS = Limits(10.0, 256 << 20)
IMPORTS = """
import os
from device_runtime.drivers.gpu_open import _imported
_imported(("numpy", "there_is_no_such_module"))
import numpy
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.parametrize(("kind", "apart"), [("opencl", True), ("cuda", False)])
def test_namespaces_where_the_driver_works_in_them(kind: str, apart: bool, tmp_path: Path) -> None:
    """NVIDIA's driver does not initialize where its process has another number in /proc."""
    own = os.readlink("/proc/self/ns/pid")
    outcome = run_with_driver(
        kind, lambda: {"namespace": os.readlink("/proc/thread-self/ns/pid")}, LIMITS, [str(tmp_path)]
    )
    assert outcome.answer is not None, outcome.failure
    assert (outcome.answer["namespace"] != own) == (apart and has_namespaces())


def test_what_is_imported_before_a_fork_starts_no_thread() -> None:
    environment = {name: value for name, value in os.environ.items() if "THREADS" not in name}
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "1\n"
