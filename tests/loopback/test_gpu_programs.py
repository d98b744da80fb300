"""GPU variants of a bundle in C, C++ and Python: with PoCL, and with a stand-in for NVIDIA's driver."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boards.board import load
from boards.target import Target
from cross.codegen.c import gpu_code
from tests.bundles import SmallModel, host_target, small_model
from tests.compilers import host_compiler
from tests.cuda_on_cpu import driver_library
from tests.fuzz.pocl import Pocl
from tests.gpu_bundles import opencl_plan, opencl_target
from tests.loopback.test_control_gpu import LAYERS, check, models
from tests.model_libraries import kernels
from tests.onnx_models import Array, save
from toolkit.bundle.assemble import assemble
from toolkit.bundle.build import build
from toolkit.bundle.gpu_model import gpu_model
from toolkit.bundle.model_plan import ModelPlan
from toolkit.model.load import load_model

pytestmark = pytest.mark.slow

APPLICATION = Path(__file__).parents[1] / "unit/toolkit/bundle/application.c"
MODELS = ["while", "nested-then", str(LAYERS[0]), str(LAYERS[-1])]
KNOWS_THE_CPU = """
import os, sys, pyopencl
from device_runtime.drivers.pocl import PLATFORM, name_cpu
devices = [one for item in pyopencl.get_platforms() for one in item.get_devices() if PLATFORM in item.name]
sys.exit(3 if not devices else 4 if name_cpu(devices[0].int_ptr) else 0)
"""
CALL = """
import sys
import numpy as np
from tfb_model import model
given = np.load("given.npz")
found = [model(*(np.ascontiguousarray(given[spec.name]) for spec in model.inputs)) for _ in range(2)]
found = [item if isinstance(item, tuple) else (item,) for item in found]
assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(*found)), "another result the second time"
hidden = {spec.count_output for spec in model.outputs}
names = [spec.name for number, spec in enumerate(model.outputs) if number not in hidden]
np.savez("found.npz", **dict(zip(names, found[0])))
"""


@pytest.fixture(scope="module")
def opencl(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which programs find PoCL as an installed driver; skipped where it cannot compile.

    PoCL 3 does not know every CPU: the device runtime names it one (device_runtime/drivers/pocl.py), which
    a program cannot do.
    """
    asked = subprocess.run([sys.executable, "-c", KNOWS_THE_CPU], capture_output=True, text=True)
    if asked.returncode != 0:
        pytest.skip(f"no PoCL that knows this CPU ({asked.returncode}): {asked.stderr[-200:]}")
    spec = importlib.util.find_spec("pyopencl")
    assert spec is not None and spec.origin is not None
    home, folder = Path(spec.origin).parent, tmp_path_factory.mktemp("opencl")
    found = [*home.glob(".libs/libOpenCL*"), *home.parent.glob("pyopencl.libs/libOpenCL*")]
    if not found:
        pytest.skip("pyopencl has no OpenCL loader of its own")
    (folder / "libOpenCL.so.1").symlink_to(found[0])
    paths = f"{folder}:{found[0].parent}"
    return {**os.environ, "PYOPENCL_HOME": str(home), "LD_LIBRARY_PATH": paths, "POCL_CACHE_DIR": str(folder)}


def installed(plan: ModelPlan, target: Target, folder: Path) -> Path:
    """The files of the variant, as in a slot."""
    for path, content in build(plan, target, host_target()).parts.items():
        (folder / Path(path).name).write_bytes(content)
    return folder


def called(folder: Path, inputs: Mapping[str, Array], environment: Mapping[str, str]) -> dict[str, Array]:
    """The outputs of the installed model, run twice by tfb_model.py, which uses the C interface."""
    np.savez(folder / "given.npz", **inputs)
    command = [sys.executable, "-c", CALL]
    done = subprocess.run(command, cwd=folder, env=dict(environment), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(np.load(folder / "found.npz"))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SmallModel]:
    """The small model for OpenCL."""
    return installed(opencl_plan(), opencl_target(), tmp_path_factory.mktemp("model")), small_model()


def application(folder: Path, language: str) -> Path:
    """The example application, compiled with the model's header and linked with its library."""
    compiler, made = host_compiler(), folder / f"application-{language}"
    options = ["-x", language, "-Wall", "-Wextra", "-Werror", "-pedantic", "-I", folder, "-c", APPLICATION]
    subprocess.run([*compiler, *options, "-o", f"{made}.o"], check=True)
    linked = [f"{made}.o", folder / "model.so", f"-Wl,-rpath,{folder}", "-o", made]
    subprocess.run([*compiler, *linked], check=True)
    return made


@pytest.mark.parametrize("language", ["c", "c++"])
def test_an_application_runs_on_opencl(
    program: tuple[Path, SmallModel], opencl: dict[str, str], language: str
) -> None:
    folder, model = program
    made = application(folder, language)
    for shift in ("0", "1"):
        done = subprocess.run([made, shift], input=model.x.tobytes(), env=opencl, capture_output=True)
        assert done.returncode == 0, done.stderr
        y = np.frombuffer(done.stdout, np.float32).reshape(model.y.shape)
        np.testing.assert_allclose(y, model.y, rtol=1e-5, atol=1e-6)


FAILS = """
import ctypes, sys
library = ctypes.CDLL("./model.so")
library.tfb_model_error_text.restype = ctypes.c_char_p
status = library.tfb_model_create(ctypes.byref(ctypes.c_void_p()))
print(status, library.tfb_model_error_text(status).decode())
"""


def failure(folder: Path, environment: Mapping[str, str]) -> str:
    command = [sys.executable, "-c", FAILS]
    return subprocess.run(
        command, cwd=folder, env=dict(environment), capture_output=True, text=True, check=True
    ).stdout


def test_what_is_missing_is_said(opencl: dict[str, str], tmp_path: Path) -> None:
    folder = installed(opencl_plan(), opencl_target(), tmp_path)
    no_device = {**opencl, "PYOPENCL_HOME": "", "OCL_ICD_VENDORS": "/nonexistent"}
    assert failure(folder, no_device).startswith("-4 no OpenCL device is what the model needs, there is: ")
    (folder / "model.gpu").write_bytes((folder / "model.gpu").read_bytes().replace(b"x[i]", b"x[0]"))
    assert failure(folder, opencl).startswith("-4 the model's file, which this library was made with, cannot")
    refused = installed(opencl_plan(scale="refused"), opencl_target(), tmp_path)
    assert failure(refused, opencl).startswith("-4 building a kernel: ")
    large = installed(opencl_plan(threads=16384), opencl_target(), tmp_path)
    assert "Portable Computing Language: pthread" in failure(large, opencl)


@pytest.mark.parametrize("name", MODELS)
def test_loops_and_choices_on_opencl(name: str, pocl: Pocl, opencl: dict[str, str], tmp_path: Path) -> None:
    proto, inputs = models()[name]
    target = pocl.narrowed(load("pocl").target("opencl"))
    graph = load_model(save(tmp_path, proto))
    plan = assemble(graph, kernels(graph, target=target), target)
    folder = installed(plan, target, tmp_path)
    for given in inputs:
        check(graph, called(folder, given, opencl), proto, given)


@pytest.mark.parametrize("name", MODELS)
def test_loops_and_choices_on_cuda(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on a board, but for NVIDIA's driver and what its compiler makes: kernels are C on the CPU."""
    monkeypatch.setattr(gpu_code, "compiled", lambda program, target: program.source.encode())
    proto, inputs = models()[name]
    target = load("jetson-nano").target("gpu")
    graph = load_model(save(tmp_path, proto))
    plan = assemble(graph, kernels(graph, target=target), target)
    folder = installed(plan, target, tmp_path)
    environment: dict[str, Any] = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    driver_library(gpu_model(plan), "sm_53", tmp_path)
    for given in inputs:
        check(graph, called(folder, given, environment), proto, given)
    driver_library(gpu_model(plan), "sm_62", tmp_path)
    assert "for another compute capability than the device has: stand-in (62)" in failure(folder, environment)
    (tmp_path / "libcuda.so.1").write_bytes(b"")
    assert failure(folder, environment) == "-4 loading the driver: libcuda.so.1 (0)\n"
