"""Kernels on PoCL, compiled and run in a child process: its compiler may abort, and with it the process."""

from __future__ import annotations

import dataclasses
import functools
import mmap
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from boards.target import POCL, Target
from cross.loopnest import LoopNest, to_text
from device_runtime.drivers.device import SMALLEST_BUFFER_BYTES, Device, launch_arguments
from device_runtime.drivers.gpu_open import Folders, run_with_driver
from device_runtime.drivers.opencl_driver import open_opencl
from device_runtime.measure.board_facts import probe
from device_runtime.protocol import GpuKernel, GpuModule, MeasureFailure
from device_runtime.sandbox.guarded_memory import Region
from device_runtime.sandbox.isolation import Limits
from tests.model_libraries import run_on_device
from toolkit.bundle.model_plan import ModelPlan

Array = NDArray[Any]
DEFINED = re.compile(r"^(?:static inline|__constant) [\w ]+ (\w+)[(\[]", re.M)  # helpers and tables
LIMITS = Limits(300.0, 2 << 30)


@dataclass(frozen=True)
class PoclJob:
    """A kernel of a nest, its inputs, and what the elements of its output hold before it runs."""

    kernel: GpuKernel
    nest: LoopNest
    inputs: Sequence[Array]
    unwritten: float = np.nan


@dataclass(frozen=True)
class Pocl:
    """PoCL on this machine, whose compiler compiles vectors of so many lanes."""

    folders: Folders
    lanes: int
    optimized: bool = False  # as the product builds; the compiler takes three times as long then

    def teach(self, device_dir: Path) -> None:
        """Let a new board with this device folder know the lanes: it compiles nothing to find them."""
        _teach(self.folders[0], device_dir)

    def narrowed(self, target: Target) -> Target:
        """The target with vectors that can be run here."""
        assert target.gpu is not None
        here: Target = replace(target, gpu=target.gpu.with_vectors_up_to(self.lanes))
        return here

    def open(self) -> Device:
        """The device, in a child process."""
        return open_opencl(POCL, *self.folders, threads=1)

    @property
    def kind(self) -> str:
        """Of the target. Several kernels of OpenCL C are built as one program."""
        return "opencl"

    def run(self, job: PoclJob) -> Array:
        """The output of one kernel."""
        return self.run_all([job])[0]

    def run_all(self, jobs: Sequence[PoclJob]) -> list[Array]:
        """The outputs of several kernels, all built as one program and run in one child."""
        outputs = [_output(job) for job in jobs]
        begun = mmap.mmap(-1, 8)
        kernels = [job.kernel for job in jobs]
        kernels = in_one_program(kernels) if self.kind == "opencl" else kernels
        merged = [dataclasses.replace(job, kernel=kernel) for job, kernel in zip(jobs, kernels, strict=True)]
        failure = self._filled(outputs, functools.partial(_run_all, merged, self, begun))
        at = int.from_bytes(begun[:8], "little")
        assert failure is None, f"{failure}\n{to_text(jobs[at].nest)}"
        return outputs

    def run_model(self, plan: ModelPlan, inputs: Sequence[dict[str, Array]]) -> list[dict[str, Array]]:
        """The outputs of a whole model for each of several inputs, run in one child."""
        outputs = [{spec.name: np.zeros(spec.shape, spec.dtype) for spec in plan.outputs} for _ in inputs]

        def run(shared: mmap.mmap) -> dict[str, Any]:
            device = self.open()
            merged = with_one_program(plan) if self.kind == "opencl" else plan
            for given in inputs:
                found = run_on_device(device, merged, given)
                shared.write(b"".join(found[spec.name].tobytes() for spec in plan.outputs))
            return {}

        failure = self._filled([array for found in outputs for array in found.values()], run)
        assert failure is None, failure
        return outputs

    def _filled(
        self, outputs: Sequence[Array], work: Callable[[mmap.mmap], dict[str, Any]]
    ) -> MeasureFailure | None:
        """Fills the outputs, in order, with what `work` writes in a child."""
        shared = mmap.mmap(-1, max(1, sum(output.nbytes for output in outputs)))
        outcome = run_with_driver(self.kind, functools.partial(work, shared), LIMITS, self.folders)
        for output in outputs if outcome.failure is None else ():
            output[...] = np.frombuffer(shared.read(output.nbytes), output.dtype).reshape(output.shape)
        return outcome.failure


@pytest.fixture(scope="module")
def pocl(tmp_path_factory: pytest.TempPathFactory) -> Pocl:
    """Skips the test where there is no PoCL."""
    folder = tmp_path_factory.getbasetemp() / "pocl"
    folder.mkdir(exist_ok=True)
    devices = _devices(str(folder))
    if not devices:
        pytest.skip("no PoCL here; pip install 'tune-for-board[pocl]'")
    return Pocl((str(folder), str(folder)), devices[0]["vector_lanes"])


@pytest.fixture(scope="module")
def teach(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], None]:
    """As `Pocl.teach`, for tests of more than OpenCL: without PoCL it teaches nothing."""
    folder = tmp_path_factory.getbasetemp() / "pocl"
    folder.mkdir(exist_ok=True)
    return functools.partial(_teach, str(folder)) if _devices(str(folder)) else lambda device_dir: None


def _teach(folder: str, device_dir: Path) -> None:
    shutil.copytree(Path(folder) / "opencl" / "binaries", device_dir / "opencl" / "binaries")


@functools.cache
def _devices(folder: str) -> list[dict[str, Any]]:
    """PoCL's devices, asked once in a process: the lanes that compile are found by compiling, optimized."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("POCL_EXTRA_BUILD_FLAGS", raising=False)
        return [device for device in probe(folder)["opencl"] if POCL in device["platform"]]


def in_one_program(kernels: Sequence[GpuKernel]) -> list[GpuKernel]:
    """The kernels with the sources of all as their code: PoCL takes longer to begin a program than to go on.

    Functions and tables get the number of their kernel behind their names.
    """
    sources, renamed = [], []
    for number, kernel in enumerate(kernels):
        assert isinstance(kernel.code, str)
        names = {*DEFINED.findall(kernel.code), *(launch.name for launch in kernel.launches)}
        own = re.compile(rf"\b({'|'.join(sorted(names))})\b")
        sources.append(own.sub(rf"\1_of_{number}", kernel.code))
        launches = tuple(
            dataclasses.replace(launch, name=f"{launch.name}_of_{number}") for launch in kernel.launches
        )
        renamed.append(dataclasses.replace(kernel, launches=launches))
    code = "\n".join(sources)
    return [dataclasses.replace(kernel, code=code) for kernel in renamed]


def with_one_program(plan: ModelPlan) -> ModelPlan:
    """The plan of an OpenCL model with all its kernels in one program."""
    modules = [GpuModule.from_bytes(item.code) for item in plan.kernels]
    kernels = in_one_program(
        [module.kernels[item.symbol] for module, item in zip(modules, plan.kernels, strict=True)]
    )
    codes = [
        dataclasses.replace(module, kernels={item.symbol: kernel}).to_bytes()
        for module, item, kernel in zip(modules, plan.kernels, kernels, strict=True)
    ]
    planned = (replace(item, code=code) for item, code in zip(plan.kernels, codes, strict=True))
    return replace(plan, kernels=tuple(planned))


def _output(job: PoclJob) -> Array:
    output = job.nest.arguments[-1]
    return np.full([extent.value for extent in output.shape], job.unwritten, output.dtype)  # type: ignore[union-attr]


def _run_all(jobs: Sequence[PoclJob], pocl: Pocl, begun: mmap.mmap, shared: mmap.mmap) -> dict[str, Any]:
    """In the child, whose environment nobody else sees."""
    if pocl.optimized:
        os.environ.pop("POCL_EXTRA_BUILD_FLAGS", None)
    device = pocl.open()
    for number, job in enumerate(jobs):
        begun[:8] = number.to_bytes(8, "little")
        arrays = [
            array if buffer.packing is None else buffer.packing.apply(array)
            for buffer, array in zip(job.nest.arguments[:-1], job.inputs, strict=True)
        ]
        handles = [device.upload(_region(array)) for array in arrays]
        got = _region(_output(job))
        handles.append(device.allocate(max(SMALLEST_BUFFER_BYTES, got.size_bytes)))
        device.write(handles[-1], got)
        workspace = device.allocate(max(SMALLEST_BUFFER_BYTES, job.kernel.workspace_bytes))
        device.prepare(job.kernel, launch_arguments(job.kernel, handles, workspace)).run()
        device.download(handles[-1], got)
        shared.write(got.memory[: got.size_bytes])
    return {}


def _region(array: Array) -> Region:
    region = Region(array.nbytes)
    region.memory[: array.nbytes] = np.ascontiguousarray(array).tobytes()
    return region
