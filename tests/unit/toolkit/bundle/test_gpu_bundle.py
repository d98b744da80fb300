"""Bundles with variants for GPUs: what is in them, and that they say so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from boards.board import load
from cross.nvrtc import usage
from device_runtime.protocol import GPU_ALIGNMENT, GpuModel
from tests.gpu_bundles import gpu_contents, opencl_plan
from tests.loopback.tune_board import write_network
from toolkit.bundle import pack, sign
from toolkit.bundle.build import build
from toolkit.bundle.gpu_model import gpu_model
from toolkit.bundle.manifest import CpuVariant, CudaVariant, OpenClVariant, parts_of
from toolkit.bundle.model_plan import BufferRef, ModelPlan, Step
from toolkit.bundle.verify import VerifiedBundle, open_bundle
from toolkit.errors import InputError, VerificationError
from toolkit.measure.builder import Builder
from toolkit.model.distinct import distinct_operators
from toolkit.model.load import load_model
from toolkit.model_job.confirm import Winner
from toolkit.model_job.kernels import TunedOperator, plan_model
from toolkit.model_job.latency import golden_data
from toolkit.tuning.on_board import open_task
from toolkit.tuning.progress import TuningResult
from toolkit.tuning.time_breakdown import TimeBreakdown


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> sign.SigningKey:
    return sign.open_key(tmp_path_factory.mktemp("config") / "signing_key")


def opened(contents: pack.BundleContents, key: sign.SigningKey, folder: Path) -> VerifiedBundle:
    path = folder / "gpu.tfb"
    path.write_bytes(pack.pack(contents, key))
    return open_bundle(path, [key.public])


def test_the_variants_come_in_the_order_of_the_plans(key: sign.SigningKey, tmp_path: Path) -> None:
    bundle = opened(gpu_contents(), key, tmp_path)
    said = bundle.manifest
    first, second = said.variants
    assert isinstance(first, OpenClVariant) and isinstance(second, CpuVariant)
    assert (first.target, first.kind, first.device) == ("opencl", "opencl", "Portable Computing Language")
    assert first.threads_per_block == 8
    assert said.compatibility.machines == (second.architecture,)
    assert {part.path for part in said.parts} > {*parts_of(first), *parts_of(second)}


def test_the_source_is_in_it_and_every_byte_is_signed(key: sign.SigningKey, tmp_path: Path) -> None:
    bundle = opened(gpu_contents(), key, tmp_path)
    model = GpuModel.from_bytes(bundle.read_part("opencl/model.gpu"))
    assert model == gpu_model(opencl_plan())
    code = model.module.kernels["k_dense"].code
    assert isinstance(code, str) and "__kernel void dense(" in code
    data = bytearray(bundle.path.read_bytes())
    data[data.index(b"__kernel void dense(")] ^= 1
    bundle.path.write_bytes(data)
    with pytest.raises(VerificationError, match="the part opencl/model.gpu is damaged"):
        open_bundle(bundle.path, [key.public])


def test_the_same_contents_give_the_same_bytes(key: sign.SigningKey) -> None:
    assert pack.pack(gpu_contents(), key) == pack.pack(gpu_contents(), key)


def test_without_cpu_code_it_is_for_every_machine(key: sign.SigningKey, tmp_path: Path) -> None:
    assert opened(gpu_contents(with_cpu=False), key, tmp_path).manifest.compatibility.machines == ()


def test_a_plan_whose_places_are_not_aligned_for_a_gpu_is_refused() -> None:
    plan = opencl_plan()
    steps = (plan.steps[0], Step("k_dense", (BufferRef("arena", 64), *plan.steps[1].buffers[1:])))
    with pytest.raises(InputError, match=f"arena offset 64 is not a multiple of {GPU_ALIGNMENT} bytes"):
        build(replace(plan, steps=steps), load("pocl").target("opencl"))


def untuned(folder: Path, target_name: str, board: str) -> ModelPlan:
    """The small network with default schedules."""
    target = load(board).target(target_name)
    graph = load_model(write_network(folder), {"x": (1, 3, 14, 14)})
    chosen = []
    for item in distinct_operators(graph):
        task = open_task(item.name, item.operator, load(board), target)
        result = TuningResult(task.name, None, None, task.flops, 0, (), 0, TimeBreakdown(), TimeBreakdown())
        chosen.append(TunedOperator(task, result, Winner(task.space.default(), None, None)))
    with Builder(target, workers=1) as builder:
        return plan_model(graph, chosen, builder, target)


@pytest.mark.slow
@pytest.mark.parametrize("board", ["jetson-nano", "jetson-orin-nano"])
def test_cubins_are_for_the_board_and_within_its_limits(
    board: str, key: sign.SigningKey, tmp_path: Path
) -> None:
    """NVRTC compiles them here, without a GPU; no CUDA device has run them."""
    pytest.importorskip("nvidia.cuda_nvrtc")
    gpu = load(board).target("gpu")
    assert gpu.gpu is not None
    contents = replace(
        gpu_contents(), models=(build(untuned(tmp_path, "gpu", board), gpu),), golden=golden(tmp_path)
    )
    bundle = opened(contents, key, tmp_path)
    (variant,) = bundle.manifest.variants
    assert isinstance(variant, CudaVariant)
    assert variant.compute_capability == gpu.gpu.compute_capability
    model = GpuModel.from_bytes(bundle.read_part("gpu/model.gpu"))
    assert model.module.language == "cuda"
    for kernel in model.module.kernels.values():
        assert isinstance(kernel.code, bytes)
        needs = usage(kernel.code)
        for launch in kernel.launches:
            threads = launch.threads[0] * launch.threads[1] * launch.threads[2]
            assert threads <= variant.threads_per_block <= gpu.gpu.max_threads_per_block
            assert threads * needs[launch.name].registers <= gpu.gpu.registers_per_block
            assert needs[launch.name].shared_bytes <= gpu.gpu.shared_memory_bytes


def golden(folder: Path) -> pack.GoldenData:
    """What the small network computes."""
    return golden_data(load_model(folder / "small.onnx", {"x": (1, 3, 14, 14)}), np.random.default_rng(0))
