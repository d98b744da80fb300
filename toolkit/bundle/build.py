"""A model plan as the code that a board loads: a shared object for a CPU, a GpuModel for a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from boards.target import Target
from toolkit.bundle import gpu_library, library
from toolkit.bundle.gpu_model import gpu_model
from toolkit.bundle.manifest import GPU_VARIANTS, AnyVariant, CpuVariant, GpuVariant
from toolkit.bundle.model_plan import ModelPlan, check, document

MODULE: Final = Path(__file__).with_name("model_module.py")
BESIDE: Final = {"tfb_model.py": MODULE, "tfb_model.pc": Path(__file__).with_name("model.pc")}
"""What stands beside every library: for programs in Python, and for pkg-config."""


class BuiltModel(msgspec.Struct, frozen=True):
    """A model compiled for one target; the same object is measured and packed.

    `code` is what the board loads; `parts` are the variant's files by path, one of which holds `code`.
    """

    target: Target
    plan: ModelPlan
    code: bytes
    variant: AnyVariant
    parts: dict[str, bytes]


def build(model_plan: ModelPlan, target: Target, host: Target | None = None) -> BuiltModel:
    """Link the kernels of a plan; raises InputError (see `check`), CrossError.

    `host`: the CPU that programs beside a GPU run on; without it, they get no library for the GPU.
    """
    check(model_plan)
    described: dict[str, Any] = {
        "target": target.name,
        "target_key": target.key,
        "threads": model_plan.threads,
        "arena_bytes": model_plan.arena_bytes,
        "workspace_bytes": model_plan.workspace_bytes,
        "parameters_bytes": len(model_plan.parameters),
        "plan": f"{target.name}/plan.json",
        "kernels": tuple(kernel.provenance for kernel in model_plan.kernels),
    }
    documents = {f"{target.name}/plan.json": document(model_plan)}
    if target.gpu is None:
        built = library.build(model_plan, target)
        so, header = f"{target.name}/model.so", f"{target.name}/model.h"
        cpu = CpuVariant(
            **described,
            triple=target.triple,
            cpu=target.cpu,
            features=target.features,
            cores=model_plan.cores,
            library=so,
            header=header,
        )
        return BuiltModel(
            target, model_plan, built.shared_object, cpu, _for_programs(built, target) | documents
        )
    model = gpu_model(model_plan)
    code, path = model.to_bytes(), f"{target.name}/model.gpu"
    described |= {"device": target.device, "threads_per_block": model.threads_per_block, "model": path}
    variant = GPU_VARIANTS[target.kind]
    own = set(variant.__struct_fields__) - set(GpuVariant.__struct_fields__)
    described |= {name: getattr(target.gpu, name) for name in own}
    parts = {path: code, **documents}
    if host is not None:
        parts |= _for_programs(gpu_library.build(model_plan, model, target, host), target)
    return BuiltModel(target, model_plan, code, variant(**described), parts)


def _for_programs(built: library.ModelLibrary, target: Target) -> dict[str, bytes]:
    """The files that programs on the board use: in C and C++, in Python."""
    files = {"model.so": built.shared_object, "model.h": built.header}
    files |= {name: path.read_bytes() for name, path in BESIDE.items()}
    return {f"{target.name}/{name}": content for name, content in files.items()}
