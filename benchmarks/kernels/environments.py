"""The libraries' own virtual environments, made with pip. PyTorch stands alone: its wheels pin much;
ncnn's converter wants it beside itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ENVIRONMENTS = {
    "torch": ("torch==2.13.0", "numpy", "onnx", "ncnn", "pnnx"),
    "rt": ("onnxruntime", "openvino", "ai-edge-litert", "flatbuffers", "onnx", "numpy"),
}

_ASK = "import importlib.metadata as m, sys; [m.distribution(name) for name in sys.argv[1:]]"


def make_environments(folder: Path) -> None:
    """Create what is missing below `folder`; an environment that has all its packages is left as it is.

    Raises:
        subprocess.CalledProcessError: pip could not install something; it has said what.
    """
    for name, packages in ENVIRONMENTS.items():
        place = folder / name
        python = place / "bin" / "python"
        if has_packages(python, packages):
            print(f"{place} is there already", file=sys.stderr)
            continue
        print(f"installing {', '.join(packages)} into {place} ...", file=sys.stderr)
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", place], check=True)
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, *packages], check=True)


def has_packages(python: Path, packages: Sequence[str]) -> bool:
    """Whether an environment's Python runs and finds every package, whatever its version."""
    names = [package.partition("==")[0] for package in packages]
    try:
        asked = subprocess.run([python, "-c", _ASK, *names], capture_output=True, check=False)
    except OSError:
        return False
    return asked.returncode == 0
