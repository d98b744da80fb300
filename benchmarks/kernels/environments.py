"""The libraries' own virtual environments, made with pip. PyTorch stands alone: its wheels pin much."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ENVIRONMENTS = {
    "torch": ("torch==2.13.0", "numpy"),
    "rt": ("onnxruntime", "openvino", "ai-edge-litert", "flatbuffers", "onnx", "numpy"),
}


def make_environments(folder: Path) -> None:
    """Create what is missing below `folder`; an environment that is there is left as it is.

    Raises:
        subprocess.CalledProcessError: pip could not install something; it has said what.
    """
    for name, packages in ENVIRONMENTS.items():
        place = folder / name
        finished = place / ".finished"
        if finished.exists():
            print(f"{place} is there already", file=sys.stderr)
            continue
        print(f"installing {', '.join(packages)} into {place} ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        pip = [str(place / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, *packages], check=True)
        finished.touch()
