"""What a bundle says about itself: the manifest, as typed and versioned data.

The manifest is the only thing that is signed; it names every other byte of the bundle by size and SHA-256.
Its bytes are canonical (sorted keys, no spaces), so that the same contents give the same signature.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from toolkit.errors import VerificationError

CPU_FORMAT, GPU_FORMAT = 1, 2
FORMATS = (CPU_FORMAT, GPU_FORMAT)
"""A bundle has the lowest format that can say what it holds: older runtimes take what they can run."""

DTYPE_BYTES = {"float32": 4, "float64": 8, "float16": 2, "int8": 1, "uint8": 1, "int32": 4, "int64": 8}

PART_PATH = re.compile(r"[a-z0-9][a-z0-9_.-]*(/[a-z0-9][a-z0-9_.-]*)*")


class TensorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A graph input or output as the application sees it: C order, no padding."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    layout: str = ""
    """Meaning of the axes in order, for example "NCHW"; empty where the axes have no fixed meaning."""

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.elements * DTYPE_BYTES[self.dtype]


class KernelProvenance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where one kernel comes from, so that a figure on a board can be traced back to its search."""

    symbol: str
    operator_key: str
    operator: str = ""
    """Readable name of the operator, for example "conv2d 1x55x55x16 -> 64 1x1"."""
    layers: tuple[str, ...] = ()
    """Names of the model's nodes that this kernel computes."""
    configuration: dict[str, Any] = {}
    tuned: bool
    """True: chosen from measurements; False: the default schedule."""
    seconds: float | None = None
    """Best measured seconds of one call; None when it was never measured."""
    default_seconds: float | None = None
    """Measured seconds of one call under the default schedule; None when it was never measured."""
    trials: int = 0
    flops: float = 0.0
    tool_version: str = ""


class Variant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model compiled for one target of a board; the manifest's `kind` says which of the three it is."""

    target: str
    target_key: str
    threads: int
    arena_bytes: int
    workspace_bytes: int
    parameters_bytes: int
    plan: str
    """Part path of the graph and memory plan (JSON)."""
    kernels: tuple[KernelProvenance, ...]

    @property
    def kind(self) -> str:
        """The kind of its target: "cpu", "opencl" or "cuda"."""
        return str(self.__struct_config__.tag)


class CpuVariant(Variant, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="cpu"):
    """A shared object with a C header."""

    triple: str
    cpu: str
    features: tuple[str, ...] = ()
    cores: tuple[int, ...]
    library: str
    """Part path of the shared object."""
    header: str
    """Part path of its C header."""

    @property
    def architecture(self) -> str:
        """What `uname -m` says where this variant runs, for example "aarch64"."""
        return self.triple.split("-", 1)[0]


class GpuVariant(Variant, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A GpuModel: kernels with their launches, parameters, steps."""

    device: str
    """A part of the name of the device, or of its platform; empty: the first GPU."""
    threads_per_block: int
    """The most that a launch asks for."""
    model: str
    """Part path of the GpuModel (device_runtime/gpu_model.py)."""


class OpenClVariant(
    GpuVariant, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="opencl"
):
    """Kernels as source; the board keeps what its driver makes of them."""


class CudaVariant(
    GpuVariant, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="cuda"
):
    """Kernels as cubins."""

    compute_capability: str
    """What the cubins are for, for example "sm_53"."""


class Golden(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the self-test feeds and expects: raw C-order bytes, in the order of the inputs and outputs."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    rtol: float
    """Largest allowed max |error| / max |expected| of an output."""


class Compatibility(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the bundle may be installed."""

    boards: tuple[str, ...]
    machines: tuple[str, ...]
    """What `uname -m` says; empty, without a CPU variant: any."""
    memory_bytes: int = 0
    """Least memory the model needs; 0: not stated."""


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of the bundle."""

    path: str
    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything about a bundle; see the module's docstring."""

    format: int
    name: str
    tool_version: str
    compatibility: Compatibility
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    variants: tuple[CpuVariant | OpenClVariant | CudaVariant, ...]
    """In the order in which the board tries them."""
    golden: Golden
    parts: tuple[Part, ...]
    """Sorted by path; their bytes follow the manifest in this order."""
    notes: dict[str, Any] = {}
    """Facts for readers (search settings, model hash); nothing acts on them."""


def format_of(variants: Iterable[Variant]) -> int:
    """The lowest format that has these variants."""
    return CPU_FORMAT if all(isinstance(variant, CpuVariant) for variant in variants) else GPU_FORMAT


def part_of(path: str, data: bytes) -> Part:
    """The manifest's line for a part called `path` with these bytes."""
    return Part(path=path, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def encode(manifest: Manifest) -> bytes:
    """Canonical bytes of a manifest; raises VerificationError when it contradicts itself."""
    check(manifest)
    return msgspec.json.encode(manifest, order="sorted")


def decode(data: bytes, where: str = "the manifest") -> Manifest:
    """The manifest in `data`; raises VerificationError unless well-formed, canonical and of our version."""
    try:
        version = msgspec.json.decode(data, type=_Version).format
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise VerificationError(
            f"{where} cannot be read: {error}; the file is damaged or no bundle; pack it again"
        ) from error
    if version not in FORMATS:
        raise VerificationError(
            f"{where} has format {version}, expected {' or '.join(map(str, FORMATS))}; "
            "pack the model again with this version of the tool, or use the version that packed it"
        )
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise VerificationError(f"{where} is malformed: {error}; pack the bundle again") from error
    check(manifest, where)
    if msgspec.json.encode(manifest, order="sorted") != data:
        raise VerificationError(f"{where} is not in canonical form; pack the bundle again")
    return manifest


def bundle_id(manifest_bytes: bytes) -> str:
    """The name of a bundle's slot on a board: SHA-256 of its manifest, first 32 hexadecimal digits."""
    return hashlib.sha256(manifest_bytes).hexdigest()[:32]


class _Version(msgspec.Struct):
    format: int


def check(manifest: Manifest, where: str = "the manifest") -> None:
    """Raise VerificationError when the manifest names parts that are absent, unsafe or out of order."""
    paths = [part.path for part in manifest.parts]
    if paths != sorted(set(paths)):
        raise VerificationError(f"{where} lists its parts out of order or twice; pack the bundle again")
    for path in paths:
        if not PART_PATH.fullmatch(path):
            raise VerificationError(
                f"{where} names the part {path!r}; expected lower-case names with / between them"
            )
    sizes = {part.path: part.size_bytes for part in manifest.parts}
    named = [path for variant in manifest.variants for path in parts_of(variant)]
    for path in [*named, *manifest.golden.inputs, *manifest.golden.outputs]:
        if path not in sizes:
            raise VerificationError(f"{where} refers to the part {path!r}, which it does not list")
    if not manifest.variants:
        raise VerificationError(f"{where} has no variant; expected at least one compiled target")
    if manifest.format != format_of(manifest.variants):
        right = format_of(manifest.variants)
        raise VerificationError(f"{where} has format {manifest.format}, but its variants are of {right}")
    golden = manifest.golden
    if not 0.0 < golden.rtol < 1.0:
        raise VerificationError(f"{where}: the self-test's rtol is {golden.rtol}; expected between 0 and 1")
    for specs, files in ((manifest.inputs, golden.inputs), (manifest.outputs, golden.outputs)):
        found = [sizes[path] for path in files]
        expected = [spec.size_bytes for spec in specs]
        if found != expected:
            raise VerificationError(
                f"{where}: golden data of {found} bytes for tensors of {expected} bytes; pack it again"
            )


def parts_of(variant: CpuVariant | GpuVariant) -> tuple[str, ...]:
    """Part paths of a variant."""
    if isinstance(variant, CpuVariant):
        return (variant.library, variant.header, variant.plan)
    return (variant.model, variant.plan)
