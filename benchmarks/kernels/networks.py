"""Whole networks: tuned and bundled by the tool itself, and the files that every library's process reads.

Tuning resumes from the records. The bundle is made anew each time, so that it holds what the code makes now.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from benchmarks.harness.place import HOST, WAIT_S, board_with
from benchmarks.kernels.inference import SUITE, Network
from benchmarks.kernels.tune import Effort
from benchmarks.networks import write
from toolkit.bundle.manifest import CpuVariant
from toolkit.bundle.verify import VerifiedBundle, open_bundle, trusted_keys
from toolkit.model_job.job import tune
from toolkit.model_job.options import TuneOptions, TuneReport
from toolkit.report.tune_display import TuneDisplay
from toolkit.tuning.operator_search import TuningOptions

NAMES = (
    *(
        "resnet18",
        "resnet50",
        "mobilenet_v1",
        "mobilenet_v2",
        "mobilenet_v3",
        "efficientnet_b0",
        "squeezenet",
    ),
    *("yolo", "dcgan", "bert", "vit_tiny", "r2plus1d_18", "lstm_lm", "gru_spotter", "transformer"),
)
FOLDER = Path("build/bench/networks")
MODEL_SEED = 0


def chosen_networks(names: Sequence[str]) -> list[str]:
    """Networks of these names, or all of them for their suite's name.

    Raises:
        ValueError: a name is no network's.
    """
    unknown = [name for name in names if name not in (*NAMES, SUITE)]
    if unknown:
        raise ValueError(f"unknown networks {', '.join(unknown)}: expected names of {', '.join(NAMES)}")
    return [name for name in NAMES if not names or name in names or SUITE in names]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a network's files go, its size (None: as benchmarks/networks has it), and what it is made for."""

    folder: Path = FOLDER
    size: int | None = None
    board: str = HOST  # or a level of it


def tuned_network(name: str, threads: int, records: Path, effort: Effort, place: Place = Place()) -> Network:
    """Tune and bundle a network for so many cores of this machine; `effort` is for each distinct operator.

    Shown on standard error. Raises what toolkit.tune raises; what was measured is kept.
    """
    model = write(name, place.folder.absolute() / f"{name}.onnx", MODEL_SEED, place.size)
    return tuned_model(model, threads, records, effort, place)


def tuned_model(model: Path, threads: int, records: Path, effort: Effort, place: Place) -> Network:
    """`tuned_network` of a file that is there."""
    folder, name = place.folder.absolute(), model.stem
    stem = folder / f"{name}-{threads}{place.board.removeprefix(HOST).replace(':', '-')}"
    options = TuneOptions(
        trials=effort.trials,
        tuning=TuningOptions(seed=effort.seed),
        records=records,
        output=folder / f"{stem.name}.tfb",
    )
    report, bundle = bundled(model, threads, options, place)
    return _files(name, model, report, bundle, stem)


def bundled(
    model: Path, threads: int, options: TuneOptions, place: Place
) -> tuple[TuneReport, VerifiedBundle]:
    """What a job makes of a model for so many cores of this machine, with keys of its own in the place's
    folder. Shown on standard error.

    Raises what toolkit.tune raises; what was measured is kept.
    """
    board, target = board_with(threads, place.board)
    config = place.folder.absolute() / "config"
    options = replace(options, workers=os.cpu_count() or 1, wait_s=WAIT_S, config_dir=config)
    with TuneDisplay() as display:
        report = tune(model, replace(board, targets=(target,)), options, display)
    return report, open_bundle(report.bundle, trusted_keys(config))


def _files(name: str, model: Path, report: TuneReport, bundle: VerifiedBundle, stem: Path) -> Network:
    """The bundle's library and its golden data as files of their own."""
    golden = bundle.manifest.golden
    (variant,) = bundle.manifest.variants
    assert isinstance(variant, CpuVariant)
    specs = [*bundle.manifest.inputs, *bundle.manifest.outputs]
    arrays = [
        np.frombuffer(bundle.read_part(part), spec.dtype).reshape(spec.shape)
        for part, spec in zip([*golden.inputs, *golden.outputs], specs, strict=True)
    ]
    data, library = stem.with_suffix(".npz"), stem.with_suffix(".so")
    np.savez(data, input=arrays[0], output=arrays[1])
    library.write_bytes(bundle.read_part(variant.library))
    shape = "x".join(str(extent) for extent in arrays[0].shape)
    return Network(
        name=name,
        model=str(model),
        data=str(data),
        library=str(library),
        text=f"{name} {shape}",
        flops=sum(item.count * item.flops for item in report.operators),
        bytes_once=sum(array.nbytes for array in arrays) + variant.parameters_bytes,
    )
