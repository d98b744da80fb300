"""What the import of a large model costs: python -m benchmarks.import_cost [MODEL.onnx ...]

Without models: VGG-19 (575 MB of seeded weights) and Swin-S (1,465 nodes). Each is imported in a process of
its own. Goals: the first in 5 s and 2.5 times its size in memory, 3,000 nodes in 3 s.
"""

from __future__ import annotations

import argparse
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import networks, seeded_model
from benchmarks.harness.text import aligned
from toolkit.model.load import load_model

FOLDER = Path("build/bench/import")
ALONE = "--alone"


def cost(model: Path) -> list[str]:
    """Of the import in this process: a row of the table."""
    started_s, began = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    graph = load_model(model)
    ended = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime
    # ru_maxrss is no smaller than that of the process that started this one
    (peak_kb,) = re.findall(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return [
        model.stem,
        str(len(graph.nodes)),
        f"{model.stat().st_size / 1e6:.0f}",
        f"{time.monotonic() - started_s:.2f}",
        f"{cpu_s:.2f}",
        f"{int(peak_kb) * 1024 / 1e6:.0f}",
    ]


def default_models() -> list[Path]:
    """The two models, written where they are not there yet."""
    vgg, swin = FOLDER / "light_vgg19.onnx", FOLDER / "swin.onnx"
    return [
        vgg if vgg.exists() else seeded_model.write(vgg.stem, vgg, 0),
        swin if swin.exists() else networks.write(swin.stem, swin, 0),
    ]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path, help="ONNX files (default: VGG-19 and Swin-S)")
    parser.add_argument(ALONE, action="store_true", help="import the models in this process")
    asked = parser.parse_args()
    if asked.alone:
        print("\n".join("\t".join(cost(model)) for model in asked.models))
        return
    rows = [["model", "nodes", "MB", "seconds", "of the CPU", "peak MB"]]
    for model in asked.models or default_models():
        command = [sys.executable, "-m", "benchmarks.import_cost", ALONE, str(model)]
        found = subprocess.run(command, check=True, capture_output=True, text=True)
        rows.append(found.stdout.strip().split("\t"))
    print("\n".join(aligned(rows)))


if __name__ == "__main__":
    main()
