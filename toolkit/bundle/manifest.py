"""What a bundle says about itself: the manifest, as typed and versioned data.

The manifest is the only thing that is signed; it names every other byte of the bundle by size and SHA-256.
Its bytes are canonical (sorted keys, no spaces), so that the same contents give the same signature.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec

from device_runtime.protocol import DTYPE_BYTES, MAX_BUFFER_BYTES
from toolkit.errors import VerificationError

FORMAT = 4
MAX_COUNTER = (1 << 53) - 1  # what every JSON reader keeps exactly
MAX_PARTS = 4096
MAX_TEXT = 1000

PART_PATH = re.compile(r"[a-z0-9][a-z0-9_.+-]{0,99}(/[a-z0-9][a-z0-9_.+-]{0,99}){0,3}")
RESERVED = ("manifest.json", "manifest.json.sig")
"""What a slot on a board has beside its parts."""

Size = Annotated[int, msgspec.Meta(ge=0, le=MAX_BUFFER_BYTES)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]


class TensorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A graph input or output as the application sees it: C order, no padding."""

    name: str
    shape: Annotated[tuple[Size, ...], msgspec.Meta(max_length=64)]
    dtype: str = "float32"
    layout: str = ""
    """Meaning of the axes in order, for example "NCHW"; empty where the axes have no fixed meaning."""
    count: str = ""
    """The output, an int64 scalar, that says how many slices along `dimension` count; empty: all of them."""
    dimension: Annotated[int, msgspec.Meta(ge=0, le=63)] = 0

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.elements * DTYPE_BYTES[self.dtype]


def counters(specs: Sequence[TensorSpec]) -> dict[str, int]:
    """Number of each tensor by name that says how many slices of another one count.

    Raises:
        ValueError: a tensor is counted by what is no int64 scalar among them, or along no dimension of it.
    """
    scalars = {
        spec.name: number
        for number, spec in enumerate(specs)
        if (spec.dtype, spec.shape, spec.count) == ("int64", (), "")
    }
    counted = [spec for spec in specs if spec.count]
    for spec in counted:
        if spec.count not in scalars or spec.dimension >= len(spec.shape):
            raise ValueError(f"Expected an int64 scalar and a dimension that count {spec.name[:80]!r}")
    return {spec.count: scalars[spec.count] for spec in counted}


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
    threads: Count
    arena_bytes: Size
    workspace_bytes: Size
    parameters_bytes: Size
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
    threads_per_block: Count
    """The most that a launch asks for."""
    model: str
    """Part path of the GpuModel (device_runtime/wire/gpu_model_file.py)."""


class OpenClVariant(
    GpuVariant, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="opencl"
):
    """Kernels as source; the board keeps what its driver makes of them."""


class CudaVariant(
    GpuVariant, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="cuda"
):
    """Kernels as cubins."""

    compute_capability: Annotated[str, msgspec.Meta(pattern="^sm_[0-9]{2,3}$")]
    """What the cubins are for, for example "sm_53"."""


AnyVariant = CpuVariant | OpenClVariant | CudaVariant
GPU_VARIANTS: Final[dict[str, type[OpenClVariant] | type[CudaVariant]]] = {
    "opencl": OpenClVariant,
    "cuda": CudaVariant,
}
"""By kind of target. Fields that one adds to GpuVariant's are named as in the target's GpuLimits."""


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
    size_bytes: Size
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything about a bundle; see the module's docstring."""

    format: int
    name: str
    counter: Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNTER)]
    """Of two bundles of one name the later has the higher counter; a board refuses to go back by itself."""
    tool_version: str
    compatibility: Compatibility
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    variants: tuple[AnyVariant, ...]
    """In the order in which the board tries them."""
    golden: Golden
    parts: tuple[Part, ...]
    """Sorted by path; their bytes follow the manifest in this order."""
    notes: dict[str, Any] = {}
    """Facts for readers (search settings, model hash); nothing acts on them."""


def part_of(path: str, data: bytes) -> Part:
    """The manifest's line for a part called `path` with these bytes."""
    return Part(path=path, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def encode(manifest: Manifest) -> bytes:
    """Canonical bytes of a manifest; raises VerificationError when `decode` would not take them."""
    data = msgspec.json.encode(manifest, order="sorted")
    decode(data)
    return data


def decode(data: bytes, where: str = "the manifest") -> Manifest:
    """The manifest in `data`; raises VerificationError unless well-formed, canonical and of our version."""
    try:
        version = msgspec.json.decode(data, type=_Version).format
        if version != FORMAT:
            raise VerificationError(
                f"{where} has format {version}, expected {FORMAT}: tune the model again with this version of "
                "the tool (recorded trials are not repeated), or use the version that packed it"
            )
        manifest = msgspec.json.decode(data, type=Manifest)
        canonical = msgspec.json.encode(manifest, order="sorted") == data
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise VerificationError(
            f"{where} is malformed: {error}; the file is damaged or no bundle: pack it again"
        ) from error
    check(manifest, where)
    if not canonical:
        raise VerificationError(f"{where} is not in canonical form; pack the bundle again")
    return manifest


def bundle_id(manifest_bytes: bytes) -> str:
    """The name of a bundle's slot on a board: SHA-256 of its manifest, first 32 hexadecimal digits."""
    return hashlib.sha256(manifest_bytes).hexdigest()[:32]


class _Version(msgspec.Struct):
    format: int


def check(manifest: Manifest, where: str = "the manifest") -> None:
    """Raise VerificationError when the manifest names parts that are absent, unsafe or out of order."""
    sizes = _part_sizes(manifest, where)
    named = [path for variant in manifest.variants for path in parts_of(variant)]
    for path in [*named, *manifest.golden.inputs, *manifest.golden.outputs]:
        if path not in sizes:
            raise VerificationError(f"{where} refers to the part {path!r}, which it does not list")
    if not manifest.variants:
        raise VerificationError(f"{where} has no variant; expected at least one compiled target")
    shown = [manifest.name, *(spec.name for spec in (*manifest.inputs, *manifest.outputs))]
    shown += [*manifest.compatibility.boards, *manifest.compatibility.machines]
    shown += [variant.target for variant in manifest.variants]
    for text in shown:
        if len(text) > MAX_TEXT or not text.isprintable():
            raise VerificationError(
                f"{where} has the name {text[:80]!r}; expected at most {MAX_TEXT} printable characters"
            )
    try:
        counters(manifest.outputs)
    except ValueError as error:
        raise VerificationError(f"{where}: {error}; pack the bundle again") from error
    golden = manifest.golden
    if not 0.0 < golden.rtol < 1.0:
        raise VerificationError(f"{where}: the self-test's rtol is {golden.rtol}; expected between 0 and 1")
    for specs, files in ((manifest.inputs, golden.inputs), (manifest.outputs, golden.outputs)):
        found = [sizes[path] for path in files]
        expected = [_tensor_bytes(spec, where) for spec in specs]
        if found != expected:
            raise VerificationError(
                f"{where}: golden data of {found} bytes for tensors of {expected} bytes; pack it again"
            )


def _part_sizes(manifest: Manifest, where: str) -> dict[str, int]:
    """Bytes of each part, by path."""
    paths = [part.path for part in manifest.parts]
    if paths != sorted(set(paths)) or len(paths) > MAX_PARTS:
        raise VerificationError(
            f"{where} lists its parts out of order or twice, or more than {MAX_PARTS}; pack the bundle again"
        )
    folders = {path[:at] for path in paths for at, character in enumerate(path) if character == "/"}
    for path in paths:
        if not PART_PATH.fullmatch(path) or path in RESERVED or path in folders:
            raise VerificationError(
                f"{where} names the part {path[:80]!r}; expected lower-case names with / between them, and "
                "no file that is a folder, too"
            )
    return {part.path: part.size_bytes for part in manifest.parts}


def _tensor_bytes(spec: TensorSpec, where: str) -> int:
    if spec.dtype not in DTYPE_BYTES or spec.size_bytes > MAX_BUFFER_BYTES:
        raise VerificationError(
            f"{where}: tensor {spec.name!r} is {spec.dtype[:40]!r} {list(spec.shape)[:8]}; expected one of "
            f"{', '.join(DTYPE_BYTES)} with at most {MAX_BUFFER_BYTES} bytes"
        )
    return spec.size_bytes


def parts_of(variant: CpuVariant | GpuVariant) -> tuple[str, ...]:
    """Part paths of a variant."""
    if isinstance(variant, CpuVariant):
        return (variant.library, variant.header, variant.plan)
    return (variant.model, variant.plan)
